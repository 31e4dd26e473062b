"""Connecting to an endpoint of any kind."""

import asyncio
from typing import Final

from nnrp_sched.errors import ConnectionLost, PeerUnreachable, SecurityError
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.endpoint import Endpoint
from nnrp_sched.transport.layer import Layer
from nnrp_sched.transport.layered_carrier import LayeredCarrier
from nnrp_sched.transport.security import ClientSecurity, client_context
from nnrp_sched.transport.socket_carrier import SocketCarrier
from nnrp_sched.transport.tls_layer import TlsLayer

_DEFAULT_SECURITY: Final = ClientSecurity()
_MAX_PACKET_BYTES: Final = 64 * 1024 * 1024


async def connect_carrier(
    endpoint: Endpoint,
    security: ClientSecurity = _DEFAULT_SECURITY,
    *,
    max_packet_bytes: int = _MAX_PACKET_BYTES,
) -> Carrier:
    """A carrier to a listening peer, its handshakes done and its certificate verified.

    Waits as long as the system and the peer do; bound it with a cancel scope. `max_packet_bytes`
    bounds a message of a WebSocket. Raises `PeerUnreachable` that names the endpoint, and
    `SecurityError` for a certificate of our own that cannot be used.
    """
    if endpoint.carrier == "quic":
        return await _connect_quic(endpoint, security)
    layers = _layers(endpoint, security, max_packet_bytes)
    loop = asyncio.get_running_loop()
    kind = endpoint.carrier

    def make() -> SocketCarrier:
        return LayeredCarrier(kind, layers) if layers else SocketCarrier(kind)

    try:
        if kind == "unix":
            _, carrier = await loop.create_unix_connection(make, endpoint.path)
        else:
            _, carrier = await loop.create_connection(make, endpoint.host, endpoint.port)
    except OSError as error:
        raise absent(endpoint, error) from error
    if isinstance(carrier, LayeredCarrier):
        await _open(carrier, endpoint)
    return carrier


async def _open(carrier: LayeredCarrier, endpoint: Endpoint) -> None:
    try:
        await carrier.open()
    except ConnectionLost as error:
        carrier.transport.abort()
        raise PeerUnreachable(f"no connection to {endpoint}: {error}") from error
    except BaseException:
        carrier.transport.abort()
        raise


def _layers(endpoint: Endpoint, security: ClientSecurity, max_packet_bytes: int) -> list[Layer]:
    layers: list[Layer] = []
    websocket = endpoint.carrier == "websocket"
    if endpoint.encrypted:
        context = client_context(security, websocket=websocket)
        name = security.server_name or endpoint.host
        layers.append(TlsLayer(context, server=False, server_name=name))
    if websocket:
        from nnrp_sched.transport.websocket_layer import ClientWebSocketLayer

        layers.append(ClientWebSocketLayer(str(endpoint), max_message_bytes=max_packet_bytes))
    return layers


async def _connect_quic(endpoint: Endpoint, security: ClientSecurity) -> Carrier:
    try:
        from nnrp_sched.transport.quic_client import connect_quic
    except ImportError as error:
        raise SecurityError(f"{endpoint} needs QUIC: pip install 'nnrp-sched[quic]'") from error
    return await connect_quic(endpoint, security)


def absent(endpoint: Endpoint, error: OSError) -> PeerUnreachable:
    """Nobody is there."""
    return PeerUnreachable(
        f"nobody answers at {endpoint}: {error}; start a server there (nnrp-sched run), or name the"
        " endpoint of one that runs"
    )
