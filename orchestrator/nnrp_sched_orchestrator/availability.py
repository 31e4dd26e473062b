"""Whether any endpoint can be reached, and what follows when none can for long."""

from collections.abc import Callable, Iterable

import anyio


class Availability:
    """Follows whether there is an endpoint that is up."""

    def __init__(self, seconds: float, given_up: Callable[[], None]) -> None:
        """`given_up` is called when none has been up for so many seconds."""
        self._seconds = seconds
        self._given_up = given_up
        self._up = anyio.Event()
        self._down = anyio.Event()
        self._down.set()
        self.hopeless = False
        """Whether none has been up for too long."""

    def update(self, up: bool) -> None:
        """Whether any is up now."""
        if up and not self._up.is_set():
            self._up.set()
            self._down = anyio.Event()
            self.hopeless = False
        elif not up and not self._down.is_set():
            self._down.set()
            self._up = anyio.Event()

    async def first(self, tried: Iterable[anyio.Event], seconds: float) -> bool:
        """Wait until one is up; False when each was tried in vain and so many seconds are over."""
        with anyio.move_on_after(seconds):
            await self._up.wait()
        async with anyio.create_task_group() as tasks:

            async def all_tried() -> None:
                for each in tried:
                    await each.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(all_tried)
            await self._up.wait()
            tasks.cancel_scope.cancel()
        return self._up.is_set()

    async def watch(self) -> None:
        """Notice when none is up for too long, until cancelled."""
        while True:
            await self._down.wait()
            with anyio.move_on_after(self._seconds):
                await self._up.wait()
            if not self._up.is_set():
                self.hopeless = True
                self._given_up()
                await self._up.wait()
