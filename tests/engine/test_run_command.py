"""`nnrp-sched run --patch-vllm` as its users have it: one process, NNRP and HTTP, a real model."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from nnrp_sched.cli.child import ServerProcess, started_server
from nnrp_sched.client import Outcome, Session, connect
from nnrp_sched.conformance.capability import SCRIPTED
from nnrp_sched.profile import OutputTextDelta, ToolCallCompleted
from nnrp_sched.profile.events import Diagnostics
from nnrp_sched_patches.bindings import bind_installed
from tests.support.vllm_chats import BODIES, MODEL, REFUSED, body, without_identity
from tests.support.vllm_http import get, post_chat, summary

pytestmark = pytest.mark.anyio

SECONDS = 120
GREEDY = ("--override-generation-config", '{"temperature": 0}')
"""What a chat gets that names no temperature: else some answers of a small model find no end."""
ENDLESS = body("Tell a long story.", max_tokens=1500, ignore_eos=True)


@pytest.fixture(scope="module")
async def server(anyio_backend: str) -> AsyncIterator[ServerProcess]:
    """The command, ready."""
    listen = ("--listen", "nnrp://127.0.0.1:0", "--http", "127.0.0.1:0")
    async with started_server("run", "--patch-vllm", *listen, "--", *GREEDY) as running:
        yield running


@pytest.fixture(scope="module")
async def session(server: ServerProcess) -> AsyncIterator[Session]:
    """One session of one client."""
    async with connect(server.ready["endpoints"][0]) as connection, connection.session() as opened:
        yield opened


async def until_engine_idle(server: ServerProcess) -> None:
    """Wait until vLLM itself counts no running and no waiting request."""
    with anyio.fail_after(SECONDS):
        while True:
            _, metrics = await get(server.ready["http"], "/metrics")
            counts = [
                float(line.rsplit(" ", 1)[1])
                for line in metrics.splitlines()
                if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))
            ]
            if counts and not any(counts):
                return


async def test_the_readiness_line_names_both_patched_processes(server: ServerProcess) -> None:
    ready = server.ready
    assert ready["ready"] is True
    assert ready["model"] == MODEL
    bound = bind_installed()
    assert ready["vllm"] == bound.version
    assert ready["binding"] == bound.family.name
    patched = {entry["process"]: entry for entry in ready["patched"]}
    assert set(patched) == {"frontend", "engine"}
    assert patched["frontend"]["pid"] == server.pid
    assert patched["engine"]["pid"] != server.pid
    assert all(entry["answered"] for entry in patched.values())


async def test_chat_answers_with_paris(server: ServerProcess) -> None:
    command = [sys.executable, "-m", "nnrp_sched", "chat", "What is the capital of France?"]
    done = await anyio.run_process([*command, "--endpoint", server.ready["endpoints"][0]])
    assert b"Paris" in done.stdout


async def test_vllm_s_own_metrics_page_counts_the_operations_of_both_doors(
    server: ServerProcess, session: Session
) -> None:
    with anyio.fail_after(SECONDS):
        await session.chat(body("Say hello.")).result()
        await post_chat(server.ready["http"], body("Say hello."))
        counted, metrics = set[str](), ""
        while counted != {"nnrp", "http"}:
            _, metrics = await get(server.ready["http"], "/metrics")
            counted = {
                source
                for source in ("nnrp", "http")
                for line in metrics.splitlines()
                if line.startswith("nnrp_sched_operations_total") and f'source="{source}"' in line
            }
    assert "vllm:num_requests_running" in metrics
    assert "metrics" not in server.ready


@pytest.mark.parametrize("stream", [True, False])
async def test_diagnostics_have_the_scheduler_s_own_times(session: Session, stream: bool) -> None:
    request = {**body("Say hello."), "stream": stream}
    if stream:
        request["stream_options"] = {"include_usage": True}
    with anyio.fail_after(SECONDS):
        chat = session.chat(request, diagnostics=True)
        found = [event async for event in chat if isinstance(event, Diagnostics)]
        outcome = await chat.result()
    (facts,) = [event.diagnostics for event in found]
    assert outcome.status == facts["terminal_outcome"] == "completed"
    times = [
        facts[f"{name}_ms"]
        for name in ("preprocessing_latency", "queue_delay", "prefill_latency", "decode_latency")
    ]
    assert all(time is not None and time >= 0 for time in times)
    assert sum(times) <= facts["terminal_latency_ms"]
    assert facts["total_tokens"] == facts["prompt_tokens"] + facts["completion_tokens"]
    assert facts["backend_binding"] == bind_installed().family.name
    assert facts["backend_version"] == bind_installed().version


async def test_every_recipe_passes_and_runs_on_the_model_where_a_model_can_be_made_to(
    server: ServerProcess, tmp_path: Path
) -> None:
    endpoint = server.ready["endpoints"][0]
    options = ("--endpoint", endpoint, "--output", str(tmp_path))
    command = [sys.executable, "-m", "nnrp_sched", "conformance", *options]
    with anyio.fail_after(2 * SECONDS):
        done = await anyio.run_process(command, check=False)
    told = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, told
    selected = json.loads((tmp_path / "plan.json").read_text())["cases"]
    assert done.stdout.decode().splitlines()[-1] == f"{len(selected)} passed, 0 failed"
    cases = json.loads((tmp_path / "report.json").read_text())["cases"]
    here = {case["id"] for case in cases if case.get("target") == endpoint}
    free = {case["id"] for case in selected if SCRIPTED not in case["required_capabilities"]}
    # A tool that need not be called, and a model that exists to fail.
    elsewhere = {"openai-compatible.chat.tool-call-delta", "openai-compatible.chat.backend-error"}
    assert here == free - elsewhere
    assert {"nnrp-sched.cancellation", "nnrp-sched.tool-call", "nnrp-sched.diagnostics"} <= here
    await until_engine_idle(server)


async def test_capabilities_name_the_model_and_its_tool_calls(session: Session) -> None:
    with anyio.fail_after(SECONDS):
        document = await session.capabilities()
    assert [model["id"] for model in document["models"]] == [MODEL]
    assert document["operations"][0]["tool_calls"] is True


@pytest.mark.parametrize("name", BODIES)
async def test_a_whole_answer_over_nnrp_is_the_one_over_http(
    server: ServerProcess, session: Session, name: str
) -> None:
    with anyio.fail_after(SECONDS):
        _, over_http = await post_chat(server.ready["http"], BODIES[name])
        outcome = await session.chat(BODIES[name]).result()
    assert outcome.body is not None
    assert without_identity(outcome.body) == without_identity(over_http)


@pytest.mark.parametrize("name", BODIES)
async def test_a_stream_over_nnrp_says_what_the_one_over_http_says(
    server: ServerProcess, session: Session, name: str
) -> None:
    request = {**BODIES[name], "stream": True, "stream_options": {"include_usage": True}}
    with anyio.fail_after(SECONDS):
        _, chunks = await post_chat(server.ready["http"], request)
        chat = session.chat(request)
        events = [event async for event in chat]
        outcome = await chat.result()
    expected = summary(chunks)
    text = "".join(
        event.delta for event in events if isinstance(event, OutputTextDelta) and event.index == 0
    )
    assert text == expected["text"].get(0, "")
    calls = [event for event in events if isinstance(event, ToolCallCompleted)]
    assert {(0, call.index): call.name for call in calls} == expected["names"]
    for call in calls:
        assert call.arguments == expected["text"][0, call.index]
    assert outcome.body is not None
    reasons = {each["index"]: each["finish_reason"] for each in outcome.body["choices"]}
    assert reasons == expected["finished"]
    assert outcome.usage is not None
    assert {key: outcome.usage[key] for key in ("prompt_tokens", "completion_tokens")} == {
        key: expected["usage"][key] for key in ("prompt_tokens", "completion_tokens")
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
async def test_a_body_that_is_refused_gets_an_error_and_the_next_one_is_served(
    session: Session, name: str, stream: bool
) -> None:
    expected = {"unknown model": "unsupported_model", "no messages": "missing_messages"}
    with anyio.fail_after(SECONDS):
        refused = await session.chat(REFUSED[name], stream=stream).result()
        served = await session.chat(body(max_tokens=2)).result()
    assert refused.status == "error"
    assert refused.error is not None
    code = "missing_messages" if name == "messages of the wrong type" else "invalid_backend_request"
    assert refused.error.code == expected.get(name, code)
    assert served.status == "completed"


async def test_a_cancelled_operation_leaves_the_engine_and_its_neighbours_do_not_notice(
    server: ServerProcess, session: Session
) -> None:
    outcomes: list[Outcome] = []

    async def neighbour() -> None:
        outcomes.append(await session.chat(BODIES["text"], stream=True).result())

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            chat = session.chat(ENDLESS, stream=True)
            for _ in range(5):
                await anext(chat)
            for _ in range(3):
                tasks.start_soon(neighbour)
            outcome = await chat.cancel()
            assert outcome.status == "cancelled"
        await until_engine_idle(server)
    assert {each.text for each in outcomes} == {"The capital of France is Paris."}


async def test_a_client_that_vanishes_leaves_no_work_behind(server: ServerProcess) -> None:
    program = (
        "import asyncio, json, os, signal, sys\n"
        "from nnrp_sched.client import connect\n"
        "async def main():\n"
        "    async with connect(sys.argv[1]) as connection, connection.session() as session:\n"
        "        async for _ in session.chat(json.loads(sys.argv[2]), stream=True):\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, server.ready["endpoints"][0], json.dumps(ENDLESS)]
    done = await anyio.run_process(command, check=False)
    assert done.returncode == -signal.SIGKILL
    await until_engine_idle(server)


async def test_a_timeout_ends_the_operation_in_the_engine_too(
    server: ServerProcess, session: Session
) -> None:
    # Long enough for a first token on a busy machine.
    with anyio.fail_after(SECONDS):
        outcome = await session.chat(ENDLESS, stream=True, timeout_ms=3000).result()
        await until_engine_idle(server)
    assert outcome.error is not None
    assert outcome.error.code == "request_timeout"
    assert outcome.text


async def test_more_operations_than_the_engine_has_slots_all_complete(session: Session) -> None:
    texts: list[str] = []

    async def one() -> None:
        texts.append((await session.chat(BODIES["text"], stream=True).result()).text)

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(32):
                tasks.start_soon(one)
    assert texts == ["The capital of France is Paris."] * 32


async def test_sigterm_lets_a_running_chat_finish_and_ends_every_process(
    server: ServerProcess, session: Session
) -> None:
    """The last test of this module: it takes the server down."""
    chat = session.chat(body("Count from one to twenty.", max_tokens=60), stream=True)
    with anyio.fail_after(SECONDS):
        await anext(chat)
        os.kill(server.pid, signal.SIGTERM)
        outcome = await chat.result()
        assert outcome.status == "completed"
        engine = next(e["pid"] for e in server.ready["patched"] if e["process"] == "engine")
        while alive(server.pid) or alive(engine):
            await anyio.lowlevel.checkpoint()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
