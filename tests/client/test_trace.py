"""A client's own span as the parent of what the server does."""

import pytest

from nnrp_sched.client.trace import SpanReference, parse_traceparent
from nnrp_sched.observe.spans import SpanObserver
from tests.support.serving import body, scripted_server
from tests.support.spans import Spans

pytestmark = pytest.mark.anyio


def test_the_low_half_of_a_trace_id_travels() -> None:
    text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03"
    expected = SpanReference(0x8448EB211C80319C, 0xB7AD6B7169203331, 1)
    assert parse_traceparent(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-1-2-01",
        f"00-{'a' * 32}-{'b' * 16}",
        f"01-{'a' * 32}-{'b' * 16}-01",
        f"00-{'A' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        f"00-{'a' * 16}{'0' * 16}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'b' * 16}-01\n",
    ],
)
def test_what_the_wire_cannot_carry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="traceparent"):
        parse_traceparent(text)


async def test_the_servers_spans_are_children_of_the_clients() -> None:
    spans = Spans()
    observer = SpanObserver(spans.provider)
    async with (
        scripted_server(observers=[observer]) as served,
        served.connect() as connection,
        connection.session() as session,
    ):
        with pytest.raises(ValueError, match="traceparent"):
            session.chat(body(), traceparent="nonsense")
        parent = f"00-{7:032x}-{9:016x}-01"
        assert (await session.chat(body(), traceparent=parent).result()).status == "completed"
        assert (await session.chat(body()).result()).status == "completed"
    traced, untraced = spans.operations()
    assert traced.parent is not None
    assert (traced.parent.trace_id, traced.parent.span_id) == (7, 9)
    assert list(spans.phases_of(traced)) == ["queue", "prefill", "decode"]
    assert untraced.parent is None
