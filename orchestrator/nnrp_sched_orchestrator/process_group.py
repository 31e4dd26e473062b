"""The processes of one tool call: told, looked for and ended together. Linux only (/proc).

A call's processes are those of its process group and session, and any that carries the call's mark
in its environment: a child that made itself a session of its own (setsid, a daemon) still has that.
"""

import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import anyio
from msgspec import Struct

MARK: Final = "NNRP_SCHED_TOOL_CALL"
"""The variable whose value tells the processes of a call from all others."""

_PROC: Final = Path("/proc")
_DEAD: Final = frozenset({b"Z", b"X", b"x"})
_KILL_SECONDS: Final = 2.0
"""How long the kernel may take to end what was killed; longer only in uninterruptible sleep."""
_SHORTEST_WAIT: Final = 0.002
_LONGEST_WAIT: Final = 0.1


def marked(environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """An environment with a new mark, and the mark.

    A call within a call keeps the outer one's mark too: who ends that one ends this one.
    """
    mark = secrets.token_hex(16)
    outer = environment.get(MARK)
    return {**environment, MARK: f"{outer}.{mark}" if outer else mark}, mark


class ProcessGroup(Struct, frozen=True):
    """The processes of one call."""

    leader: int
    """The process that was started: it leads its group and its session, which have its id."""
    mark: str

    async def end(self, grace_seconds: float) -> bool:
        """End them all: SIGTERM, and to those still there after the grace SIGKILL.

        True once none is left; False when some outlived SIGKILL for two seconds.
        """
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, _KILL_SECONDS)):
            with anyio.move_on_after(seconds):
                await self._gone(number)
                return True
        return False

    async def _gone(self, number: signal.Signals) -> None:
        """Send it to all of them, also to those that are started meanwhile, until none is left."""
        told: set[int] = set()
        wait = _SHORTEST_WAIT
        while members := await self.members():
            if self.leader in members.values():
                # At once, so that none of the group can start another one in between.
                _signal(os.killpg, self.leader, number)
            for pid in members.keys() - told:
                if members[pid] != self.leader:
                    _signal(os.kill, pid, number)
            told |= members.keys()
            await anyio.sleep(wait)
            wait = min(_LONGEST_WAIT, wait * 2)

    async def members(self) -> dict[int, int]:
        """The ids of those that live now, zombies do not, each with its process group."""
        # In a thread: a machine with many processes has many files to read.
        return await anyio.to_thread.run_sync(self._members)

    def _members(self) -> dict[int, int]:
        mark = self.mark.encode()
        members: dict[int, int] = {}
        for pid in _processes():
            found = _stat(pid)
            if found is not None and (self.leader in found or mark in _environment(pid)):
                members[pid] = found[0]
        return members


def _signal(send: Callable[[int, int], None], target: int, number: signal.Signals) -> None:
    # What ended in this moment, or became another user's, is not ours to end.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, number)


def _processes() -> Iterator[int]:
    with os.scandir(_PROC) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                yield int(entry.name)


def _stat(pid: int) -> tuple[int, int] | None:
    """The group and the session of a process; None for one that does not live."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may hold anything; behind it: state, parent, group, session.
    state, _parent, group, session = text.rpartition(b")")[2].split()[:4]
    return None if state in _DEAD else (int(group), int(session))


def _environment(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""  # It has ended, or is another user's and so not ours.
