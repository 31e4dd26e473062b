"""What a frontend tells the engine of its requests, over a stand-in for both."""

import asyncio
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.records import Caller
from nnrp_sched_patches import telling
from nnrp_sched_patches.origin import Origin, origin
from tests.support.vllm_frontend import Frontend, hooked

pytestmark = pytest.mark.anyio


def _told(llm: Frontend) -> list[dict[str, Any]]:
    return [payload["requests"] for method, payload in llm.calls if method == telling.TELL]


async def test_one_frontend_alone_tells_nothing() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        await llm.add_request("one")
        for _ in range(5):
            await checkpoint()
    assert llm.calls == []


async def test_all_that_comes_up_during_one_call_goes_with_the_next() -> None:
    llm, _ = hooked()
    llm.client_count = 2
    first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answers = [first]
    llm.replies[telling.TELL] = lambda _: answers.pop() if answers else {"requests": 1}
    with anyio.fail_after(5):
        with origin(Origin(Caller("p", "x"), "http")):
            (one,) = await llm.add_request("one")
        while not llm.calls:
            await checkpoint()
        two = await llm.add_request("two", n=2)
        (three,) = await llm.add_request("three")
        assert len(llm.calls) == 1
        first.set_result({"requests": 1})
        while len(llm.calls) < 2:
            await checkpoint()
    nobody = {"program": None, "agent": None}
    assert _told(llm) == [
        {one: {"id": "one", "program": "p", "agent": "x"}},
        {**{key: {"id": "two", **nobody} for key in two}, three: {"id": "three", **nobody}},
    ]


async def test_more_than_the_limit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "MOST_UNTOLD", 3)
    llm, _ = hooked()
    llm.client_count = 2
    llm.replies[telling.TELL] = lambda _: {"requests": 1}
    with anyio.fail_after(5):
        await llm.add_request("five", n=5)
        while not llm.calls:
            await checkpoint()
    assert [len(requests) for requests in _told(llm)] == [3]


async def test_an_engine_that_refuses_is_asked_again_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm, switches = hooked()
    llm.client_count = 2
    llm.replies[telling.TELL] = lambda _: {"error": "no such method"}
    with anyio.fail_after(5):
        for number in range(3):
            await llm.add_request(f"{number}")
            while len(llm.calls) <= number:
                await checkpoint()
            for _ in range(5):
                await checkpoint()
    assert len(caplog.records) == 1
    assert "by vLLM's ids only" in caplog.text
    assert [switch.failures for switch in switches] == [0] * 5
