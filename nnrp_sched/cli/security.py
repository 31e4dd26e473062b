"""The flags that protect endpoints, for the commands that listen and for those that connect."""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import click

from nnrp_sched.client import Connection
from nnrp_sched.errors import SecurityError
from nnrp_sched.transport import (
    ClientSecurity,
    Endpoint,
    ServerSecurity,
    check_endpoint,
    parse_endpoint,
)

DEFAULT_LISTEN: Final = "nnrp://127.0.0.1:7437"

Dial = Callable[[], AbstractAsyncContextManager[Connection]]
"""Connects to the server that a command is about."""

Command = Callable[..., Any]
Option = Callable[[Command], Command]

_FILE: Final = click.Path(path_type=Path)
_TOKEN: Final = click.option(
    "--token", help="The token itself. Others on this host can see it; prefer the file or variable."
)

_SERVER: Final[Sequence[Option]] = (
    click.option(
        "--listen",
        multiple=True,
        default=(DEFAULT_LISTEN,),
        help="Where to listen: nnrp://HOST:PORT, nnrps:// (with TLS), ws:// or wss://HOST:PORT/PATH,"
        " quic://HOST:PORT, unix:///PATH; may be given several times. Port 0 takes a free one.",
    ),
    click.option(
        "--tls-certificate",
        type=_FILE,
        help="The certificate chain of nnrps, wss and quic.",
    ),
    click.option("--tls-key", type=_FILE, help="Its private key."),
    click.option(
        "--tls-client-ca",
        type=_FILE,
        help="Who signs client certificates; nnrps and wss then take nobody without one.",
    ),
    click.option(
        "--token-file", type=_FILE, help="A file with the token that clients have to give."
    ),
    _TOKEN,
)
_CLIENT: Final[Sequence[Option]] = (
    click.option(
        "--tls-ca",
        type=_FILE,
        help="Who signs the server's certificate, or the certificate itself. Default: the system's"
        " authorities.",
    ),
    click.option(
        "--tls-certificate", type=_FILE, help="Our own certificate chain, where one is asked for."
    ),
    click.option("--tls-key", type=_FILE, help="Its private key."),
    click.option(
        "--tls-server-name", help="The name in the server's certificate, if not that of --endpoint."
    ),
    click.option("--token-file", type=_FILE, help="A file with the token that the server wants."),
    _TOKEN,
)


def listening(command: Command) -> Command:
    """Add --listen and its protection; the command gets `endpoints` and `security`.

    What cannot be listened at as it is protected is refused here, before anything slow starts.
    """

    @functools.wraps(command)
    def checked(
        *,
        listen: tuple[str, ...],
        tls_certificate: Path | None,
        tls_key: Path | None,
        tls_client_ca: Path | None,
        token: str | None,
        token_file: Path | None,
        **others: Any,
    ) -> Any:
        endpoints = [parse_endpoint(text) for text in listen]
        security = ServerSecurity(
            certificate=tls_certificate,
            key=tls_key,
            client_ca=tls_client_ca,
            token=_token(token, token_file),
        )
        for endpoint in endpoints:
            check_endpoint(endpoint, security)
        _warn(endpoints, security)
        return command(endpoints=endpoints, security=security, **others)

    return _with(_SERVER, checked)


def connecting(command: Command) -> Command:
    """Add --endpoint and its protection; the command gets `endpoint` and `security`."""
    option = click.option("--endpoint", default=DEFAULT_LISTEN, help="The server's address.")
    return option(proving(command))


def proving(command: Command) -> Command:
    """Add the protection of a client's connections; the command gets `security`."""

    @functools.wraps(command)
    def secured(
        *arguments: Any,
        tls_ca: Path | None,
        tls_certificate: Path | None,
        tls_key: Path | None,
        tls_server_name: str | None,
        token: str | None,
        token_file: Path | None,
        **others: Any,
    ) -> Any:
        security = ClientSecurity(
            ca=tls_ca,
            certificate=tls_certificate,
            key=tls_key,
            server_name=tls_server_name,
            token=_token(token, token_file),
        )
        return command(*arguments, security=security, **others)

    return _with(_CLIENT, secured)


def _with(options: Sequence[Option], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def _token(token: str | None, file: Path | None) -> str | None:
    if token is not None and file is not None:
        raise click.UsageError("give --token or --token-file, not both")
    if file is None:
        return token
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecurityError(f"cannot read the token in {file}: {error}") from error


def _warn(endpoints: Sequence[Endpoint], security: ServerSecurity) -> None:
    plain = [str(each) for each in endpoints if not each.encrypted and each.carrier != "unix"]
    if security.token is not None and plain:
        click.echo(
            f"nnrp-sched: the token crosses {', '.join(plain)} unencrypted; anyone on the way can"
            " read it. nnrps://, wss:// and quic:// keep it secret",
            err=True,
        )
