"""Sockets for listening, bound before anything is served."""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Sequence
from typing import Final

from nnrp_sched.errors import SecurityError, StartError
from nnrp_sched.transport.endpoint import Endpoint
from nnrp_sched.transport.security import ServerSecurity
from nnrp_sched.transport.socket_carrier import is_loopback

BACKLOG: Final = 1024
_ABSENT: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""Errors of an address that is not this machine's."""
_PRIVATE: Final = 0o600
"""A unix socket is for its owner; others are let in by the directory's owner on purpose only."""


def check_exposure(
    endpoint: Endpoint, security: ServerSecurity, addresses: Sequence[str] | None = None
) -> None:
    """Refuse an endpoint that other machines reach and where anybody would be let in.

    `addresses` are the endpoint's, where they are known already. Raises `SecurityError`.
    """
    if endpoint.carrier == "unix" or security.token is not None:
        return
    certified = security.client_ca is not None and endpoint.carrier in ("tls", "websocket")
    if certified and endpoint.encrypted:
        return
    if addresses is None:
        addresses = _resolve(endpoint)
    open_to = [address for address in addresses if not is_loopback(address)]
    if open_to:
        means = "" if endpoint.carrier == "quic" else ", or nnrps:// or wss:// with --tls-client-ca"
        raise SecurityError(
            f"{endpoint} can be reached from other machines ({open_to[0]}) and would let everybody"
            f" in: give a token (--token-file){means}; or listen at 127.0.0.1"
        )


def _resolve(endpoint: Endpoint) -> list[str]:
    try:
        found = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise refusal(endpoint, error) from error
    return [str(at[0]) for _, _, _, _, at in found]


async def bind_addresses(
    endpoint: Endpoint, security: ServerSecurity, kind: socket.SocketKind
) -> list[socket.socket]:
    """A socket for each address of an endpoint's host that this machine has, one port for all.

    `kind` is SOCK_STREAM, for sockets that listen, or SOCK_DGRAM. Raises `StartError` that names
    the endpoint, and `SecurityError` for one that must not be opened.
    """
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    port = endpoint.port
    absent: OSError | None = None
    try:
        found = await loop.getaddrinfo(
            endpoint.host, endpoint.port, type=kind, flags=socket.AI_PASSIVE
        )
        # A name may have the same address twice, and one of a family this machine has not.
        places = dict.fromkeys((family, at[0]) for family, _, _, _, at in found)
        check_exposure(endpoint, security, [str(host) for _, host in places])
        for family, host in places:
            try:
                sockets.append(_bound(family, host, port, kind))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
            else:
                # With port 0 the first address chooses it for the others.
                port = sockets[0].getsockname()[1]
        if absent is not None and not sockets:
            raise absent
    except OSError as error:
        for each in sockets:
            each.close()
        raise refusal(endpoint, error) from error
    return sockets


def _bound(family: int, host: str | int, port: int, kind: socket.SocketKind) -> socket.socket:
    if kind == socket.SOCK_STREAM:
        # SO_REUSEADDR comes with create_server: a restarted server finds its port free.
        return socket.create_server((str(host), port), family=family, backlog=BACKLOG)
    raw = socket.socket(family, kind)
    try:
        raw.setblocking(False)
        if family == socket.AF_INET6:
            raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        raw.bind((host, port))
    except OSError:
        raw.close()
        raise
    return raw


def bind_unix(endpoint: Endpoint) -> tuple[socket.socket, tuple[int, int] | None]:
    """A listening unix socket, and the identity of its file. Raises `StartError`."""
    _remove_stale_socket(endpoint)
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Nobody can connect before listen(), so the mode is right in time.
        raw.bind(endpoint.path)
        os.chmod(endpoint.path, _PRIVATE)
        raw.listen(BACKLOG)
    except OSError as error:
        raw.close()
        raise refusal(endpoint, error) from error
    return raw, socket_file(endpoint.path)


def _remove_stale_socket(endpoint: Endpoint) -> None:
    """Remove the socket a dead server left. Raises `StartError` when a server answers there."""
    found = socket_file(endpoint.path)
    if found is None:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(endpoint.path)
        except ConnectionRefusedError:
            os.unlink(endpoint.path)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            pass  # Its backlog is full: very much alive.
        except OSError as error:
            raise refusal(endpoint, error) from error
    raise StartError(f"cannot listen at {endpoint}: another server answers there")


def socket_file(path: str) -> tuple[int, int] | None:
    """Device and inode of the socket at a path, None when there is none or it is something else."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None


def refusal(endpoint: Endpoint, error: OSError) -> StartError:
    """Why an endpoint cannot be listened at."""
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"cannot listen at {endpoint}: the address is in use; does a server run there already?"
            " Choose another with --listen"
        )
    return StartError(f"cannot listen at {endpoint}: {error.strerror or error}")
