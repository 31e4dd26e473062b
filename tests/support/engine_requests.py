"""Requests straight into a running vLLM engine, and what its process tells of them."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from vllm import SamplingParams

from nnrp_sched_patches.channel import call_engine

WATCHER = 91
"""Polls as a client of its own, beside the one that the product polls as."""


class Requests:
    """Starts requests under names of the test's, and follows the engine's transitions."""

    def __init__(self, llm: Any, tasks: TaskGroup, since: int) -> None:
        self.llm = llm
        self.tasks = tasks
        self.outputs: dict[str, Any] = {}
        """The last output that each request's caller got."""
        self.events: list[tuple[str, str, int, Any]] = []
        """Kind, name, nanoseconds, particulars."""
        self.ids: dict[str, str] = {}
        """The engine's ids by name."""
        self.dropped = 0
        self._since = since

    async def call(self, method: str, **payload: Any) -> dict[str, Any]:
        """Call `nnrp_<method>` in the engine process."""
        return await call_engine(self.llm, f"nnrp_{method}", payload, wait_s=30)

    async def start(
        self, *names: str, tokens: int = 300, until: str = "queued", **options: Any
    ) -> None:
        """Start requests one after the other, each when the one before is `until` that."""
        for name in names:
            self.tasks.start_soon(self._run, name, tokens, options)
            await self.until(partial(self._is, name, until))

    def _is(self, name: str, kind: str) -> bool:
        return kind in self.kinds(name)

    async def _run(self, name: str, tokens: int, options: dict[str, Any]) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        async for output in self.llm.generate("Count: one, two,", sampling, name, **options):
            self.outputs[name] = output

    def kinds(self, name: str) -> list[str]:
        """What happened to a request so far, in order."""
        return [kind for kind, of, _, _ in self.events if of == name]

    def order(self, wanted: str) -> list[str]:
        """The requests to which something happened, in order."""
        return [name for kind, name, _, _ in self.events if kind == wanted]

    def extra(self, wanted: str, of: str) -> Any:
        """The particulars of one transition."""
        return next(extra for kind, name, _, extra in self.events if (kind, name) == (wanted, of))

    async def until(self, happened: Callable[[], bool]) -> None:
        """Follow the transitions until `happened`."""
        while not happened():
            batch = await self.call("poll", since=self._since, wait_s=5, client=WATCHER)
            self._since = batch["seq"]
            self.dropped += batch["dropped"]
            for _, kind, request_id, at, extra in batch["events"]:
                # vLLM's internal id is ours and eight random digits.
                name = request_id.rpartition("-")[0]
                self.ids[name] = request_id
                self.events.append((kind, name, at, extra))

    async def abort(self, *names: str, client: int | None = None) -> dict[str, dict[str, Any]]:
        """Abort in the engine first, then in the frontend, as the product does."""
        own = self.llm.engine_core.client_index
        ids = {self.ids.get(name, name): name for name in names}
        reply = await self.call("abort", ids=list(ids), client=own if client is None else client)
        if client is None:
            self.llm.output_processor.abort_requests(list(ids), internal=True)
        return {ids[request_id]: told for request_id, told in reply["requests"].items()}

    async def end(self) -> None:
        """Abort what is left, and see that the engine has nothing more of it."""
        live = [name for name in self.ids if not self._is(name, "finished")]
        await self.abort(*live)
        await self.until(lambda: all(self._is(name, "finished") for name in live))
        depths = await self.call("queue")
        assert (depths["running"], depths["waiting"], depths["blocked"]) == (0, 0, 0)
        assert (depths["kv_usage"], self.dropped) == (0, 0)

    async def state(self, *names: str) -> dict[str, dict[str, Any]]:
        """`nnrp_state` by name."""
        ids = {self.ids[name]: name for name in names}
        reply = await self.call("state", ids=list(ids))
        return {ids[request_id]: told for request_id, told in reply["requests"].items()}


@asynccontextmanager
async def requests_to(llm: Any) -> AsyncGenerator[Requests, None]:
    """Requests that are all gone at the end, from engine and frontend; the KV cache is free."""
    with anyio.fail_after(120):
        depths = await call_engine(llm, "nnrp_queue", {}, wait_s=30)
        async with anyio.create_task_group() as tasks:
            requests = Requests(llm, tasks, depths["seq"])
            yield requests
            await requests.end()
        assert len(llm.output_processor.request_states) == 0
