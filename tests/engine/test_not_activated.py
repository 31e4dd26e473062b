"""vLLM's own API server, started without the variable: no trace of us in any of its processes."""

from pathlib import Path

import anyio
import pytest

from tests.support.vllm_http import post_chat
from tests.support.vllm_server import api_server

pytestmark = pytest.mark.anyio


async def test_no_process_of_vllm_shows_a_trace_of_us(tmp_path: Path) -> None:
    with anyio.fail_after(300):
        async with api_server(tmp_path) as server:
            question = {"role": "user", "content": "What is the capital of France?"}
            body = {"model": "SmolLM2-135M-Instruct", "messages": [question], "temperature": 0}
            status, answer = await post_chat(server.address, body)
            assert status == 200
            assert "Paris" in answer["choices"][0]["message"]["content"]
            reports = await server.witnesses()
    assert len(reports) >= 2, "the server and its engine are processes of their own"
    owners = {owner for found in reports for owner in found["slots"]}
    assert {"AsyncLLM", "EngineCore", "Scheduler", "OutputProcessor"} <= owners
    for found in reports:
        # vLLM imports each plugin's module to call it; ours returns at once and imports nothing.
        assert set(found["modules"]) <= {"nnrp_sched_patches", "nnrp_sched_patches.plugin"}
        assert not found["wrapt"]
        for owner, members in found["slots"].items():
            assert not [name for name in members if name.startswith("nnrp")], owner
            assert "wrapt" not in str(set(members.values())), owner
