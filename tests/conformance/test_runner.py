"""The runner over real carriers: our server passes, and a server that errs is caught."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.conformance import (
    CaseResult,
    Targets,
    build_plan,
    case_run,
    default_folders,
    fetch_capabilities,
    load_recipes,
    manifest_of,
    run_cases,
)
from nnrp_sched.conformance.capability import SCRIPTED, model_ids
from nnrp_sched.conformance.recipe import Case, case_of
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import ConnectionLost
from nnrp_sched.server import serve
from nnrp_sched.transport import Carrier, Endpoint, background_tasks, listen, parse_endpoint
from nnrp_sched.wire import DropReason, SubmitReceived
from tests.conformance.carriers import KINDS, scripted_on
from tests.support.carriers import client_security
from tests.support.raw_server import RawServer

pytestmark = pytest.mark.anyio

SECONDS = 50
RECIPES = load_recipes(default_folders())


@pytest.fixture(params=KINDS)
async def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Endpoint]:
    """The address of a scripted server, on each carrier."""
    async with scripted_on(request.param, tmp_path) as endpoint:
        yield endpoint


async def test_every_recipe_passes_on_the_scripted_server(endpoint: Endpoint) -> None:
    # Each case has a handshake of its own, which takes its time: there, the suite's cases.
    recipes = load_recipes(default_folders()[:1]) if endpoint.encrypted else RECIPES
    with anyio.fail_after(SECONDS):
        document = await fetch_capabilities(endpoint, client_security())
        plan = build_plan(
            recipes, manifest_of(document), model="example-model", capabilities={SCRIPTED}
        )
        models = tuple(model_ids(document))
        targets = Targets(endpoint, endpoint, models, client_security())
        results = await run_cases(plan.cases, targets, seconds=10)
    assert {result.case.id: result.reasons for result in results if result.reasons} == {}
    assert len(results) == len(plan.cases) >= (8 if endpoint.encrypted else 60)


async def test_a_server_with_models_of_its_own_passes_beside_a_scripted_one(tmp_path: Path) -> None:
    engine = ScriptedEngine(models=("my-model",))
    with anyio.fail_after(SECONDS):
        async with (
            scripted_on("tcp", tmp_path) as fixture,
            serve(engine, [parse_endpoint(f"unix://{tmp_path}/own.sock")]) as server,
        ):
            own = server.endpoints[0]
            document = await fetch_capabilities(own)
            manifest = manifest_of(document)
            plan = build_plan(RECIPES, manifest, model="my-model", capabilities={SCRIPTED})
            targets = Targets(own, fixture, tuple(model_ids(document)))
            results = await run_cases(plan.cases, targets, seconds=10)
    assert {result.case.id: result.reasons for result in results if result.reasons} == {}
    assert {result.target for result in results} == {str(own), str(fixture)}
    asked = {(result.target, result.case.request.body.get("model")) for result in results}
    assert {(str(own), "my-model"), (str(own), "no-such-model")} <= asked
    assert {(str(fixture), "example-model"), (str(fixture), "backend-error")} <= asked


async def test_the_status_codes_are_the_published_adapters(tmp_path: Path) -> None:
    wanted = {
        "nnrp-sched.streaming-chat": 200,
        "nnrp-sched.cancellation": 499,
        "nnrp-sched.time-limit": 504,
        "nnrp-sched.overload": 503,
        "nnrp-sched.invalid-body": 500,
        "nnrp-sched.backend-error": 500,
        "nnrp-sched.wire-two-frames": 500,
    }
    cases = [case_of(each.filled_in("example-model", {})) for each in RECIPES if each.id in wanted]
    with anyio.fail_after(SECONDS):
        async with scripted_on("unix", tmp_path) as endpoint:
            results = await run_cases(cases, Targets(endpoint, endpoint), seconds=10)
    assert {result.case.id: result.seen.status_code for result in results} == wanted


# --- servers that err ---------------------------------------------------------------------------

Answer = Callable[[RawServer, SubmitReceived], Awaitable[None]]
TEXT = {"type": "response.output_text.delta", "index": 0, "delta": "hello"}
COMPLETED = {
    "type": "response.completed",
    "body": {
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello"},
                "finish_reason": "stop",
            }
        ],
    },
}


@asynccontextmanager
async def answering(answer: Answer) -> AsyncGenerator[Endpoint]:
    """A server that answers every submit as told, then closes sessions as asked."""

    async def handle(carrier: Carrier) -> None:
        server = RawServer(carrier)
        try:
            await server.accept_session()
            await answer(server, await server.submitted())
            while data := await carrier.receive():
                server.wire.receive(data)
        except (AssertionError, ConnectionLost):
            pass  # The client left: the case is over.
        finally:
            await carrier.aclose()

    async with background_tasks() as tasks:
        listener = await listen(parse_endpoint("nnrp://127.0.0.1:0"))
        tasks.start_soon(listener.serve, handle)
        try:
            yield listener.endpoint
        finally:
            await listener.aclose()


async def send(server: RawServer, submit: SubmitReceived, *events: Any, terminal: Any) -> None:
    for event in events:
        await server.partial(submit, json.dumps(event).encode())
    await server.push(submit, json.dumps(terminal).encode())


async def wrong_text(server: RawServer, submit: SubmitReceived) -> None:
    await send(server, submit, {**TEXT, "delta": "hallo"}, terminal=COMPLETED)


async def terminal_as_partial(server: RawServer, submit: SubmitReceived) -> None:
    await send(server, submit, TEXT, COMPLETED, terminal=COMPLETED)


async def text_as_terminal(server: RawServer, submit: SubmitReceived) -> None:
    await send(server, submit, TEXT, terminal=TEXT)


async def wrong_outcome(server: RawServer, submit: SubmitReceived) -> None:
    error = {"type": "server_error", "code": "backend_error", "message": "no"}
    await send(server, submit, TEXT, terminal={"type": "response.error", "error": error})


async def no_delta(server: RawServer, submit: SubmitReceived) -> None:
    await send(server, submit, terminal=COMPLETED)


async def drop(server: RawServer, submit: SubmitReceived) -> None:
    reason = DropReason.PEER_CANCELLED
    await server.send(server.wire.drop_result(submit.session_id, submit.frame_id, reason))


async def not_json(server: RawServer, submit: SubmitReceived) -> None:
    await server.partial(submit, b"data: [DONE]")
    await send(server, submit, TEXT, terminal=COMPLETED)


async def hang_up(server: RawServer, submit: SubmitReceived) -> None:
    await server.carrier.aclose()


async def garbage(server: RawServer, submit: SubmitReceived) -> None:
    await server.send(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64))


async def after_the_end(server: RawServer, submit: SubmitReceived) -> None:
    late = server.wire.partial_result(submit.session_id, submit.frame_id, json.dumps(TEXT).encode())
    await send(server, submit, terminal=COMPLETED)
    await server.send(late)


def streaming_case() -> Case:
    (recipe,) = [each for each in RECIPES if each.id == "nnrp-sched.streaming-chat"]
    return case_of(recipe.filled_in("example-model", {}))


async def run_one(case: Case, endpoint: Endpoint, seconds: float = 5) -> CaseResult:
    with anyio.fail_after(SECONDS):
        (result,) = await run_cases([case], Targets(endpoint, endpoint), seconds=seconds)
    return result


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (wrong_text, "the deltas of choice 0 add up to 'hallo'"),
        (terminal_as_partial, "response.completed in a PARTIAL_RESULT"),
        (text_as_terminal, "which it cannot end"),
        (wrong_outcome, "ended as error, expected success"),
        (no_delta, "response.output_text.delta came 0 times"),
        (drop, "drop reason peer_cancelled, expected None"),
        (not_json, "not one UTF-8 JSON document"),
        (hang_up, "closed the connection before a terminal"),
        (garbage, "protocol error malformed_header"),
        (after_the_end, "PARTIAL_RESULT came after the terminal"),
    ],
)
async def test_a_server_that_errs_fails_the_case_with_the_reason(
    answer: Answer, reason: str
) -> None:
    async with answering(answer) as endpoint:
        result = await run_one(streaming_case(), endpoint)
    assert result.outcome == "failed"
    assert any(reason in each for each in result.reasons), result.reasons


async def silent(server: RawServer, submit: SubmitReceived) -> None:
    """Nothing comes."""


async def test_a_server_that_never_ends_the_operation_fails_the_case_in_time() -> None:
    async with answering(silent) as endpoint:
        result = await run_one(streaming_case(), endpoint, seconds=0.2)
    assert "no terminal, and nothing for 0.2 s" in result.reasons


async def test_a_long_answer_may_take_longer_than_a_wait() -> None:
    pieces = 6

    async def slow(server: RawServer, submit: SubmitReceived) -> None:
        for _ in range(pieces):
            await anyio.sleep(0.25)  # A model that takes its time: what this is about.
            await server.partial(submit, json.dumps(TEXT).encode())

    async with answering(slow) as endpoint:
        result = await run_one(streaming_case(), endpoint, seconds=1)
    # All of them, though together they took longer than one wait may.
    assert len(result.seen.events) == pieces
    assert "no terminal, and nothing for 1 s" in result.reasons


async def test_a_stream_that_never_ends_fails_the_case_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(case_run, "MOST_EVENTS", 50)

    async def endless(server: RawServer, submit: SubmitReceived) -> None:
        for _ in range(60):
            await server.partial(submit, json.dumps(TEXT).encode())

    async with answering(endless) as endpoint:
        result = await run_one(streaming_case(), endpoint, seconds=5)
    assert "no terminal after 50 events" in result.reasons


async def test_a_cancelled_drop_is_no_response_cancelled_the_runner_makes_nothing_up() -> None:
    (recipe,) = [each for each in RECIPES if each.id == "openai-compatible.chat.cancellation"]

    async def delta_then_drop(server: RawServer, submit: SubmitReceived) -> None:
        await server.partial(submit, json.dumps(TEXT).encode())
        await drop(server, submit)

    async with answering(delta_then_drop) as endpoint:
        result = await run_one(case_of(recipe.filled_in("example-model", {})), endpoint)
    assert result.seen.terminal == "cancelled"
    assert [event["type"] for event in result.seen.events] == [TEXT["type"]]
    assert "response.cancelled came 0 times, expected 1" in result.reasons


async def test_an_endpoint_where_nobody_listens_fails_each_case_and_ends_no_run() -> None:
    nowhere = parse_endpoint("nnrp://127.0.0.1:1")
    with anyio.fail_after(SECONDS):
        results = await run_cases([streaming_case()] * 2, Targets(nowhere, nowhere), seconds=5)
    assert [result.outcome for result in results] == ["failed", "failed"]
    assert "nobody answers" in results[0].reasons[0]


async def test_a_server_without_a_capability_document_is_told_about_the_manifest() -> None:
    async def refuse(server: RawServer, submit: SubmitReceived) -> None:
        error = {"type": "x", "code": "unsupported_operation", "message": "no"}
        await send(server, submit, terminal={"type": "response.error", "error": error})

    async with answering(refuse) as endpoint:
        with anyio.fail_after(SECONDS), pytest.raises(ConnectionLost, match="--manifest"):
            await fetch_capabilities(endpoint)


def test_what_only_the_scripted_engine_can_do_runs_on_the_fixture() -> None:
    real, fixture = parse_endpoint("nnrp://real"), parse_endpoint("nnrp://fixture")
    targets = Targets(real, fixture, ("some-model",))
    homes = {
        recipe.id: targets.of(case_of(recipe.filled_in("some-model", {})))[0] for recipe in RECIPES
    }
    assert homes["nnrp-sched.streaming-chat"] == real
    assert homes["nnrp-sched.unsupported-model"] == real
    assert homes["openai-compatible.chat.backend-error"] == fixture
    assert homes["nnrp-sched.order-renamed-call"] == fixture
    assert homes["openai-compatible.chat.tool-call-delta"] == fixture, "it is up to the model"
    assert homes["nnrp-sched.tool-call"] == real, "the tool has to be called"
