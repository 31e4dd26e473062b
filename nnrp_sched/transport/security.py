"""What protects a server's endpoints, and how a client proves itself and checks the server.

A connection is let in by its client certificate where one is asked for, by its user on a unix
socket, and everywhere else by the token, when the server has one. An endpoint that other machines
reach needs one of the two; encryption alone tells nobody who the peer is.
"""

import os
import ssl
from pathlib import Path
from typing import Final

from msgspec import Struct

from nnrp_sched.errors import SecurityError

TOKEN_LIMIT_BYTES: Final = 4096
"""Longest token; it stands in one packet at the beginning of a connection."""

_ALPN: Final = ["nnrp/1"]
"""Offered, and not missed when absent: no SDK sets it (wire digest 1.1)."""
_ALPN_WEBSOCKET: Final = ["http/1.1"]


class ServerSecurity(Struct, frozen=True):
    """What a server shows and asks for. Files are PEM."""

    certificate: Path | None = None
    """The server's certificate chain, for `nnrps`, `wss` and `quic`."""
    key: Path | None = None
    """Its private key; None when the file of the certificate holds it too."""
    client_ca: Path | None = None
    """Who signs client certificates: `nnrps` and `wss` then take nobody without one."""
    token: str | None = None
    """What a client says in its CLIENT_HELLO, or as `Authorization: Bearer` of a WebSocket."""
    unix_users: frozenset[int] | None = None
    """User ids let in on unix sockets; None for our own and root."""

    @property
    def users(self) -> frozenset[int]:
        """The user ids let in on unix sockets."""
        return frozenset({os.geteuid(), 0}) if self.unix_users is None else self.unix_users

    @property
    def token_bytes(self) -> bytes | None:
        """The token as it goes over the wire. Raises `SecurityError` for one that cannot."""
        return _token_bytes(self.token)


class ClientSecurity(Struct, frozen=True):
    """How a client checks a server and proves itself. Files are PEM.

    The server's certificate is always verified. One that no public authority signed is trusted by
    giving it, or its authority, as `ca`.
    """

    ca: Path | None = None
    """Who may sign the server's certificate; None for the system's authorities."""
    certificate: Path | None = None
    """The client's own certificate chain, for a server that asks for one."""
    key: Path | None = None
    server_name: str | None = None
    """The name in the server's certificate, where it is not the endpoint's host."""
    token: str | None = None

    @property
    def token_bytes(self) -> bytes | None:
        """The token as it goes over the wire. Raises `SecurityError` for one that cannot."""
        return _token_bytes(self.token)


def server_context(security: ServerSecurity, *, websocket: bool = False) -> ssl.SSLContext:
    """The TLS of a listener. Raises `SecurityError` that names the file in question."""
    if security.certificate is None:
        raise SecurityError(
            "an encrypted endpoint needs the server's certificate: give --tls-certificate and"
            " --tls-key"
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load_own(context, security.certificate, security.key)
    if security.client_ca is not None:
        _load_authorities(context, security.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(_ALPN_WEBSOCKET if websocket else _ALPN)
    return context


def client_context(security: ClientSecurity, *, websocket: bool = False) -> ssl.SSLContext:
    """The TLS of a connection. Raises `SecurityError` that names the file in question."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Verifies certificate and name by itself.
    if security.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        # Only this authority: whoever names one does not mean all the others too.
        _load_authorities(context, security.ca)
    if security.certificate is not None:
        _load_own(context, security.certificate, security.key)
    context.set_alpn_protocols(_ALPN_WEBSOCKET if websocket else _ALPN)
    return context


def _load_own(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    try:
        # Without a password of its own, OpenSSL would ask for one on the terminal and wait.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        where = certificate if key is None else f"{certificate} with the key {key}"
        raise SecurityError(f"cannot use the certificate {where}: {error}") from error


def _load_authorities(context: ssl.SSLContext, authorities: Path) -> None:
    try:
        context.load_verify_locations(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise SecurityError(f"cannot use the authorities in {authorities}: {error}") from error


def _token_bytes(token: str | None) -> bytes | None:
    if token is None:
        return None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise SecurityError("a token is one word of printable ASCII")
    if len(token) > TOKEN_LIMIT_BYTES:
        raise SecurityError(f"a token has at most {TOKEN_LIMIT_BYTES} characters")
    return token.encode()
