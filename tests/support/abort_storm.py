"""A storm of chats, most of them stopped at a random moment, in every way there is to stop one.

Used by the test that looks whether everything told is true, and by the measurement of the latency.
Needs an engine with the witness of `step_recorder`.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.port import AbortReceipt, ChatCall
from nnrp_sched.errors import BackendError
from nnrp_sched_patches.vllm_engine import VllmEngine
from tests.support.step_recorder import Life
from tests.support.vllm_chats import body

Way = Literal["none", "engine", "operations", "list", "cancel"]
Moment = Literal["at once", "admission", "later", "tokens"]

_WAYS: tuple[Way, ...] = ("none", "engine", "operations", "list", "cancel")
"""How a chat is stopped."""
_WAYS_WEIGHTS = (3, 5, 5, 4, 3)
_MOMENTS: tuple[Moment, ...] = ("at once", "admission", "later", "tokens")
_MOMENTS_WEIGHTS = (2, 3, 9, 6)
_WORDS = (
    "Tell me about the sea in winter.",
    "Count from one to twenty.",
    "What is the capital of France, and why is it known?",
    "Write a short letter to an old friend about a journey by train through the mountains.",
    "Name three colours.",
    "Explain how bread is made, step by step, for somebody who has never been in a kitchen.",
)


@dataclass(eq=False)
class Chat:
    """One chat of the storm, and all that its caller learned."""

    name: str
    way: Way
    moment: Moment
    stream: bool
    choices: int
    max_tokens: int
    seed: int
    tokens: dict[int, int] = field(default_factory=dict[int, int])
    """By choice, the tokens that came."""
    reasons: dict[int, str] = field(default_factory=dict[int, str])
    """By choice, how it ended."""
    status: int | None = None
    """Of the error that the caller got."""
    cancelled: bool = False
    receipts: list[AbortReceipt] = field(default_factory=list[AbortReceipt])
    """Every receipt that anybody was told, in order."""
    asked_ns: int | None = None
    told_ns: int | None = None
    """When the first abort was asked for, and when its receipt was there."""
    tokens_when_told: int | None = None
    over: anyio.Event = field(default_factory=anyio.Event)

    @property
    def delivered(self) -> int:
        """Tokens that the caller got."""
        return sum(self.tokens.values())

    def call(self) -> ChatCall:
        """What is sent."""
        chance = random.Random(self.seed)
        chat = body(
            chance.choice(_WORDS),
            max_tokens=self.max_tokens,
            ignore_eos=True,
            return_token_ids=True,
            stream=self.stream,
            temperature=0.7 if self.choices > 1 else 0,
            seed=self.seed,
            n=self.choices,
        )
        return ChatCall(self.name, chat)

    def take(self, choices: list[dict[str, Any]]) -> None:
        """Note what a chunk or an answer brought."""
        for choice in choices:
            index = choice["index"]
            self.tokens[index] = self.tokens.get(index, 0) + len(choice.get("token_ids") or ())
            if choice.get("finish_reason"):
                self.reasons[index] = choice["finish_reason"]


def planned(count: int, seed: int, prefix: str = "storm") -> Iterator[Chat]:
    """`count` chats of all kinds."""
    chance = random.Random(seed)
    for number in range(count):
        way = chance.choices(_WAYS, _WAYS_WEIGHTS)[0]
        yield Chat(
            name=f"{prefix}{number}",
            way=way,
            moment=chance.choices(_MOMENTS, _MOMENTS_WEIGHTS)[0],
            stream=chance.random() < 0.5,
            choices=chance.choice((1, 1, 1, 1, 3)),
            # What nobody stops has to end by itself, and what ends soon is met as it ends.
            max_tokens=chance.randrange(1, 13) if way == "none" else chance.choice((4, 12, 40, 90)),
            seed=chance.randrange(1 << 30),
        )


class Storm:
    """Chats on one engine, some dozen at a time: more than it runs at once."""

    def __init__(self, engine: VllmEngine, chats: Iterator[Chat], *, at_once: int = 20) -> None:
        self._engine = engine
        self._coming = chats
        self._at_once = at_once
        self._listed: dict[str, Chat] = {}
        """Live chats that are stopped several at a time."""
        self.chats: list[Chat] = []

    async def run(self) -> list[Chat]:
        """Have every chat to its end, and every abort to its receipt."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._at_once):
                tasks.start_soon(self._one_after_another)
        return self.chats

    async def _one_after_another(self) -> None:
        for chat in self._coming:
            self.chats.append(chat)
            scope = anyio.CancelScope()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._serve, chat, scope)
                if chat.way != "none":
                    tasks.start_soon(self._stop, chat, scope)

    async def _serve(self, chat: Chat, scope: anyio.CancelScope) -> None:
        if chat.way == "list":
            # The call is noted in the same turn, so that no list names what is not there yet.
            self._listed[chat.name] = chat
        try:
            with scope:
                if chat.stream:
                    async for chunk in self._engine.stream(chat.call()):
                        chat.take(chunk["choices"])
                else:
                    answer = await self._engine.complete(chat.call())
                    chat.take(answer["choices"])
        except BackendError as error:
            chat.status = error.status
        finally:
            chat.cancelled = scope.cancelled_caught
            self._listed.pop(chat.name, None)
            chat.over.set()

    async def _stop(self, chat: Chat, scope: anyio.CancelScope) -> None:
        chance = random.Random(chat.seed)
        await self._moment(chat, chance)
        if chat.way == "cancel":
            scope.cancel()
            await chat.over.wait()
            entry = self._engine.ledger.find(chat.name)
            if entry is not None and entry.receipt is not None:
                chat.receipts.append(entry.receipt)
            return
        targets = [chat]
        if chat.way == "list":
            others = [other for other in self._listed.values() if other is not chat]
            targets += chance.sample(others, min(len(others), chance.randrange(5)))
        await self._abort(chat.way, targets)
        if chance.random() < 0.2:
            # Whoever comes second hears the first one's result.
            await self._abort("operations", targets)

    async def _moment(self, chat: Chat, chance: random.Random) -> None:
        """Come back at the moment that the chat is to be stopped."""
        if chat.moment == "admission":
            for _ in range(chance.randrange(40)):
                await checkpoint()
        elif chat.moment == "later":
            # A random moment is the point here: nothing is waited for.
            with anyio.move_on_after(chance.uniform(0, 1.2)):
                await chat.over.wait()
        elif chat.moment == "tokens":
            wanted = chance.randrange(1, chat.max_tokens + 1) * chat.choices
            while self._tokens_of(chat) < wanted and not chat.over.is_set():
                with anyio.move_on_after(0.005):
                    await chat.over.wait()

    def _tokens_of(self, chat: Chat) -> int:
        entry = self._engine.ledger.find(chat.name)
        return 0 if entry is None else entry.tokens

    async def _abort(self, way: Way, targets: list[Chat]) -> None:
        asked_ns = time.monotonic_ns()
        first = [chat for chat in targets if chat.asked_ns is None]
        for chat in first:
            chat.asked_ns = asked_ns
        if way == "engine":
            receipts = [await self._engine.abort(chat.name) for chat in targets]
        else:
            receipts = await self._engine.abort_operations([c.name for c in targets], by="id")
        told_ns = time.monotonic_ns()
        for chat in first:
            chat.told_ns, chat.tokens_when_told = told_ns, chat.delivered
        by_name = {receipt.request_id: receipt for receipt in receipts}
        for chat in targets:
            chat.receipts.append(by_name[chat.name])


def parts_of(chat: Chat, lives: dict[str, Life]) -> list[Life]:
    """The requests that the engine had of a chat."""
    return [life for one, life in lives.items() if chat_name(one) == chat.name]


def untruth(chat: Chat, parts: list[Life]) -> str | None:
    """What the receipts of a chat say other than the witness of its parts; None: nothing."""
    # Only the latency may be another: nothing, when a receipt is told again.
    told = {(one.state, one.accepted, one.tokens) for one in chat.receipts}
    if not told:
        return None if chat.way in ("none", "cancel") else "no receipt"
    if len(told) > 1 or not all(receipt.authoritative for receipt in chat.receipts):
        return f"no single truth: {chat.receipts}"
    ((state, accepted, tokens),) = told
    stopped = [life for life in parts if life.status == "FINISHED_ABORTED"]
    made = sum(life.tokens for life in parts)
    if tokens != made:
        return f"{tokens} tokens told, {made} made"
    if accepted != (bool(stopped) or state == "admitting"):
        return f"accepted told as {accepted}, {len(stopped)} parts aborted"
    possible = {(life.stood or "").lower() for life in stopped} or {"admitting", "finished"}
    if state not in possible:
        return f"{state} told, of {possible}"
    return None


def chat_name(internal_id: str) -> str:
    """The chat that a request of the engine belongs to.

    Its id is `chatcmpl-<name>-<ours>-<vLLM's>`, with `<index>_` before it for one of several.
    """
    return internal_id.partition("chatcmpl-")[2].rsplit("-", 2)[0]
