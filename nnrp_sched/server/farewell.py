"""How an operation ends towards its peer: diagnostics where wanted, then the terminal."""

from nnrp_sched.observe.diagnostics import diagnostics
from nnrp_sched.profile import encode_event
from nnrp_sched.profile.events import Diagnostics
from nnrp_sched.server.observation import Observation
from nnrp_sched.server.terminal import OperationChannel, Verdict, last_word, send_last


async def take_leave(
    channel: OperationChannel, observation: Observation, final: Verdict, *, explained: bool
) -> Verdict:
    """Send the one terminal, or when it cannot be written the error that says so; which it was.

    `explained` puts a `response.diagnostics` before it, made from the very record that everybody
    else will be given once the operation is over (seed 000, 8: rule 4).
    """
    word = last_word(final)
    if explained:
        facts = diagnostics(observation.close(word.verdict))
        channel.send_partial(encode_event(Diagnostics(diagnostics=facts)))
        if channel.waiting:
            await channel.flushed()
    send_last(channel, word)
    return word.verdict
