"""A scheduler that writes down what it decides: a witness in the engine process beside our hooks.

vLLM takes it by `--scheduler-cls`. It subclasses vLLM's own and records what was asked of it and
what it scheduled, line by line, into the file or to the Unix socket that `VARIABLE` names. At a
socket it waits for an answer in every step, so that its peer decides what happens at each boundary.
"""

import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import msgspec

VARIABLE: Final = "NNRP_TEST_STEPS"
SOCKET: Final = "unix:"
"""What the value of `VARIABLE` begins with when it names a socket."""
SCHEDULER: Final = f"{__name__}.RecordingScheduler"
ASYNC_SCHEDULER: Final = f"{__name__}.RecordingAsyncScheduler"

_ANSWER_S = 60.0
"""How long a step waits for its peer; then the engine fails, and the test with it."""


class Scheduled(msgspec.Struct, tag=True, array_like=True):
    """A step was decided."""

    began_ns: int
    tokens: dict[str, int]
    """By internal id, how many tokens of it are computed."""
    preempted: list[str]
    waiting: list[str]
    """Who is left in a queue, of the first ones."""


class Updated(msgspec.Struct, tag=True, array_like=True):
    """A step's tokens are known."""

    at_ns: int


class Asked(msgspec.Struct, tag=True, array_like=True):
    """Requests are to be finished from outside."""

    at_ns: int
    statuses: dict[str, str]
    """By internal id, where those stood that the scheduler has."""


class Freed(msgspec.Struct, tag=True, array_like=True):
    """A request has ended."""

    request_id: str
    status: str
    tokens: int
    prompt_tokens: int


Line = Scheduled | Updated | Asked | Freed

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


def decode(line: bytes | str) -> Line:
    """One line of a recorder."""
    return _decoder.decode(line)


class _Sink:
    """Where the lines go; opened by the first scheduler in the process."""

    def __init__(self) -> None:
        target = os.environ[VARIABLE]
        self._answers: Any = None
        if target.startswith(SOCKET):
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(_ANSWER_S)
            peer.connect(target.removeprefix(SOCKET))
            self._answers = peer.makefile("rb", buffering=0)
            self._file = peer.makefile("wb")
        else:
            self._file = Path(target).open("wb")  # noqa: SIM115  # lives as long as the process

    def write(self, line: Line) -> None:
        """Record a line, and in a step wait for the peer's word, if there is one."""
        self._file.write(_encoder.encode(line) + b"\n")
        self._file.flush()
        if self._answers is not None and isinstance(line, Scheduled) and not self._answers.read(1):
            raise ConnectionError("the peer of the recorded steps is gone")


class _Recording:
    """Mixed into a scheduler of vLLM, before it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._steps = _Sink()
        cast(Any, super()).__init__(*args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        began_ns = time.monotonic_ns()
        output = cast(Any, super()).schedule(*args, **kwargs)
        left = [one.request_id for one in list(cast(Any, self).waiting)[:64]]
        tokens = dict(output.num_scheduled_tokens)
        self._steps.write(Scheduled(began_ns, tokens, sorted(output.preempted_req_ids or ()), left))
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        result = cast(Any, super()).update_from_output(*args, **kwargs)
        self._steps.write(Updated(time.monotonic_ns()))
        return result

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        ids: Iterable[str] = [request_ids] if isinstance(request_ids, str) else request_ids or ()
        known = cast(Any, self).requests
        statuses = {one: known[one].status.name for one in ids if one in known}
        self._steps.write(Asked(time.monotonic_ns(), statuses))
        return cast(Any, super()).finish_requests(request_ids, finished_status)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        freed = Freed(
            request.request_id,
            request.status.name,
            request.num_output_tokens,
            request.num_prompt_tokens,
        )
        result = cast(Any, super())._free_request(request, *args, **kwargs)
        self._steps.write(freed)
        return result


def __getattr__(name: str) -> Any:
    """The classes, made when vLLM asks for them: this module is read without vLLM too."""
    bases = {
        "RecordingScheduler": ("vllm.v1.core.sched.scheduler", "Scheduler"),
        "RecordingAsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
    }
    if name not in bases:
        raise AttributeError(name)
    module, base = bases[name]
    made = type(name, (_Recording, getattr(import_module(module), base)), {})
    globals()[name] = made
    return made


@dataclass
class Life:
    """What the witness saw of one request of the engine."""

    steps: list[int] = field(default_factory=list[int])
    """Numbers of the steps that computed tokens of it."""
    preempted: int = 0
    asked_in: int | None = None
    """The number of steps decided before its end was asked for."""
    stood: str | None = None
    """Its status then."""
    status: str | None = None
    """How it ended."""
    tokens: int = 0
    prompt_tokens: int = 0
    ends: int = 0


@dataclass
class Record:
    """All that a witness saw."""

    lives: dict[str, Life]
    steps_ns: list[tuple[int, int]]
    """Of each step, when it began to be scheduled and when its tokens were known."""

    @property
    def durations_ms(self) -> list[float]:
        """How long each step took."""
        return [(end - begin) / 1e6 for begin, end in self.steps_ns]


def read(lines: Iterable[Line]) -> Record:
    """Put together what was seen of each request, by internal id."""
    lives: dict[str, Life] = defaultdict(Life)
    spans: list[tuple[int, int]] = []
    began: list[int] = []
    step = 0
    for line in lines:
        match line:
            case Scheduled():
                step += 1
                began.append(line.began_ns)
                for one in line.tokens:
                    lives[one].steps.append(step)
                for one in line.preempted:
                    lives[one].preempted += 1
            case Updated():
                spans.append((began.pop(0), line.at_ns))
            case Asked():
                for one, status in line.statuses.items():
                    life = lives[one]
                    if life.asked_in is None:
                        life.asked_in, life.stood = step, status
            case Freed():
                life = lives[line.request_id]
                life.status, life.tokens = line.status, line.tokens
                life.prompt_tokens = line.prompt_tokens
                life.ends += 1
    return Record(dict(lives), spans)


def read_file(path: Path) -> Record:
    """The record of a witness that wrote into a file."""
    return read(decode(line) for line in path.read_bytes().splitlines())
