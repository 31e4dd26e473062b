"""Listening on an endpoint."""

import errno
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup

from nnrp_sched.errors import StartError
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.endpoint import Endpoint
from nnrp_sched.transport.socket_carrier import SocketCarrier

logger = logging.getLogger(__name__)

_ACCEPT_PAUSE_SECONDS = 0.1
_BACKLOG = 1024
_PRIVATE = 0o600
"""A unix socket is for its owner; others are let in by the directory's owner on purpose only."""


class Listener:
    """An endpoint that takes connections. Made by `listen`."""

    def __init__(
        self,
        listeners: Sequence[SocketListener],
        endpoint: Endpoint,
        socket_file: tuple[int, int] | None = None,
    ) -> None:
        self._listeners = listeners
        self._endpoint = endpoint
        self._closed = False
        self._socket_file = socket_file
        """Device and inode of our unix socket."""

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

        async def handle(stream: SocketStream) -> None:
            carrier = SocketCarrier(stream, name)
            try:
                await handler(carrier)
            finally:
                with anyio.CancelScope(shield=True):
                    await carrier.aclose()

        async with anyio.create_task_group() as tasks:
            for listener in self._listeners:
                tasks.start_soon(self._accept, listener, tasks, handle)

    async def _accept(
        self,
        listener: SocketListener,
        tasks: TaskGroup,
        handle: Callable[[SocketStream], Coroutine[Any, Any, None]],
    ) -> None:
        """Take connections until the listener is closed; closing it leaves the handlers alone."""
        while True:
            try:
                stream = await listener.accept()
            except anyio.ClosedResourceError:
                return
            except (OSError, anyio.BrokenResourceError) as error:
                if self._closed:
                    return
                # Out of file descriptors, most likely: those that are connected matter more.
                logger.warning("no connection could be taken at %s: %s", self._endpoint, error)
                await anyio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            tasks.start_soon(handle, stream)

    async def aclose(self) -> None:
        """Stop listening and remove our unix socket; running handlers go on."""
        self._closed = True
        for listener in self._listeners:
            await listener.aclose()
        if self._socket_file is not None:
            if _socket_file(self._endpoint.path) == self._socket_file:
                os.unlink(self._endpoint.path)
            self._socket_file = None


async def listen(endpoint: Endpoint) -> Listener:
    """Bind an endpoint; connections wait until `Listener.serve` takes them.

    Raises `StartError` that names the endpoint when it cannot be bound: an address in use, one that
    is not ours, a unix path that is no socket or whose socket has a live server.
    """
    if endpoint.carrier == "unix":
        return await _listen_unix(endpoint)
    return await _listen_tcp(endpoint)


async def _listen_tcp(endpoint: Endpoint) -> Listener:
    try:
        # anyio sets SO_REUSEADDR, so that a restarted server finds its port free.
        multi = await anyio.create_tcp_listener(
            local_host=endpoint.host, local_port=endpoint.port, backlog=_BACKLOG
        )
    except OSError as error:
        raise _refusal(endpoint, error) from error
    # They are socket listeners, which the declared type leaves out.
    listeners = cast(Sequence[SocketListener], multi.listeners)
    port = listeners[0].extra(SocketAttribute.local_port)
    return Listener(listeners, Endpoint(scheme=endpoint.scheme, host=endpoint.host, port=port))


async def _listen_unix(endpoint: Endpoint) -> Listener:
    _remove_stale_socket(endpoint)
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        raw.setblocking(False)
        # Nobody can connect before listen(), so the mode is right in time.
        raw.bind(endpoint.path)
        os.chmod(endpoint.path, _PRIVATE)
        raw.listen(_BACKLOG)
        listener = await SocketListener.from_socket(raw)
    except OSError as error:
        raw.close()
        raise _refusal(endpoint, error) from error
    return Listener([listener], endpoint, _socket_file(endpoint.path))


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
        return StartError(f"cannot listen at {endpoint}: the address is in use")
    return StartError(f"cannot listen at {endpoint}: {error.strerror or error}")
