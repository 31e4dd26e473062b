"""Two of vLLM's own API server processes over one engine, both patched: aborts across them."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from tests.support.http_client import request_open
from tests.support.two_api_servers import TwoServers, two_api_servers
from tests.support.vllm_chats import MODEL

pytestmark = pytest.mark.anyio

OWNER, OTHER = 1, 0


@pytest.fixture(scope="module")
async def servers(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TwoServers]:
    """Two servers; the engine runs two requests at once."""
    del anyio_backend
    folder = tmp_path_factory.mktemp("servers")
    async with two_api_servers(folder, "--max-num-seqs", "2") as running:
        yield running


async def start(servers: TwoServers, *names: str, n: int = 1, **caller: Any) -> None:
    """Requests of the owner, that go on for long, until they run."""
    for name in names:
        await servers.ask(OWNER, "start", name=name, tokens=1500, n=n, **caller)
        await servers.ask(OWNER, "reach", name=name, state="running")


async def clean(servers: TwoServers) -> None:
    """See that nothing is left anywhere."""
    for index in (OWNER, OTHER):
        assert await servers.ask(index, "left") == [0, 0, 0, 0, 0]


async def test_both_servers_say_hello_and_share_one_engine(servers: TwoServers) -> None:
    with anyio.fail_after(120):
        hellos = [await servers.ask(index, "hello") for index in (0, 1)]
    assert [hello["index"] for hello in hellos] == [0, 1]
    frontends, engines = zip(*(hello["receipts"] for hello in hellos), strict=True)
    assert frontends[0]["pid"] != frontends[1]["pid"]
    assert engines[0]["pid"] == engines[1]["pid"]
    for receipt in (*frontends, *engines):
        assert (receipt["answered"], receipt["problem"]) == (True, None)
        assert receipt["binding"] == frontends[0]["binding"]
    assert "F7" in frontends[1]["hooks"]
    assert "E1.tell" in engines[0]["hooks"]


@pytest.mark.parametrize(("state", "n"), [("running", 1), ("running", 2), ("waiting", 1)])
async def test_a_request_of_one_server_is_stopped_from_the_other_by_the_id_that_users_see(
    servers: TwoServers, state: str, n: int
) -> None:
    name = f"theirs-{state}-{n}"
    with anyio.fail_after(120):
        if state == "waiting":
            await start(servers, "b0", "b1")
        await servers.ask(OWNER, "start", name=name, tokens=1500, n=n)
        await servers.ask(OWNER, "reach", name=name, state=state)
        before = [await servers.ask(index, "counters") for index in (OWNER, OTHER)]
        assert await servers.ask(OTHER, "find", name=name) is None
        (receipt,) = await servers.ask(OTHER, "abort", names=[name])
        end = await servers.ask(OWNER, "end_of", name=name)
        entry = await servers.ask(OWNER, "find", name=name)
        if state == "waiting":
            # vLLM's statistics of either server know nothing of a request that never ran.
            after = [await servers.ask(index, "counters") for index in (OWNER, OTHER)]
            assert after == before
            await servers.ask(OTHER, "abort", names=["b0", "b1"])
            for blocker in ("b0", "b1"):
                assert (await servers.ask(OWNER, "end_of", name=blocker))["reasons"] == ["abort"]
        again = [await servers.ask(index, "abort", names=[name]) for index in (OWNER, OTHER)]
        await clean(servers)
    assert (receipt["request_id"], receipt["state"]) == (name, state)
    assert (receipt["accepted"], receipt["authoritative"]) == (True, True)
    assert end == {"tokens": receipt["tokens"], "reasons": ["abort"]}
    assert (receipt["tokens"] > 0) == (state == "running")
    # The owner's ledger says the same.
    assert (entry["state"], entry["reason"], entry["cause"]) == ("finished", "abort", "requested")
    for told in (entry["receipt"], *(first for (first,) in again)):
        for key in ("state", "accepted", "authoritative", "tokens"):
            assert told[key] == receipt[key]


async def test_programs_and_agents_mean_requests_of_both_servers(servers: TwoServers) -> None:
    with anyio.fail_after(120):
        await start(servers, "first", program="p", agent="x")
        await servers.ask(OTHER, "start", name="second", tokens=1500, n=1, program="p", agent="y")
        await servers.ask(OTHER, "reach", name="second", state="running")
        receipts = await servers.ask(OTHER, "abort", names=["p"], by="program")
        ends = [
            await servers.ask(OWNER, "end_of", name="first"),
            await servers.ask(OTHER, "end_of", name="second"),
        ]
        await start(servers, "third", program="q", agent="x")
        (by_agent,) = await servers.ask(OTHER, "abort", names=["x"], by="agent")
        await servers.ask(OWNER, "end_of", name="third")
        await clean(servers)
    assert [(one["request_id"], one["state"], one["accepted"]) for one in receipts] == [
        ("second", "running", True),
        ("first", "running", True),
    ]
    assert [end["reasons"] for end in ends] == [["abort"], ["abort"]]
    assert (by_agent["request_id"], by_agent["accepted"]) == ("third", True)


async def test_of_two_requests_with_one_external_id_only_the_meant_one_is_stopped(
    servers: TwoServers,
) -> None:
    with anyio.fail_after(120):
        await start(servers, "twin")
        await servers.ask(OWNER, "start", name="twin", tokens=1500, n=1)
        await servers.ask(OWNER, "reach", name="twin#2", state="running")
        (receipt,) = await servers.ask(OTHER, "abort", names=["twin"])
        # Its owner hears of it a moment later.
        while (first := await servers.ask(OWNER, "find", name="twin"))["receipt"] is None:
            pass
        live = await servers.ask(OWNER, "live")
        await servers.ask(OTHER, "abort", names=["twin#2"])
        await servers.ask(OWNER, "end_of", name="twin")
        await clean(servers)
    assert (receipt["request_id"], receipt["accepted"]) == ("twin", True)
    assert first["receipt"]["accepted"]
    assert live == ["twin#2"]


async def test_aborts_from_both_servers_at_once_stop_a_request_once(servers: TwoServers) -> None:
    receipts: dict[int, Any] = {}

    async def abort(index: int) -> None:
        (receipts[index],) = await servers.ask(index, "abort", names=["both"])

    with anyio.fail_after(120):
        await start(servers, "both")
        async with anyio.create_task_group() as tasks:
            for index in (OWNER, OTHER):
                tasks.start_soon(abort, index)
        end = await servers.ask(OWNER, "end_of", name="both")
        entry = await servers.ask(OWNER, "find", name="both")
        await clean(servers)
    assert end["reasons"] == ["abort"]
    # Whoever came second found it gone.
    assert [one["accepted"] for one in receipts.values()].count(True) >= 1
    assert all(one["authoritative"] for one in receipts.values())
    assert (entry["receipt"]["accepted"], entry["tokens"]) == (True, end["tokens"])


async def test_an_http_request_is_stopped_from_whichever_server_does_not_have_it(
    servers: TwoServers,
) -> None:
    asked = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1500, "ignore_eos": True}
    headers = {"x-claude-code-session-id": "session"}
    name = "cmpl-web-0"
    with anyio.fail_after(120):
        async with request_open(
            servers.address, "/v1/completions", asked, "web", headers
        ) as stream:
            while not (has := [i for i in (0, 1) if await servers.ask(i, "find", name=name)]):
                pass
            (owner,) = has
            await servers.ask(owner, "reach", name=name, state="running")
            (receipt,) = await servers.ask(1 - owner, "abort", names=["session"], by="program")
            answer = b""
            while b'"finish_reason":"abort"' not in answer:
                answer += await stream.receive()
        await clean(servers)
    assert (receipt["request_id"], receipt["state"]) == (name, "running")
    assert (receipt["accepted"], receipt["authoritative"]) == (True, True)
    assert answer.startswith(b"HTTP/1.1 200 OK")
