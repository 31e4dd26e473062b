"""nnrp-py, the ecosystem's Python SDK, as a peer.

Its package has no type information, so all of it is `Any` here. What its release
1.0.0rc4.post20 does wrong, and how these tests live with it:

1. A pending receive holds the session's lock, and every send waits for it: receives here are
   slices of a few milliseconds.
2. Its receives are blocking calls in threads of asyncio's small default executor: no more than a
   handful of sessions at once, each polled by one task.
3. An auto session id is recycled by its server and then refused by its own client: ids are random.
4. `session.close()` waits 30 seconds for a peer that does not acknowledge.
5. A frame for an unknown session, or a PING, ends its connection or session: none is ever sent.
6. After FRAME_CANCEL and SUPERSEDE it forgets the operation at once; each message of it that still
   comes, its terminal too, fails a poll with the error that also stands for a lost connection
   (3/4/105): a few such polls are repeated.
7. After a CANCEL its server can send RESULT_DROP_REASON only, never a document.
8. It enforces neither credit nor the in-flight limit.
9. Closing its server raises NativeInvalidHandleError when a client has just left: passed over.
10. Its WebSocket takes frames of up to 16 MiB: a packet of 16 MiB has to come in several.
11. Its server does handshake, hello and session inside `accept`, in slices of a millisecond, and
    drops a client with whom it does not get through in one: the slices are made longer here.
12. Its client's and server's `close` with an operation in flight wait for that operation.
"""

import asyncio
import json
import random
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificate
from msgspec import Struct

MODULES: Final = (
    "nnrp",
    "nnrp.client",
    "nnrp.client.native",
    "nnrp.core",
    "nnrp.runtime.types",
    "nnrp.server",
)
SLICE_MS: Final = 5
"""How long one receive may hold a session's lock."""


def _names() -> SimpleNamespace:
    found: dict[str, Any] = {}
    for module in map(import_module, MODULES):
        for name, value in vars(module).items():
            if not name.startswith("_"):
                found.setdefault(name, value)
    return SimpleNamespace(**found)


SDK: Final[Any] = _names()


class Kind(Struct, frozen=True):
    """A carrier, as each side speaks of it."""

    policy: Any
    """The SDK's transport policy that forces it."""
    address: str
    """Where to listen; `{folder}` is the test's own, `{port}` a free one or 0."""
    route: str | None = None
    """The SDK's name of its provider; None where the application's address says it all."""
    encrypted: bool = False

    @property
    def application(self) -> str:
        """The SDK's application address, where the provider has one of its own."""
        return "nnrps://localhost/chat" if self.encrypted else "nnrp://localhost/chat"


KINDS: Final = {
    "tcp": Kind(SDK.TransportPolicy.FORCE_TCP, "nnrp://127.0.0.1:{port}"),
    "ipc": Kind(SDK.TransportPolicy.FORCE_IPC, "unix://{folder}/n.sock", "ipc"),
    "websocket": Kind(
        SDK.TransportPolicy.FORCE_WEBSOCKET, "ws://127.0.0.1:{port}/nnrp", "websocket"
    ),
    "quic": Kind(SDK.TransportPolicy.FORCE_QUIC, "quic://127.0.0.1:{port}", "quic", encrypted=True),
}


def der(pem: Path) -> bytes:
    """The first certificate of a PEM file, as the SDK takes it."""
    return load_pem_x509_certificate(pem.read_bytes()).public_bytes(Encoding.DER)


def key_der(pem: Path) -> bytes:
    """The private key of a PEM file, as the SDK takes it."""
    key = load_pem_private_key(pem.read_bytes(), password=None)
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def random_session_id() -> int:
    """A session id that nobody has."""
    return random.randrange(1, 2**32)


def submit_request(operation: int, frame: int, envelope: object, trace_id: int = 0) -> Any:
    """FRAME_SUBMIT of one envelope, as the profile wants it."""
    frames = (
        SDK.TypedPayloadInputFrame(
            profile_id=0,
            payload_kind=SDK.PayloadKind.STRUCTURED_EVENT,
            payload=json.dumps(envelope).encode(),
            stream_semantics=SDK.StreamSemantics.SNAPSHOT,
        ),
    )
    identity = SDK.SubmitIdentity(operation, frame, SDK.SubmitHeaderContext(trace_id=trace_id))
    return SDK.SubmitRequest.typed_payload(
        SDK.TypedPayloadSubmitInput(identity, SDK.SubmitPolicy(), frames)
    )


def result_packet(document: object, status: int = 200) -> tuple[Any, bytes]:
    """Metadata and body of a RESULT_PUSH with one document."""
    frame = SDK.build_typed_payload_frame(
        SDK.PayloadKind.STRUCTURED_EVENT,
        json.dumps(document).encode(),
        profile_id=0,
        stream_semantics=SDK.StreamSemantics.SNAPSHOT,
    )
    packet = SDK.build_result_push_typed_payload_packet(
        session_id=0, frame_id=0, status_code=status, active_profile_id=0, frames=[frame]
    )
    return SDK.ResultPushMetadata.unpack(bytes(packet.metadata)), bytes(packet.body)


def document_of(body: bytes) -> Any:
    """The one JSON document of a typed body, read by the SDK."""
    view = SDK.unpack_body(body)
    (frame,) = SDK.unpack_typed_payload_frames(
        view.typed_payload_descriptor_region,
        view.typed_payload_frame_region,
        payload_kind_bitmap=SDK.PayloadKind.STRUCTURED_EVENT,
    )
    return json.loads(bytes(frame.payload))


async def poll(session: Any) -> Any:
    """The session's next event; None when a slice passed without one."""
    try:
        events = await asyncio.to_thread(session.poll_events, max_events=1, timeout_ms=SLICE_MS)
    except SDK.NativeWouldBlockError:
        return None
    return events[0] if events else None
