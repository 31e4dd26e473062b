"""Which control capabilities a server offers: those that work, and no others."""

from typing import Final

from nnrp_sched.engine.records import EngineDescription
from nnrp_sched.server.priority import takes_priorities
from nnrp_sched.wire import CapabilityToken

_ALWAYS: Final = frozenset(CapabilityToken) - {CapabilityToken.PRIORITY_UPDATE}


def offered(description: EngineDescription) -> frozenset[str]:
    """The capabilities that sessions may negotiate over an engine.

    Priorities mean nothing to an engine that orders its queue by arrival.
    """
    if takes_priorities(description):
        return _ALWAYS | {CapabilityToken.PRIORITY_UPDATE}
    return _ALWAYS
