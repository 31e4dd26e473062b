"""Chats for the embedded model, and what two answers to the same chat must have in common."""

from typing import Any

MODEL = "SmolLM2-135M-Instruct"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            # Without this vLLM leaves the arguments unconstrained.
            "strict": True,
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def body(text: str = "What is the capital of France?", **members: Any) -> dict[str, Any]:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return {**chat, "temperature": 0, "max_tokens": 40, **members}


BODIES = {
    "text": body(),
    "length": body("Count from one to twenty.", max_tokens=7),
    "stop": body(stop=["Paris"]),
    "several choices": body(n=2, temperature=0.7, seed=5),
    "logprobs": body(logprobs=True, top_logprobs=2, max_tokens=4),
    "token ids": body(return_token_ids=True, max_tokens=4),
    "schema": body(
        "Name a city.",
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "city",
                "schema": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "maxLength": 10}},
                    "required": ["city"],
                },
            },
        },
    ),
    "required tool": body("Weather in Paris?", tools=TOOLS, tool_choice="required", max_tokens=100),
    "named tool": body(
        "Weather in Paris?",
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=100,
    ),
}


def without_identity(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what no two calls share: ids and the time."""
    kept = {key: value for key, value in answer.items() if key not in ("id", "created")}
    for choice in kept["choices"]:
        for call in choice["message"].get("tool_calls") or ():
            del call["id"]
    return kept


REFUSED = {
    "unknown model": body(model="no-such-model"),
    "too many tokens": body(max_tokens=100_000),
    "no tokens": body(max_tokens=-1),
    "negative temperature": body(temperature=-1),
    "prompt too long": body("word " * 3000),
    "bad schema": body(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "bad", "schema": {"type": "nonsense"}},
        }
    ),
    "no messages": {"model": MODEL},
    "messages of the wrong type": body() | {"messages": "hello"},
    "role missing": body() | {"messages": [{"content": "hello"}]},
    "tool choice without tools": body(tool_choice="required"),
    "logprobs of the wrong type": body(top_logprobs=-5, logprobs=True),
}

MALFORMED = ("no messages", "messages of the wrong type", "role missing")
"""Those of `REFUSED` that are no chat body at all."""
