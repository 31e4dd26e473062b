"""Listening with QUIC."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from aioquic._buffer import Buffer
from aioquic.asyncio.protocol import QuicStreamHandler
from aioquic.asyncio.server import QuicServer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import NetworkAddress, QuicConnection
from aioquic.quic.packet import pull_quic_header

from nnrp_sched.errors import SecurityError
from nnrp_sched.transport.bind import bind_addresses
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.endpoint import Endpoint
from nnrp_sched.transport.quic_carrier import IDLE_SECONDS, QuicCarrier
from nnrp_sched.transport.quic_window import UNLIMITED, WINDOW_BYTES
from nnrp_sched.transport.reception import Reception
from nnrp_sched.transport.security import ServerSecurity, server_context


class _Server(QuicServer):
    """aioquic's server, which takes new connections only while there is room for them."""

    def __init__(self, configuration: QuicConfiguration, reception: Reception) -> None:
        # Retry: who claims an address has to be heard from there before it costs us anything.
        # aioquic declares `create_protocol` as a callable of unknown form.
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            configuration=configuration, create_protocol=partial(_arrive, reception), retry=True
        )
        self._reception = reception

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """Leave out what would begin a connection that cannot be taken; its client tries again."""
        if (self._reception.closed or self._reception.full) and not self._is_known(data):
            return
        super().datagram_received(data, addr)

    def _is_known(self, data: bytes | str) -> bool:
        assert isinstance(data, bytes)
        try:
            header = pull_quic_header(
                Buffer(data=data), host_cid_length=self._configuration.connection_id_length
            )
        except ValueError:
            return False
        return header.destination_cid in self._protocols


def _arrive(
    reception: Reception,
    connection: QuicConnection,
    stream_handler: QuicStreamHandler | None = None,
) -> QuicCarrier:
    carrier = QuicCarrier(connection, stream_handler)
    # Once aioquic has set it up; until then there is nothing to abort either.
    asyncio.get_running_loop().call_soon(reception.take, carrier)
    return carrier


class QuicListener:
    """Datagram sockets that take QUIC connections. A `Listener`."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        endpoint: Endpoint,
        configuration: QuicConfiguration,
        reception: Reception,
    ) -> None:
        self._sockets = sockets
        self._endpoint = endpoint
        self._configuration = configuration
        self._reception = reception
        self._serving = False

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens, with the port the system chose."""
        return self._endpoint

    async def serve(self, handler: Callable[[Carrier], Awaitable[None]]) -> None:
        """Run `handler` for each connection whose handshake is done."""
        self._serving = True
        loop = asyncio.get_running_loop()
        servers: list[_Server] = []
        try:
            for each in self._sockets:
                _, server = await loop.create_datagram_endpoint(
                    lambda: _Server(self._configuration, self._reception), sock=each
                )
                servers.append(server)
            await self._reception.run(handler)
        finally:
            # The sockets carry the running connections too, so they go last.
            for server in servers:
                server.close()
            self._close_sockets()

    async def aclose(self) -> None:
        """Take nobody any more; running handlers go on."""
        self._reception.close()
        if not self._serving:
            self._close_sockets()

    def _close_sockets(self) -> None:
        for each in self._sockets:
            each.close()


async def listen_quic(
    endpoint: Endpoint,
    security: ServerSecurity,
    *,
    handshake_seconds: float,
    max_handshakes: int,
) -> QuicListener:
    """Bind a QUIC endpoint. Raises as `listen` does."""
    configuration = _configuration(endpoint, security)
    sockets = await bind_addresses(endpoint, security, socket.SOCK_DGRAM)
    port = sockets[0].getsockname()[1]
    bound = Endpoint(endpoint.scheme, endpoint.host, port)
    reception = Reception(bound, seconds=handshake_seconds, most=max_handshakes)
    return QuicListener(sockets, bound, configuration, reception)


def _configuration(endpoint: Endpoint, security: ServerSecurity) -> QuicConfiguration:
    server_context(security)  # Says what is wrong with a file, before aioquic stumbles over it.
    if security.client_ca is not None and security.token is None:
        raise SecurityError(
            f"{endpoint}: client certificates do not work over QUIC; give a token (--token-file)"
        )
    configuration = QuicConfiguration(
        is_client=False, idle_timeout=IDLE_SECONDS, max_data=WINDOW_BYTES, max_stream_data=UNLIMITED
    )
    assert security.certificate is not None
    untyped: Any = configuration  # aioquic declares paths of an unknown kind.
    untyped.load_cert_chain(security.certificate, security.key)
    if configuration.private_key is None:
        raise SecurityError(f"{endpoint}: QUIC needs the private key as a file (--tls-key)")
    return configuration
