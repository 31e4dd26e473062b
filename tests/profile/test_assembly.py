"""A stream's chunks add up to the body that vLLM gives the same request without streaming."""

from copy import deepcopy
from typing import Any

import pytest

from nnrp_sched.profile import ChatAssembly
from tests.profile.chunks import HEAD, chunk, finish, role, text, tool, usage


def assembled(*chunks: dict[str, Any]) -> dict[str, Any]:
    assembly = ChatAssembly()
    for one in chunks:
        assembly.add(one)
    return assembly.body()


def logprob(token: str, value: float) -> dict[str, Any]:
    alternative = {"token": token, "logprob": value, "bytes": list(token.encode())}
    return {**alternative, "top_logprobs": [alternative]}


# The two answers of vLLM 0.32 (chat_completion/serving.py) to one request with logprobs, token
# ids, a reasoning parser and a tool parser: in chunks, and whole.
STREAM: list[dict[str, Any]] = [
    {
        **HEAD,
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
        "prompt_token_ids": [1, 2, 3],
        "prompt_text": None,
    },
    chunk({"reasoning": "I need"}, logprobs={"content": [logprob("I", -0.1)]}, token_ids=[10]),
    chunk({"reasoning": " rain."}, logprobs={"content": [logprob("n", -0.2)]}, token_ids=[11]),
    chunk({}, logprobs={"content": [logprob("<", -0.3)]}, token_ids=[12]),
    chunk({"content": "Let me"}, logprobs={"content": [logprob("L", -0.4)]}, token_ids=[13]),
    chunk({"content": " see."}, logprobs={"content": [logprob("s", -0.5)]}, token_ids=[14, 15]),
    chunk(
        {
            "tool_calls": [
                {
                    "id": "chatcmpl-tool-9f",
                    "type": "function",
                    "index": 0,
                    "function": {"name": "weather", "arguments": ""},
                }
            ]
        },
        logprobs={"content": [logprob("{", -0.6)]},
        token_ids=[16],
    ),
    chunk(
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
        logprobs={"content": [logprob("c", -0.7)]},
        token_ids=[17],
    ),
    chunk(
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]},
        logprobs={"content": [logprob("P", -0.8)]},
        token_ids=[18],
        finish_reason="tool_calls",
        stop_reason=151645,
    ),
    {
        **HEAD,
        "choices": [],
        "usage": {
            "prompt_tokens": 3,
            "total_tokens": 12,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        "system_fingerprint": "vllm-0.32.0",
        "metrics": {"time_to_first_token_ms": 12.5},
    },
]
WHOLE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1764450000,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Let me see.",
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "tool_calls": [
                    {
                        "id": "chatcmpl-tool-9f",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
                    }
                ],
                "reasoning": "I need rain.",
            },
            "logprobs": {
                "content": [
                    logprob(token, value)
                    for token, value in [
                        ("I", -0.1),
                        ("n", -0.2),
                        ("<", -0.3),
                        ("L", -0.4),
                        ("s", -0.5),
                        ("{", -0.6),
                        ("c", -0.7),
                        ("P", -0.8),
                    ]
                ]
            },
            "finish_reason": "tool_calls",
            "stop_reason": 151645,
            "token_ids": [10, 11, 12, 13, 14, 15, 16, 17, 18],
            "routed_experts": None,
        }
    ],
    "service_tier": None,
    "system_fingerprint": "vllm-0.32.0",
    "usage": {
        "prompt_tokens": 3,
        "total_tokens": 12,
        "completion_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
    "prompt_logprobs": None,
    "prompt_token_ids": [1, 2, 3],
    "prompt_text": None,
    "kv_transfer_params": None,
    "metrics": {"time_to_first_token_ms": 12.5},
}


def said(members: dict[str, Any]) -> dict[str, Any]:
    """What is not null."""
    return {key: value for key, value in members.items() if value is not None}


def test_a_vllm_stream_adds_up_to_its_non_streaming_body() -> None:
    body = assembled(*STREAM)
    (choice,), (whole,) = body.pop("choices"), deepcopy(WHOLE["choices"])
    assert said(choice.pop("message")) == said(whole.pop("message"))
    assert said(choice) == said(whole)
    assert said(body) == {key: value for key, value in said(WHOLE).items() if key != "choices"}


def test_the_chunks_are_not_changed() -> None:
    stream = deepcopy(STREAM)
    body = assembled(*stream)
    body["choices"][0]["token_ids"].append(99)
    body["choices"][0]["logprobs"]["content"].clear()
    assert stream == STREAM


def test_a_body_can_be_asked_for_at_any_time() -> None:
    assembly = ChatAssembly()
    assembly.add(text("a"))
    early = assembly.body()
    assembly.add(text("b"))
    assert early["choices"][0]["message"]["content"] == "a"
    assert assembly.body()["choices"][0]["message"]["content"] == "ab"


@pytest.mark.parametrize(
    ("delta", "content"),
    [
        ({"content": ""}, ""),
        ({"content": "x"}, "x"),
        ({"reasoning": "x"}, None),
        ({"refusal": "x"}, None),
        ({"reasoning": ""}, ""),
        ({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}, None),
    ],
    ids=str,
)
def test_a_message_without_text_has_null_content_only_if_it_says_something_else(
    delta: dict[str, Any], content: str | None
) -> None:
    body = assembled(role(), chunk(delta), finish())
    assert body["choices"][0]["message"]["content"] == content


def test_unknown_members_survive_at_every_level() -> None:
    entry = {"index": 0, "id": "c", "extra": 1, "function": {"name": "f", "strict": True}}
    body = assembled(
        {**chunk({"citations": [1], "audio": {"id": "a", "data": "x"}}), "top": {"a": 1}},
        {**chunk({"citations": [2], "audio": {"id": "a", "data": "y"}}, later=[1]), "top": 2},
        chunk({"annotation": "p", "tool_calls": [entry]}, later=[2], score=0.5),
        chunk({"annotation": "q"}, score=0.7),
    )
    (choice,) = body["choices"]
    message = choice["message"]
    assert body["top"] == 2
    assert (choice["later"], choice["score"]) == ([1, 2], 0.7)
    assert message["citations"] == [1, 2]
    assert message["audio"] == {"id": "a", "data": "xy"}
    assert message["annotation"] == "pq"
    (call,) = message["tool_calls"]
    assert call["extra"] == 1
    assert call["function"] == {"name": "f", "arguments": "", "strict": True}


def test_prompt_facts_that_every_choice_repeats_are_kept_once() -> None:
    prompt = {"prompt_token_ids": [1, 2]}
    body = assembled({**role(0), **prompt}, {**role(1), **prompt}, finish(index=0))
    assert body["prompt_token_ids"] == [1, 2]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]


def test_of_repeated_usage_the_last_one_counts() -> None:
    running = {**text("a"), "usage": {"completion_tokens": 1}}
    assert assembled(role(), running, usage(3, 2))["usage"]["completion_tokens"] == 2


def test_parallel_calls_come_in_the_order_of_their_positions() -> None:
    body = assembled(
        tool(1, "2", call_id="b", name="g"),
        tool(0, "1", call_id="a", name="f"),
        tool(1, "3"),
    )
    calls = body["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
        ("a", "1"),
        ("b", "23"),
    ]
