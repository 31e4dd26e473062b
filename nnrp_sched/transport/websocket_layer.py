"""WebSocket as a layer: one NNRP packet in each binary message (wire digest 1.1).

Over the sans-I/O half of `websockets`, which does the framing, the masking, the pongs and the
closing handshake. Compression is not offered: a small message could stand for a huge one.
"""

import hmac
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from nnrp_sched.wire import MessageType
from nnrp_sched.wire.authentication import UNKNOWN_PEER_BYTES
from nnrp_sched.wire.codec import HEADER_BYTES

_LENGTHS: Final = struct.Struct("<II")
_LENGTHS_OFFSET: Final = 12
"""Where a header tells the lengths of metadata and body."""

_TYPE_OFFSET: Final = 6
_HELLO: Final = bytes([MessageType.CLIENT_HELLO])

_ORDERLY: Final = frozenset({CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, 1005})
"""Closing codes that say nothing is wrong; 1005 stands for none."""

_FRAME_BYTES: Final = 4 * 1024 * 1024
"""The most in one frame that we send; the Rust SDK's carrier takes frames of up to 16 MiB."""

_BEARER: Final = "Bearer "


class WebSocketLayer(ABC):
    """One side of a WebSocket connection. A `Layer`."""

    def __init__(self, protocol: ClientProtocol | ServerProtocol) -> None:
        self._protocol = protocol
        self._message: bytearray | None = None
        """The fragments so far of a message in several."""
        self._refusal = ""

    @property
    def ready(self) -> bool:
        """Whether the upgrade is done."""
        return self._protocol.state is OPEN

    @property
    def ended(self) -> bool:
        """Whether the peer closed, was refused, or broke a rule."""
        return self._protocol.close_sent is not None or self._protocol.eof_sent

    @property
    def problem(self) -> str:
        """Why there was no upgrade, or what ended the connection."""
        protocol = self._protocol
        if self._refusal:
            return f"WebSocket: {self._refusal}"
        failure = protocol.handshake_exc or protocol.parser_exc
        if failure is not None:
            return f"WebSocket: {failure}"
        farewell = protocol.close_rcvd
        orderly = farewell is None or farewell.code in _ORDERLY
        return "" if orderly else f"WebSocket: closed by the peer: {farewell}"

    @property
    @abstractmethod
    def authenticated(self) -> bool:
        """Whether the peer brought the token in its request."""

    @property
    def identity(self) -> str:
        """Empty: a token says that somebody may come in, not who it is."""
        return ""

    def receive(self, data: bytes) -> bytes:
        """The packets of the messages that are complete."""
        if not data:
            return b""
        self._protocol.receive_data(data)
        packets: list[bytes] = []
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                packets.extend(self._take(event))
            else:
                self._shake_hands(event)
        return b"".join(packets)

    def send(self, data: bytes) -> bytes:
        """Own frames, then a message for each packet in `data`."""
        if data and self.ready:
            for packet in split_packets(data):
                self._send_message(packet)
        return b"".join(self._protocol.data_to_send())

    def _send_message(self, packet: bytes) -> None:
        """One message; a large one in several frames, because peers limit those more closely."""
        self._protocol.send_binary(packet[:_FRAME_BYTES], fin=len(packet) <= _FRAME_BYTES)
        for start in range(_FRAME_BYTES, len(packet), _FRAME_BYTES):
            end = start + _FRAME_BYTES
            self._protocol.send_continuation(packet[start:end], fin=end >= len(packet))

    def close(self, data: bytes) -> bytes:
        """`send`, then a close frame."""
        framed = self.send(data)
        if self.ready:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        return framed + b"".join(self._protocol.data_to_send())

    @abstractmethod
    def _shake_hands(self, event: Request | Response) -> None: ...

    def _take(self, frame: Frame) -> Iterator[bytes]:
        """The packet that a frame completes. Control frames are the protocol's own business."""
        if frame.opcode is Opcode.TEXT:
            self._refuse(CloseCode.UNSUPPORTED_DATA, "a text message; NNRP is binary")
        elif frame.opcode is Opcode.BINARY and frame.fin:
            yield from self._complete(bytes(frame.data))
        elif frame.opcode is Opcode.BINARY:
            self._message = bytearray(frame.data)
        elif frame.opcode is Opcode.CONT and self._message is not None:
            # One buffer, not a list of frames: a byte a fragment must not cost an object a byte.
            self._message += frame.data
            if frame.fin:
                message, self._message = bytes(self._message), None
                yield from self._complete(message)

    def _complete(self, message: bytes) -> Iterator[bytes]:
        if self._refusal:
            return
        if packet_size(message) == len(message):
            yield message
        else:
            self._refuse(CloseCode.PROTOCOL_ERROR, "a message that is not one NNRP packet")

    def _refuse(self, code: CloseCode, reason: str) -> None:
        self._message = None
        self._refusal = self._refusal or reason
        self._protocol.fail(code, reason)


class ClientWebSocketLayer(WebSocketLayer):
    """The end that asks for the upgrade."""

    def __init__(self, uri: str, *, max_message_bytes: int) -> None:
        """`uri` is `ws://` or `wss://` with host, port and path."""
        self._client = ClientProtocol(parse_uri(uri), max_size=max_message_bytes)
        super().__init__(self._client)
        self._client.send_request(self._client.connect())

    @property
    def authenticated(self) -> bool:
        """A client lets nobody in."""
        return False

    def _shake_hands(self, event: Request | Response) -> None:
        """Whether the answer is an upgrade has been checked; a refusal's text helps its reader."""
        if isinstance(event, Response) and self._client.handshake_exc is not None and event.body:
            text = bytes(event.body[:200]).decode(errors="replace").strip()
            self._refusal = f"HTTP {event.status_code}: {text}"


class ServerWebSocketLayer(WebSocketLayer):
    """The end that grants the upgrade."""

    def __init__(self, path: str, *, max_message_bytes: int, token: bytes | None = None) -> None:
        """`path` is the only one served; `token` may come as `Authorization: Bearer`.

        Browsers are refused: a page from anywhere may connect to a server on its reader's host, and
        would be taken for a program of the reader. Browsers tell a page's origin; others do not.
        """
        self._server = ServerProtocol(origins=[None], max_size=max_message_bytes)
        super().__init__(self._server)
        self._path = path
        self._token = token
        self._authenticated = False
        self._max_message_bytes = max_message_bytes
        if token is not None:
            # A stranger must not make us hold a large message before it has said the token.
            self._server.max_message_size = min(max_message_bytes, UNKNOWN_PEER_BYTES)

    @property
    def authenticated(self) -> bool:
        """Whether the request had the token."""
        return self._authenticated

    def _shake_hands(self, event: Request | Response) -> None:
        if not isinstance(event, Request):
            return
        offered = event.headers.get("Authorization")
        if event.path.partition("?")[0] != self._path:
            self._reject(HTTPStatus.NOT_FOUND, f"NNRP is served at {self._path}")
        elif self._token is not None and offered is not None and not self._accepts(offered):
            self._reject(HTTPStatus.UNAUTHORIZED, "the token is not this server's")
        else:
            self._server.send_response(self._server.accept(event))

    def _accepts(self, offered: str) -> bool:
        assert self._token is not None
        scheme, token = offered[: len(_BEARER)], offered[len(_BEARER) :]
        self._authenticated = scheme.lower() == _BEARER.lower() and hmac.compare_digest(
            token.encode(errors="replace"), self._token
        )
        return self._authenticated

    def _complete(self, message: bytes) -> Iterator[bytes]:
        yield from super()._complete(message)
        if message[_TYPE_OFFSET : _TYPE_OFFSET + 1] == _HELLO:
            # Whoever brought the wrong token with it is about to be closed.
            self._server.max_message_size = self._max_message_bytes

    def _reject(self, status: HTTPStatus, text: str) -> None:
        self._refusal = text
        self._server.send_response(self._server.reject(status, f"{text}\n"))


def packet_size(data: bytes, offset: int = 0) -> int | None:
    """The size that the header at `offset` tells; None when it is not all there."""
    if len(data) - offset < HEADER_BYTES:
        return None
    metadata, body = _LENGTHS.unpack_from(data, offset + _LENGTHS_OFFSET)
    return HEADER_BYTES + int(metadata) + int(body)


def split_packets(data: bytes) -> Iterator[bytes]:
    """The packets of some bytes; what is no whole packet comes as one piece at the end."""
    offset = 0
    while offset < len(data):
        size = packet_size(data, offset)
        end = len(data) if size is None else min(offset + size, len(data))
        yield data[offset:end]
        offset = end
