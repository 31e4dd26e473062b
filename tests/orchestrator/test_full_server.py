"""A server that refuses a call because others have taken the room that it had told of."""

import anyio
import pytest

from nnrp_sched.errors import ProfileError
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.patience import LONGEST_SECONDS, REFUSALS, Patience
from nnrp_sched_orchestrator.records import StreamState
from tests.support.programs import ENDLESS, SECONDS, Play, orchestra, program, until
from tests.support.server_stage import scripted
from tests.support.serving import body

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]

ONE_AT_ONCE = scripted(ServerLimits(max_operations=1))
"""It tells each of the pool's two sessions that one call may start."""


async def warm(agent: Agent) -> None:
    """Let the server know how quickly places become free, so that it asks for short waits."""
    for _ in range(3):
        await agent.chat(body("hi")).result()


async def refused(play: Play, agent: Agent) -> None:
    """Wait until a call has been refused and waits."""
    full = StreamState("queued", where="engine")
    await until(lambda: any(each.state == full for each in agent.snapshot().streams))
    assert play.operations == 1


async def test_a_call_that_a_full_server_refuses_waits_and_is_made_once_there_is_room() -> None:
    async with program(ONE_AT_ONCE) as (play, agent):
        with anyio.fail_after(SECONDS):
            await warm(agent)
            first = agent.chat(ENDLESS)
            await anext(first)
            second = agent.chat(body("me too"))
            await refused(play, agent)
            await first.cancel()
            result = await second.result()
    assert result.text == "You said: me too"
    assert result.receipt is not None
    assert result.timings.queue_ms > 0
    assert result.timings.finished is not None
    assert result.timings.first_event is not None
    assert result.timings.first_event <= result.timings.finished


async def test_a_refused_call_that_waits_is_cancelled_at_once_and_never_runs() -> None:
    async with program(ONE_AT_ONCE) as (play, agent):
        with anyio.fail_after(SECONDS):
            first = agent.chat(ENDLESS)
            await anext(first)
            second = agent.chat(body("me too"))
            await refused(play, agent)
            receipt = await second.cancel("changed my mind")
            assert (receipt.state, receipt.accepted, receipt.authoritative) == (
                "queued",
                True,
                True,
            )
            assert (receipt.operation, receipt.tokens) == (None, 0)
            await first.cancel()


async def test_two_orchestrators_fill_one_small_server_and_every_call_is_made() -> None:
    limits = scripted(ServerLimits(max_operations=2))
    texts: list[str] = []
    async with orchestra(limits) as play:
        host = play.hosts[0]
        async with (
            play.hosts.pool() as other,
            play.orchestrator.program("one") as one,
        ):
            with anyio.fail_after(SECONDS):
                await warm(one)
                streams = [one.chat(body(str(number))) for number in range(20)]

                async def somebody_else() -> None:
                    async with other.queue("other", "agent") as lease:
                        await lease.session.chat(body("x"), stream=True).result()

                async with anyio.create_task_group() as tasks:
                    for _ in range(5):
                        tasks.start_soon(somebody_else)
                    texts += [await stream.text() for stream in streams]
        assert texts == [f"You said: {number}" for number in range(20)]
        assert host.running == 0


def refusal(code: str = "adapter_operation_limit", **diagnostics: float) -> ProfileError:
    """What a server says."""
    return ProfileError(code, "no", error_type="server_error", diagnostics=diagnostics or None)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (refusal(retry_after_ms=400), 0.4),
        (refusal(retry_after_ms=0), 0.01),
        (refusal(retry_after_ms=LONGEST_SECONDS * 1000 + 1), None),
        (refusal(), None),
        (refusal("scheduler_rejected", retry_after_ms=1), None),
        (refusal("backend_overload", retry_after_ms=1), None),
    ],
)
async def test_only_who_was_told_when_to_come_again_waits_and_not_for_long(
    error: ProfileError, seconds: float | None
) -> None:
    assert Patience().seconds(error) == seconds


async def test_a_server_that_stays_full_is_asked_a_limited_number_of_times() -> None:
    patience = Patience()
    waits = [patience.seconds(refusal(retry_after_ms=0)) for _ in range(REFUSALS)]
    assert waits == [0.01 * 2**number for number in range(REFUSALS - 1)] + [None]
