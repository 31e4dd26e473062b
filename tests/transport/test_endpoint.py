"""Endpoints as texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import EndpointError
from nnrp_sched.transport import Endpoint, parse_endpoint


@pytest.mark.parametrize(
    ("text", "endpoint", "carrier"),
    [
        ("nnrp://127.0.0.1:7437", Endpoint("nnrp", "127.0.0.1", 7437), "tcp"),
        ("nnrp://localhost:0", Endpoint("nnrp", "localhost", 0), "tcp"),
        ("tcp://example.org:65535", Endpoint("tcp", "example.org", 65535), "tcp"),
        ("nnrps://localhost:7437", Endpoint("nnrps", "localhost", 7437), "tls"),
        ("quic://localhost:7437", Endpoint("quic", "localhost", 7437), "quic"),
        ("ws://localhost:80/nnrp", Endpoint("ws", "localhost", 80, "/nnrp"), "websocket"),
        ("wss://[::1]:443/a/b", Endpoint("wss", "::1", 443, "/a/b"), "websocket"),
        ("tcp://[::1]:7437", Endpoint("tcp", "::1", 7437), "tcp"),
        ("unix:///run/nnrp sched/a.sock", Endpoint("unix", path="/run/nnrp sched/a.sock"), "unix"),
        ("unix:///run/\udcff", Endpoint("unix", path="/run/\udcff"), "unix"),
    ],
)
def test_an_endpoint_is_read_and_written_back(text: str, endpoint: Endpoint, carrier: str) -> None:
    parsed = parse_endpoint(text)
    assert parsed == endpoint
    assert str(parsed) == text
    assert parsed.carrier == carrier


@pytest.mark.parametrize("text", ["nnrp://host", "nnrp://host/", "nnrp://host:7437/"])
def test_an_nnrp_endpoint_has_a_port_of_its_own(text: str) -> None:
    assert str(parse_endpoint(text)) == "nnrp://host:7437"
    assert str(parse_endpoint(text.replace("nnrp:", "nnrps:"))).startswith("nnrps://host:7437")


@pytest.mark.parametrize("text", ["ws://host:1", "ws://host:1/"])
def test_a_websocket_endpoint_has_a_path_of_its_own(text: str) -> None:
    assert str(parse_endpoint(text)) == "ws://host:1/nnrp"


@pytest.mark.parametrize(
    ("scheme", "encrypted"),
    [
        ("nnrp", False),
        ("tcp", False),
        ("ws", False),
        ("nnrps", True),
        ("wss", True),
        ("quic", True),
    ],
)
def test_the_scheme_tells_whether_an_endpoint_is_encrypted(scheme: str, encrypted: bool) -> None:
    assert parse_endpoint(f"{scheme}://host:1").encrypted is encrypted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected nnrp://HOST:PORT"),
        ("127.0.0.1:7437", "is no endpoint"),
        ("http://host:80", "no carrier is called 'http'"),
        ("tls://host:80", "no carrier is called 'tls'"),
        ("quic://host", "port is missing"),
        ("quic://host:1/chat", "nothing may follow the port"),
        ("wss://host", "port is missing"),
        ("ws://host:1/a?b", "nothing may follow the path"),
        ("ws://host:1/a b", "percent-encoded"),
        ("ws://host:1/é", "percent-encoded"),
        ("NNRP://host:80", "no carrier is called 'NNRP'"),
        ("tcp://host", "port is missing"),
        ("tcp://", "host is missing"),
        ("tcp://:7437", "host is missing"),
        ("tcp://host:65536", "range"),
        ("tcp://host:-1", "'-1'"),
        ("tcp://host:seven", "seven"),
        ("tcp://[::1:7437", "IPv6"),
        ("tcp://host:1/chat", "nothing may follow"),
        ("tcp://host:1?x=1", "nothing may follow"),
        ("tcp://host:1#x", "nothing may follow"),
        ("tcp://user@host:1", "credentials"),
        ("tcp://a..b:1", "cannot be a host"),
        ("tcp://" + "a" * 64 + ".org:1", "cannot be a host"),
        ("tcp://a\0b:1", "zero byte"),
        ("unix://run/a.sock", "absolute path"),
        ("unix://", "absolute path"),
        ("unix:///a\0b", "zero byte"),
        ("unix:///" + "a" * 107, "107 bytes"),
        ("unix:///\ud800", "no file can have this name"),
    ],
)
def test_a_text_that_is_no_endpoint_is_told_why(text: str, words: str) -> None:
    with pytest.raises(EndpointError, match=words) as raised:
        parse_endpoint(text)
    assert raised.value.exit_code == 2


@given(st.text())
def test_any_text_is_an_endpoint_that_comes_back_or_an_error(text: str) -> None:
    for candidate in (text, f"nnrp://{text}", f"wss://h:1/{text}", f"unix:///{text}"):
        try:
            endpoint = parse_endpoint(candidate)
        except EndpointError:
            continue
        assert parse_endpoint(str(endpoint)) == endpoint
