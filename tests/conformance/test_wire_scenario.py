"""A strict twin of the suite's live scenario `wire.profile.openai-compatible.level1`.

The suite's own runner is Rust and cannot be built here. This one is as strict as its strictest
version (wire digest 5.3): after the submit the very next packet is the one delta and the one after
it the typed `response.completed`; nothing else comes. It shares no code with the product.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conformance import strict_codec as codec
from tests.conformance.carriers import KINDS, scripted_on
from tests.conformance.strict_pipes import Pipe, pipe_to

pytestmark = pytest.mark.anyio

OPERATION, FRAME = 901, 1
REQUEST = (
    b'{"schema_version":"openai-compatible/1","operation":"chat.completions.create",'
    b'"request_id":"req_wire_1","body":{"model":"reference-model","messages":[{"role":"user",'
    b'"content":"ping"}],"stream":true}}'
)
SECONDS = 20
LONG = REQUEST.replace(b"ping", b"a long answer").replace(b"reference-model", b"example-model")


@pytest.fixture(params=KINDS)
async def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    """The address of a scripted server, on each carrier."""
    async with scripted_on(request.param, tmp_path) as endpoint:
        yield str(endpoint)


@asynccontextmanager
async def opened(endpoint: str) -> AsyncGenerator[tuple[Pipe, int]]:
    """A pipe with hello and session done, and the session's id."""
    with anyio.fail_after(SECONDS):
        async with pipe_to(endpoint) as pipe:
            await pipe.send(codec.hello())
            codec.check_hello_ack(await pipe.packet())
            await pipe.send(codec.session_open())
            yield pipe, codec.check_open_ack(await pipe.packet())


async def close(pipe: Pipe, session: int) -> None:
    """Close the session; the very next packet is the acknowledgement."""
    await pipe.send(codec.session_close(session, OPERATION))
    codec.check_close_ack(await pipe.packet(), session)


def event_of(document: bytes) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(document)
    return event


async def test_level1_answers_with_one_delta_then_the_typed_completion(endpoint: str) -> None:
    assert len(REQUEST) == 199
    async with opened(endpoint) as (pipe, session):
        submit = codec.submit(session, FRAME, OPERATION, REQUEST)
        assert len(submit) == 367
        await pipe.send(submit)
        delta = event_of(codec.check_partial(await pipe.packet(), session, FRAME, OPERATION, 1))
        assert delta["type"] == "response.output_text.delta"
        assert delta["index"] == 0 and delta["delta"]
        completed = event_of(codec.check_result(await pipe.packet(), session, FRAME, 200))
        assert completed["type"] == "response.completed"
        (choice,) = completed["body"]["choices"]
        assert choice["message"]["content"] == delta["delta"]
        await close(pipe, session)


async def test_a_cancel_is_answered_by_the_servers_own_response_cancelled(endpoint: str) -> None:
    async with opened(endpoint) as (pipe, session):
        await pipe.send(codec.submit(session, FRAME, OPERATION, LONG))
        sequence = 1
        codec.check_partial(await pipe.packet(), session, FRAME, OPERATION, sequence)
        await pipe.send(codec.cancel(session, FRAME, OPERATION))
        while (answer := await pipe.packet()).kind == codec.T_PARTIAL:
            sequence += 1
            codec.check_partial(answer, session, FRAME, OPERATION, sequence)
        cancelled = event_of(codec.check_result(answer, session, FRAME, 499))
        assert cancelled["type"] == "response.cancelled"
        assert cancelled["reason"]
        await close(pipe, session)


async def test_the_sessions_default_deadline_of_500_ms_ends_nothing(endpoint: str) -> None:
    slow = REQUEST.replace(
        b'"stream":true', b'"stream":true,"scripted":{"text":["x"],"delay_ms":600}'
    )
    async with opened(endpoint) as (pipe, session):
        await pipe.send(codec.submit(session, FRAME, OPERATION, slow))
        codec.check_partial(await pipe.packet(), session, FRAME, OPERATION, 1)
        completed = event_of(codec.check_result(await pipe.packet(), session, FRAME, 200))
        assert completed["type"] == "response.completed"
        await close(pipe, session)


async def test_a_second_session_on_the_connection_serves_the_same_ids_anew(endpoint: str) -> None:
    async with opened(endpoint) as (pipe, first):
        await pipe.send(codec.session_open())
        second = codec.check_open_ack(await pipe.packet())
        assert second != first
        for session in (first, second):
            await pipe.send(codec.submit(session, FRAME, OPERATION, REQUEST))
            codec.check_partial(await pipe.packet(), session, FRAME, OPERATION, 1)
            codec.check_result(await pipe.packet(), session, FRAME, 200)
        await close(pipe, first)
        await pipe.send(codec.submit(second, FRAME + 1, OPERATION + 1, REQUEST))
        codec.check_partial(await pipe.packet(), second, FRAME + 1, OPERATION + 1, 1)
        codec.check_result(await pipe.packet(), second, FRAME + 1, 200)
        await close(pipe, second)


async def test_a_refused_submit_leaves_the_session_as_it_was(endpoint: str) -> None:
    async with opened(endpoint) as (pipe, session):
        await pipe.send(codec.submit(session, FRAME, OPERATION, b"[]"))
        refused = event_of(codec.check_result(await pipe.packet(), session, FRAME, 500))
        assert refused["type"] == "response.error"
        assert refused["error"]["code"] == "invalid_submit_body"
        await pipe.send(codec.submit(session, FRAME + 1, OPERATION + 1, REQUEST))
        codec.check_partial(await pipe.packet(), session, FRAME + 1, OPERATION + 1, 1)
        codec.check_result(await pipe.packet(), session, FRAME + 1, 200)
        await close(pipe, session)
