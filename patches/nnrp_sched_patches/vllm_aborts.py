"""Body of the hook on vLLM's own aborts: of a client that left, of a caller that was cancelled.

vLLM's frontend stops such a request by itself and tells nobody where it stood. Here the engine is
asked first, so these ways out end in a receipt too, the same one that every later abort hears.
"""

import asyncio
import sys
from collections.abc import Collection, Mapping
from typing import Any, cast

from nnrp_sched_patches.abort import Aborter
from nnrp_sched_patches.frontend import ledger_of
from nnrp_sched_patches.ledger_records import AbortCause, Entry


async def receipt_first(engine: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Body of F7, `AsyncLLM.abort`: requests that end wholly by it get a receipt before it runs.

    It runs all the same: for what is left, for ids that are not ours, and without effect for what
    has been taken out. Our own aborts over the public interface pass: they have their receipts.
    """
    cause = _cause()
    processor = engine.output_processor
    ids = _internal_ids(processor, *_asked(args, kwargs))
    ledger = ledger_of(processor)
    owners = dict.fromkeys(owner for one in ids if (owner := ledger.owner(one)) is not None)
    meant = [entry for entry in owners if entry.receipt is None and _whole(entry, ids)]
    if meant:
        await Aborter(engine, ledger).abort(meant, cause)


def _cause() -> AbortCause:
    """Why vLLM aborts, by what the caller is in the middle of."""
    handled = sys.exception()
    if handled is None:
        return "requested"
    gone = isinstance(handled, asyncio.CancelledError | GeneratorExit)
    return "client_gone" if gone else "failed"


def _asked(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[str], bool]:
    """The ids, and whether they are internal ones."""
    wanted: Any = args[0] if args else kwargs["request_id"]
    internal = args[1] if len(args) > 1 else kwargs.get("internal", False)
    if isinstance(wanted, str):
        return [wanted], internal
    # An iterator can be read once, and vLLM is to do that.
    return list(cast(Collection[str], wanted)) if isinstance(wanted, Collection) else [], internal


def _internal_ids(processor: Any, names: list[str], internal: bool) -> set[str]:
    """What vLLM's frontend is about to abort: all that share an external id, a parent's children.

    Read with `get`: the table of external ids is a defaultdict, and looking must not add to it.
    """
    if not internal:
        names = [one for name in names for one in processor.external_req_ids.get(name) or ()]
    found: set[str] = set()
    for name in names:
        parent = processor.parent_requests.get(name)
        found.update((name,) if parent is None else parent.child_requests)
    return found


def _whole(entry: Entry, ids: set[str]) -> bool:
    """Whether all that lives of a request is meant: one choice of several is vLLM's affair."""
    return all(part.internal_id in ids for part in entry.live_parts)
