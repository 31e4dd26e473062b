"""A socket with layers on it as a carrier: TLS, WebSocket, WebSocket over TLS."""

import asyncio
from collections.abc import Callable, Sequence

from nnrp_sched.errors import ConnectionLost
from nnrp_sched.transport.inflow import settle
from nnrp_sched.transport.layer import Layer, Layers
from nnrp_sched.transport.socket_carrier import SocketCarrier


class LayeredCarrier(SocketCarrier):
    """A stream socket whose bytes pass through layers. `open` before anything else."""

    def __init__(
        self,
        name: str,
        layers: Sequence[Layer],
        connected: Callable[[SocketCarrier], None] | None = None,
    ) -> None:
        """`connected` is called once the socket is, before any handshake."""
        super().__init__(name, connected)
        self._layers = Layers(layers)
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def authenticated(self) -> bool:
        """Whether a layer has made sure that the peer may come in."""
        return self._layers.authenticated

    @property
    def peer(self) -> str:
        """Who a layer has made sure that the peer is, else its host."""
        return self._layers.identity or super().peer

    @property
    def problem(self) -> str:
        """What went wrong in a layer."""
        return self._layers.problem

    async def open(self) -> None:
        """Wait for the handshakes; bound it with a cancel scope.

        Raises `ConnectionLost` that says why there is no connection.
        """
        await asyncio.wait([self._opened])
        if not self._layers.ready:
            raise ConnectionLost(self.problem or "the peer left during the handshake")

    def write(self, data: bytes) -> bool:
        """Hand over all bytes at once; False when the peer reads too slowly."""
        return super().write(b"" if self._closing else self._layers.send(data))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected; the handshakes begin."""
        super().connection_made(transport)
        self._reply()

    def data_received(self, data: bytes) -> None:
        """Bytes came, which may be anything from a handshake to half a message."""
        if self._closing:
            return
        plain = self._layers.receive(data)
        self._reply()
        if plain:
            super().data_received(plain)
        if self._layers.ended:
            self._inflow.end()
        if self._layers.ready or self._layers.ended:
            settle(self._opened)

    def eof_received(self) -> bool:
        """The peer sends no more, not even what a handshake still needs."""
        keep_open = super().eof_received()
        settle(self._opened)
        return keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        super().connection_lost(exc)
        settle(self._opened)

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        super().resume_writing()
        if self._choked:
            self._choked = False
            self._resume_reading()

    def _reply(self) -> None:
        """Send what the layers want to send by themselves.

        A peer that makes them answer, with pings say, and does not read the answers is not read.
        """
        replies = self._layers.send()
        if not replies:
            return
        self.transport.write(replies)
        if self._paused and not self._choked:
            self._choked = True
            self.transport.pause_reading()

    @property
    def _sends(self) -> bool:
        return self._layers.ready and super()._sends

    def _say_goodbye(self) -> None:
        words = self._layers.close()
        if words:
            self.transport.write(words)
