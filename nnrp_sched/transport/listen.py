"""Listening on an endpoint of any kind."""

import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct

from nnrp_sched.errors import SecurityError
from nnrp_sched.transport.bind import bind_addresses, bind_unix, check_exposure
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.endpoint import Endpoint
from nnrp_sched.transport.security import ServerSecurity, server_context
from nnrp_sched.transport.socket_listener import Kind, SocketListener


class Listener(Protocol):
    """An endpoint that takes connections. Made by `listen`."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens, with the port the system chose."""
        ...

    async def serve(self, handler: Callable[[Carrier], Awaitable[None]]) -> None:
        """Run `handler` in a task of its own for each connection, until closed or cancelled.

        A connection whose handshake (TLS, WebSocket, QUIC) does not come to its end in time never
        gets to `handler` and delays no other. The carrier is closed when its handler returns or
        raises; an exception of a handler ends all of them and leaves here. After `aclose` this
        returns once the running handlers have.
        """
        ...

    async def aclose(self) -> None:
        """Stop listening and remove our unix socket; running handlers go on."""
        ...


class ListenLimits(Struct, frozen=True):
    """Bounds of one listener."""

    handshake_seconds: float = 10.0
    """How long TLS and WebSocket together, or QUIC, may take."""
    max_handshakes: int = 1024
    """Handshakes at once; who comes when there are as many is turned away."""
    max_packet_bytes: int = 64 * 1024 * 1024
    """Largest message of a WebSocket."""


_DEFAULT_LIMITS = ListenLimits()
_DEFAULT_SECURITY = ServerSecurity()


def check_endpoint(endpoint: Endpoint, security: ServerSecurity) -> None:
    """Find out, without opening it, whether an endpoint may be opened.

    Looks its host up, which may take a while. Raises `SecurityError`, and `StartError` for a host
    that is unknown.
    """
    security.token_bytes  # noqa: B018 - raises for one that cannot be used
    if endpoint.encrypted:
        server_context(security)
    check_exposure(endpoint, security)


async def listen(
    endpoint: Endpoint,
    security: ServerSecurity = _DEFAULT_SECURITY,
    limits: ListenLimits = _DEFAULT_LIMITS,
) -> Listener:
    """Bind an endpoint; connections wait until `Listener.serve` takes them.

    Raises `StartError` that names the endpoint when it cannot be bound: an address in use, one that
    is not ours, a unix path that is no socket or whose socket has a live server. Raises
    `SecurityError` when it must not be opened: without a certificate that it needs, or to other
    machines without a client certificate or a token.
    """
    security.token_bytes  # noqa: B018 - raises for one that cannot be used
    if endpoint.carrier == "quic":
        return await _listen_quic(endpoint, security, limits)
    websocket = endpoint.carrier == "websocket"
    context = server_context(security, websocket=websocket) if endpoint.encrypted else None
    kind = Kind(
        carrier=endpoint.carrier,
        context=context,
        path=endpoint.path if websocket else None,
        token=security.token_bytes,
        users=security.users if endpoint.carrier == "unix" else None,
        handshake_seconds=limits.handshake_seconds,
        max_handshakes=limits.max_handshakes,
        max_message_bytes=limits.max_packet_bytes,
    )
    if endpoint.carrier == "unix":
        raw, file = bind_unix(endpoint)
        return SocketListener([raw], endpoint, kind, file)
    sockets = await bind_addresses(endpoint, security, socket.SOCK_STREAM)
    return SocketListener(sockets, with_port(endpoint, sockets), kind)


async def _listen_quic(
    endpoint: Endpoint, security: ServerSecurity, limits: ListenLimits
) -> Listener:
    try:
        from nnrp_sched.transport.quic_listener import listen_quic
    except ImportError as error:
        raise SecurityError(f"{endpoint} needs QUIC: pip install 'nnrp-sched[quic]'") from error
    return await listen_quic(
        endpoint,
        security,
        handshake_seconds=limits.handshake_seconds,
        max_handshakes=limits.max_handshakes,
    )


def with_port(endpoint: Endpoint, sockets: list[socket.socket]) -> Endpoint:
    """The endpoint with the port that its sockets got."""
    port = sockets[0].getsockname()[1]
    return Endpoint(endpoint.scheme, endpoint.host, port, endpoint.path)
