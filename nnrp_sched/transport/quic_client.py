"""Connecting over QUIC."""

import asyncio
import ssl

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from nnrp_sched.errors import ConnectionLost, PeerUnreachable, SecurityError
from nnrp_sched.transport.endpoint import Endpoint
from nnrp_sched.transport.quic_carrier import IDLE_SECONDS, QuicCarrier
from nnrp_sched.transport.quic_window import UNLIMITED, WINDOW_BYTES
from nnrp_sched.transport.security import ClientSecurity, client_context


class _ClientCarrier(QuicCarrier):
    """A client's end, which has a socket of its own."""

    async def aclose(self) -> None:
        """Close, and the socket too."""
        await super().aclose()
        self._close_socket()

    def abort(self) -> None:
        """Close at once, and the socket too."""
        super().abort()
        self._close_socket()

    def _close_socket(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()


async def connect_quic(endpoint: Endpoint, security: ClientSecurity) -> QuicCarrier:
    """A carrier to a QUIC server whose certificate is verified.

    Waits for the handshake; bound it with a cancel scope. Raises `PeerUnreachable` that names the
    endpoint, and `SecurityError` for files that cannot be used.
    """
    loop = asyncio.get_running_loop()
    connection = QuicConnection(configuration=_configuration(endpoint, security))
    try:
        # Connected to the one peer, the socket hears when nobody is there.
        transport, carrier = await loop.create_datagram_endpoint(
            lambda: _ClientCarrier(connection), remote_addr=(endpoint.host, endpoint.port)
        )
    except OSError as error:
        raise PeerUnreachable(f"nobody answers at {endpoint}: {error}") from error
    try:
        carrier.connect(transport.get_extra_info("peername"))
        await carrier.open()
    except ConnectionLost as error:
        carrier.abort()
        raise PeerUnreachable(f"no connection to {endpoint}: {error}") from error
    except BaseException:
        carrier.abort()
        raise
    carrier.open_stream()
    return carrier


def _configuration(endpoint: Endpoint, security: ClientSecurity) -> QuicConfiguration:
    client_context(security)  # Says what is wrong with a file, before aioquic stumbles over it.
    if security.certificate is not None:
        raise SecurityError("client certificates do not work over QUIC: use a token, or nnrps://")
    configuration = QuicConfiguration(
        is_client=True,
        idle_timeout=IDLE_SECONDS,
        max_data=WINDOW_BYTES,
        max_stream_data=UNLIMITED,
        server_name=security.server_name or endpoint.host,
    )
    # No ALPN: a client of aioquic that offers one takes no server without it, as the SDK's is.
    if security.ca is not None:
        configuration.load_verify_locations(cafile=str(security.ca))
    else:
        # The system's authorities, as for the other carriers, and not those of certifi.
        paths = ssl.get_default_verify_paths()
        configuration.load_verify_locations(cafile=paths.cafile, capath=paths.capath)
    return configuration
