"""`nnrp-sched demo`: a real model over NNRP, from nothing to a cancelled operation."""

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import click
import msgspec

from nnrp_sched.cli.child import ServerProcess, started_server
from nnrp_sched.client import Chat, Session, connect
from nnrp_sched.profile import Event

QUESTION = "What is the capital of France?"
TOPICS = (
    "Explain what a scheduler does, in three sentences.",
    "Describe the sea in three sentences.",
    "Tell a long story about a lighthouse keeper.",
    "Name five colours and say where each is found.",
)
CANCELLED = 2
"""The topic whose operation is cancelled half-way."""
LENGTH = 64
"""Output tokens asked for by each of the concurrent operations."""


@click.command("demo")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a story.")
@click.option("--model", help="Another model than the embedded one.")
def command(as_json: bool, model: str | None) -> None:
    """Start vLLM with the embedded model and chat with it, several times at once.

    Starts `nnrp-sched run --patch-vllm` as a child process, asks one question, then runs four
    operations on the same session and cancels one of them half-way.
    """

    def tell(text: str) -> None:
        if not as_json:
            click.echo(text)

    report = anyio.run(partial(_demo, tell, model))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report)))


class CancelledReport(msgspec.Struct, frozen=True):
    """The operation that was cancelled."""

    operation_id: int
    terminal: str
    tokens: int


class DemoReport(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    model: str
    vllm: str
    binding: str | None
    patched: list[dict[str, Any]]
    reply: str
    events: dict[str, int]
    sessions: int
    operations: int
    first_event_ms: float
    cancelled: CancelledReport


class _Counts:
    """Events by type over the whole demo."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.operations = 0

    def count(self, event: Event) -> None:
        self.events[json.loads(msgspec.json.encode(event))["type"]] += 1


async def _demo(tell: Callable[[str], None], model: str | None) -> DemoReport:
    tell("Starting vLLM on the CPU with an NNRP listener beside it: about half a minute.")
    started = time.monotonic()
    arguments = ["--patch-vllm", "--listen", "nnrp://127.0.0.1:0", "--http", "off"]
    if model is not None:
        arguments += ["--model", model]
    async with started_server("run", *arguments) as server:
        ready = server.ready
        tell(
            f"Ready after {time.monotonic() - started:.0f} s: {ready['model']} on vLLM "
            f"{ready['vllm']}, binding {ready['binding']}, patched: "
            + ", ".join(f"{entry['process']} (pid {entry['pid']})" for entry in ready["patched"])
        )
        return await _talk(server, tell)


async def _talk(server: ServerProcess, tell: Callable[[str], None]) -> DemoReport:
    counts = _Counts()
    ready = server.ready
    async with connect(ready["endpoints"][0]) as connection, connection.session() as session:
        tell(f"\nYou: {QUESTION}")
        reply, first_event_ms = await _ask(session, ready["model"], counts)
        tell(f"{ready['model']}: {reply}")
        tell(f"  first event after {first_event_ms:.0f} ms")
        tell(
            f"\n{len(TOPICS)} operations at once on the same session; "
            f"number {CANCELLED + 1} is cancelled half-way:"
        )
        cancelled: list[CancelledReport] = []
        async with anyio.create_task_group() as tasks:
            for number in range(len(TOPICS)):
                tasks.start_soon(
                    _run_topic, session, ready["model"], number, counts, tell, cancelled.append
                )
        program = "nnrp-sched" if shutil.which("nnrp-sched") else sys.argv[0]
        tell(f"\nThe other operations never noticed. Try it: {program} run --patch-vllm")
    return DemoReport(
        model=ready["model"],
        vllm=ready["vllm"],
        binding=ready["binding"],
        patched=ready["patched"],
        reply=reply,
        events=dict(counts.events),
        sessions=1,
        operations=counts.operations,
        first_event_ms=round(first_event_ms, 1),
        cancelled=cancelled[0],
    )


async def _ask(session: Session, model: str, counts: _Counts) -> tuple[str, float]:
    """The answer to the question, and the milliseconds until its first event."""
    started = time.monotonic()
    first: float | None = None
    chat = _chat(session, model, QUESTION)
    counts.operations += 1
    async for event in chat:
        first = first or time.monotonic()
        counts.count(event)
    outcome = await chat.result()
    return outcome.text, ((first or time.monotonic()) - started) * 1000


async def _run_topic(
    session: Session,
    model: str,
    number: int,
    counts: _Counts,
    tell: Callable[[str], None],
    cancelled: Callable[[CancelledReport], None],
) -> None:
    chat = _chat(session, model, TOPICS[number])
    counts.operations += 1
    tokens = 0
    async for event in chat:
        counts.count(event)
        tokens = _tokens_so_far(event) or tokens
        if number == CANCELLED and tokens >= LENGTH // 2:
            break
    outcome = await chat.cancel("demo") if number == CANCELLED else await chat.result()
    tell(f"  [{number + 1}] {outcome.status} after {tokens} tokens: {_shorten(outcome.text)}")
    if number == CANCELLED:
        assert chat.operation_id is not None
        cancelled(CancelledReport(chat.operation_id, outcome.status, tokens))


def _chat(session: Session, model: str, text: str) -> Chat:
    return session.chat(
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": LENGTH,
            "temperature": 0,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        stream=True,
    )


def _tokens_so_far(event: Event) -> int:
    """The engine's own count, which rides on each chunk because the demo asks for it."""
    chunk: dict[str, Any] | None = getattr(event, "openai_chunk", None)
    usage: dict[str, Any] | None = chunk.get("usage") if chunk is not None else None
    return int(usage["completion_tokens"]) if usage is not None else 0


def _shorten(text: str, length: int = 60) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"
