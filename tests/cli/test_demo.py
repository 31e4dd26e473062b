"""`nnrp-sched demo` on the scripted engine: what it shows to people and to programs."""

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nnrp_sched.cli.demo_board import Board, Lines, Screen
from nnrp_sched.profile import OutputTextDelta
from nnrp_sched_orchestrator.records import Receipt, Spent, StreamState
from nnrp_sched_orchestrator.snapshot import AgentSnapshot, StreamSnapshot
from tests.cli.test_commands import SECONDS, run, serving


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a running scripted server."""
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        yield ready["endpoints"][0]


def test_programs_get_one_object_with_every_receipt_and_the_totals(endpoint: str) -> None:
    done = run("demo", "--endpoint", endpoint, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["model"] == "example-model"
    assert (report["vllm"], report["patched"]) == (None, [])
    assert (report["sessions"], report["agents"], report["operations"]) == (2, 8, 12)
    assert report["tool_calls"] == 4
    assert set(report["answers"]) == {"errors", "client", "server"}
    assert report["over_budget"] == {"agent": "demo/novelist", "allowed": 40, "tokens": 40}
    assert report["reply"] == "You said: What is the capital of France?"
    assert report["left"] == 0
    assert [len(report[each]) for each in ("cancelled", "losers", "receipts")] == [3, 2, 6]
    assert all(each["authoritative"] for each in report["receipts"])
    assert {each["state"] for each in report["cancelled"]} == {"running", "local"}
    cut = [each for each in report["cancelled"] + report["losers"] if each["tokens"] is not None]
    saved = report["saved"]
    assert saved["tokens_at_most"] == sum(400 - each["tokens"] for each in cut)
    assert saved["engine_seconds_at_most"] > 0


def test_people_without_a_terminal_get_a_line_for_each_thing_that_happens(endpoint: str) -> None:
    done = run("demo", "--endpoint", endpoint)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    for told in (
        "demo/errors: calls read_file",
        "demo/novelist: the tokens budget of 'demo/novelist' (40) allows no more",
        "demo/archivist: cancelled with the agent below it: 3 receipts in",
        "demo/referee: You said: What is the capital of France? (2 losers were stopped)",
        "The server has no operations of this program left.",
    ):
        assert told in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Cancelling saved at most ")


def test_a_server_that_goes_away_ends_the_story_with_what_happened_and_no_traceback() -> None:
    with serving("--listen", "nnrp://127.0.0.1:0") as (server, ready):
        command = [sys.executable, "-m", "nnrp_sched", "demo", "--endpoint", ready["endpoints"][0]]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as demo:
            assert demo.stdout is not None
            while "demo/" not in demo.stdout.readline():
                assert demo.poll() is None
            server.kill()
            _, told = demo.communicate(timeout=SECONDS)
    assert demo.returncode in (1, 5)
    assert told.startswith("nnrp-sched: ")
    assert "Traceback" not in told


def test_a_terminal_shows_the_tree_again_and_again_in_its_place(endpoint: str) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "nnrp_sched", "demo", "--endpoint", endpoint],
        stdout=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    text = b""
    try:
        while data := os.read(ours, 65_536):
            text += data
    except OSError:
        pass  # Linux's way to say that nobody has the other end any more.
    os.close(ours)
    assert process.wait(SECONDS) == 0
    _, *frames = text.decode().split("\x1b[J")
    assert len(frames) > 1
    for row in ("demo ", "  archivist ", "    clerk ", "  novelist "):
        assert f"\n{row}" in frames[-1]
    assert "2 of 2 proven" in frames[-1]
    assert "cancelled" in frames[-1]


def agent(path: str, *states: StreamState, ended: str | None = None, **members: Any) -> Any:
    streams = tuple(
        StreamSnapshot(f"{path}#{number}", "model", "m", state, 1, 0.0)
        for number, state in enumerate(states)
    )
    spent = Spent(tokens=members.get("tokens", 0))
    return AgentSnapshot(path, ended, spent, streams, members.get("receipts", ()), ())


def test_the_board_tells_states_places_tokens_and_receipts_of_each_agent() -> None:
    board = Board(io.StringIO())
    running = StreamState("running")
    for _ in range(3):
        board.heard("p/b", OutputTextDelta(0, "x"))
    board.tell("p/a", "it waits")
    board.update(
        [
            agent("p", tokens=1),
            agent("p/b", running, running),
            agent("p/a", StreamState("queued", 2, 1500.0, "engine")),
            agent("p/c", ended="it was cancelled: enough", receipts=(Receipt("p/c#1"),)),
        ]
    )
    assert [line.split() for line in board.lines(100)] == [
        ["agent", "state", "tokens", "receipts", "last"],
        ["p", "3"],
        ["a", *["queued", "at", "2", "in", "the", "engine,", "1.5", "s", "0", "it", "waits"]],
        ["b", "2", "running", "3"],
        ["c", *["cancelled", "0", "1", "of", "1", "proven"]],
    ]
    assert all(len(line) <= 20 for line in board.lines(20))


def test_a_screen_goes_back_over_what_it_drew_and_no_further() -> None:
    output = io.StringIO()
    screen = Screen(output)
    screen.draw(["a", "b"])
    screen.draw(["c"])
    screen.draw([])
    assert output.getvalue() == "\x1b[Ja\nb\n\x1b[2F\x1b[Jc\n\x1b[1F\x1b[J"


def test_lines_have_the_time_since_the_first() -> None:
    output = io.StringIO()
    lines = Lines(output)
    lines.say("hello")
    lines.tell("p/a", "works")
    assert output.getvalue() == "hello\n   0.0 s  p/a: works\n"
