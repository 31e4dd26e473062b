"""Carriers of bytes behind one Protocol: memory, TCP, unix sockets (design, section 3)."""

from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.connect import connect_carrier
from nnrp_sched.transport.endpoint import Endpoint, parse_endpoint
from nnrp_sched.transport.listen import Listener, listen
from nnrp_sched.transport.memory import memory_pair

__all__ = [
    "Carrier",
    "Endpoint",
    "Listener",
    "connect_carrier",
    "listen",
    "memory_pair",
    "parse_endpoint",
]
