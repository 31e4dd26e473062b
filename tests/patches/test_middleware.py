"""Who asks over HTTP, by the headers that stock agents send."""

from typing import Any

import anyio
import pytest

from nnrp_sched.engine.records import Caller
from nnrp_sched_patches.middleware import MAX_NAME, IdentityMiddleware
from nnrp_sched_patches.origin import Origin, current_origin

pytestmark = pytest.mark.anyio


async def _nothing(*_: Any) -> Any:
    raise AssertionError("not called")


async def _origins(*requests: dict[str, str], kind: str = "http") -> list[Origin]:
    """What an app behind the middleware sees of requests with these headers."""
    seen: list[Origin] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current_origin())

    middleware = IdentityMiddleware(app)
    with anyio.fail_after(5):
        for headers in requests:
            raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            await middleware({"type": kind, "headers": raw}, _nothing, _nothing)
    assert current_origin() == Origin()
    return seen


@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ({}, Caller()),
        (
            {
                "x-claude-code-session-id": "run",
                "x-claude-code-agent-id": "a2",
                "x-claude-code-parent-agent-id": "a1",
            },
            Caller(program="run", agent="a2", parent="a1"),
        ),
        ({"X-Claude-Code-Session-Id": "run"}, Caller(program="run")),
        ({"session-id": "codex"}, Caller(program="codex", agent="codex")),
        (
            {"x-session-id": "child", "x-parent-session-id": "root"},
            Caller(program="root", agent="child", parent="root"),
        ),
        (
            {"x-dynamo-session-id": "child", "x-dynamo-parent-session-id": "root"},
            Caller(program="root", agent="child", parent="root"),
        ),
        ({"session-id": "x" * (MAX_NAME + 1)}, Caller()),
        ({"session-id": "a\x1b[31m"}, Caller()),
        ({"session-id": "  "}, Caller()),
    ],
    ids=str,
)
async def test_the_headers_of_stock_agents_name_program_agent_and_parent(
    headers: dict[str, str], caller: Caller
) -> None:
    (seen,) = await _origins(headers)
    assert (seen.caller, seen.source) == (caller, "http")
    assert seen.arrived is not None


async def test_sessions_of_one_tree_are_one_program_however_deep() -> None:
    seen = await _origins(
        {"x-session-id": "root"},
        {"x-session-id": "child", "x-parent-session-id": "root"},
        {"x-session-id": "grandchild", "x-parent-session-id": "child"},
    )
    assert [one.caller.program for one in seen] == ["root"] * 3
    assert [one.caller.parent for one in seen] == [None, "root", "child"]


async def test_a_traceparent_is_carried_along() -> None:
    value = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    (seen,) = await _origins({"traceparent": value})
    assert seen.traceparent == value


async def test_what_is_no_http_request_passes_untouched() -> None:
    (seen,) = await _origins({"session-id": "x"}, kind="websocket")
    assert seen == Origin()
