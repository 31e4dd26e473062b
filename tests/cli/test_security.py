"""The flags that protect endpoints, as a user meets them."""

from pathlib import Path

import pytest

from tests.cli.test_commands import run, serving
from tests.support.certificates import certificates

FILES = certificates()
SERVER = ("--tls-certificate", str(FILES.server), "--tls-key", str(FILES.server_key))
TRUST = ("--tls-ca", str(FILES.authority))


def test_one_server_answers_on_every_carrier_and_every_command_reaches_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret\n")
    kinds = ("nnrp", "nnrps", "ws", "wss", "quic")
    listen = [f"--listen={kind}://127.0.0.1:0" for kind in kinds]
    listen.append(f"--listen=unix://{tmp_path}/a.sock")
    with serving(*listen, *SERVER, "--token-file", str(token)) as (_, ready):
        assert [text.partition(":")[0] for text in ready["endpoints"]] == [*kinds, "unix"]
        for endpoint in ready["endpoints"]:
            client = ("--endpoint", endpoint, *TRUST, "--token-file", str(token))
            done = run("chat", "hello", *client)
            assert (done.returncode, done.stdout) == (0, "You said: hello\n"), done.stderr
        client = ("--endpoint", ready["endpoints"][3], *TRUST, "--token-file", str(token))
        assert run("capabilities", *client).returncode == 0
        assert run("ps", *client).returncode == 0
        # Nothing to cancel: it was reached, and says so.
        assert run("cancel", "1.1", *client).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "nnrp://0.0.0.0:0"), "--token-file"),
        (("--listen", "quic://0.0.0.0:0", *SERVER), "--token-file"),
        (("--listen", "nnrps://127.0.0.1:0"), "--tls-certificate"),
        (("--tls-certificate", "/absent.pem", "--listen", "wss://127.0.0.1:0"), "/absent.pem"),
        (("--token-file", "/absent"), "/absent"),
        (("--token", "two words"), "token"),
        (("--token", "a", "--token-file", "/b"), "not both"),
    ],
)
def test_what_must_not_be_opened_is_refused_as_usage(
    arguments: tuple[str, ...], words: str
) -> None:
    done = run("serve", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_vllm_is_not_started_for_an_endpoint_that_must_not_be_opened() -> None:
    done = run("run", "--listen", "nnrp://0.0.0.0:0")
    assert done.returncode == 2
    assert "would let everybody in" in done.stderr


def test_the_token_may_stand_in_the_environment_and_is_never_printed() -> None:
    with serving("--listen", "nnrp://0.0.0.0:0", NNRP_SCHED_SERVE_TOKEN="a-secret") as (_, ready):
        endpoint = ready["endpoints"][0].replace("0.0.0.0", "127.0.0.1")
        assert run("ps", "--endpoint", endpoint, NNRP_SCHED_PS_TOKEN="a-secret").returncode == 0
        refused = run("ps", "--endpoint", endpoint, NNRP_SCHED_PS_TOKEN="another")
        assert refused.returncode == 5
        assert "another" not in refused.stderr
        assert "not this server's" in refused.stderr


def test_a_token_that_crosses_the_network_in_the_open_is_warned_of() -> None:
    with serving("--listen", "nnrp://127.0.0.1:0", "--token", "a-secret") as (process, _):
        process.terminate()
        _, stderr = process.communicate(timeout=30)
    assert "unencrypted" in stderr
    assert "a-secret" not in stderr


def test_an_untrusted_certificate_ends_the_command_with_what_is_wrong() -> None:
    with serving("--listen", "nnrps://127.0.0.1:0", *SERVER) as (_, ready):
        done = run("ps", "--endpoint", ready["endpoints"][0])
    assert done.returncode == 5
    assert "certificate is not trusted" in done.stderr
