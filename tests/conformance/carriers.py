"""The carriers that the conformance tests run over, as what a server listens on."""

from typing import Final

LISTEN: Final = {
    "tcp": "nnrp://127.0.0.1:0",
    "unix": "unix://{folder}/nnrp.sock",
}
"""`{folder}` is a folder of the test's own."""
