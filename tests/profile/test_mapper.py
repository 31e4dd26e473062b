"""Chat chunks become events: which, in which order, and what rides along."""

from typing import Any

import pytest

from nnrp_sched.errors import ProfileStreamError
from nnrp_sched.profile import (
    ChatMapper,
    Completed,
    Event,
    OutputTextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallError,
    ToolCallStarted,
    Usage,
    error_object,
)
from tests.profile.chunks import HEAD, chunk, finish, role, text, tool, usage


def mapped(*chunks: dict[str, Any]) -> list[Event]:
    """Every event of a whole stream."""
    mapper = ChatMapper()
    events = [event for one in chunks for event in mapper.chunk(one)]
    return [*events, *mapper.finish()]


def body_of(events: list[Event]) -> dict[str, Any]:
    last = events[-1]
    assert isinstance(last, Completed)
    return last.body


def item(tool_position: int, choice: int = 0) -> str:
    return f"tool-call-{choice}-{tool_position}"


def test_text_becomes_deltas_then_usage_then_the_final_body() -> None:
    *events, completed = mapped(role(), text("he"), text("llo"), finish(), usage())
    assert events[:2] == [OutputTextDelta(0, "he"), OutputTextDelta(0, "llo")]
    (counts,) = events[2:]
    assert isinstance(counts, Usage)
    assert counts.usage == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "input_tokens": 3,
        "output_tokens": 2,
    }
    assert isinstance(completed, Completed)
    assert completed.body == {
        **HEAD,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def test_usage_in_the_other_spelling_gets_both_and_keeps_its_details() -> None:
    details = {"cached_tokens": 1}
    counts = {"input_tokens": 1, "output_tokens": 0, "prompt_tokens_details": details}
    (event,) = ChatMapper().chunk({**HEAD, "choices": [], "usage": counts})
    assert isinstance(event, Usage)
    assert event.usage == {**counts, "prompt_tokens": 1, "completion_tokens": 0}
    assert event.openai_chunk is None


def test_usage_on_a_chunk_with_choices_rides_along_and_makes_no_usage_event() -> None:
    continuous = {**text("a"), "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    events = mapped(role(), continuous, finish())
    assert events[0] == OutputTextDelta(0, "a", continuous)
    assert len(events) == 2
    assert body_of(events)["usage"] == continuous["usage"]


@pytest.mark.parametrize(
    "rich",
    [
        chunk({"reasoning": "hm"}),
        chunk({"reasoning_content": "hm"}),
        chunk({"refusal": "no"}),
        chunk({}, logprobs={"content": [{"token": "a", "logprob": -1.0}]}),
        chunk({"content": ""}, token_ids=[7]),
        chunk({"later": {"x": 1}}),
        chunk({}, later=1),
        {**role(), "prompt_token_ids": [1, 2]},
    ],
    ids=str,
)
def test_content_that_plain_events_cannot_say_rides_on_an_event_of_its_own(
    rich: dict[str, Any],
) -> None:
    assert ChatMapper().chunk(rich) == [OutputTextDelta(0, "", rich)]


def test_content_beside_text_rides_on_the_first_event_of_the_chunk() -> None:
    both = chunk({"content": "a", "reasoning": "b"})
    assert ChatMapper().chunk(both) == [OutputTextDelta(0, "a", both)]
    called = tool(0, "{}", call_id="c", name="f")
    called["choices"][0]["logprobs"] = {"content": []}
    first, second = ChatMapper().chunk(called)
    assert isinstance(first, ToolCallStarted)
    assert first.openai_chunk is called
    assert isinstance(second, ToolCallDelta)
    assert second.openai_chunk is None


def test_an_event_made_for_a_rich_chunk_names_its_choice() -> None:
    rich = chunk({"reasoning": "hm"}, index=2)
    assert ChatMapper().chunk(rich) == [OutputTextDelta(2, "", rich)]


def test_metrics_of_the_summary_ride_on_the_usage_event() -> None:
    summary = {**usage(), "metrics": {"ttft": 1}, "system_fingerprint": "f"}
    (event,) = ChatMapper().chunk(summary)
    assert isinstance(event, Usage)
    assert event.openai_chunk is summary
    summary_without = {**usage(), "system_fingerprint": "f"}
    (event,) = ChatMapper().chunk(summary_without)
    assert isinstance(event, Usage)
    assert event.openai_chunk is None


def test_a_pure_role_or_finish_chunk_makes_no_event() -> None:
    mapper = ChatMapper()
    assert mapper.chunk(role()) == []
    assert mapper.chunk({**finish(), "system_fingerprint": "f"}) == []
    (completed,) = mapper.finish()
    assert isinstance(completed, Completed)
    assert completed.body["choices"][0]["finish_reason"] == "stop"
    assert completed.body["system_fingerprint"] == "f"


def test_the_finish_chunk_may_bring_text() -> None:
    last = chunk({"content": "!"}, finish_reason="stop", stop_reason=None)
    events = mapped(role(), text("a"), last)
    assert events[:-1] == [OutputTextDelta(0, "a"), OutputTextDelta(0, "!")]


def test_choices_keep_their_index_within_and_across_chunks() -> None:
    joint = {**HEAD, "choices": [*text("a", 1)["choices"], *text("b", 0)["choices"]]}
    events = mapped(role(0), role(1), joint, text("c", 1), finish(index=1), finish(index=0))
    assert events[:-1] == [
        OutputTextDelta(1, "a"),
        OutputTextDelta(0, "b"),
        OutputTextDelta(1, "c"),
    ]
    contents = [choice["message"]["content"] for choice in body_of(events)["choices"]]
    assert contents == ["b", "ac"]


def test_a_tool_call_starts_grows_and_completes_at_the_finish_reason() -> None:
    mapper = ChatMapper()
    mapper.chunk(role())
    assert mapper.chunk(tool(0, "", call_id="c", name="f")) == [
        ToolCallStarted(0, item(0), "c", "f")
    ]
    assert mapper.chunk(tool(0, '{"a"')) == [ToolCallDelta(0, item(0), "c", '{"a"')]
    assert mapper.chunk(tool(0, ":1}")) == [ToolCallDelta(0, item(0), "c", ":1}")]
    assert mapper.chunk(finish("tool_calls")) == [
        ToolCallCompleted(0, item(0), "c", "f", '{"a":1}')
    ]
    events = mapper.finish()
    message = body_of(events)["choices"][0]["message"]
    assert len(events) == 1
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]


def test_a_start_is_withheld_until_name_and_id_are_known() -> None:
    mapper = ChatMapper()
    assert mapper.chunk(tool(0, '{"a"')) == []
    assert mapper.chunk(tool(0, ":1", name="f")) == []
    assert mapper.chunk(tool(0, "}", call_id="c")) == [
        ToolCallStarted(0, item(0), "c", "f"),
        ToolCallDelta(0, item(0), "c", '{"a":1}'),
    ]


def test_a_call_without_an_id_gets_a_made_up_one_at_its_end() -> None:
    events = mapped(role(), tool(1, "{}", name="f"), finish("tool_calls"))
    assert events[:-1] == [
        ToolCallStarted(1, item(1), "call-0-1", "f"),
        ToolCallDelta(1, item(1), "call-0-1", "{}"),
        ToolCallCompleted(1, item(1), "call-0-1", "f", "{}"),
    ]
    assert body_of(events)["choices"][0]["message"]["tool_calls"][0]["id"] == "call-0-1"


def test_interleaved_calls_keep_arrival_order_and_complete_in_position_order() -> None:
    events = mapped(
        role(),
        tool(1, "1", call_id="b", name="g"),
        tool(0, "2", call_id="a", name="f"),
        tool(1, "1"),
        finish("tool_calls"),
    )
    assert events[:-1] == [
        ToolCallStarted(1, item(1), "b", "g"),
        ToolCallDelta(1, item(1), "b", "1"),
        ToolCallStarted(0, item(0), "a", "f"),
        ToolCallDelta(0, item(0), "a", "2"),
        ToolCallDelta(1, item(1), "b", "1"),
        ToolCallCompleted(0, item(0), "a", "f", "2"),
        ToolCallCompleted(1, item(1), "b", "g", "11"),
    ]
    calls = body_of(events)["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["a", "b"]


def test_a_finish_reason_ends_only_its_own_choice() -> None:
    mapper = ChatMapper()
    mapper.chunk(tool(0, "{}", call_id="a", name="f", index=0))
    mapper.chunk(tool(0, "{}", call_id="b", name="f", index=1))
    (ended,) = mapper.chunk(finish("tool_calls", index=1))
    assert isinstance(ended, ToolCallCompleted)
    assert (ended.call_id, ended.item_id) == ("b", item(0, 1))
    left, _ = mapper.finish()
    assert isinstance(left, ToolCallCompleted)
    assert left.call_id == "a"


def test_two_choices_may_use_the_same_engine_id() -> None:
    events = mapped(
        tool(0, "{}", call_id="functions.f:0", name="f", index=0),
        tool(0, "{}", call_id="functions.f:0", name="f", index=1),
    )
    started = [event.call_id for event in events if isinstance(event, ToolCallStarted)]
    assert started == ["functions.f:0", "call-1-0"]
    calls = [choice["message"]["tool_calls"][0]["id"] for choice in body_of(events)["choices"]]
    assert calls == ["functions.f:0", "functions.f:0"]


def test_a_call_without_a_name_ends_in_an_error() -> None:
    events = mapped(role(), tool(0, "{}", call_id="c"), finish("tool_calls"))
    (error,) = events[:-1]
    assert isinstance(error, ToolCallError)
    assert (error.call_id, error.error.code) == ("c", "invalid_tool_call_stream")


@pytest.mark.parametrize("reason", ["tool_calls", "length", "abort"])
def test_arguments_cut_in_the_middle_end_in_an_error_and_stay_in_the_body(reason: str) -> None:
    events = mapped(role(), tool(0, '{"path"', call_id="c", name="f"), finish(reason))
    error = events[-2]
    assert isinstance(error, ToolCallError)
    assert error.error.code == "tool_call_incomplete"
    call = body_of(events)["choices"][0]["message"]["tool_calls"][0]
    assert call["function"] == {"name": "f", "arguments": '{"path"'}


@pytest.mark.parametrize(
    ("arguments", "end"),
    [("", ToolCallCompleted), ("{}", ToolCallCompleted), ("{", ToolCallError)],
)
def test_a_stream_that_ends_without_a_finish_reason_ends_its_calls(
    arguments: str, end: type[Event]
) -> None:
    events = mapped(role(), tool(0, arguments, call_id="c", name="f"))
    assert [type(event) for event in events[-2:]] == [end, Completed]


def test_an_interruption_ends_every_started_call_with_its_error() -> None:
    mapper = ChatMapper()
    mapper.chunk(tool(1, "{", call_id="b", name="g"))
    mapper.chunk(tool(0, "{}", call_id="a", name="f"))
    mapper.chunk(tool(2, "{}", call_id="withheld"))
    error = error_object("tool_call_stream_interrupted", "The stream ended early.")
    assert mapper.interrupt() == [
        ToolCallError(0, item(0), "a", error),
        ToolCallError(1, item(1), "b", error),
    ]
    assert mapper.interrupt() == []


def test_an_interruption_after_the_end_of_a_call_has_nothing_to_end() -> None:
    mapper = ChatMapper()
    mapper.chunk(tool(0, "{}", call_id="a", name="f"))
    mapper.chunk(finish("tool_calls"))
    assert mapper.interrupt("backend_error", "it failed") == []


@pytest.mark.parametrize(
    "breach",
    [tool(0, "x"), tool(0, name="g", arguments=None)],
    ids=["arguments after the end", "another name"],
)
def test_an_engine_that_breaks_the_order_of_a_call_is_a_stream_error(
    breach: dict[str, Any],
) -> None:
    mapper = ChatMapper()
    mapper.chunk(tool(0, "{}", call_id="a", name="f"))
    mapper.chunk(finish("tool_calls"))
    with pytest.raises(ProfileStreamError):
        mapper.chunk(breach)


def test_what_a_chunk_yielded_before_its_breach_comes_with_the_interruption() -> None:
    mapper = ChatMapper()
    mapper.chunk(tool(0, "{}", call_id="a", name="f"))
    both = tool(1, "{", call_id="b", name="g")
    both["choices"][0]["delta"]["tool_calls"].append({"index": 0, "function": {"name": "h"}})
    with pytest.raises(ProfileStreamError, match="renamed"):
        mapper.chunk(both)
    kinds = [type(event) for event in mapper.interrupt()]
    assert kinds == [ToolCallStarted, ToolCallDelta, ToolCallError, ToolCallError]


def test_a_repeated_name_and_a_later_id_change_nothing() -> None:
    mapper = ChatMapper()
    mapper.chunk(tool(0, "{", call_id="a", name="f"))
    assert mapper.chunk(tool(0, "}", call_id="other", name="f")) == [
        ToolCallDelta(0, item(0), "a", "}")
    ]


MALFORMED: list[dict[str, Any]] = [
    {},
    {"choices": "bad"},
    {"choices": None},
    {"choices": ["bad", None, 7, {}]},
    {"choices": [{"delta": {"content": "x"}}]},
    {"choices": [{"index": -1, "delta": {"content": "x"}}]},
    {"choices": [{"index": True, "delta": {"content": "x"}}]},
    {"choices": [{"index": "0", "delta": {"content": "x"}}]},
    {"choices": [{"index": 0, "delta": None}]},
    {"choices": [{"index": 0}]},
    {"choices": [{"index": 0, "delta": {"content": ["x"]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": "bad"}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [None, {}, {"index": 0}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"id": "c"}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": "f"}]}}]},
    {"choices": [], "usage": "many"},
]


@pytest.mark.parametrize("malformed", MALFORMED, ids=str)
def test_malformed_chunks_yield_nothing_and_harm_nothing(malformed: dict[str, Any]) -> None:
    mapper = ChatMapper()
    assert mapper.chunk(malformed) == []
    mapper.chunk(role())
    assert mapper.chunk(malformed) == []
    assert mapper.chunk({**HEAD, **malformed}) == []
    assert mapper.chunk(text("a")) == [OutputTextDelta(0, "a")]
    (completed,) = mapper.finish()
    assert isinstance(completed, Completed)
    assert completed.body["choices"][0]["message"] == {"role": "assistant", "content": "a"}


def test_what_is_well_formed_beside_something_malformed_counts() -> None:
    mixed = {**HEAD, "choices": [{"delta": {"content": "x"}}, *text("a")["choices"]]}
    assert ChatMapper().chunk(mixed) == [OutputTextDelta(0, "a")]


def test_a_stream_without_chunks_ends_in_a_body_without_choices() -> None:
    (completed,) = ChatMapper().finish()
    assert completed == Completed({"object": "chat.completion", "choices": []})
