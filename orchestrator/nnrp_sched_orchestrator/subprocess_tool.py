"""Tools that are programs: each call in a process group of its own, of which nothing is left.

```python
@subprocess_tool
def grep(pattern: str, path: str = ".") -> list[str]:
    \"\"\"Search files for a regular expression.\"\"\"
    return ["grep", "-rn", "--", pattern, path]
```
"""

import codecs
import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, overload

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream, Process
from msgspec import Struct

from nnrp_sched.profile.scheduling import AbortReceipt, RequestState
from nnrp_sched.transport import background_tasks
from nnrp_sched_orchestrator.errors import ToolFailed
from nnrp_sched_orchestrator.process_group import ProcessGroup, marked
from nnrp_sched_orchestrator.tool_schema import tool_schema
from nnrp_sched_orchestrator.tools import EmitOutput, Tool, ToolEnd, ToolRun, decoded

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 65_536
_SIGNALS: Final = {each.value: each.name for each in signal.Signals}
_LEFTOVER_SECONDS: Final = 1.0
"""How long output may be waited for once every known process has ended."""


class ProcessSettings(Struct, frozen=True):
    """How a tool's programs run."""

    cwd: str | Path | None = None
    """Where; None: where this process is."""
    environment: Mapping[str, str] | None = None
    """Their variables; None: those of this process, secrets included."""
    grace_seconds: float = 2.0
    """How long they may take to heed SIGTERM; SIGKILL follows."""
    stderr_bytes: int = 8192
    """How much of the end of stderr is kept."""


Command = Callable[..., Sequence[str]]
"""Makes a program and its arguments of a call's arguments; no shell reads them."""


@overload
def subprocess_tool(command: Command, /) -> Tool: ...
@overload
def subprocess_tool(
    *,
    name: str | None = None,
    description: str | None = None,
    settings: ProcessSettings | None = None,
    strict: bool = False,
) -> Callable[[Command], Tool]: ...
def subprocess_tool(
    command: Command | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    settings: ProcessSettings | None = None,
    strict: bool = False,
) -> Tool | Callable[[Command], Tool]:
    """A tool that runs a program; `command` gives the program's arguments, and the schema.

    What it writes to stdout is the tool's output, as UTF-8; it reads nothing from stdin. It has
    failed when it ends with another code than 0. When its first process ends, when it is cancelled
    and when it is over its limits, whatever it has started is ended too: SIGTERM, and SIGKILL for
    what does not heed that. `strict` is as for a `function_tool`. Raises `ToolDefinitionError`.
    """

    def made(function: Command) -> Tool:
        schema = tool_schema(function, name=name, description=description)
        how = settings or ProcessSettings()

        def start(arguments: str) -> ToolRun:
            words = _words(schema.name, function, decoded(schema, arguments))
            return ProcessRun(schema.name, words, how)

        return Tool(schema.name, schema.description, schema.parameters, start, strict)

    return made if command is None else made(command)


def _words(name: str, command: Command, arguments: Mapping[str, Any]) -> list[str]:
    try:
        given: Any = command(**arguments)
        if isinstance(given, str):
            raise TypeError("it gave one text, not a list: the program and each of its arguments")
        words = [_word(word) for word in given]
        if not words:
            raise ValueError("it gave no program")
    except Exception as error:
        # Whatever it does not like about its arguments is for the model to read.
        raise ToolFailed(f"{name}: {error or type(error).__name__}") from error
    return words


def _word(word: str | os.PathLike[str]) -> str:
    return os.fspath(word)


class ProcessRun:
    """A program's run, from its start to the end of all it has started."""

    endpoint = None
    """It runs here."""

    def __init__(self, name: str, words: Sequence[str], settings: ProcessSettings) -> None:
        self._name = name
        self._words = words
        self._settings = settings
        self._gone: bool | None = None
        """Whether nothing is left; None before anything was started or ended."""
        self._latency_ms = 0.0
        self._ended = anyio.Event()
        self._reading = anyio.CancelScope()
        self._stderr = bytearray()
        self._stderr_read = anyio.Event()

    async def run(self, emit: EmitOutput) -> ToolEnd:
        """Run it. Raises `ToolFailed` when it cannot be started."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        variables = self._settings.environment
        environment, mark = marked(os.environ if variables is None else variables)
        process = await self._started(environment)
        group = ProcessGroup.of(process.pid, mark)
        try:
            return await self._served(process, group, emit)
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(group)
                if self._gone:  # Closing waits for its end.
                    await process.aclose()

    async def stop(self, reason: str) -> AbortReceipt:
        """What became of it; authoritative when none of its processes is left."""
        state: RequestState = "admitting" if self._gone is None else "running"
        return AbortReceipt(
            self._name, state, True, self._gone is not False, None, self._latency_ms
        )

    async def _started(self, environment: Mapping[str, str]) -> Process:
        process: Process | None = None
        try:
            # A process that nobody knows of could not be ended.
            with anyio.CancelScope(shield=True):
                process = await anyio.open_process(
                    self._words,
                    stdin=subprocess.DEVNULL,
                    cwd=self._settings.cwd,
                    env=environment,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise ToolFailed(f"{self._words[0]} cannot be started: {error}") from error
        assert process is not None
        return process

    async def _served(self, process: Process, group: ProcessGroup, emit: EmitOutput) -> ToolEnd:
        assert process.stdout is not None
        assert process.stderr is not None
        async with background_tasks() as tasks:
            tasks.start_soon(self._keep_end, process.stderr)
            tasks.start_soon(self._end_with_leader, process, group)
            await self._hand_on(process.stdout, emit)
            await self._ended.wait()
            with anyio.move_on_after(_LEFTOVER_SECONDS):
                await self._stderr_read.wait()
        code = await process.wait()
        stderr = self._stderr.decode(errors="replace")
        return ToolEnd(_failure(code), exit_code=code, stderr=stderr)

    async def _end_with_leader(self, process: Process, group: ProcessGroup) -> None:
        """What the first process leaves running would hold the output open."""
        await process.wait()
        await self._end(group)
        self._ended.set()
        self._reading.deadline = anyio.current_time() + _LEFTOVER_SECONDS

    async def _end(self, group: ProcessGroup) -> None:
        if self._gone:
            return
        began = time.monotonic()
        self._gone = False
        self._gone = await group.end(self._settings.grace_seconds)
        self._latency_ms = (time.monotonic() - began) * 1000
        if not self._gone:
            logger.error("tool %s: processes of %s outlived SIGKILL", self._name, group.leader)

    async def _hand_on(self, stdout: ByteReceiveStream, emit: EmitOutput) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := await self._read(stdout):
            if text := decoder.decode(data):
                await emit(text)
        if text := decoder.decode(b"", final=True):
            await emit(text)

    async def _read(self, stdout: ByteReceiveStream) -> bytes:
        """The next bytes; none at the end, or when somebody we cannot see holds it open."""
        seconds = _LEFTOVER_SECONDS if self._ended.is_set() else math.inf
        with anyio.move_on_after(seconds) as self._reading:
            try:
                return await stdout.receive(_READ_BYTES)
            except anyio.EndOfStream:
                pass
        return b""

    async def _keep_end(self, stderr: ByteReceiveStream) -> None:
        async for data in stderr:
            self._stderr += data
            del self._stderr[: max(0, len(self._stderr) - self._settings.stderr_bytes)]
        self._stderr_read.set()


def _failure(code: int) -> str:
    if code < 0:
        return f"it was ended by {_SIGNALS.get(-code, f'signal {-code}')}"
    return f"it ended with exit code {code}" if code else ""
