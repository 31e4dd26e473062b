"""Abort with a receipt: the engine first, then vLLM's frontend (hooks.md 2.2, hooks-verified.md 4).

The scheduler takes the request out and says where it stood; then the frontend ends the caller's
stream by itself. The engine sends no end of its own, which vLLM would count as a first token.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import anyio
import msgspec
from msgspec import Struct

from nnrp_sched.engine.port import AbortBy
from nnrp_sched.engine.records import AbortReceipt, AbortState, RequestState
from nnrp_sched_patches.channel import EngineGone, EngineRefused, EngineSilent, call_engine
from nnrp_sched_patches.frontend import admission_here, now_ms
from nnrp_sched_patches.ledger import Ledger
from nnrp_sched_patches.ledger_records import AbortCause, Entry, summed_state

_LOGGER = logging.getLogger(__name__)

ABORT = "nnrp_abort"

PENDING_AFTER_S = 4.0
"""The engine answers between two steps. By a long one nobody who asks is kept longer than this, and
hears it before the server gives up (`abort_seconds` and `control_seconds` of its limits)."""
SILENCE_S = 60.0
"""How long the engine's word is waited for: a first step has taken 33 s (hooks-verified.md, C7)."""
ADMISSION_S = 10.0
"""How long vLLM's frontend has to send or let go of what it is admitting."""


class EngineAnswer(Struct, frozen=True):
    """What the scheduler did with one part."""

    state: Literal["waiting", "blocked", "running", "preempted", "finished", "unknown"]
    accepted: bool
    tokens: int | None = None
    engine_status: str | None = None
    name: str | None = None
    """What users call its request; with requests of other frontends only."""


class Aborter:
    """Aborts requests of one frontend, each once: whoever comes second hears the first result."""

    def __init__(
        self,
        engine: Any,
        ledger: Ledger,
        *,
        pending_after_s: float = PENDING_AFTER_S,
        silence_s: float = SILENCE_S,
        admission_s: float = ADMISSION_S,
    ) -> None:
        """`engine` is an AsyncLLM.

        A caller waits `pending_after_s` seconds for its word, the abort itself `silence_s`; then
        vLLM's public interface gets it. Before it is asked, what is being admitted has
        `admission_s`.
        """
        self._engine = engine
        self._ledger = ledger
        self._pending_after_s = pending_after_s
        self._silence_s = silence_s
        self._admission_s = admission_s

    async def abort(
        self, entries: Sequence[Entry], cause: AbortCause = "requested"
    ) -> list[AbortReceipt]:
        """One receipt for each entry, in order, under the ids that users see.

        Goes through when the caller is cancelled meanwhile, or has heard that it is pending.
        """
        started = now_ms()
        fresh = [
            entry
            for entry in dict.fromkeys(entries)
            if entry.receipt is None and entry.aborting is None
        ]
        if fresh:
            task = asyncio.create_task(self._abort(fresh), name="nnrp-sched abort")
            for entry in fresh:
                entry.aborting = task
                entry.abort_cause = entry.abort_cause or cause
        aborting = {entry: entry.aborting for entry in entries if entry.aborting is not None}
        pending = set[asyncio.Task[None]]()
        if aborting:
            # It neither cancels what it waits for nor raises what comes of it.
            _, pending = await asyncio.wait(aborting.values(), timeout=self._pending_after_s)
        return [
            entry.receipt
            or _receipt(entry, "pending" if aborting.get(entry) in pending else "unknown", started)
            for entry in entries
        ]

    async def _abort(self, entries: list[Entry]) -> None:
        started = now_ms()
        try:
            inside: list[Entry] = []
            cut: list[Entry] = []
            for entry in entries:
                if entry.finished is None and not entry.parts and entry.cancel is not None:
                    entry.cancel()
                    entry.cut = True
                    # vLLM may yet register it on its way out; its own abort then gets the receipt.
                    entry.aborting = None
                    cut.append(entry)
                elif entry.cut and entry.finished is not None:
                    # By another abort, which waits for others and has yet to say so.
                    cut.append(entry)
                elif entry.finished is None:
                    inside.append(entry)
            outside = await self._left_out(cut)
            inside += [entry for entry in cut if entry.live_parts]
            await self._admitted(inside)
            asked = {part.internal_id: entry for entry in inside for part in entry.live_parts}
            if asked:
                await self._ask(inside, list(asked), started)
            for entry in cut:
                # Also what vLLM registered and took back by itself, before the engine had it.
                if entry.receipt is None and _all_aborted(entry):
                    sure = entry in outside
                    entry.receipt = _receipt(entry, "admitting", started, accepted=True, sure=sure)
            for entry in entries:
                if entry.receipt is None:
                    # It ended by itself before the abort could reach it.
                    ended = entry.finished is not None
                    state: RequestState = "finished" if ended else entry.state
                    sure = ended and self._ledger.engine_failure is None
                    entry.receipt = _receipt(entry, state, started, sure=sure)
        except Exception:
            # Nobody may be waiting any more, and whatever it was, they must not stay in the engine.
            _LOGGER.exception("an abort failed and goes over vLLM's public interface")
            await self._publicly([entry for entry in entries if entry.receipt is None], started)
        finally:
            for entry in entries:
                entry.aborting = None

    async def _admitted(self, entries: Iterable[Entry]) -> None:
        """Wait until vLLM has sent what it is admitting: before, the engine does not know it.

        Not for an admission that itself asks, having failed: it sends nothing any more.
        """
        with anyio.move_on_after(self._admission_s):
            for entry in entries:
                if entry.admissions and entry is not admission_here():
                    await _settled(entry)

    async def _left_out(self, entries: Iterable[Entry]) -> list[Entry]:
        """Wait until cancelled calls are over, or vLLM has let go of them; those that are.

        The engine has none of them but those with parts.
        """
        over: list[Entry] = []
        with anyio.move_on_after(self._admission_s):
            for entry in entries:
                if entry.finished is None:
                    await _settled(entry)
                over.append(entry)
        return over

    async def _ask(self, entries: list[Entry], ids: list[str], started: float) -> None:
        try:
            answers = await engine_abort(self._engine, ids, wait_s=self._silence_s)
        except EngineGone as error:
            self._ledger.engine_died(str(error), now_ms())
            return
        except (EngineSilent, EngineRefused, msgspec.ValidationError) as error:
            _LOGGER.warning("an abort goes over vLLM's public interface: %s", error)
            await self._publicly(entries, started)
            return
        accepted = [one for one, answer in answers.items() if answer.accepted and one in ids]
        finalise(self._engine.output_processor, accepted, entries)
        at = now_ms()
        for one in accepted:
            self._ledger.end_part(one, "abort", at, answers[one].tokens)
        for entry in entries:
            told = {one: answers[one] for one in entry.parts if one in answers}
            taken: list[RequestState] = [a.state for a in told.values() if a.accepted]
            if not told or (entry.receipt is not None and not taken):
                # Nothing asked of it; or another frontend stopped it, and its receipt is here.
                continue
            state: RequestState
            if taken:
                state = summed_state(taken)
            else:
                # It never came there; else it has ended there, and its last output is on its way.
                never = entry is admission_here() or (entry.cut and not entry.tokens)
                state = "admitting" if never else "finished"
            done = state != "finished"
            entry.receipt = _receipt(entry, state, started, accepted=done, sure=True)

    async def _publicly(self, entries: list[Entry], started: float) -> None:
        """Without the scheduler's word: vLLM takes the abort and says nothing."""
        handles: dict[str, None] = {}
        for entry in entries:
            parts = entry.live_parts
            handles |= {part.handle: None for part in parts}
            if parts:
                entry.receipt = _receipt(entry, entry.state, started, accepted=True)
        await self._engine.abort(list(handles), internal=True)


async def engine_abort(
    engine: Any,
    ids: Sequence[str] = (),
    *,
    wait_s: float,
    names: Sequence[str] = (),
    by: AbortBy = "id",
) -> dict[str, EngineAnswer]:
    """Take requests out of the scheduler: by internal id, or other frontends' by `names`.

    Raises as `call_engine` does, or msgspec.ValidationError.
    """
    wanted: dict[str, Any] = {"ids": list(ids), "client": engine.engine_core.client_index}
    if names:
        wanted |= {"names": list(names), "by": by}
    reply = await call_engine(engine, ABORT, wanted, wait_s=wait_s)
    return msgspec.convert(reply.get("requests"), dict[str, EngineAnswer])


def finalise(processor: Any, accepted: Sequence[str], entries: Iterable[Entry]) -> None:
    """End the streams of parts that the engine has no more of, and leave no parent behind.

    By their children's ids alone vLLM would keep the parent of several choices for ever (C9).
    """
    processor.abort_requests(accepted, internal=True)
    for handle in {part.handle for entry in entries for part in entry.parts.values()}:
        parent = processor.parent_requests.get(handle)
        if parent is not None and not parent.child_requests:
            del processor.parent_requests[handle]


def _all_aborted(entry: Entry) -> bool:
    return all(part.reason == "abort" for part in entry.parts.values())


async def _settled(entry: Entry) -> None:
    done = anyio.Event()
    entry.when_settled.append(done.set)
    await done.wait()


def _receipt(
    entry: Entry, state: AbortState, started: float, *, accepted: bool = False, sure: bool = False
) -> AbortReceipt:
    return AbortReceipt(
        request_id=entry.id,
        state=state,
        accepted=accepted,
        authoritative=sure,
        tokens=entry.tokens,
        latency_ms=now_ms() - started,
    )
