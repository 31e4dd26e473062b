"""The chunks written for a client, against those that the engine had sent."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnrp_sched.profile import ChatAssembly, ChatMapper, Completed, Event, OutputTextDelta
from nnrp_sched_orchestrator.embed.chunks import ChunkWriter

Document = dict[str, Any]

_TEXTS = st.text(max_size=4)
_LOGPROBS = st.none() | st.just({"content": [{"token": "a", "logprob": -0.5}]})


def engine_chunk(choices: list[Document], **members: Any) -> Document:
    return {
        "id": "chatcmpl-7",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": choices,
        **members,
    }


def choice_of(index: int, delta: Document, **members: Any) -> Document:
    members = {"logprobs": None, "finish_reason": None, **members}
    return {"index": index, "delta": delta, **members}


def call_start(tool: int, name: str) -> Document:
    function = {"name": name, "arguments": ""}
    return {"index": tool, "id": f"call_{tool}", "type": "function", "function": function}


def events_of(chunks: list[Document]) -> list[Event]:
    mapper = ChatMapper()
    events = [event for chunk in chunks for event in mapper.chunk(chunk)]
    return [*events, *mapper.finish()]


def rewritten(events: list[Event], *, include_usage: bool = True) -> list[Document]:
    """What a client gets."""
    writer = ChunkWriter("p/a#1", "asked", 1, include_usage=include_usage)
    chunks = [chunk for event in events if (chunk := writer.event(event)) is not None]
    completed = events[-1]
    assert isinstance(completed, Completed)
    return [*chunks, *writer.finish(completed.body)]


def put_together(chunks: list[Document]) -> Document:
    assembly = ChatAssembly()
    for chunk in chunks:
        assembly.add(chunk)
    return assembly.body()


@st.composite
def answers(draw: st.DrawFn) -> list[Document]:
    """The chunks of an answer: text, reasoning, tool calls and extras of several choices."""
    deltas: list[list[Document]] = []
    for choice in range(draw(st.integers(1, 3))):
        mine = [choice_of(choice, {"role": "assistant", "content": ""})]
        for _ in range(draw(st.integers(0, 4))):
            kind = draw(st.sampled_from(["content", "reasoning"]))
            extras: Document = {"logprobs": draw(_LOGPROBS)}
            if draw(st.booleans()):
                extras["token_ids"] = [draw(st.integers(0, 9))]
            mine.append(choice_of(choice, {kind: draw(_TEXTS)}, **extras))
        for tool in range(draw(st.integers(0, 2)) if choice == 0 else 0):
            arguments = json.dumps({"city": draw(_TEXTS)})
            mine.append(choice_of(choice, {"tool_calls": [call_start(tool, "weather")]}))
            for piece in (arguments[:5], arguments[5:]):
                entry = {"index": tool, "function": {"arguments": piece}}
                extras = {"token_ids": [3]} if draw(st.booleans()) else {}
                mine.append(choice_of(choice, {"tool_calls": [entry]}, **extras))
        reason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
        mine.append(choice_of(choice, {}, finish_reason=reason, stop_reason=draw(_STOP_REASONS)))
        deltas.append(mine)
    together = draw(st.booleans())
    chunks: list[Document] = []
    while any(deltas):
        ready = [mine for mine in deltas if mine]
        taken = ready if together else [draw(st.sampled_from(ready))]
        chunks.append(engine_chunk([mine.pop(0) for mine in taken]))
    counts = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    return [*chunks, engine_chunk([], usage=counts)]


_STOP_REASONS = st.none() | st.just("</s>")


# On a busy machine the first answers take their time to be made.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(answers())
def test_what_a_client_puts_together_is_what_the_engine_said(chunks: list[Document]) -> None:
    ours, theirs = put_together(rewritten(events_of(chunks))), put_together(chunks)
    assert (ours["choices"], ours["usage"]) == (theirs["choices"], theirs["usage"])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(answers())
def test_a_stream_has_one_id_one_role_and_one_finish_for_each_choice(
    chunks: list[Document],
) -> None:
    written = rewritten(events_of(chunks), include_usage=False)
    choices = [choice for chunk in written for choice in chunk["choices"]]
    assert len({chunk["id"] for chunk in written}) == 1
    for index in {choice["index"] for choice in choices}:
        mine = [choice for choice in choices if choice["index"] == index]
        assert sum("role" in choice["delta"] for choice in mine) == 1
        assert "role" in mine[0]["delta"]
        assert [choice["finish_reason"] is not None for choice in mine] == [
            *[False] * (len(mine) - 1),
            True,
        ]
    assert not any("usage" in chunk for chunk in written)


def test_plain_text_tells_the_stream_until_the_engine_tells_its_own_id() -> None:
    written = rewritten([OutputTextDelta(0, "hi"), Completed({"id": "x", "choices": []})])
    assert written == [
        {
            "id": "chatcmpl-p/a#1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "asked",
            "choices": [
                {
                    "index": 0,
                    "logprobs": None,
                    "finish_reason": None,
                    "delta": {"content": "hi", "role": "assistant"},
                }
            ],
        }
    ]


def test_an_answer_that_was_not_streamed_comes_whole_at_the_end() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "input_tokens": 1, "output_tokens": 2}
    body = {"id": "whole", "created": 5, "model": "m", "choices": [choice], "usage": usage}
    body["system_fingerprint"] = "vllm"
    (finish, counts) = rewritten([Completed(body)])
    assert (finish["id"], finish["system_fingerprint"]) == ("whole", "vllm")
    assert finish["choices"][0]["delta"] == {
        "role": "assistant",
        "tool_calls": [{"index": 0, **call}],
    }
    assert finish["choices"][0]["finish_reason"] == "tool_calls"
    assert counts["choices"] == []
    assert counts["usage"] == {"prompt_tokens": 1, "completion_tokens": 2}


def test_extras_of_the_usage_chunk_and_of_a_chunk_without_choices_are_kept() -> None:
    chunks = [
        engine_chunk([], prompt_token_ids=[1, 2]),
        engine_chunk([choice_of(0, {"content": "x"}, finish_reason="stop")]),
        engine_chunk([], usage={"prompt_tokens": 1}, metrics={"queue_time_ms": 4}),
    ]
    written = rewritten(events_of(chunks))
    assert (written[0]["choices"], written[0]["prompt_token_ids"]) == ([], [1, 2])
    assert written[-1]["metrics"] == {"queue_time_ms": 4}


def test_what_rides_on_the_end_of_a_tool_call_is_kept() -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.5}]}
    arguments = {"index": 0, "function": {"arguments": "{}"}}
    chunks = [
        engine_chunk([choice_of(0, {"tool_calls": [call_start(0, "f")]})]),
        engine_chunk([choice_of(0, {"tool_calls": [arguments]})]),
        engine_chunk([choice_of(0, {}, finish_reason="stop"), choice_of(1, {}, logprobs=logprobs)]),
        engine_chunk([choice_of(1, {}, finish_reason="stop")]),
    ]
    ours, theirs = put_together(rewritten(events_of(chunks))), put_together(chunks)
    assert ours["choices"] == theirs["choices"]
    assert ours["choices"][1]["logprobs"] == logprobs


def test_a_tool_call_keeps_members_that_no_event_knows() -> None:
    start: Document = {**call_start(0, "f"), "provider": "x"}
    start["function"]["strict"] = True
    arguments = {"index": 0, "function": {"arguments": "{}"}}
    chunks = [
        engine_chunk([choice_of(0, {"tool_calls": [start]})]),
        engine_chunk([choice_of(0, {"tool_calls": [arguments]}, finish_reason="tool_calls")]),
    ]
    body = put_together(rewritten(events_of(chunks)))
    assert body["choices"] == put_together(chunks)["choices"]
    assert body["choices"][0]["message"]["tool_calls"][0]["provider"] == "x"
