"""Carriers of bytes behind one Protocol: memory, TCP, TLS, unix, WebSocket, QUIC (design, 3)."""

from nnrp_sched.transport.background import background_tasks
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.connect import connect_carrier
from nnrp_sched.transport.endpoint import Endpoint, parse_endpoint
from nnrp_sched.transport.listen import Listener, ListenLimits, check_endpoint, listen
from nnrp_sched.transport.memory import memory_pair
from nnrp_sched.transport.outbox import Outbox
from nnrp_sched.transport.security import ClientSecurity, ServerSecurity

__all__ = [
    "Carrier",
    "ClientSecurity",
    "Endpoint",
    "ListenLimits",
    "Listener",
    "Outbox",
    "ServerSecurity",
    "background_tasks",
    "check_endpoint",
    "connect_carrier",
    "listen",
    "memory_pair",
    "parse_endpoint",
]
