"""An engine whose model says one thing after another, as the transcript grows."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from nnrp_sched.engine.records import ChatBody, ChatCall
from nnrp_sched.profile.json_values import is_object
from nnrp_sched.server import ServerLimits
from tests.support.stepped_engine import SteppedEngine


class Conversing(SteppedEngine):
    """Plays, of the scripts in the body's `turns`, the one whose turn it is."""

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Find the script by how often the model has answered."""
        messages = [each for each in call.body["messages"] if is_object(each)]
        turn = sum(each.get("role") == "assistant" for each in messages)
        body = {**call.body, "scripted": call.body["turns"][turn]}
        async for chunk in super().stream(msgspec.structs.replace(call, body=body)):
            yield chunk


def conversing() -> tuple[Conversing, ServerLimits]:
    """A server's engine and limits."""
    return Conversing(), ServerLimits()


def calls(*each: tuple[str, str], **members: Any) -> dict[str, Any]:
    """A script that calls tools: names and arguments."""
    made = [
        {"name": name, "arguments": arguments, "id": f"call-{name}-{at}"}
        for at, (name, arguments) in enumerate(each)
    ]
    return {"tool_calls": made, **members}


def says(text: str, **members: Any) -> dict[str, Any]:
    """A script that answers."""
    return {"text": text, **members}
