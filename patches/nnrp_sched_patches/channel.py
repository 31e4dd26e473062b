"""Calls from the frontend into the engine process, over vLLM's own utility RPC.

vLLM never completes a utility call whose engine died (hooks-verified.md 8), so every call here
races that death and a deadline.
"""

import asyncio
from typing import Any, cast

from nnrp_sched.errors import NnrpSchedError


class EngineSilent(NnrpSchedError):
    """The engine process did not answer in time. It may be busy with a long step: not dead."""


class EngineGone(NnrpSchedError):
    """The engine process died before it answered."""


class EngineRefused(NnrpSchedError):
    """The engine process answered with an error: it lacks the method, or the method failed."""


async def call_engine(
    engine: Any, method: str, payload: dict[str, Any], *, wait_s: float
) -> dict[str, Any]:
    """Call the method `nnrp_*` of `engine`'s EngineCore; waits `wait_s` seconds.

    `engine` is an AsyncLLM. Raises EngineSilent, EngineGone or EngineRefused.
    """
    call = asyncio.ensure_future(engine.engine_core.call_utility_async(method, payload))
    # The frontend's output task ends when vLLM notices the engine's death; it exists from the
    # constructor on when that ran inside a loop, else from the first request on.
    death: asyncio.Task[None] | None = engine.output_handler
    racers: set[asyncio.Future[Any]] = {call} if death is None else {call, death}
    try:
        done, _ = await asyncio.wait(racers, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # A late reply to a cancelled call is swallowed by vLLM; its own table stays right.
        call.cancel()
    if call not in done:
        if (death is not None and death.done()) or engine.errored:
            raise EngineGone(f"the engine process died before it answered {method}")
        raise EngineSilent(f"the engine process did not answer {method} within {wait_s:g} s")
    try:
        reply = call.result()
    except Exception as error:
        if engine.errored:
            raise EngineGone(f"the engine process died: {error}") from error
        raise EngineRefused(f"the engine process refused {method}: {error}") from error
    if not isinstance(reply, dict) or "error" in reply:
        raise EngineRefused(f"the engine process failed in {method}: {reply}")
    return cast(dict[str, Any], reply)
