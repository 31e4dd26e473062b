"""The serving role: NNRP connections in, calls on an `engine.port.Engine` out."""

from nnrp_sched.server.limits import ServerLimits
from nnrp_sched.server.server import Server, serve

__all__ = ["Server", "ServerLimits", "serve"]
