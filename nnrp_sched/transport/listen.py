"""Listening on an endpoint."""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Sequence

import anyio

from nnrp_sched.errors import StartError
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.endpoint import Endpoint
from nnrp_sched.transport.socket_carrier import SocketCarrier

_BACKLOG = 1024
_ABSENT = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""Errors of an address that is not this machine's."""
_PRIVATE = 0o600
"""A unix socket is for its owner; others are let in by the directory's owner on purpose only."""


class Listener:
    """An endpoint that takes connections. Made by `listen`."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        endpoint: Endpoint,
        socket_file: tuple[int, int] | None = None,
    ) -> None:
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._endpoint = endpoint
        self._connected: asyncio.Queue[SocketCarrier | None] = asyncio.Queue()
        """Connections on their way to their handlers; None once there will be no more."""
        self._socket_file = socket_file
        """Device and inode of our unix socket."""
        self._closed = False

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens, with the port the system chose."""
        return self._endpoint

    async def serve(self, handler: Callable[[Carrier], Awaitable[None]]) -> None:
        """Run `handler` in a task of its own for each connection, until closed or cancelled.

        The carrier is closed when its handler returns or raises; an exception of a handler ends all
        of them and leaves here. After `aclose` this returns once the running handlers have.
        """
        name = self._endpoint.carrier
        loop = asyncio.get_running_loop()

        async def handle(carrier: Carrier) -> None:
            try:
                await handler(carrier)
            finally:
                with anyio.CancelScope(shield=True):
                    await carrier.aclose()

        async with anyio.create_task_group() as tasks:
            try:
                for each in self._sockets:
                    if self._closed:
                        break
                    server = await loop.create_server(
                        lambda: SocketCarrier(name, self._hand_over),
                        sock=each,
                        backlog=_BACKLOG,
                        start_serving=False,
                    )
                    self._servers.append(server)  # Known to `aclose` before it takes anybody.
                    await server.start_serving()
                while (carrier := await self._connected.get()) is not None:
                    tasks.start_soon(handle, carrier)
            finally:
                self._stop()
                while not self._connected.empty():
                    left = self._connected.get_nowait()
                    if left is not None:
                        left.transport.abort()

    def _hand_over(self, carrier: SocketCarrier) -> None:
        if self._closed:
            carrier.transport.abort()  # Accepted while we closed: there is nobody to serve it.
        else:
            self._connected.put_nowait(carrier)

    async def aclose(self) -> None:
        """Stop listening and remove our unix socket; running handlers go on."""
        self._stop()
        self._connected.put_nowait(None)
        if self._socket_file is not None:
            if _socket_file(self._endpoint.path) == self._socket_file:
                os.unlink(self._endpoint.path)
            self._socket_file = None

    def _stop(self) -> None:
        self._closed = True
        for server in self._servers:
            server.close()
        for each in self._sockets:
            each.close()


async def listen(endpoint: Endpoint) -> Listener:
    """Bind an endpoint; connections wait until `Listener.serve` takes them.

    Raises `StartError` that names the endpoint when it cannot be bound: an address in use, one that
    is not ours, a unix path that is no socket or whose socket has a live server.
    """
    if endpoint.carrier == "unix":
        return await _listen_unix(endpoint)
    return await _listen_tcp(endpoint)


async def _listen_tcp(endpoint: Endpoint) -> Listener:
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    port = endpoint.port
    absent: OSError | None = None
    try:
        found = await loop.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # A name may have the same address twice, and one of a family this machine has not.
        for family, host in dict.fromkeys((family, at[0]) for family, _, _, _, at in found):
            try:
                # SO_REUSEADDR comes with create_server: a restarted server finds its port free.
                # With port 0 the first address chooses it for the others.
                sockets.append(socket.create_server((host, port), family=family, backlog=_BACKLOG))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
            else:
                port = sockets[0].getsockname()[1]
        if absent is not None and not sockets:
            raise absent
    except OSError as error:
        for each in sockets:
            each.close()
        raise _refusal(endpoint, error) from error
    return Listener(sockets, Endpoint(scheme=endpoint.scheme, host=endpoint.host, port=port))


async def _listen_unix(endpoint: Endpoint) -> Listener:
    _remove_stale_socket(endpoint)
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Nobody can connect before listen(), so the mode is right in time.
        raw.bind(endpoint.path)
        os.chmod(endpoint.path, _PRIVATE)
        raw.listen(_BACKLOG)
    except OSError as error:
        raw.close()
        raise _refusal(endpoint, error) from error
    return Listener([raw], endpoint, _socket_file(endpoint.path))


def _remove_stale_socket(endpoint: Endpoint) -> None:
    """Remove the socket a dead server left. Raises `StartError` when a server answers there."""
    found = _socket_file(endpoint.path)
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
            raise _refusal(endpoint, error) from error
    raise StartError(f"cannot listen at {endpoint}: another server answers there")


def _socket_file(path: str) -> tuple[int, int] | None:
    """Device and inode of the socket at a path, None when there is none or it is something else."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None


def _refusal(endpoint: Endpoint, error: OSError) -> StartError:
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"cannot listen at {endpoint}: the address is in use; does a server run there already?"
            " Choose another with --listen"
        )
    return StartError(f"cannot listen at {endpoint}: {error.strerror or error}")
