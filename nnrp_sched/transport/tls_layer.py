"""TLS as a layer, over OpenSSL's memory buffers."""

import hashlib
import ssl
from contextlib import suppress
from typing import Final

_READ_BYTES: Final = 256 * 1024


class TlsLayer:
    """One side of a TLS connection. A `Layer`.

    asyncio's own TLS transport is not used because it cannot close one direction: a connection that
    is closed over unread bytes then loses the last words that were written to it.
    """

    def __init__(
        self, context: ssl.SSLContext, *, server: bool, server_name: str | None = None
    ) -> None:
        """`server_name` is what a client wants to see in the certificate."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server, server_hostname=server_name
        )
        self._asks_for_certificate = server and context.verify_mode == ssl.CERT_REQUIRED
        self._held = b""
        """What came from above before the handshake was done."""
        self._ready = self._ended = False
        self._problem = ""
        self._shake_hands()

    @property
    def ready(self) -> bool:
        """Whether the handshake is done and TLS not broken."""
        return self._ready and not self._problem

    @property
    def ended(self) -> bool:
        """Whether the peer closed, or TLS broke."""
        return self._ended

    @property
    def problem(self) -> str:
        """What broke."""
        return self._problem

    @property
    def authenticated(self) -> bool:
        """Whether the peer is a client with a certificate that was asked for and verified."""
        return self._ready and self._asks_for_certificate

    @property
    def identity(self) -> str:
        """The fingerprint of the client's certificate, where one was asked for."""
        if not self.authenticated:
            return ""
        certificate = self._tls.getpeercert(binary_form=True)
        return f"sha256:{hashlib.sha256(certificate).hexdigest()}" if certificate else ""

    def receive(self, data: bytes) -> bytes:
        """Decrypt."""
        if self._ended:
            return b""
        self._incoming.write(data)
        if not self._ready:
            self._shake_hands()
        return self._read() if self._ready else b""

    def send(self, data: bytes) -> bytes:
        """Encrypt; before the end of the handshake `data` is held back."""
        if data:
            self._held += data
        if self._held and self.ready:
            self._write()
        return self._outgoing.read()

    def close(self, data: bytes) -> bytes:
        """Encrypt, then close_notify."""
        sealed = self.send(data)
        if not self.ready:
            return sealed
        # It raises that the peer's own close_notify is not here yet; nothing could be done about
        # another reason either, because this is the end.
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        return sealed + self._outgoing.read()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._ready = True

    def _read(self) -> bytes:
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(_READ_BYTES):
                pieces.append(piece)
            self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError as error:
            self._fail(error)
        return b"".join(pieces)

    def _write(self) -> None:
        held, self._held = self._held, b""
        try:
            self._tls.write(held)  # A memory buffer takes everything at once.
        except ssl.SSLError as error:
            self._fail(error)

    def _fail(self, error: ssl.SSLError) -> None:
        self._ended = True
        self._problem = f"TLS: {_words(error)}"


def _words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()
