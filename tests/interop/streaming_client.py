"""A program with the SDK's client that streams until it is killed: `streaming_client ADDRESS`."""

import os
import sys

import anyio

from tests.interop.native_client import native_connection
from tests.support.serving import script


async def main(address: str) -> None:
    """Say `streaming` when the first event is there, then wait to be killed."""
    async with native_connection("ipc", address) as connection:
        session = await connection.open()
        envelope = {
            "schema_version": "openai-compatible/1",
            "operation": "chat.completions.create",
            "body": script(text="on ", hold=True) | {"stream": True},
        }
        await session.submit(1, 1, envelope)
        await session.first_event(1)
        os.write(1, b"streaming\n")  # In one piece, which `print` does not promise.
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
