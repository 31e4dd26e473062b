"""Where a server listens: `nnrp://host:port`, `tcp://host:port` or `unix:///path`."""

import os
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from nnrp_sched.errors import EndpointError

DEFAULT_PORT = 7437
"""The port of an `nnrp://` endpoint that names none."""

FORMS = "nnrp://HOST:PORT, tcp://HOST:PORT or unix:///PATH"


class Endpoint(msgspec.Struct, frozen=True):
    """A parsed endpoint; `str()` gives the text back.

    `host` and `port` are for tcp, `path` is for unix sockets. Port 0 lets the system choose.
    """

    scheme: Literal["nnrp", "tcp", "unix"]
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def carrier(self) -> Literal["tcp", "unix"]:
        """The kind of carrier that leads there."""
        return "unix" if self.scheme == "unix" else "tcp"

    def __str__(self) -> str:
        """The endpoint as `parse_endpoint` takes it."""
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint a text names.

    `nnrp://` is NNRP over TCP and may leave the port out (7437). Raises `EndpointError` that says
    what is wrong and which forms there are.
    """
    scheme, separator, _ = text.partition("://")
    if not separator:
        raise EndpointError(f"{text!r} is no endpoint: expected {FORMS}")
    if scheme == "unix":
        return _parse_unix(text)
    if scheme == "nnrp":
        return _parse_tcp(text, "nnrp")
    if scheme == "tcp":
        return _parse_tcp(text, "tcp")
    raise EndpointError(f"{text!r}: no carrier is called {scheme!r}; expected {FORMS}")


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
    if size > 107:
        raise EndpointError(f"{text!r}: the path is longer than a socket address holds (107 bytes)")
    return Endpoint(scheme="unix", path=path)


def _parse_tcp(text: str, scheme: Literal["nnrp", "tcp"]) -> Endpoint:
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
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise EndpointError(f"{text!r}: nothing may follow the port")
    if parts.username is not None:
        raise EndpointError(f"{text!r}: credentials do not belong in an endpoint")
    if port is None:
        if scheme == "tcp":
            raise EndpointError(f"{text!r}: the port is missing; expected {FORMS}")
        port = DEFAULT_PORT
    return Endpoint(scheme=scheme, host=host, port=port)
