"""`nnrp-sched demo`: what the README promises first."""

import json
import sys

import anyio
import pytest

from nnrp_sched_patches.bindings import bind_installed

pytestmark = pytest.mark.anyio


async def test_demo_json_tells_of_a_real_answer_and_of_an_operation_cancelled_half_way() -> None:
    with anyio.fail_after(300):
        done = await anyio.run_process([sys.executable, "-m", "nnrp_sched", "demo", "--json"])
    report = json.loads(done.stdout)
    assert report["model"] == "SmolLM2-135M-Instruct"
    bound = bind_installed()
    assert report["vllm"] == bound.version
    assert report["binding"] == bound.family.name
    assert [entry["process"] for entry in report["patched"]] == ["frontend", "engine"]
    assert "Paris" in report["reply"]
    assert report["sessions"] == 1
    assert report["operations"] == 5
    assert report["events"]["response.output_text.delta"] > 50
    assert report["events"]["response.completed"] == 4
    assert report["first_event_ms"] > 0
    assert report["cancelled"]["terminal"] == "cancelled"
    assert report["cancelled"]["tokens"] == 32
    assert report["cancelled"]["operation_id"] > 0
