"""Middleware for vLLM's own API servers: a door by which a test looks into each of the processes.

Each process listens on `<index>.sock` in `PROBE_FOLDER`: one JSON object in, one out.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.records import Caller
from nnrp_sched_patches.channel import call_engine
from nnrp_sched_patches.control import Control
from nnrp_sched_patches.frontend import ledger_of
from nnrp_sched_patches.hello import hello_receipts, live_engines
from nnrp_sched_patches.ledger_feed import follow
from nnrp_sched_patches.ledger_records import Entry
from nnrp_sched_patches.middleware import App, Receive, Scope, Send
from nnrp_sched_patches.origin import Origin, origin
from tests.support.vllm_counters import counters

FOLDER_VARIABLE = "PROBE_FOLDER"


class Probe:
    """ASGI: serves on as before, and opens the door when the app starts."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._door: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the app's life."""
        if self._door is None:
            self._door = asyncio.create_task(_open_door())
        await self._app(scope, receive, send)


async def _open_door() -> None:
    (llm,) = live_engines()
    inside = _Inside(llm)
    index = llm.engine_core.client_index
    path = Path(os.environ[FOLDER_VARIABLE]) / f"{index}.sock"
    server = await asyncio.start_unix_server(inside.answer, path)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow(llm, inside.ledger))
        tasks.create_task(server.serve_forever())


class _Inside:
    """What a test may ask of one process."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.ledger = ledger_of(llm.output_processor)
        self.control = Control(llm, self.ledger)
        self.calls: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        try:
            reply = await getattr(self, f"do_{asked.pop('do')}")(**asked)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        writer.write(msgspec.json.encode(reply) + b"\n")
        await writer.drain()
        writer.close()

    async def do_hello(self) -> Any:
        receipts = await hello_receipts(self.llm, 60)
        return {"index": self.llm.engine_core.client_index, "receipts": receipts}

    async def do_start(self, name: str, tokens: int, n: int, **caller: Any) -> Any:
        call = self._generate(name, tokens, n, Caller(**caller))
        self.calls[name] = asyncio.create_task(call)
        return {}

    async def _generate(self, name: str, tokens: int, n: int, caller: Caller) -> dict[str, Any]:
        from vllm import SamplingParams

        # vLLM has several choices only where they may differ.
        heat = 1.0 if n > 1 else 0.0
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, n=n, temperature=heat, seed=3)
        lengths: dict[int, int] = {}
        reasons: dict[int, str | None] = {}
        stream = self.llm.generate({"prompt_token_ids": [1, 2, 3]}, sampling, name)
        with origin(Origin(caller, "http")):
            async for output in stream:
                for one in output.outputs:
                    lengths[one.index] = len(one.token_ids)
                    reasons[one.index] = one.finish_reason
        return {"tokens": sum(lengths.values()), "reasons": sorted(set(map(str, reasons.values())))}

    async def do_end_of(self, name: str) -> Any:
        return await self.calls[name]

    async def do_reach(self, name: str, state: str) -> Any:
        """Wait until a request of this process stands like that."""
        while True:
            shown = {one.id: one for one in (await self.control.queue()).operations}
            one = shown.get(name)
            if one is not None and one.state == state and (one.tokens or state != "running"):
                return one
            await checkpoint()

    async def do_abort(self, names: list[str], by: Any = "id") -> Any:
        return await self.control.abort_operations(names, by=by)

    async def do_find(self, name: str) -> Any:
        """What the ledger says of a request, if it has it."""
        entry = self.ledger.find(name)
        return None if entry is None else _shown(entry)

    async def do_live(self) -> Any:
        return [entry.id for entry in self.ledger.live]

    async def do_counters(self) -> Any:
        return counters()

    async def do_left(self) -> Any:
        """What is still in the frontend's tables and in the engine."""
        processor = self.llm.output_processor
        depths = await call_engine(self.llm, "nnrp_queue", {}, wait_s=20)
        tables = (processor.request_states, processor.parent_requests, processor.external_req_ids)
        engine = sum(depths[name] for name in ("running", "waiting", "blocked"))
        return [*map(len, tables), len(self.ledger.live), engine]


def _shown(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "state": entry.state,
        "reason": entry.reason,
        "tokens": entry.tokens,
        "cause": entry.abort_cause,
        "receipt": entry.receipt,
        "program": entry.caller.program,
    }


async def ask(folder: Path, index: int, do: str, **more: Any) -> Any:
    """Ask the process with that index; raises AssertionError for its error."""
    async with await anyio.connect_unix(folder / f"{index}.sock") as stream:
        await stream.send(json.dumps({"do": do, **more}).encode() + b"\n")
        reply = b""
        while not reply.endswith(b"\n"):
            reply += await stream.receive()
    answer: Any = json.loads(reply)
    assert answer is None or "error" not in answer, answer
    return answer
