"""Connecting to an endpoint."""

import anyio

from nnrp_sched.errors import PeerUnreachable
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.endpoint import Endpoint
from nnrp_sched.transport.socket_carrier import SocketCarrier


async def connect_carrier(endpoint: Endpoint) -> Carrier:
    """A carrier to a listening peer.

    Waits as long as the system does; bound it with a cancel scope. Raises `PeerUnreachable` that
    names the endpoint.
    """
    try:
        if endpoint.carrier == "unix":
            return SocketCarrier(await anyio.connect_unix(endpoint.path), "unix")
        # anyio sets TCP_NODELAY on every stream it connects or accepts.
        return SocketCarrier(await anyio.connect_tcp(endpoint.host, endpoint.port), "tcp")
    except OSError as error:
        # anyio hides the reason of a failed TCP connect behind a general one.
        reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise PeerUnreachable(f"nobody answers at {endpoint}: {reason}") from error
