"""The forms a hook can take, one maker each. No form ever raises into vLLM.

A maker gets the owner, its raw slot (or `ABSENT`) and the body; it returns what to put in the slot.
The `Switch` turns the hook off where the slot cannot be restored, because another tool wrapped on
top of it.
"""

import functools
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future
from types import FunctionType
from typing import Any, Final, cast

import msgspec
import wrapt

from nnrp_sched_patches.hook import HookForm

_LOGGER = logging.getLogger(__name__)

ABSENT: Final = object()
"""Stands for a slot that the class itself does not have."""

MAX_FAILURES = 10
"""After so many failures of its body a hook turns itself off."""


class Switch:
    """Whether one installed hook acts, and how often its body failed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.on = True
        self.failures = 0

    def __call__(self) -> bool:
        """wrapt asks this before each call."""
        return self.on

    def revive(self) -> None:
        """Act again, with a clean count."""
        self.on = True
        self.failures = 0

    def failed(self, error: Exception) -> None:
        """Count a failure of the body; told once, and the last allowed one turns the hook off."""
        self.failures += 1
        if self.failures == 1:
            _LOGGER.error("the body of hook %s failed", self.name, exc_info=error)
        if self.failures == MAX_FAILURES:
            self.on = False
            _LOGGER.error("hook %s failed %d times and is off now", self.name, self.failures)


def make_added(_owner: Any, _raw: Any, body: Callable[..., Any], switch: Switch) -> Any:
    """A method for vLLM's utility RPC: one explicit parameter in, plain values out.

    vLLM inspects the signature, so it is the body's own. An exception or a value that msgpack
    refuses would kill the engine's output thread silently (hooks-verified.md, C3): both become
    `{"error": ...}`. For a body that returns a Future vLLM defers the reply, which may then come
    from any thread (C2); what it is resolved with goes the same way.
    """

    @functools.wraps(body)
    def method(self: Any, payload: dict[str, Any]) -> dict[str, Any] | Future[dict[str, Any]]:
        if not switch.on:
            return {"error": f"hook {switch.name} is off"}
        try:
            reply = body(self, payload)
            if isinstance(reply, Future):
                return _encodable(cast(Any, reply), switch)
            return _answer(reply)
        except msgspec.ValidationError as error:
            # The caller's mistake: no reason to turn the hook off.
            return _error(f"bad payload: {error}")
        except Exception as error:
            return _failure(error, switch)

    return method


def _answer(reply: Any) -> dict[str, Any]:
    reply = plain(reply)
    return {"result": reply} if not isinstance(reply, dict) else cast(dict[str, Any], reply)


def _failure(error: Exception, switch: Switch) -> dict[str, Any]:
    switch.failed(error)
    try:
        told = str(error)
    except Exception:
        told = "it has no text"
    return _error(f"{type(error).__name__}: {told}")


def _error(told: str) -> dict[str, Any]:
    """A text can be beyond vLLM's encoder too: half a surrogate pair, from a broken name."""
    return {"error": told.encode(errors="replace").decode()}


def _encodable(deferred: Future[Any], switch: Switch) -> Future[dict[str, Any]]:
    """A future for vLLM that is resolved, and never failed, when `deferred` ends."""
    safe: Future[dict[str, Any]] = Future()

    def ended(done: Future[Any]) -> None:
        try:
            answer = _answer(done.result())
        except Exception as error:
            answer = _failure(error, switch)
        safe.set_result(answer)

    deferred.add_done_callback(ended)
    return safe


def make_after(owner: Any, raw: Any, body: Callable[..., Any], switch: Switch) -> Any:
    """Call `body(instance, result)` when the wrapped method has returned."""
    takes_self = isinstance(owner, type) and isinstance(raw, FunctionType)

    def wrapper(
        wrapped: Callable[..., Any],
        instance: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        result = wrapped(*args, **kwargs)
        try:
            # Another tool that wrapped ours may call it unbound: the instance comes as an argument.
            body(args[0] if instance is None and takes_self else instance, result)
        except Exception as error:
            switch.failed(error)
        return result

    return wrapt.FunctionWrapper(raw, wrapper, enabled=switch)


def make_around(owner: Any, raw: Any, body: Callable[..., Any], switch: Switch) -> Any:
    """Run the generator `body(instance, args, kwargs)` around the call.

    It yields once; the `yield` gives it the method's result. When the method raises, the rest of
    the body does not run.
    """
    takes_self = isinstance(owner, type) and isinstance(raw, FunctionType)

    def wrapper(
        wrapped: Callable[..., Any],
        instance: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        steps: Generator[None, Any, None] | None = None
        try:
            if instance is None and takes_self:
                begun = body(args[0], args[1:], kwargs)
            else:
                begun = body(instance, args, kwargs)
            next(begun)
            steps = begun
        except Exception as error:
            switch.failed(error)
        result = wrapped(*args, **kwargs)
        if steps is not None:
            try:
                steps.send(result)
            except StopIteration:
                pass
            except Exception as error:
                switch.failed(error)
        return result

    return wrapt.FunctionWrapper(raw, wrapper, enabled=switch)


def make_around_async(owner: Any, raw: Any, body: Callable[..., Any], switch: Switch) -> Any:
    """Run `leave = body(instance, args, kwargs)` before the coroutine, `await leave(error)` after.

    `body` may set keyword arguments of the call in `kwargs`, which is its own copy.
    `error` is what the coroutine raised, cancellation included, or None; it goes on up in any case.
    Without one `leave` must not wait for anything: a cancellation there would lose the result.
    """
    takes_self = isinstance(owner, type) and isinstance(raw, FunctionType)

    async def left(
        leave: Callable[[BaseException | None], Awaitable[None]] | None,
        error: BaseException | None,
    ) -> None:
        if leave is not None:
            try:
                await leave(error)
            except Exception as fault:
                switch.failed(fault)

    async def wrapper(
        wrapped: Callable[..., Any],
        instance: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        leave = None
        try:
            if instance is None and takes_self:
                leave = body(args[0], args[1:], kwargs)
            else:
                leave = body(instance, args, kwargs)
        except Exception as fault:
            switch.failed(fault)
        try:
            result = await wrapped(*args, **kwargs)
        except BaseException as error:
            await left(leave, error)
            raise
        await left(leave, None)
        return result

    return wrapt.FunctionWrapper(raw, wrapper, enabled=switch)


def make_before_async(owner: Any, raw: Any, body: Callable[..., Any], switch: Switch) -> Any:
    """Await `body(instance, args, kwargs)`, then the coroutine.

    A cancellation in `body` goes on up and the coroutine does not run: what it would have done is
    then for `body` to see to.
    """
    takes_self = isinstance(owner, type) and isinstance(raw, FunctionType)

    async def wrapper(
        wrapped: Callable[..., Any],
        instance: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        try:
            if instance is None and takes_self:
                await body(args[0], args[1:], kwargs)
            else:
                await body(instance, args, kwargs)
        except Exception as fault:
            switch.failed(fault)
        return await wrapped(*args, **kwargs)

    return wrapt.FunctionWrapper(raw, wrapper, enabled=switch)


MAKERS: dict[HookForm, Callable[[Any, Any, Callable[..., Any], Switch], Any]] = {
    HookForm.ADDED: make_added,
    HookForm.AFTER: make_after,
    HookForm.AROUND: make_around,
    HookForm.AROUND_ASYNC: make_around_async,
    HookForm.BEFORE_ASYNC: make_before_async,
}


def plain(value: Any) -> Any:
    """A copy of `value` in builtins that vLLM's encoder takes; what is none becomes its `repr`.

    Raises an exception, of whatever type, for a value that cannot be had that way.
    """
    copy = msgspec.to_builtins(value, str_keys=True, enc_hook=repr)
    # Integers beyond 64 bits are still in it, and the encoder of the output thread must not be the
    # first to meet them.
    msgspec.msgpack.encode(copy)
    return copy
