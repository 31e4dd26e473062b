"""Rounds of questions to one engine, some of them taken back at a boundary between two steps."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import anyio
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.port import AbortReceipt, ChatCall, Engine
from nnrp_sched.errors import BackendError
from tests.support.abort_storm import chat_name
from tests.support.step_gate import StepGate
from tests.support.step_recorder import Scheduled
from tests.support.vllm_chats import body

BOUNDARIES = 10
"""Aborts come in each of the first so many steps of a request."""

_OPENING = "You are asked by a curious reader who likes short and exact answers. "
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue in the day and red in the evening?",
    "Name three kinds of trees that keep their leaves in winter.",
    "How does a bicycle stay upright?",
    "Tell me a short story about a fox that could not find its way home after the first snow.",
    "What should somebody pack for a walk of two days in the mountains, and what is better left?",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes without milk.",
    "How many days are there in a leap year, and why does it need one more than the others do?",
    "Explain what a queue is to a child.",
    "Write two lines about an old lighthouse.",
    "What is the difference between a lake and a sea?",
    "How would you thank a neighbour who looked after your plants for the whole of the summer?",
    "When was the printing press invented, and what did people do before they had it?",
    "How is glass made from sand?",
    "What makes a good teacher, in one sentence?",
    "Why does ice float on water although it is the same stuff, only colder than the rest of it?",
    "Translate 'good morning' into Spanish.",
    "What is two plus two?",
    "How long does it take for light to come from the sun to the earth?",
)


@dataclass(frozen=True)
class Plan:
    """When a chat is to be aborted."""

    while_it: Literal["waits", "runs"]
    steps: int
    """After so many steps of that kind."""


@dataclass
class Answer:
    """What the caller of one chat got."""

    tokens: list[str] = field(default_factory=list[str])
    gaps: list[float] = field(default_factory=list[float])
    """By token, how much less likely the second one was, in log-probability."""
    reason: str | None = None
    aborted: bool = False
    """Whether an abort was sent."""
    receipt: AbortReceipt | None = None


class Round:
    """All questions asked at once, some of them taken back."""

    def __init__(
        self, engine: Engine, gate: StepGate, title: str, plans: dict[int, Plan], preempted: int = 0
    ) -> None:
        """Aborts by `plans`, and the first `preempted` others as soon as they are preempted."""
        self._engine = engine
        self._gate = gate
        self._title = title
        self._plans = {self._name(number): plan for number, plan in plans.items()}
        self._preempted = preempted
        self._steps = Counter[str]()
        """How many steps of its plan's kind a chat has had."""
        self.answers: dict[int, Answer] = {}

    def _name(self, number: int) -> str:
        return f"{self._title}q{number}"

    async def run(self, order: Sequence[int], at_once: int) -> dict[int, Answer]:
        """Ask in that order, at most `at_once` at a time."""
        places = anyio.CapacityLimiter(at_once)
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as asking:
            self._gate.at_step = partial(self._boundary, tasks.start_soon)
            for number in order:
                await places.acquire_on_behalf_of(number)
                asking.start_soon(self._ask, number, places)
        self._gate.at_step = None
        return self.answers

    async def _ask(self, number: int, places: anyio.CapacityLimiter) -> None:
        answer = self.answers[number] = Answer()
        chat = body(
            _OPENING + QUESTIONS[number],
            max_tokens=10 + number * 2 // 3,
            logprobs=True,
            top_logprobs=2,
        )
        try:
            told = await self._engine.complete(ChatCall(self._name(number), chat))
        except BackendError as error:
            # Before vLLM's frontend had it.
            answer.reason = f"{error.status}"
        else:
            (choice,) = told["choices"]
            answer.reason = choice["finish_reason"]
            made: list[Any] = choice["logprobs"]["content"] if choice["logprobs"] else []
            for token in made:
                second, best = sorted(float(top["logprob"]) for top in token["top_logprobs"])
                answer.tokens.append(token["token"])
                answer.gaps.append(best - second)
        finally:
            places.release_on_behalf_of(number)

    async def _boundary(self, start: Any, step: Scheduled) -> None:
        now = {
            "runs": {chat_name(one) for one in step.tokens},
            "waits": {chat_name(one) for one in step.waiting},
        }
        due: list[str] = []
        for name, plan in list(self._plans.items()):
            self._steps[name] += name in now[plan.while_it]
            if self._steps[name] > plan.steps:
                del self._plans[name]
                due.append(name)
        for name in map(chat_name, step.preempted):
            number = self._number(name)
            if self._preempted and name not in self._plans and not self.answers[number].aborted:
                self._preempted -= 1
                due.append(name)
        for name in due:
            self.answers[self._number(name)].aborted = True
            start(self._abort, name)
        if due:
            # The aborts are on their way to the engine before it may go on.
            for _ in range(20):
                await checkpoint()

    def _number(self, name: str) -> int:
        return int(name.removeprefix(f"{self._title}q"))

    async def _abort(self, name: str) -> None:
        self.answers[self._number(name)].receipt = await self._engine.abort(name)


def plans_of(round_number: int, chance: random.Random) -> dict[int, Plan]:
    """For a third of the questions: two rounds after each other meet every boundary."""
    kinds = [
        *(Plan("runs", steps) for steps in range(round_number % 2, BOUNDARIES, 2)),
        *(Plan("waits", steps) for steps in (0, chance.randrange(1, 6))),
    ]
    return dict(zip(chance.sample(range(len(QUESTIONS)), len(kinds)), kinds, strict=True))


def parting(expected: Answer, found: Answer) -> float | None:
    """How clear the choice was where the shorter of two texts leaves the other; None: nowhere."""
    for index, (one, other) in enumerate(zip(expected.tokens, found.tokens, strict=False)):
        if one != other:
            return max(expected.gaps[index], found.gaps[index])
    return None


def divergence(expected: Answer, found: Answer) -> float | None:
    """How clear the choice was where two whole answers part; None where they are the same."""
    gap = parting(expected, found)
    if gap is not None or (expected.tokens, expected.reason) == (found.tokens, found.reason):
        return gap
    return math.inf
