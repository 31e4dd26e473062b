"""The queue before a carrier: order, batches, its bound, and its end."""

import anyio
import pytest

from nnrp_sched.transport import Outbox

pytestmark = pytest.mark.anyio

SECONDS = 20


class StubCarrier:
    """Records writes; has no room while `open` is unset."""

    name = "stub"
    same_host = True
    peer = ""
    authenticated = True
    problem = ""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.open = anyio.Event()
        self.open.set()

    async def receive(self) -> bytes:
        return b""

    async def deliver(self, sink: object) -> None:
        return None

    def write(self, data: bytes) -> bool:
        self.writes.append(data)
        return self.open.is_set()

    async def drained(self) -> None:
        await self.open.wait()

    async def send(self, data: bytes) -> None:
        self.write(data)

    async def aclose(self) -> None:
        return None


async def test_a_packet_alone_is_with_the_carrier_at_once() -> None:
    carrier = StubCarrier()
    Outbox(carrier, limit=10).put(b"one")
    assert carrier.writes == [b"one"]


async def test_what_follows_in_the_same_turn_of_the_loop_goes_as_one_piece() -> None:
    carrier = StubCarrier()
    outbox = Outbox(carrier, limit=100)
    for each in (b"one", b"two", b"three"):
        outbox.put(each)
    assert outbox.waiting_bytes == len(b"twothree")
    await anyio.lowlevel.checkpoint()
    assert carrier.writes == [b"one", b"twothree"]
    assert outbox.waiting_bytes == 0


async def test_while_the_carrier_has_no_room_everything_waits_in_order() -> None:
    carrier = StubCarrier()
    carrier.open = anyio.Event()
    outbox = Outbox(carrier, limit=10)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.run)
            outbox.put(b"first")
            for _ in range(3):
                outbox.put(b"later")
                await anyio.lowlevel.checkpoint()
            assert carrier.writes == [b"first"]
            assert outbox.full
            carrier.open.set()
            await outbox.wait_below(10)
            assert carrier.writes == [b"first", b"laterlaterlater"]
            tasks.cancel_scope.cancel()


async def test_who_waits_for_room_is_woken_when_the_outbox_closes() -> None:
    carrier = StubCarrier()
    carrier.open = anyio.Event()
    outbox = Outbox(carrier, limit=1)
    woken: list[bool] = []

    async def wait() -> None:
        await outbox.wait_below(1)
        woken.append(True)

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            outbox.put(b"x")
            outbox.put(b"y")
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            outbox.close()
    assert woken == [True]


async def test_closing_hands_over_what_waits_and_takes_nothing_more() -> None:
    carrier = StubCarrier()
    outbox = Outbox(carrier, limit=100)
    outbox.put(b"one")
    outbox.put(b"two")
    outbox.close()
    outbox.put(b"three")
    await anyio.lowlevel.checkpoint()
    assert carrier.writes == [b"one", b"two"]
    assert outbox.waiting_bytes == 0


async def test_run_ends_when_the_outbox_closes() -> None:
    outbox = Outbox(StubCarrier(), limit=1)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.run)
            await anyio.wait_all_tasks_blocked()
            outbox.close()
