"""Random trees of agents under cancels, failures, lost connections, restarts and slow readers.

`python -m tests.soak.programs` plays a thousand of them.
"""

from contextlib import AbstractContextManager
from typing import Any, get_args

from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.model_request import OnLoss
from tests.support.program_world import SCRIPTS, Actor, Leaving, Reading, World, world

BUDGETS = st.builds(
    Budget,
    tokens=st.none() | st.integers(0, 300),
    model_calls=st.none() | st.integers(0, 6),
    depth=st.none() | st.integers(0, 3),
    fan_out=st.none() | st.integers(0, 5),
)

AT = st.integers(0, 2**16)


class Programs(RuleBasedStateMachine):
    """Whatever happens, nothing is left, nothing is spent twice, and every receipt is true."""

    portal_manager: AbstractContextManager[BlockingPortal]
    world_manager: AbstractContextManager[Any]
    world: World

    @initialize(budget=BUDGETS, calm=st.booleans(), servers=st.integers(1, 2))
    def begin(self, budget: Budget, calm: bool, servers: int) -> None:
        self.calm = calm
        self.portal_manager = start_blocking_portal()
        self.portal = self.portal_manager.__enter__()
        self.world_manager = self.portal.wrap_async_context_manager(world(servers))
        self.world = self.world_manager.__enter__()
        self.portal.call(self.world.open, None, budget)

    @rule(budget=BUDGETS)
    def program(self, budget: Budget) -> None:
        if len(self.world.programs) < 3:
            self.portal.call(self.world.open, None, budget)

    @rule(at=AT, budget=BUDGETS)
    def agent(self, at: int, budget: Budget) -> None:
        parent = self._actor(at)
        if parent is not None:
            self.portal.call(self.world.open, parent, budget)

    @rule(
        at=AT,
        kinds=st.lists(st.sampled_from(sorted(SCRIPTS)), min_size=1, max_size=6),
        reading=st.sampled_from(get_args(Reading)),
        on_loss=st.sampled_from(get_args(OnLoss)),
    )
    def chats(self, at: int, kinds: list[str], reading: Reading, on_loss: OnLoss) -> None:
        actor = self._actor(at)
        if actor is None:
            return
        for kind in kinds:
            self.portal.call(self.world.chat, actor, kind, reading, on_loss)

    @rule(at=AT, holds=st.booleans())
    def tool(self, at: int, holds: bool) -> None:
        actor = self._actor(at)
        if actor is not None:
            self.portal.call(self.world.tool, actor, holds)

    @rule(at=AT)
    def cancel_stream(self, at: int) -> None:
        streams = self.world.streams
        if streams:
            self.portal.call(self.world.cancel_stream, streams[at % len(streams)])

    @rule(at=AT)
    def cancel_cone(self, at: int) -> None:
        actor = self._actor(at)
        if actor is not None:
            self.portal.call(self.world.cancel_cone, actor)

    @rule(at=AT, how=st.sampled_from(get_args(Leaving)))
    def leave(self, at: int, how: Leaving) -> None:
        actor = self._actor(at)
        if actor is not None:
            self.portal.call(self.world.leave, actor, how)

    @precondition(lambda self: not self.calm)
    @rule(kind=st.sampled_from(["cut", "restart"]), at=AT)
    def lose(self, kind: str, at: int) -> None:
        self.portal.call(self.world.cut if kind == "cut" else self.world.restart, at)

    @rule(turns=st.integers(1, 200))
    def wait(self, turns: int) -> None:
        self.portal.call(self.world.wait, turns)

    def _actor(self, at: int) -> Actor | None:
        """Somebody of those that are there: who that is may differ from time to time."""
        actors = self.world.actors
        return actors[at % len(actors)] if actors else None

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "world"):
            self.portal.call(self._check)

    async def _check(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.portal.call(self.world.finish, "by an exception")
        except BaseException as error:
            self.world_manager.__exit__(type(error), error, error.__traceback__)
            raise
        else:
            self.world_manager.__exit__(None, None, None)
        finally:
            self.portal_manager.__exit__(None, None, None)


TestPrograms = Programs.TestCase
TestPrograms.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    # Two runs of one example differ in what happens first, so none can be made smaller.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
