"""What hooks may return into vLLM's encoder."""

import enum
import inspect
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched_patches.hook_forms import (
    ABSENT,
    MAX_FAILURES,
    Switch,
    make_added,
    make_around,
    make_around_async,
    make_before_async,
    plain,
)


class _Level(enum.IntEnum):
    LOW = 1


class _Word(enum.StrEnum):
    ONE = "one"


def test_plain_values_pass_and_containers_become_plain_ones() -> None:
    value = {
        "text": "x",
        1: [None, True, 2.5, b"bytes"],
        "pair": (1, 2),
        "names": frozenset({"a"}),
        "level": _Level.LOW,
        _Word.ONE: _Word.ONE,
    }
    made = plain(value)
    assert msgspec.msgpack.encode(made)
    assert (made["1"][:3], list(made["pair"]), made["names"]) == ([None, True, 2.5], [1, 2], ["a"])
    assert (type(made["level"]), type(made["one"])) == (int, str)


def test_what_msgpack_cannot_encode_becomes_its_repr() -> None:
    made = plain({"function": plain, "nested": [object]})
    assert made["function"].startswith("<function plain")
    assert made["nested"] == ["<class 'object'>"]


def _method(reply: Any) -> Any:
    def body(self: Any, payload: dict[str, Any]) -> Any:
        if isinstance(reply, Exception):
            raise reply
        return reply

    return make_added(object, ABSENT, body, Switch("E9"))


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    "reply", [ValueError("broken"), {"big": 2**70}, {"circle": _circle()}], ids=str
)
def test_a_failing_body_answers_with_an_error_that_can_be_encoded(reply: Any) -> None:
    answer = _method(reply)(object(), {})
    assert set(answer) == {"error"}
    assert msgspec.msgpack.encode(answer)


def test_an_added_method_has_the_one_explicit_parameter_that_vllm_asks_for() -> None:
    assert list(inspect.signature(_method({})).parameters) == ["self", "payload"]


def test_an_added_method_that_is_switched_off_says_so() -> None:
    def body(self: Any, payload: dict[str, Any]) -> dict[str, Any]:
        return {"fine": True}

    switch = Switch("E9")
    method = make_added(object, ABSENT, body, switch)
    switch.on = False
    assert method(object(), {}) == {"error": "hook E9 is off"}


def test_a_payload_that_does_not_fit_is_refused_and_not_held_against_the_method() -> None:
    def body(self: Any, payload: dict[str, Any]) -> Any:
        return msgspec.convert(payload, dict[str, int])

    switch = Switch("E9")
    method = make_added(object, ABSENT, body, switch)
    for _ in range(MAX_FAILURES + 1):
        assert method(object(), {"a": "text"})["error"].startswith("bad payload: Expected `int`")
    assert method(object(), {"a": 1}) == {"a": 1}
    assert switch.failures == 0


@pytest.mark.parametrize(
    ("end", "value", "answer"),
    [
        ("set_result", [{"pair": (1, object)}], {"pair": [1, repr(object)]}),
        ("set_result", [[1, 2]], {"result": [1, 2]}),
        ("set_exception", [ValueError("broken")], {"error": "ValueError: broken"}),
        ("cancel", [], {"error": "CancelledError: "}),
    ],
)
def test_a_deferred_answer_is_made_encodable_too(end: str, value: Any, answer: Any) -> None:
    future: Future[Any] = Future()
    deferred = _method(future)(object(), {})
    assert type(deferred) is type(future)
    assert not deferred.done()
    getattr(future, end)(*value)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(deferred.result(timeout=0))) == answer


def test_a_deferred_answer_that_cannot_be_encoded_becomes_an_error() -> None:
    future: Future[Any] = Future()
    deferred = _method(future)(object(), {})
    future.set_result({"big": 2**70})
    assert set(deferred.result(timeout=0)) == {"error"}


class _Service:
    def add(self, amount: int) -> int:
        if amount < 0:
            raise ValueError("negative")
        return amount + 1

    async def fetch(self, amount: int) -> int:
        if amount < 0:
            raise ValueError("negative")
        return amount + 1


def _around(body: Any, switch: Switch | None = None) -> Any:
    made = make_around(_Service, vars(_Service)["add"], body, switch or Switch("F9"))
    return type("Service", (), {"add": made})()


def test_a_body_around_a_method_sees_its_arguments_and_its_result() -> None:
    seen: list[Any] = []

    def body(instance: Any, args: Any, kwargs: Any) -> Generator[None, Any, None]:
        seen.append((type(instance).__name__, args, kwargs))
        seen.append((yield))

    service = _around(body)
    assert service.add(1) == 2
    assert service.add(amount=2) == 3
    # As another tool's wrapper would call it.
    assert vars(service.__class__)["add"](service, 3) == 4
    assert seen == [
        *(("Service", (1,), {}), 2),
        *(("Service", (), {"amount": 2}), 3),
        *(("Service", (3,), {}), 4),
    ]


@pytest.mark.parametrize("before", [True, False])
def test_a_body_around_a_method_that_fails_changes_nothing_and_is_counted(before: bool) -> None:
    def body(instance: Any, args: Any, kwargs: Any) -> Generator[None, Any, None]:
        if before:
            raise RuntimeError("broken")
        yield
        raise RuntimeError("broken")

    switch = Switch("F9")
    service = _around(body, switch)
    for number in range(MAX_FAILURES + 5):
        assert service.add(number) == number + 1
    assert (switch.on, switch.failures) == (False, MAX_FAILURES)


def test_a_method_that_raises_does_so_through_the_body_around_it() -> None:
    finished: list[Any] = []

    def body(instance: Any, args: Any, kwargs: Any) -> Generator[None, Any, None]:
        yield
        finished.append(1)

    switch = Switch("F9")
    with pytest.raises(ValueError, match="negative"):
        _around(body, switch).add(-1)
    assert (finished, switch.failures) == ([], 0)


def _around_async(body: Any, switch: Switch | None = None) -> Any:
    made = make_around_async(_Service, vars(_Service)["fetch"], body, switch or Switch("F9"))
    return type("Service", (), {"fetch": made})()


@pytest.mark.anyio
async def test_a_body_around_a_coroutine_is_told_how_it_ended() -> None:
    ends: list[Any] = []

    def body(instance: Any, args: Any, kwargs: Any) -> Any:
        async def leave(error: BaseException | None) -> None:
            ends.append((args, error))

        return leave

    service = _around_async(body)
    assert inspect.iscoroutinefunction(service.__class__.fetch)
    with anyio.fail_after(5):
        assert await service.fetch(1) == 2
        assert await vars(service.__class__)["fetch"](service, 2) == 3
        with pytest.raises(ValueError, match="negative") as failure:
            await service.fetch(-1)
    assert ends == [((1,), None), ((2,), None), ((-1,), failure.value)]


@pytest.mark.anyio
@pytest.mark.parametrize("before", [True, False])
async def test_a_failing_body_around_a_coroutine_changes_nothing_and_is_counted(
    before: bool,
) -> None:
    def body(instance: Any, args: Any, kwargs: Any) -> Any:
        async def leave(error: BaseException | None) -> None:
            raise RuntimeError("broken")

        if before:
            raise RuntimeError("broken")
        return leave

    switch = Switch("F9")
    service = _around_async(body, switch)
    with anyio.fail_after(5):
        for number in range(MAX_FAILURES + 5):
            assert await service.fetch(number) == number + 1
    assert (switch.on, switch.failures) == (False, MAX_FAILURES)


@pytest.mark.anyio
@pytest.mark.parametrize("fails", [False, True])
async def test_a_body_before_a_coroutine_is_awaited_first_and_its_failure_is_counted(
    fails: bool,
) -> None:
    seen: list[Any] = []

    async def body(instance: Any, args: Any, kwargs: Any) -> None:
        await checkpoint()
        seen.append((type(instance).__name__, args, kwargs))
        if fails:
            raise RuntimeError("broken")

    switch = Switch("F9")
    made = make_before_async(_Service, vars(_Service)["fetch"], body, switch)
    service: Any = type("Service", (), {"fetch": made})()
    with anyio.fail_after(5):
        assert await service.fetch(1) == 2
        # As another tool's wrapper would call it.
        assert await vars(service.__class__)["fetch"](service, amount=2) == 3
        with pytest.raises(ValueError, match="negative"):
            await service.fetch(-1)
    assert seen == [("Service", (1,), {}), ("Service", (), {"amount": 2}), ("Service", (-1,), {})]
    assert switch.failures == (3 if fails else 0)


@pytest.mark.anyio
async def test_a_coroutine_does_not_run_when_the_body_before_it_is_cancelled() -> None:
    ran: list[int] = []

    class Service:
        async def fetch(self) -> None:
            ran.append(1)

    async def body(*_: Any) -> None:
        await anyio.sleep_forever()

    switch = Switch("F9")
    made = make_before_async(Service, vars(Service)["fetch"], body, switch)
    service: Any = type("Service", (), {"fetch": made})()
    with anyio.move_on_after(0.01) as patience:
        await service.fetch()
    assert (patience.cancelled_caught, ran, switch.failures) == (True, [], 0)
