"""`nnrp-sched demo`: what the README promises first."""

import json
import sys

import anyio
import pytest

from nnrp_sched_patches.bindings import bind_installed

pytestmark = pytest.mark.anyio


async def test_demo_json_tells_of_a_program_on_a_real_model_and_of_what_cancelling_saved() -> None:
    if bind_installed().family.name == "0.18.x":
        pytest.skip(
            "grammars beside other requests: this vLLM's CPU worker dies of such a batch; from"
            " 0.22 on it runs"
        )
    with anyio.fail_after(360):
        done = await anyio.run_process(
            [sys.executable, "-m", "nnrp_sched", "demo", "--json"], check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert report["model"] == "SmolLM2-135M-Instruct"
    bound = bind_installed()
    assert report["vllm"] == bound.version
    assert report["binding"] == bound.family.name
    assert [entry["process"] for entry in report["patched"]] == ["frontend", "engine"]
    assert "Paris" in report["reply"]
    assert report["first_event_ms"] > 0
    assert report["sessions"] == 2
    assert report["agents"] == 8
    assert report["operations"] >= 12
    assert report["tool_calls"] >= 4
    assert report["events"]["response.output_text.delta"] > 50
    assert report["events"]["response.tool_call.completed"] >= 3
    assert set(report["answers"]) == {"errors", "client", "server"}
    assert report["over_budget"] == {"agent": "demo/novelist", "allowed": 40, "tokens": 40}
    assert len(report["cancelled"]) == 3
    assert len(report["losers"]) == 2
    assert [each for each in report["receipts"] if not each["authoritative"]] == []
    cut = [each for each in report["cancelled"] + report["losers"] if each["operation"] is not None]
    assert len(cut) == 4
    assert report["saved"]["tokens_at_most"] == sum(400 - (each["tokens"] or 0) for each in cut)
    assert report["saved"]["engine_seconds_at_most"] > 0
    assert report["left"] == 0
