"""One trace from a program down to the engine, with an SDK and without."""

import anyio
import pytest
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

from nnrp_sched.engine.records import ChatCall
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.trace import TraceSpan, current_span
from tests.support.programs import ENDLESS, SECONDS, PlayedWork, orchestra
from tests.support.serving import body
from tests.support.spans import Spans, attribute

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]


class TracedEngine(ScriptedEngine):
    """Keeps the traceparents that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.traceparents: list[str] = []

    def stream(self, call: ChatCall):  # type: ignore[no-untyped-def]  # As the parent's.
        assert call.traceparent is not None
        self.traceparents.append(call.traceparent)
        return super().stream(call)


def ids(traceparent: str) -> tuple[int, int]:
    """The trace's and the span's."""
    _, trace_id, span_id, _ = traceparent.split("-")
    return int(trace_id, 16), int(span_id, 16)


def own(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def above(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


async def test_every_span_is_a_child_of_who_started_it_and_the_engine_of_its_stream() -> None:
    spans, engine = Spans(), TracedEngine()
    async with orchestra(lambda: (engine, ServerLimits()), provider=spans.provider) as play:
        with anyio.fail_after(SECONDS):
            async with (
                play.orchestrator.program("p") as root,
                root.agent("a") as agent,
                agent.agent("b") as below,
            ):
                await below.chat(body(), model="example-model").text()
                traceparent = below.traceparent
    program, agent_span, below_span, chat = _named(
        spans, "invoke_agent p", "invoke_agent a", "invoke_agent b", "chat example-model"
    )
    assert above(program) is None
    assert above(agent_span) == own(program)
    assert above(below_span) == own(agent_span)
    assert own(below_span) == ids(traceparent)
    assert above(chat) == own(below_span)
    assert [ids(each) for each in engine.traceparents] == [own(chat)]
    assert chat.kind is SpanKind.CLIENT
    assert attribute(chat, "gen_ai.operation.name") == "chat"
    assert attribute(chat, "gen_ai.request.model") == "example-model"
    assert attribute(chat, "gen_ai.agent.id") == "p/a/b"
    assert attribute(chat, "gen_ai.conversation.id") == "p"
    assert attribute(chat, "nnrp.outcome") == "completed"
    assert attribute(chat, "gen_ai.usage.output_tokens") == 3
    assert attribute(below_span, "gen_ai.usage.output_tokens") == 3
    assert attribute(program, "nnrp.model_calls") == 1


def _named(spans: Spans, *names: str) -> list[ReadableSpan]:
    found = {span.name: span for span in spans.finished}
    assert sorted(found) == sorted(names)
    assert len(spans.finished) == len(names)
    return [found[name] for name in names]


async def test_the_span_of_a_stopped_stream_tells_its_receipt() -> None:
    spans = Spans()
    async with orchestra(provider=spans.provider) as play:
        with anyio.fail_after(SECONDS):
            async with play.orchestrator.program("p") as root:
                stream = root.chat(ENDLESS)
                await anext(stream)
                receipt = await stream.cancel("enough")
                failing = root.chat("hi", model="no-such-model")
                with pytest.raises(Exception, match="does not exist"):
                    await failing.text()
    _, chat, failed = _named(spans, "invoke_agent p", "chat example-model", "chat no-such-model")
    told = {
        name: attribute(chat, f"nnrp.{name}")
        for name in (
            "outcome",
            "operation.name",
            "endpoint",
            "abort.reason",
            "abort.state",
            "abort.accepted",
            "abort.authoritative",
            "abort.tokens",
        )
    }
    assert told == {
        "outcome": "cancelled",
        "operation.name": receipt.operation,
        "endpoint": "host-0",
        "abort.reason": "enough",
        "abort.state": "running",
        "abort.accepted": True,
        "abort.authoritative": True,
        "abort.tokens": 1,
    }
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "unsupported_model"


async def test_what_a_stream_starts_is_below_it() -> None:
    spans = Spans()
    async with orchestra(provider=spans.provider) as play:
        with anyio.fail_after(SECONDS):
            async with play.orchestrator.program("p") as root:
                seen: list[TraceSpan | None] = []

                class Spawning(PlayedWork):
                    async def run(self, emit):  # type: ignore[no-untyped-def]  # As the parent's.
                        seen.append(current_span())
                        async with root.agent("helper") as helper:
                            await helper.chat(body(), model="example-model").text()
                        return await super().run(emit)

                await root.start(Spawning(), kind="tool", name="spawn").result()
    program, tool, helper, chat = _named(
        spans, "invoke_agent p", "execute_tool spawn", "invoke_agent helper", "chat example-model"
    )
    assert above(tool) == own(program)
    assert above(helper) == own(tool)
    assert above(chat) == own(helper)
    assert [ids(span.traceparent) for span in seen if span is not None] == [own(tool)]
    assert attribute(tool, "gen_ai.tool.name") == "spawn"


async def test_a_program_is_below_the_span_of_who_runs_it() -> None:
    spans = Spans()
    tracer = spans.provider.get_tracer("application")
    async with orchestra(provider=spans.provider) as play:
        with tracer.start_as_current_span("request"):
            async with play.orchestrator.program("p"):
                pass
    program, request = _named(spans, "invoke_agent p", "request")
    assert above(program) == own(request)


async def test_a_call_may_be_below_a_span_from_elsewhere() -> None:
    spans, engine = Spans(), TracedEngine()
    async with orchestra(lambda: (engine, ServerLimits()), provider=spans.provider) as play:
        with anyio.fail_after(SECONDS):
            async with play.orchestrator.program("p") as root:
                elsewhere = f"00-{7:032x}-{9:016x}-01"
                await root.chat(body(), traceparent=elsewhere).text()
    _, chat = _named(spans, "invoke_agent p", "chat example-model")
    assert above(chat) == (7, 9)
    assert [ids(each) for each in engine.traceparents] == [own(chat)]


@pytest.mark.parametrize("elsewhere", ["nonsense", f"00-{7:016x}{0:016x}-{9:016x}-01"])
async def test_a_span_that_cannot_be_carried_harms_no_call(elsewhere: str) -> None:
    async with orchestra() as play, play.orchestrator.program("p") as root:
        with anyio.fail_after(SECONDS):
            assert await root.chat("hi", traceparent=elsewhere).text() == "You said: hi"


async def test_without_an_sdk_the_chain_holds_up_to_the_engine() -> None:
    engine = TracedEngine()
    async with orchestra(lambda: (engine, ServerLimits())) as play:
        with anyio.fail_after(SECONDS):
            async with play.orchestrator.program("p") as root, root.agent("a") as agent:
                program_ids, agent_ids = ids(root.traceparent), ids(agent.traceparent)
                await agent.chat(body()).text()
                await agent.chat(body()).text()
    first, second = (ids(each) for each in engine.traceparents)
    traces = {program_ids[0], agent_ids[0], first[0], second[0]}
    assert len(traces) == 1
    assert traces.pop() < 2**64
    assert len({program_ids[1], agent_ids[1], first[1], second[1]}) == 4


async def test_without_an_sdk_a_program_still_joins_the_trace_of_who_runs_it() -> None:
    spans = Spans()
    request = spans.provider.get_tracer("application").start_span("request")
    token = otel_context.attach(set_span_in_context(request))
    try:
        async with orchestra() as play, play.orchestrator.program("p") as root:
            assert ids(root.traceparent)[0] == request.get_span_context().trace_id
            assert ids(root.traceparent)[1] != request.get_span_context().span_id
    finally:
        otel_context.detach(token)


async def test_a_span_ends_once() -> None:
    spans = Spans()
    span = TraceSpan("once", provider=spans.provider)
    span.end({"first": True})
    span.end({"first": False}, error="late")
    (ended,) = spans.finished
    assert attribute(ended, "first") is True
    assert ended.status.is_unset
