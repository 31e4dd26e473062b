"""Carriers of bytes behind one Protocol: memory, TCP, unix sockets (design, section 3)."""

from nnrp_sched.transport.background import background_tasks
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.connect import connect_carrier
from nnrp_sched.transport.endpoint import Endpoint, parse_endpoint
from nnrp_sched.transport.listen import Listener, listen
from nnrp_sched.transport.memory import memory_pair
from nnrp_sched.transport.outbox import Outbox

__all__ = [
    "Carrier",
    "Endpoint",
    "Listener",
    "Outbox",
    "background_tasks",
    "connect_carrier",
    "listen",
    "memory_pair",
    "parse_endpoint",
]
