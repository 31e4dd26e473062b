"""What a terminal shows of a program while it runs: its tree, states, places, tokens, receipts."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TextIO

from msgspec import Struct

from nnrp_sched.cli.table import table
from nnrp_sched.profile import OutputTextDelta, ToolCallDelta
from nnrp_sched_orchestrator.records import Receipt, StreamState
from nnrp_sched_orchestrator.snapshot import AgentSnapshot, StreamSnapshot

_TITLES: Final = ("agent", "state", "tokens", "receipts", "last")


class Audience(Protocol):
    """Whom the story is told."""

    def say(self, text: str) -> None:
        """Something that is no agent's."""
        ...

    def tell(self, path: str, text: str) -> None:
        """Something happened to an agent."""
        ...

    def heard(self, path: str, event: object) -> None:
        """One of its streams had an event."""
        ...


class Silence:
    """For programs, which read the report."""

    def say(self, text: str) -> None:
        """Nobody reads it."""

    def tell(self, path: str, text: str) -> None:
        """Nobody reads it."""

    def heard(self, path: str, event: object) -> None:
        """Nobody counts it."""


class Lines:
    """A line for each thing that happens, with its time."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._began: float | None = None

    def say(self, text: str) -> None:
        """Print it."""
        print(text, file=self._output, flush=True)

    def tell(self, path: str, text: str) -> None:
        """Print it, with the seconds since the first time."""
        now = time.monotonic()
        self._began = self._began or now
        self.say(f"{now - self._began:6.1f} s  {path}: {text}")

    def heard(self, path: str, event: object) -> None:
        """Tokens are too many to print."""


class _Row(Struct):
    state: str = ""
    pieces: int = 0
    """Events of its own with a piece of text: about a token each."""
    tokens: int = 0
    """Of calls that have ended, its own and those below it."""
    receipts: tuple[Receipt, ...] = ()
    last: str = ""


class Board:
    """Agents as rows, the ended ones too. It is told everything, and gives lines."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._rows: dict[str, _Row] = {}

    def say(self, text: str) -> None:
        """Print it; only before or after the rows are drawn."""
        print(text, file=self._output, flush=True)

    def tell(self, path: str, text: str) -> None:
        """Remember what happened last."""
        self._row(path).last = text

    def heard(self, path: str, event: object) -> None:
        """Count a piece of text."""
        if isinstance(event, OutputTextDelta | ToolCallDelta):
            self._row(path).pieces += 1

    def update(self, agents: Iterable[AgentSnapshot]) -> None:
        """See how each of them stands now."""
        for agent in agents:
            row = self._row(agent.path)
            row.state = _done(agent.ended) if agent.ended else _told(agent.streams)
            row.tokens = agent.spent.tokens
            row.receipts = agent.receipts

    def lines(self, width: int) -> list[str]:
        """The rows as they are to be shown, none longer than `width`."""
        ordered = sorted(self._rows, key=lambda path: path.split("/"))
        rows = [[_branch(path), *self._cells(path)] for path in ordered]
        return [line[:width] for line in table(_TITLES, rows).splitlines()]

    def _cells(self, path: str) -> list[object]:
        row = self._rows[path]
        pieces = sum(
            other.pieces for name, other in self._rows.items() if f"{name}/".startswith(f"{path}/")
        )
        proven = sum(receipt.authoritative for receipt in row.receipts)
        receipts = f"{proven} of {len(row.receipts)} proven" if row.receipts else ""
        return [row.state, max(row.tokens, pieces), receipts, row.last]

    def _row(self, path: str) -> _Row:
        return self._rows.setdefault(path, _Row())


class Screen:
    """Draws lines where it drew the last ones."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._drawn = 0

    def draw(self, lines: Sequence[str]) -> None:
        """Show these instead."""
        back = f"\x1b[{self._drawn}F" if self._drawn else ""
        text = "".join(f"{line}\n" for line in lines)
        self._output.write(f"{back}\x1b[J{text}")
        self._output.flush()
        self._drawn = len(lines)


def _branch(path: str) -> str:
    *above, name = path.split("/")
    return f"{'  ' * len(above)}{name}"


def _done(why: str) -> str:
    return "cancelled" if "cancelled" in why else "done"


def _told(streams: Sequence[StreamSnapshot]) -> str:
    """What the streams do, those that a run has for itself left out: `2 running, queued at 1`."""
    own = [each for each in streams if each.kind != "run"] or streams
    counted = Counter(_state(each) for each in own)
    return ", ".join(f"{count} {what}" if count > 1 else what for what, count in counted.items())


def _state(stream: StreamSnapshot) -> str:
    if stream.kind == "tool":
        return stream.name
    return _place(stream.state) if stream.state.kind == "queued" else stream.state.kind


def _place(state: StreamState) -> str:
    where = "" if state.where is None else f" in the {state.where}"
    place = "" if state.position is None else f" at {state.position}"
    soon = "" if state.estimate_ms is None else f", {state.estimate_ms / 1000:.1f} s"
    return f"queued{place}{where}{soon}"
