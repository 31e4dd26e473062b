"""Random programs of agents: `python -m tests.soak.programs [--programs 1000] [--seed N]`.

Each program has a random tree, random calls and tools, and random misfortunes: cancels, failures,
lost connections, restarts of the server, slow and absent readers. Ends with exit code 1 when
anything is left, spent twice, or told wrongly.
"""

import argparse
import logging
import random
import sys
import time
from collections import Counter
from typing import get_args

import anyio
from msgspec import Struct, field

from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.model_request import OnLoss
from tests.support.program_world import SCRIPTS, Leaving, Reading, World, world

_PROGRAMS_A_WORLD = 10
_ACTIONS = ("agent", "chats", "tool", "stream", "cone", "leave", "cut", "restart", "wait")
_LOSSES = ("cut", "restart")
_WEIGHTS = (10, 30, 5, 6, 2, 2, 1, 1, 14)


class Tally(Struct):
    """What has happened."""

    programs: int = 0
    agents: int = 0
    streams: Counter[str] = field(default_factory=Counter[str])
    receipts: Counter[str] = field(default_factory=Counter[str])
    losses: int = 0
    seconds: float = 0.0


def _budget(dice: random.Random) -> Budget:
    def maybe(most: int) -> int | None:
        return None if dice.random() < 0.75 else dice.randint(0, most)

    return Budget(tokens=maybe(300), model_calls=maybe(8), depth=maybe(3), fan_out=maybe(6))


async def _act(it: World, dice: random.Random, *, calm: bool) -> None:
    """Let something happen; in a calm world no connection is lost."""
    action = dice.choices(_ACTIONS, _WEIGHTS)[0]
    actors, streams = it.actors, it.streams
    if action in _LOSSES and calm:
        return
    if action == "cut":
        await it.cut(dice.randrange(8))
    elif action == "restart":
        await it.restart(dice.randrange(8))
    elif action == "wait":
        await it.wait(dice.randint(1, 300))
    elif action == "stream" and streams:
        await it.cancel_stream(dice.choice(streams))
    elif not actors:
        return
    elif action == "agent":
        await it.open(dice.choice(actors), _budget(dice))
    elif action == "chats":
        actor = dice.choice(actors)
        reading: Reading = dice.choice(get_args(Reading))
        on_loss: OnLoss = dice.choice(get_args(OnLoss))
        for _ in range(dice.randint(1, 6)):
            await it.chat(actor, dice.choice(sorted(SCRIPTS)), reading, on_loss)
    elif action == "tool":
        await it.tool(dice.choice(actors), dice.random() < 0.5)
    elif action == "cone":
        await it.cancel_cone(dice.choice(actors))
    elif action == "leave":
        how: Leaving = dice.choice(get_args(Leaving))
        await it.leave(dice.choice(actors), how)


async def play(programs: int, seed: int) -> Tally:
    """Play so many programs, several at a time; raises for whatever does not hold."""
    tally, dice, began = Tally(), random.Random(seed), time.monotonic()
    while tally.programs < programs:
        calm = dice.random() < 0.5
        async with world(dice.randint(1, 2)) as it:
            for _ in range(min(_PROGRAMS_A_WORLD, programs - tally.programs)):
                await it.open(None, _budget(dice))
                tally.programs += 1
                for _ in range(dice.randint(10, 40)):
                    await _act(it, dice, calm=calm)
                    it.check()
            tally.agents += it.agents
            how: Leaving = dice.choice(get_args(Leaving))
            await it.finish(how)
            tally.streams.update(each.stream.partial.status for each in it.streams)
            tally.receipts.update(each.state for each in it.receipts)
            tally.losses += it.losses
    tally.seconds = time.monotonic() - began
    return tally


def main() -> int:
    """Play and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.getLogger("nnrp_sched").setLevel(logging.CRITICAL)
    tally = anyio.run(play, asked.programs, asked.seed)
    sys.stdout.write(
        f"{tally.programs} programs of {tally.agents} agents in {tally.seconds:.0f} s, "
        f"{tally.losses} losses\n"
        f"streams: {dict(tally.streams)}\nreceipts by state: {dict(tally.receipts)}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
