"""Capabilities: how their list is written, and what a session agrees on (wire digest 3.9)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire import CapabilitiesAgreed, CapabilityToken, ErrorCode, encode_packet
from nnrp_sched.wire.capability_tokens import MAX_TOKENS, TokenFault, decode_tokens, encode_tokens
from nnrp_sched.wire.enums import MessageType
from nnrp_sched.wire.negotiation import capability_packet
from tests.support.wire_machines import Pair, first, only, replies
from tests.support.wire_packets import SESSION, sample

M = MessageType
OFFERS = frozenset({CapabilityToken.PROGRESS_PARTIAL, CapabilityToken.TRACE_CONTEXT})
_TOKENS = st.sets(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40),
    max_size=30,
)


def pair() -> Pair:
    """A pair with session 7 open, whose server offers two capabilities."""
    both = Pair(offers=OFFERS)
    both.open()
    return both


# --- the list ---------------------------------------------------------------------------------


@given(_TOKENS)
def test_a_list_of_tokens_comes_back_sorted(tokens: set[str]) -> None:
    assert decode_tokens(len(tokens), encode_tokens(tokens)) == tuple(sorted(tokens))


@given(_TOKENS, st.data())
def test_a_list_cut_anywhere_is_no_list(tokens: set[str], data: st.DataObject) -> None:
    body = encode_tokens(tokens | {"a"})
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(TokenFault):
        decode_tokens(len(tokens | {"a"}), body[:cut])


@given(st.integers(0, MAX_TOKENS), st.binary(max_size=60))
def test_any_bytes_are_a_list_or_a_fault(count: int, body: bytes) -> None:
    try:
        tokens = decode_tokens(count, body)
    except TokenFault:
        return
    assert encode_tokens(tokens) == body
    assert len(tokens) == count


@pytest.mark.parametrize(
    ("count", "body", "fault"),
    [
        (1, b"\x00\x00", "empty"),
        (1, b"\x02\x00a", "cut short"),
        (1, b"\x01\x00\xff", "not ASCII"),
        (2, b"\x01\x00b\x01\x00a", "does not rise"),
        (2, b"\x01\x00a\x01\x00a", "does not rise"),
        (1, b"\x01\x00ab", "1 bytes follow"),
        (0, b"\x01\x00a", "3 bytes follow"),
        (MAX_TOKENS + 1, b"", "more than"),
    ],
)
def test_what_is_wrong_with_a_list_is_said(count: int, body: bytes, fault: str) -> None:
    with pytest.raises(TokenFault, match=fault):
        decode_tokens(count, body)


@pytest.mark.parametrize("token", ["", "ä", "x" * 65_536])
def test_a_token_that_cannot_be_written_is_not_sent(token: str) -> None:
    with pytest.raises(LocalProtocolError):
        encode_tokens([token])


def test_more_tokens_than_the_bound_are_not_sent() -> None:
    assert len(decode_tokens(MAX_TOKENS, encode_tokens(map(str, range(MAX_TOKENS))))) == MAX_TOKENS
    with pytest.raises(LocalProtocolError):
        encode_tokens(map(str, range(MAX_TOKENS + 1)))


# --- the agreement ----------------------------------------------------------------------------


def test_both_ends_agree_on_what_was_asked_for_and_is_offered() -> None:
    both = pair()
    wish = [CapabilityToken.PROGRESS_PARTIAL, "control.from_the_future"]
    events = both.server.receive(both.client.negotiate(SESSION, wish))
    (answer,) = replies(events)
    assert answer.message_type is M.DEGRADE_PROFILE
    agreed = CapabilitiesAgreed(SESSION, frozenset({CapabilityToken.PROGRESS_PARTIAL}))
    assert events[-1] == agreed
    assert both.client.receive(encode_packet(answer)) == [agreed]
    assert both.server.capabilities(SESSION) == agreed.tokens


@pytest.mark.parametrize("downgrade", [True, False])
def test_all_or_an_unwished_part_is_answered_by_a_negotiation(downgrade: bool) -> None:
    both = pair()
    wish = OFFERS if downgrade else [*OFFERS, "control.from_the_future"]
    (answer,) = replies(
        both.server.receive(both.client.negotiate(SESSION, wish, downgrade=downgrade))
    )
    assert answer.message_type is M.CAPABILITY_NEGOTIATION
    assert both.server.capabilities(SESSION) == OFFERS


@pytest.mark.parametrize("hard", [True, False])
def test_nothing_in_common_is_an_error_only_for_who_insists(hard: bool) -> None:
    both = pair()
    events = both.server.receive(both.client.negotiate(SESSION, ["object.delta"], hard=hard))
    answer, *errors = replies(events)
    assert (answer.message_type, getattr(answer.metadata, "count", None)) == (
        M.CAPABILITY_NEGOTIATION,
        0,
    )
    assert [each.body for each in errors] == [b"capability_mismatch"] * hard
    assert both.server.capabilities(SESSION) == frozenset()


def test_another_profile_has_no_capabilities_here() -> None:
    both = pair()
    body = encode_tokens(OFFERS)
    wish = sample(M.CAPABILITY_NEGOTIATION, body, profile_id=2, count=2)
    both.server.receive(encode_packet(wish))
    assert both.server.capabilities(SESSION) == frozenset()


def test_a_later_negotiation_replaces_the_agreement_and_a_degradation_only_narrows_it() -> None:
    both = pair()
    both.server.receive(both.client.negotiate(SESSION, OFFERS))
    both.server.receive(both.client.negotiate(SESSION, [CapabilityToken.TRACE_CONTEXT]))
    assert both.server.capabilities(SESSION) == {CapabilityToken.TRACE_CONTEXT}
    less = capability_packet(M.DEGRADE_PROFILE, [CapabilityToken.PROGRESS_PARTIAL], SESSION)
    events = both.server.receive(encode_packet(less))
    assert events == [CapabilitiesAgreed(SESSION, frozenset())]


def test_sessions_agree_each_for_itself() -> None:
    both = pair()
    both.open(8)
    both.server.receive(both.client.negotiate(8, OFFERS))
    assert both.server.capabilities(8) == OFFERS
    assert both.server.capabilities(SESSION) == frozenset()
    assert both.server.capabilities(99) == frozenset()


@pytest.mark.parametrize("kind", [M.CAPABILITY_NEGOTIATION, M.DEGRADE_PROFILE])
def test_a_list_that_cannot_be_read_is_refused_by_both_ends_and_changes_nothing(
    kind: MessageType,
) -> None:
    both = pair()
    both.server.receive(both.client.negotiate(SESSION, OFFERS))
    wrong = encode_packet(sample(kind, b"\x05\x00ab", count=1, profile_id=0))
    for machine in (both.server, both.client):
        (refusal,) = replies(machine.receive(wrong))
        assert refusal.message_type is M.ERROR_RECOVERABLE
        assert getattr(refusal.metadata, "code", 0) == ErrorCode.MALFORMED_BODY
    assert both.server.capabilities(SESSION) == OFFERS


@pytest.mark.parametrize("kind", [M.CAPABILITY_NEGOTIATION, M.DEGRADE_PROFILE])
def test_capabilities_of_a_connection_are_refused(kind: MessageType) -> None:
    events = pair().server.receive(encode_packet(sample(kind, session_id=0, profile_id=0)))
    (refusal,) = replies(events)
    assert getattr(refusal.metadata, "code", 0) == ErrorCode.INVALID_STATE


def test_a_server_may_say_by_itself_that_it_does_less() -> None:
    both = pair()
    less = capability_packet(M.DEGRADE_PROFILE, [CapabilityToken.TRACE_CONTEXT], SESSION)
    event = only(both.client.receive(encode_packet(less)), CapabilitiesAgreed)
    assert event.tokens == {CapabilityToken.TRACE_CONTEXT}


def test_the_agreement_is_reported_once() -> None:
    both = pair()
    events = both.server.receive(both.client.negotiate(SESSION, OFFERS))
    assert len(events) == 2
    assert first(events, CapabilitiesAgreed).tokens == OFFERS
