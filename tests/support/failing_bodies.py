"""Bodies of hooks that fail, in every way that a form leaves open, by the form's name."""

from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from typing import Any

FAULT = "injected"


class Textless(Exception):
    """Cannot even be told."""

    def __str__(self) -> str:
        raise ValueError(FAULT)


def fails(*_: Any) -> Any:
    raise RuntimeError(FAULT)


def fails_without_a_text(*_: Any) -> Any:
    raise Textless


def fails_with_half_a_character(*_: Any) -> Any:
    raise RuntimeError("\ud800")


def fails_before(*_: Any) -> Generator[None, Any, None]:
    fails()
    yield


def fails_after(*_: Any) -> Generator[None, Any, None]:
    yield
    fails()


def never_yields(*_: Any) -> Generator[None, Any, None]:
    return
    yield


def is_no_generator(*_: Any) -> None:
    """As a body of another form."""


def fails_leaving(*_: Any) -> Callable[[BaseException | None], Awaitable[None]]:
    async def leave(error: BaseException | None) -> None:
        del error
        fails()

    return leave


async def fails_waiting(*_: Any) -> None:
    fails()


def answers_what_cannot_be_encoded(*_: Any) -> Any:
    circle: list[Any] = []
    circle.append(circle)
    return {"big": 2**70, "circle": circle}


def answers_later_with_a_failure(*_: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(RuntimeError(FAULT))
    return future


BY_FORM = {
    "added": (
        fails,
        fails_without_a_text,
        fails_with_half_a_character,
        answers_what_cannot_be_encoded,
        answers_later_with_a_failure,
    ),
    "after": (fails, fails_without_a_text),
    "around": (fails, fails_before, fails_after, never_yields, is_no_generator),
    "around async": (fails, fails_leaving),
    "before async": (fails, fails_waiting, is_no_generator),
}
