"""What may stand between a socket and a carrier: TLS, WebSocket, one on the other.

Sans-I/O, so that closing, bounds and deadlines are the carrier's alone and the same for all.
"""

from collections.abc import Sequence
from typing import Protocol


class Layer(Protocol):
    """One protocol below NNRP: bytes of the socket on one side, bytes of NNRP on the other."""

    @property
    def ready(self) -> bool:
        """Whether data can be sent: the handshake is done and the layer not closed."""
        ...

    @property
    def ended(self) -> bool:
        """Whether nothing more will come: the peer said so, or broke the protocol."""
        ...

    @property
    def problem(self) -> str:
        """What went wrong, for people; empty while nothing did."""
        ...

    @property
    def authenticated(self) -> bool:
        """Whether the peer has proven, in this layer, that it may come in."""
        ...

    @property
    def identity(self) -> str:
        """Who the peer has proven to be, in this layer; empty where it proves none."""
        ...

    def receive(self, data: bytes) -> bytes:
        """Take bytes from below; what they hold for above. Never raises for the peer's doings."""
        ...

    def send(self, data: bytes) -> bytes:
        """The bytes for below: the layer's own replies and handshake, and then `data`."""
        ...

    def close(self, data: bytes) -> bytes:
        """Like `send`, and say that nothing follows."""
        ...


class Layers:
    """Layers on each other, as one; the first stands on the socket."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)

    @property
    def ready(self) -> bool:
        """Whether data can be sent."""
        return all(layer.ready for layer in self._layers)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return any(layer.ended for layer in self._layers)

    @property
    def problem(self) -> str:
        """What went wrong, the lowest layer first; empty while nothing did."""
        return next((layer.problem for layer in self._layers if layer.problem), "")

    @property
    def authenticated(self) -> bool:
        """Whether the peer has proven in one of them that it may come in."""
        return any(layer.authenticated for layer in self._layers)

    @property
    def identity(self) -> str:
        """Who the peer has proven to be in one of them; empty where it has not."""
        return next((layer.identity for layer in self._layers if layer.identity), "")

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the socket; what they hold for the carrier."""
        for layer in self._layers:
            data = layer.receive(data)
        return data

    def send(self, data: bytes = b"") -> bytes:
        """What to write on the socket now, `data` included."""
        for layer in reversed(self._layers):
            data = layer.send(data)
        return data

    def close(self) -> bytes:
        """The last bytes for the socket."""
        data = b""
        for layer in reversed(self._layers):
            data = layer.close(data)
        return data
