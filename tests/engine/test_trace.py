"""One trace from the client's span to the engine's phases, on a real engine that traces itself."""

import os
from collections.abc import AsyncIterator, Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Span, StatusCode, format_span_id, format_trace_id

from nnrp_sched.client import Session
from nnrp_sched.observe.observers import Observers
from nnrp_sched.observe.spans import SpanObserver
from nnrp_sched_patches.launch import LaunchOptions, Serving, launch
from tests.support.serving import scripted_server
from tests.support.spans import Spans, attribute, times
from tests.support.vllm_chats import MODEL, body
from tests.support.vllm_http import post_chat

pytestmark = pytest.mark.anyio

VLLMS_SPAN = "llm_request"
VLLMS_ENVIRONMENT = {
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    # vLLM sets it for its child processes, and leaves it set.
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces",
}
"""Nobody listens there: an exporter that fails all the time must harm nothing."""
LONG = body("Count.", max_tokens=1500, ignore_eos=True)


class Traced:
    """A patched vLLM with one slot, a client's session on it, and every span."""

    def __init__(self, serving: Serving, session: Session, spans: Spans) -> None:
        self.serving = serving
        self.session = session
        self.spans = spans
        self._tracer = spans.provider.get_tracer("client")

    def client_span(self) -> tuple[Span, str]:
        """A span of the client's, and its traceparent."""
        span = self._tracer.start_span("agent step")
        context = span.get_span_context()
        ids = f"{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}"
        return span, f"00-{ids}-01"

    async def child_of(self, client: Span) -> ReadableSpan:
        """The operation whose parent is the client's span."""
        (operation,) = await self._until(lambda: self._children(client, self.spans.operations()))
        return operation

    def vllms_own(self, client: Span) -> list[ReadableSpan]:
        """What vLLM itself made of the trace."""
        named = [span for span in self.spans.finished if span.name == VLLMS_SPAN]
        return self._children(client, named)

    async def until_states(self, *wanted: str) -> None:
        """Wait until the engine's requests stand like that."""

        async def states() -> list[str]:
            return [each.state for each in (await self.serving.engine.queue()).operations]

        while await states() != list(wanted):
            await checkpoint()

    def _children(self, client: Span, among: list[ReadableSpan]) -> list[ReadableSpan]:
        context = client.get_span_context()
        return [
            span
            for span in among
            if span.context is not None
            and span.parent is not None
            and span.context.trace_id == span.parent.trace_id == context.trace_id
            and span.parent.span_id == context.span_id
        ]

    @staticmethod
    async def _until(found: Callable[[], list[ReadableSpan]]) -> list[ReadableSpan]:
        while not (spans := found()):
            await checkpoint()
        return spans


@pytest.fixture(scope="module")
async def serving(anyio_backend: str) -> AsyncIterator[Serving]:
    """A patched vLLM that runs one request at a time and traces to nobody."""
    del anyio_backend
    before = {name: os.environ.get(name) for name in VLLMS_ENVIRONMENT}
    os.environ.update(VLLMS_ENVIRONMENT)
    endpoint = VLLMS_ENVIRONMENT["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
    arguments = ("--max-num-seqs", "1", "--otlp-traces-endpoint", endpoint)
    options = LaunchOptions(http="127.0.0.1:0", patch=True, vllm_arguments=arguments)
    try:
        async with launch(options) as running:
            yield running
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@pytest.fixture
async def traced(serving: Serving) -> AsyncIterator[Traced]:
    """A session, and spans of this test alone."""
    spans = Spans()
    vllms = trace.get_tracer_provider()
    assert isinstance(vllms, TracerProvider)
    vllms.add_span_processor(SimpleSpanProcessor(spans.exporter))
    observers = Observers([SpanObserver(spans.provider)])
    serving.observe_http(observers)
    async with (
        scripted_server(serving.engine, observers=[observers]) as served,
        served.connect() as connection,
        connection.session() as session,
    ):
        yield Traced(serving, session, spans)
    serving.engine.ledger.on_end = None


async def test_one_trace_reaches_from_the_client_to_every_phase_in_the_engine(
    traced: Traced,
) -> None:
    client, traceparent = traced.client_span()
    with anyio.fail_after(120):
        chat = traced.session.chat(body(max_tokens=8), stream=True, traceparent=traceparent)
        outcome = await chat.result()
        assert outcome.status == "completed"
        operation = await traced.child_of(client)
        while not traced.vllms_own(client):
            await checkpoint()
    assert operation.name == f"chat {MODEL}"
    assert attribute(operation, "nnrp.operation.name") == chat.name
    assert attribute(operation, "nnrp.source") == "nnrp"
    assert attribute(operation, "gen_ai.usage.output_tokens") == 8
    phases = traced.spans.phases_of(operation)
    assert list(phases) == ["queue", "prefill", "decode"]
    whole, queue, prefill, decode = (
        times(span) for span in (operation, *(phases[name] for name in phases))
    )
    assert whole[0] <= queue[0] <= queue[1] == prefill[0] < prefill[1] == decode[0] < decode[1]
    assert decode[1] <= whole[1]
    # vLLM's own span is a child of the same span (seed 000, 8.1, rule 3).
    assert len(traced.vllms_own(client)) == 1


async def test_aborts_while_waiting_and_running_have_their_spans(traced: Traced) -> None:
    running, running_parent = traced.client_span()
    waiting, waiting_parent = traced.client_span()
    with anyio.fail_after(120):
        first = traced.session.chat(LONG, stream=True, traceparent=running_parent)
        await anext(first)
        second = traced.session.chat(LONG, stream=True, traceparent=waiting_parent)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second.result)
            await traced.until_states("running", "waiting")
            await second.cancel()
            await first.cancel()
        for client, state, expected in (
            (waiting, "waiting", {"queue", "abort"}),
            (running, "running", {"queue", "prefill", "decode", "abort"}),
        ):
            operation = await traced.child_of(client)
            assert attribute(operation, "nnrp.outcome") == "cancelled"
            phases = traced.spans.phases_of(operation)
            assert set(phases) == expected
            abort = phases["abort"]
            assert attribute(abort, "nnrp.abort.state") == state
            assert attribute(abort, "nnrp.abort.accepted") is True
            assert attribute(abort, "nnrp.abort.authoritative") is True
            last = times(phases["queue" if state == "waiting" else "decode"])
            assert last[0] <= times(abort)[0] <= last[1] <= times(abort)[1]
            # vLLM makes none for what did not finish (hooks.md 2.5); ours are the only ones.
            assert traced.vllms_own(client) == []


async def test_a_refused_chat_is_an_error_in_the_clients_trace(traced: Traced) -> None:
    client, traceparent = traced.client_span()
    with anyio.fail_after(120):
        chat = traced.session.chat(body(max_tokens=100_000), traceparent=traceparent)
        outcome = await chat.result()
        operation = await traced.child_of(client)
    assert outcome.error is not None
    assert operation.status.status_code is StatusCode.ERROR
    assert attribute(operation, "error.type") == outcome.error.code
    assert traced.spans.phases_of(operation) == {}


async def test_requests_over_http_join_the_trace_of_their_traceparent(traced: Traced) -> None:
    client, traceparent = traced.client_span()
    address = traced.serving.http
    assert address is not None
    with anyio.fail_after(120):
        headers = {"traceparent": traceparent, "x-claude-code-session-id": "run"}
        status, _ = await post_chat(address, body(max_tokens=4), headers)
        assert status == 200
        operation = await traced.child_of(client)
        while not traced.vllms_own(client):
            await checkpoint()
    assert attribute(operation, "nnrp.source") == "http"
    assert attribute(operation, "gen_ai.conversation.id") == "run"
    assert attribute(operation, "gen_ai.usage.output_tokens") == 4
    assert list(traced.spans.phases_of(operation)) == ["queue", "prefill", "decode"]


async def test_an_abort_of_a_request_over_http_has_its_span(traced: Traced) -> None:
    client, traceparent = traced.client_span()
    address = traced.serving.http
    assert address is not None
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post_chat, address, LONG, {"traceparent": traceparent})
            await traced.until_states("running")
            (live,) = (await traced.serving.engine.queue()).operations
            await traced.serving.engine.abort_operations([live.id], by="id")
        operation = await traced.child_of(client)
    assert attribute(operation, "nnrp.outcome") == "cancelled"
    abort = traced.spans.phases_of(operation)["abort"]
    assert attribute(abort, "nnrp.abort.reason") == "requested"
    assert attribute(abort, "nnrp.abort.state") == "running"


async def test_concurrent_chats_of_one_session_stay_in_their_traces(traced: Traced) -> None:
    clients = [traced.client_span() for _ in range(12)]
    with anyio.fail_after(200):
        async with anyio.create_task_group() as tasks:
            for index, (_, traceparent) in enumerate(clients):
                chat = traced.session.chat(
                    body(max_tokens=3), stream=index % 2 == 0, traceparent=traceparent
                )
                tasks.start_soon(chat.result)
        for client, _ in clients:
            operation = await traced.child_of(client)
            assert len(traced.spans.phases_of(operation)) == 3
            while len(traced.vllms_own(client)) != 1:
                await checkpoint()
