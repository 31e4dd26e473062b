"""What hooks may return into vLLM's encoder."""

import enum
import inspect
from typing import Any

import msgspec
import pytest

from nnrp_sched_patches.hook_forms import ABSENT, Switch, make_added, plain


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
