"""Tools that are programs."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from nnrp_sched_orchestrator.errors import ToolFailed
from nnrp_sched_orchestrator.process_group import MARK
from nnrp_sched_orchestrator.subprocess_tool import ProcessSettings, subprocess_tool
from nnrp_sched_orchestrator.tools import Tool, ToolEnd, ToolRun
from tests.support.processes import SECONDS, alive, in_group, with_variable, written

pytestmark = pytest.mark.anyio


def shell(**members: Any) -> Tool:
    """A tool that runs a shell script; `members` are its settings."""

    def sh(script: str) -> Sequence[str]:
        """Run a script."""
        return ["/bin/sh", "-c", script]

    return subprocess_tool(settings=ProcessSettings(grace_seconds=0.1, **members))(sh)


def started(tool: Tool, **arguments: Any) -> ToolRun:
    return tool.start(msgspec.json.encode(arguments).decode())


async def collected(run: ToolRun) -> tuple[str, ToolEnd]:
    pieces: list[str] = []

    async def emit(text: str) -> None:
        pieces.append(text)

    with anyio.fail_after(SECONDS):
        end = await run.run(emit)
    return "".join(pieces), end


async def test_what_a_program_writes_is_the_output_and_its_exit_code_tells() -> None:
    output, end = await collected(started(shell(), script="echo out; echo err >&2"))
    assert (output, end) == ("out\n", ToolEnd(exit_code=0, stderr="err\n"))
    output, end = await collected(started(shell(), script="echo out; echo err >&2; exit 3"))
    assert output == "out\n"
    assert end == ToolEnd("it ended with exit code 3", exit_code=3, stderr="err\n")
    _, end = await collected(started(shell(), script="kill -SEGV $$"))
    assert (end.failure, end.exit_code) == ("it was ended by SIGSEGV", -11)


async def test_arguments_are_words_that_no_shell_reads() -> None:
    @subprocess_tool
    def say(words: list[str]) -> list[str]:
        """Print each."""
        return ["printf", "%s\n", *words]

    output, _ = await collected(started(say, words=["$HOME", "; echo no", "a b"]))
    assert output == "$HOME\n; echo no\na b\n"


async def test_output_comes_while_the_program_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = started(shell(), script=f"echo one; while ! [ -e {gate} ]; do sleep 0.01; done; echo two")
    seen: list[str] = []

    async def emit(text: str) -> None:
        seen.append(text)
        gate.touch()  # Without this the second line never comes.

    with anyio.fail_after(SECONDS):
        await run.run(emit)
    assert seen == ["one\n", "two\n"]


async def test_a_character_that_comes_in_pieces_stays_whole_and_what_is_none_is_replaced() -> None:
    script = r"printf '\303'; sleep 0.05; printf '\251|\377|\342\202'"
    output, _ = await collected(started(shell(), script=script))
    assert output == "é|\ufffd|\ufffd"


async def test_it_reads_nothing_and_runs_where_and_as_it_is_told(tmp_path: Path) -> None:
    tool = shell(cwd=tmp_path, environment={"PATH": os.environ["PATH"], "A": "1"})
    output, _ = await collected(started(tool, script=f"cat; pwd; unset PWD OLDPWD _ {MARK}; env"))
    here, *variables = output.split()
    assert here == str(tmp_path)
    assert sorted(variables) == sorted([f"PATH={os.environ['PATH']}", "A=1"])


async def test_of_stderr_the_end_is_kept() -> None:
    script = "i=0; while [ $i -lt 5000 ]; do echo line$i >&2; i=$((i+1)); done"
    _, end = await collected(started(shell(stderr_bytes=100), script=script))
    assert len(end.stderr) == 100
    assert end.stderr.endswith("line4998\nline4999\n")


async def test_what_the_first_process_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    child = f"(trap '' TERM; sleep 1000 & echo $! >>{told}; wait) &"
    script = f"{child} while ! [ -s {told} ]; do sleep 0.01; done; echo done"
    output, end = await collected(started(shell(), script=script))
    (pid,) = await written(told)
    assert (output, end.exit_code) == ("done\n", 0)
    assert not alive(pid)


async def test_a_shell_that_forks_and_ignores_sigterm_leaves_nothing_when_cancelled(
    tmp_path: Path,
) -> None:
    told = tmp_path / "pids"
    script = (
        f"trap '' TERM; echo $$ >>{told}; (trap '' TERM; echo x; sleep 1000 & echo $! >>{told};"
        f" wait) & setsid sleep 1000 & echo $! >>{told}; wait; wait"
    )
    run = started(shell(), script=script)
    pids: list[int] = []

    async def ignore(_text: str) -> None: ...

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.run, ignore)
            pids += await written(told, 3)
            tasks.cancel_scope.cancel()
        receipt = await run.stop("not wanted")
    assert not any(alive(pid) for pid in pids)
    assert in_group(pids[0]) == []
    assert (receipt.accepted, receipt.authoritative, receipt.state) == (True, True, "running")
    assert receipt.latency_ms >= 100  # It had its time to heed SIGTERM.


@given(st.integers(0, 400), st.booleans())
@settings(max_examples=25, deadline=None)
async def test_whenever_it_is_cancelled_nothing_is_left(turns: int, deaf: bool) -> None:
    """After so many turns of the loop: before, while and after it starts, or has ended."""
    script = "trap '' TERM; " * deaf + "sleep 1000 & setsid sleep 1000 & echo; sleep 0.05"
    outer = secrets.token_hex(8)
    environment = {"PATH": os.environ["PATH"], MARK: outer}
    run = started(shell(environment=environment), script=script)

    async def ignore(_text: str) -> None: ...

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.run, ignore)
            for _ in range(turns):
                await checkpoint()
            tasks.cancel_scope.cancel()
    assert (await run.stop("")).authoritative
    assert with_variable(f"{MARK}={outer}.") == []


async def test_a_run_that_was_cancelled_before_it_began_has_started_nothing() -> None:
    run = started(shell(), script="sleep 1000")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await collected(run)
    receipt = await run.stop("not wanted")
    assert (receipt.state, receipt.accepted, receipt.authoritative) == ("admitting", True, True)


async def test_a_program_that_is_not_there_is_a_failure_that_names_it(tmp_path: Path) -> None:
    @subprocess_tool
    def nobody() -> list[str]:
        return [str(tmp_path / "nobody")]

    with pytest.raises(ToolFailed, match="nobody cannot be started"):
        await collected(started(nobody))


@pytest.mark.parametrize(
    ("words", "named"),
    [("ls -l", "not a list"), ([], "no program"), ([1], "not int"), (KeyError("path"), "path")],
)
def test_words_that_are_none_are_a_failure_that_says_so(words: Any, named: str) -> None:
    @subprocess_tool(name="odd")
    def odd() -> Any:
        if isinstance(words, Exception):
            raise words
        return words

    with pytest.raises(ToolFailed, match=named):
        odd.start("{}")


async def test_a_null_byte_in_an_argument_is_a_failure() -> None:
    @subprocess_tool
    def say(text: str) -> list[str]:
        return ["echo", text]

    with pytest.raises(ToolFailed, match="echo cannot be started"):
        await collected(started(say, text="a\0b"))


async def test_output_of_somebody_unseen_does_not_hold_the_call_up(tmp_path: Path) -> None:
    """A process that hides from us keeps the pipe open: what it may still say is no concern."""
    told = tmp_path / "pid"
    hidden = f"env -i setsid /bin/sh -c 'echo $$ >{told}; exec /bin/sleep 1000' &"
    script = f"{hidden} while ! [ -s {told} ]; do sleep 0.01; done; echo done"
    output, end = await collected(started(shell(), script=script))
    (pid,) = await written(told)
    assert (output, end.exit_code) == ("done\n", 0)
    assert alive(pid)
    os.kill(pid, 9)
