"""The processes of one tool call: told, looked for and ended together. Linux only (/proc).

A call's processes are those of its process group and session, and any that carries the call's mark
in its environment: a child that made itself a session of its own (setsid, a daemon) still has that.
"""

import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from typing import Final, Self

import anyio
from msgspec import Struct

from nnrp_sched_orchestrator.processes import living, stat

MARK: Final = "NNRP_SCHED_TOOL_CALL"
"""The variable whose value tells the processes of a call from all others."""

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
    since: int = 0
    """When it was started, in the kernel's ticks; whatever is older is none of the call."""

    @classmethod
    def of(cls, leader: int, mark: str) -> Self:
        """The group of a process that was just started."""
        found = stat(leader)
        return cls(leader, mark, 0 if found is None else found.started)

    async def end(self, grace_seconds: float) -> bool:
        """End them all: SIGTERM, and to those still there after the grace SIGKILL.

        True once none is left; False when some outlived SIGKILL for two seconds.
        """
        members = await self.members()
        members = await self._until_gone(signal.SIGTERM, members, grace_seconds)
        members = await self._until_gone(signal.SIGKILL, members, _KILL_SECONDS)
        # Where the interpreter is busy a look takes seconds, and is no news when it is over.
        return not (members and await self.members())

    async def _until_gone(
        self, number: signal.Signals, members: dict[int, int], seconds: float
    ) -> dict[int, int]:
        """Send it to all of them, also to those that are started meanwhile; those that are left."""
        told: set[int] = set()
        wait = _SHORTEST_WAIT
        deadline = anyio.current_time() + seconds
        while members and anyio.current_time() < deadline:
            if self.leader in members.values():
                # At once, so that none of the group can start another one in between.
                _signal(os.killpg, self.leader, number)
            for pid in members.keys() - told:
                if members[pid] != self.leader:
                    _signal(os.kill, pid, number)
            told |= members.keys()
            await anyio.sleep(wait)
            wait = min(_LONGEST_WAIT, wait * 2)
            members = await self.members()
        return members

    async def members(self) -> dict[int, int]:
        """The ids of those that live now, zombies do not, each with its process group."""
        # Twice, because one that starts another and ends, while we look, can hide both of them.
        return await self._look() or await self._look()

    async def _look(self) -> dict[int, int]:
        mark = self.mark.encode()
        return {
            each.pid: each.group
            for each in await living(self.since)
            if each.started >= self.since
            and (self.leader in (each.group, each.session) or mark in each.environment)
        }


def _signal(send: Callable[[int, int], None], target: int, number: signal.Signals) -> None:
    # What ended in this moment, or became another user's, is not ours to end.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, number)
