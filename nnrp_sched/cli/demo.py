"""`nnrp-sched demo`: a program of agents on a real model, and what cancelling saves."""

import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from shutil import get_terminal_size
from typing import Any, Final

import anyio
import click
import msgspec

from nnrp_sched.cli.child import started_server
from nnrp_sched.cli.demo_board import Audience, Board, Lines, Screen, Silence
from nnrp_sched.cli.demo_report import DemoReport, conclusion, report_of
from nnrp_sched.cli.demo_story import Story
from nnrp_sched.cli.security import proving
from nnrp_sched.client import connect
from nnrp_sched.errors import ProfileError
from nnrp_sched.transport import ClientSecurity, background_tasks
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from nnrp_sched_orchestrator.pool_records import PoolSettings

_PROGRAM: Final = "demo"
_SESSIONS: Final = 2
_AT_ONCE: Final = 6
"""Model calls at once. The story has more, so that some are seen to wait."""
_BUDGET: Final = Budget(tokens=5000, seconds=300)
_FRAME_SECONDS: Final = 0.2
_OWN_SERVER: Final = ("--patch-vllm", "--listen", "nnrp://127.0.0.1:0", "--http", "off")


@click.command("demo")
@click.option("--endpoint", help="A server that is there already. Default: start one.")
@proving
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a story.")
@click.option("--model", help="Another model than the embedded one, or than the server's first.")
def command(
    endpoint: str | None, security: ClientSecurity, as_json: bool, model: str | None
) -> None:
    """Run a small program of agents on the embedded model, on the CPU.

    Starts `nnrp-sched run --patch-vllm` as a child process. Agents then read this project's own
    files with tools, all over two sessions: one runs out of its budget, one is cancelled with
    everything below it, and three calls race. Ends with the receipts and with what cancelling
    saved. A terminal shows the tree at work, anything else gets a line for each thing that happens.
    """
    audience = Silence() if as_json else Board(sys.stdout) if _live() else Lines(sys.stdout)
    report = anyio.run(partial(_demo, audience, endpoint, security, model))
    click.echo(json.dumps(msgspec.to_builtins(report)) if as_json else conclusion(report))


def _live() -> bool:
    """Whether lines can be drawn again in place."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


async def _demo(
    audience: Audience, endpoint: str | None, security: ClientSecurity, model: str | None
) -> DemoReport:
    async with _server(audience, endpoint, model) as server:
        address, began = server["endpoints"][0], time.monotonic()
        async with (
            Orchestrator.connect(
                address,
                sessions=_SESSIONS,
                security=security,
                pool_settings=PoolSettings(max_in_flight=_AT_ONCE),
            ) as orchestrator,
            orchestrator.program(_PROGRAM, budget=_BUDGET) as program,
        ):
            server.setdefault("model", model or next(iter(program.models), "the model"))
            audience.say(
                f"\n{server['model']} answers; a model as small as the embedded one has little "
                "to say, and calls\na tool because it is made to (tool_choice).\n"
            )
            story = Story(program, audience, server["model"])
            async with _drawn(audience, story):
                await story.play()
        seconds = time.monotonic() - began
        left = await _left(address, security)
        return report_of(story, server, sessions=_SESSIONS, left=left, seconds=seconds)


@asynccontextmanager
async def _server(
    audience: Audience, endpoint: str | None, model: str | None
) -> AsyncGenerator[dict[str, Any], None]:
    """What a server says of itself that is there for the time of the block."""
    if endpoint is not None:
        yield {"endpoints": [endpoint], "vllm": None, "binding": None, "patched": []}
        return
    audience.say("Starting vLLM on the CPU with an NNRP listener beside it: half a minute.")
    began = time.monotonic()
    arguments = _OWN_SERVER if model is None else (*_OWN_SERVER, "--model", model)
    async with started_server("run", *arguments) as server:
        ready = server.ready
        audience.say(
            f"Ready after {time.monotonic() - began:.0f} s: {ready['model']} on vLLM "
            f"{ready['vllm']}, binding {ready['binding']}, patched: "
            + ", ".join(f"{entry['process']} (pid {entry['pid']})" for entry in ready["patched"])
        )
        yield ready


@asynccontextmanager
async def _drawn(audience: Audience, story: Story) -> AsyncGenerator[None, None]:
    """Have a board drawn while the block runs, and once more at its end."""
    if not isinstance(audience, Board):
        yield
        return
    screen = Screen(sys.stdout)

    def draw() -> None:
        audience.update(agent.snapshot() for agent in story.agents)
        size = get_terminal_size()
        screen.draw(audience.lines(size.columns)[: size.lines - 1])

    async def keep_drawing() -> None:
        while True:
            draw()
            await anyio.sleep(_FRAME_SECONDS)

    async with background_tasks() as tasks:
        tasks.start_soon(keep_drawing)
        yield
    draw()


async def _left(endpoint: str, security: ClientSecurity) -> int | None:
    """Operations of the program that the server still has; None when it does not tell."""
    async with connect(endpoint, security=security) as connection, connection.session() as session:
        try:
            queue = await session.queue()
        except ProfileError:  # It answers no control requests.
            return None
    return sum(each.program == _PROGRAM for each in queue.operations)
