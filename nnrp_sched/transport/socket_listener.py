"""A listener on stream sockets: TCP and unix, with TLS and WebSocket on them."""

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from nnrp_sched.transport.bind import BACKLOG, socket_file
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.endpoint import CarrierKind, Endpoint
from nnrp_sched.transport.layer import Layer
from nnrp_sched.transport.layered_carrier import LayeredCarrier
from nnrp_sched.transport.reception import Reception
from nnrp_sched.transport.socket_carrier import SocketCarrier
from nnrp_sched.transport.tls_layer import TlsLayer

_LOGGER = logging.getLogger(__name__)
_CREDENTIALS = struct.Struct("iII")
"""`struct ucred` of Linux: process, user, group."""


class Kind(Struct, frozen=True):
    """What the connections of one listener are made of."""

    carrier: CarrierKind
    context: ssl.SSLContext | None
    """Of an encrypted listener."""
    path: str | None
    """Of a WebSocket listener."""
    token: bytes | None
    users: frozenset[int] | None
    """Who may connect to a unix socket."""
    handshake_seconds: float
    max_handshakes: int
    max_message_bytes: int

    def make(self, connected: Callable[[SocketCarrier], None]) -> SocketCarrier:
        """The carrier of a new connection."""
        layers: list[Layer] = []
        if self.context is not None:
            layers.append(TlsLayer(self.context, server=True))
        if self.path is not None:
            from nnrp_sched.transport.websocket_layer import ServerWebSocketLayer

            layers.append(
                ServerWebSocketLayer(
                    self.path, max_message_bytes=self.max_message_bytes, token=self.token
                )
            )
        if not layers:
            return SocketCarrier(self.carrier, connected)
        return LayeredCarrier(self.carrier, layers, connected)


class SocketListener:
    """Stream sockets that take connections. A `Listener`."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        endpoint: Endpoint,
        kind: Kind,
        file: tuple[int, int] | None = None,
    ) -> None:
        """`file` is device and inode of our unix socket."""
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._endpoint = endpoint
        self._kind = kind
        self._file = file
        self._reception = Reception(
            endpoint, seconds=kind.handshake_seconds, most=kind.max_handshakes
        )

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens, with the port the system chose."""
        return self._endpoint

    async def serve(self, handler: Callable[[Carrier], Awaitable[None]]) -> None:
        """Run `handler` for each connection whose handshakes are done."""
        loop = asyncio.get_running_loop()
        try:
            for each in self._sockets:
                if self._reception.closed:
                    break
                server = await loop.create_server(
                    lambda: self._kind.make(self._take),
                    sock=each,
                    backlog=BACKLOG,
                    start_serving=False,
                )
                self._servers.append(server)  # Known to `aclose` before it takes anybody.
                await server.start_serving()
            await self._reception.run(handler)
        finally:
            self._stop()

    async def aclose(self) -> None:
        """Stop listening and remove our unix socket; running handlers go on."""
        self._reception.close()
        self._stop()
        if self._file is not None:
            if socket_file(self._endpoint.path) == self._file:
                os.unlink(self._endpoint.path)
            self._file = None

    def _take(self, carrier: SocketCarrier) -> None:
        if self._kind.users is None or self._knows(carrier, self._kind.users):
            self._reception.take(carrier)
        else:
            carrier.abort()

    def _knows(self, carrier: SocketCarrier, users: frozenset[int]) -> bool:
        """Whether the user at the other end of a unix socket may come in."""
        raw = carrier.transport.get_extra_info("socket")
        found = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process, user, _ = _CREDENTIALS.unpack(found)
        if user not in users:
            _LOGGER.warning(
                "%s: user %s (process %s) is turned away", self._endpoint, user, process
            )
        return user in users

    def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for each in self._sockets:
            each.close()
