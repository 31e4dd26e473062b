"""Certificates for tests: one authority, a server's certificate, a client's, and a stranger."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from msgspec import Struct


class Certificates(Struct, frozen=True):
    """PEM files."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path
    other_authority: Path
    """Of an authority that signed nothing here."""
    stranger: Path
    """A client's, signed by the other authority."""
    stranger_key: Path


@cache
def certificates() -> Certificates:
    """The files, made once a process; the server's names are localhost and the loopback."""
    # The environments of older vLLM versions run the engine tests, and have no trustme.
    import trustme

    directory = Path(tempfile.mkdtemp(prefix="nnrp-sched-certificates-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    authority, other = trustme.CA(), trustme.CA()
    paths: dict[str, Path] = {}

    def write(name: str, blobs: list[trustme.Blob]) -> None:
        paths[name] = directory / f"{name}.pem"
        paths[name].write_bytes(b"".join(blob.bytes() for blob in blobs))

    server = authority.issue_cert("localhost", "127.0.0.1", "127.0.0.2", "::1")
    client = authority.issue_cert("agent@example.org")
    stranger = other.issue_cert("agent@example.org")
    write("authority", [authority.cert_pem])
    write("other_authority", [other.cert_pem])
    for name, leaf in (("server", server), ("client", client), ("stranger", stranger)):
        write(name, leaf.cert_chain_pems)
        write(f"{name}_key", [leaf.private_key_pem])
    return Certificates(**paths)
