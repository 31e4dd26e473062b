"""Connecting to an endpoint."""

import asyncio

from nnrp_sched.errors import PeerUnreachable
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.endpoint import Endpoint
from nnrp_sched.transport.socket_carrier import SocketCarrier


async def connect_carrier(endpoint: Endpoint) -> Carrier:
    """A carrier to a listening peer.

    Waits as long as the system does; bound it with a cancel scope. Raises `PeerUnreachable` that
    names the endpoint.
    """
    loop = asyncio.get_running_loop()
    try:
        if endpoint.carrier == "unix":
            _, carrier = await loop.create_unix_connection(
                lambda: SocketCarrier("unix"), endpoint.path
            )
        else:
            _, carrier = await loop.create_connection(
                lambda: SocketCarrier("tcp"), endpoint.host, endpoint.port
            )
    except OSError as error:
        raise PeerUnreachable(
            f"nobody answers at {endpoint}: {error}; start a server there (nnrp-sched run), or name"
            " the endpoint of one that runs"
        ) from error
    return carrier
