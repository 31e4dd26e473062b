"""Where a server listens, as text: which carrier leads there, and how it is addressed."""

import os
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from nnrp_sched.errors import EndpointError

Scheme = Literal["nnrp", "nnrps", "tcp", "unix", "ws", "wss", "quic"]
CarrierKind = Literal["tcp", "tls", "unix", "websocket", "quic"]

DEFAULT_PORT: Final = 7437
"""The port of an `nnrp://` or `nnrps://` endpoint that names none."""

DEFAULT_PATH: Final = "/nnrp"
"""The path of a WebSocket endpoint that names none; nnrp-py's examples have the same."""

FORMS: Final = (
    "nnrp://HOST:PORT, nnrps://HOST:PORT, tcp://HOST:PORT, ws://HOST:PORT/PATH,"
    " wss://HOST:PORT/PATH, quic://HOST:PORT or unix:///PATH"
)

_UNIX_PATH_BYTES: Final = 107
"""What a socket address of Linux holds, without the zero byte at its end."""


class Form(msgspec.Struct, frozen=True):
    """What a scheme stands for (wire digest 1.1)."""

    scheme: Scheme
    carrier: CarrierKind
    encrypted: bool = False
    default_port: int | None = None
    has_path: bool = False


_FORMS: Final[Mapping[str, Form]] = {
    form.scheme: form
    for form in (
        Form("nnrp", "tcp", default_port=DEFAULT_PORT),
        Form("nnrps", "tls", encrypted=True, default_port=DEFAULT_PORT),
        Form("tcp", "tcp"),
        Form("ws", "websocket", has_path=True),
        Form("wss", "websocket", encrypted=True, has_path=True),
        Form("quic", "quic", encrypted=True),
        Form("unix", "unix", has_path=True),
    )
}


class Endpoint(msgspec.Struct, frozen=True):
    """A parsed endpoint; `str()` gives the text back.

    `host` and `port` are for all but unix sockets; `path` is a unix socket's file or what follows
    the port of a WebSocket. Port 0 lets the system choose.
    """

    scheme: Scheme
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def carrier(self) -> CarrierKind:
        """The kind of carrier that leads there."""
        return _FORMS[self.scheme].carrier

    @property
    def encrypted(self) -> bool:
        """Whether the carrier is encrypted, and so needs a certificate."""
        return _FORMS[self.scheme].encrypted

    def __str__(self) -> str:
        """The endpoint as `parse_endpoint` takes it."""
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint a text names.

    `nnrp://` is NNRP over TCP, `nnrps://` over TLS over TCP; both may leave the port out (7437).
    Raises `EndpointError` that says what is wrong and which forms there are.
    """
    scheme, separator, _ = text.partition("://")
    if not separator:
        raise EndpointError(f"{text!r} is no endpoint: expected {FORMS}")
    form = _FORMS.get(scheme)
    if form is None:
        raise EndpointError(f"{text!r}: no carrier is called {scheme!r}; expected {FORMS}")
    return _parse_unix(text) if scheme == "unix" else _parse_address(text, form)


def _parse_unix(text: str) -> Endpoint:
    path = text.removeprefix("unix://")
    if not path.startswith("/"):
        raise EndpointError(f"{text!r}: a unix endpoint needs an absolute path, as unix:///PATH")
    if "\0" in path:
        raise EndpointError(f"{text!r}: the path holds a zero byte")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError as error:
        raise EndpointError(f"{text!r}: no file can have this name: {error}") from None
    if size > _UNIX_PATH_BYTES:
        raise EndpointError(
            f"{text!r}: the path is longer than a socket address holds ({_UNIX_PATH_BYTES} bytes)"
        )
    return Endpoint(scheme="unix", path=path)


def _parse_address(text: str, form: Form) -> Endpoint:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise EndpointError(f"{text!r}: {error}") from None
    if not host:
        raise EndpointError(f"{text!r}: the host is missing; expected {FORMS}")
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise EndpointError(f"{text!r}: {host!r} cannot be a host: {error}") from None
    if "\0" in host:
        raise EndpointError(f"{text!r}: the host holds a zero byte")
    if parts.query or parts.fragment or not (form.has_path or parts.path in ("", "/")):
        raise EndpointError(
            f"{text!r}: nothing may follow the {'path' if form.has_path else 'port'}"
        )
    if parts.username is not None:
        raise EndpointError(f"{text!r}: credentials do not belong in an endpoint")
    if port is None:
        if form.default_port is None:
            raise EndpointError(f"{text!r}: the port is missing; expected {FORMS}")
        port = form.default_port
    path = _request_path(text, parts.path) if form.has_path else ""
    return Endpoint(scheme=form.scheme, host=host, port=port, path=path)


def _request_path(text: str, path: str) -> str:
    if path in ("", "/"):
        return DEFAULT_PATH
    if not path.isascii() or not path.isprintable() or " " in path:
        raise EndpointError(f"{text!r}: write the path in printable ASCII, percent-encoded")
    return path
