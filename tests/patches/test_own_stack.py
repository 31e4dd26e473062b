"""What a kept exception holds of its callers, and what an HTTP server leaves of the collector."""

import gc
import socket
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import pytest
from starlette.applications import Starlette

from nnrp_sched_patches.http_server import serve_app
from nnrp_sched_patches.launch_steps import heap_frozen
from nnrp_sched_patches.own_stack import on_own_stack

pytestmark = pytest.mark.anyio


class Engine:
    """Something that its last holder must let go of."""


class Importing:
    """As vLLM at its import: an exception is kept, with the frames of all callers."""

    kept: Exception | None = None

    def __call__(self) -> str:
        try:
            raise ModuleNotFoundError("an optional one")
        except ModuleNotFoundError as error:
            self.kept = error
        return "imported"


async def _started(call: Callable[[], str], *, own_stack: bool) -> "weakref.ReferenceType[Engine]":
    """A start whose frame holds the engine in the end."""
    assert (await on_own_stack(call) if own_stack else call()) == "imported"
    engine = Engine()
    return weakref.ref(engine)


@pytest.mark.parametrize("own_stack", [True, False])
async def test_a_caller_that_is_not_on_the_stack_is_not_kept(own_stack: bool) -> None:
    importing = Importing()
    engine = await _started(importing, own_stack=own_stack)
    gc.collect()
    assert importing.kept is not None
    # The second case is the fault that the module is there for.
    assert (engine() is None) is own_stack


async def test_an_error_of_the_call_reaches_its_caller() -> None:
    def fail() -> None:
        raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        await on_own_stack(fail)


async def test_what_a_launch_or_its_app_hid_from_the_collector_is_shown_again_at_the_end() -> None:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        gc.freeze()
        yield

    app = Starlette(lifespan=lifespan)
    with anyio.fail_after(30), socket.create_server(("127.0.0.1", 0)) as bound, heap_frozen():
        assert gc.get_freeze_count() > 0
        async with serve_app(app, app.state, bound, SimpleNamespace()):
            assert gc.get_freeze_count() > 0
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_a_heap_that_was_hidden_before_a_launch_stays_hidden() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with heap_frozen():
            pass
        assert gc.get_freeze_count() >= before
    finally:
        gc.unfreeze()
