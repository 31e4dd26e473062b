"""What the layer does in company: forks, schedulers of the user's, bodies that fail; and undo."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches import install
from nnrp_sched_patches.bindings import bind_installed
from nnrp_sched_patches.child_environment import patch_variables
from nnrp_sched_patches.launch import LaunchOptions, launch
from nnrp_sched_patches.scheduler_fit import misfit
from nnrp_sched_patches.slot import INSTALLED, TURNED_OFF
from tests.support.vllm_http import post_chat, summary
from tests.support.vllm_server import api_server

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
THEIRS = '''
from vllm.v1.core.sched.scheduler import Scheduler

class Passing(Scheduler):
    """Does something of its own and calls vLLM's."""

    def add_request(self, request):
        request.seen_by_theirs = True
        super().add_request(request)

    def schedule(self, *args, **kwargs):
        return super().schedule(*args, **kwargs)

class Own:
    """Would have to do all by itself."""

class Replacing(Passing):
    def finish_requests(self, request_ids, finished_status):
        return []
'''


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of this process and its children, with schedulers of the user's."""
    (tmp_path / "their_schedulers.py").write_text(THEIRS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(ROOT))))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "their_schedulers", raising=False)
    return tmp_path


async def test_vllms_own_schedulers_fit() -> None:
    for module, name in (("scheduler", "Scheduler"), ("async_scheduler", "AsyncScheduler")):
        scheduler = getattr(import_module(f"vllm.v1.core.sched.{module}"), name)
        assert misfit(scheduler) is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--scheduler-cls", "their_schedulers.Own"),
            "their_schedulers.Own is not derived from",
        ),
        (
            ("--scheduler-cls", "their_schedulers.Replacing"),
            "their_schedulers.Replacing does not call vLLM's finish_requests",
        ),
        (("--data-parallel-size", "2"), "only one would be heard"),
    ],
)
async def test_what_the_hooks_would_not_see_all_of_is_refused_before_the_engine_starts(
    theirs: Path, arguments: tuple[str, ...], told: str
) -> None:
    del theirs
    with anyio.fail_after(200), pytest.raises(UnsupportedVllm) as refusal:
        async with launch(LaunchOptions(patch=True, vllm_arguments=arguments)):
            pass
    assert told in str(refusal.value)
    assert "run without --patch-vllm" in str(refusal.value)
    assert refusal.value.exit_code == 4
    assert not install.status().active
    assert install.status().hooks == ()


async def test_a_forked_engine_under_a_scheduler_of_the_users_is_patched_and_undone(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del theirs
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    named, others = ["nnrp_sched", "other,nnrp_sched"], ["", "other", "other, nnrp_sched"]
    program = [sys.executable, "-m", "tests.support.forked_engine", "their_schedulers.Passing"]
    program += [json.dumps(named + others)]
    with anyio.fail_after(200):
        done = await anyio.run_process(program, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    family = bind_installed().family
    # Where vLLM's list of plugins names us, and only there, it loads us.
    hooks = len(family.hooks)
    assert seen["loaded"] == dict.fromkeys(named, hooks) | dict.fromkeys(others, 0)
    for allowed in others:
        # What `run --patch-vllm` makes of it.
        monkeypatch.setenv("VLLM_PLUGINS", allowed)
        assert "nnrp_sched" in patch_variables()["VLLM_PLUGINS"].split(",")
    assert seen["changed"] == seen["hooks"] == hooks
    assert all(seen["pickled"].values())
    assert len(seen["pickled"]) == 4
    assert seen["start"] == "ForkProcess"
    frontend, engine = seen["receipts"]
    assert (frontend["pid"], engine["pid"]) == (seen["pid"], seen["engine_pid"])
    # A forked child inherits the frontend's hooks too, unused there (hooks-verified.md, C13).
    names = {hook.name for hook in family.hooks}
    assert set(frontend["hooks"]) == set(engine["hooks"]) == names
    assert (frontend["binding"], engine["binding"]) == (family.name, family.name)
    assert engine["scheduler"][0] == "their_schedulers.Passing"
    assert (frontend["problem"], engine["problem"]) == (None, None)
    assert (seen["aborted"]["state"], seen["aborted"]["accepted"]) == ("running", True)
    assert (seen["reason"], seen["tokens"]) == ("abort", seen["aborted"]["tokens"])
    assert seen["kinds"] == ["queued", "scheduled", "finished"]
    assert seen["restored"]


# In every process of vLLM: the body of each hook fails, before or after the call that it is around.
FAILING = """
from nnrp_sched_patches import hook_forms
from nnrp_sched_patches.hook import HookForm

calls = 0

def fail(when):
    global calls
    calls += 1
    if calls % 2 == when:
        raise RuntimeError(f"injected, {when}")

def after(*_):
    raise RuntimeError("injected")

def around(*_):
    fail(0)
    yield
    raise RuntimeError("injected")

def around_async(*_):
    fail(0)
    async def leave(error):
        raise RuntimeError("injected")
    return leave

bodies = {HookForm.AFTER: after, HookForm.AROUND: around, HookForm.AROUND_ASYNC: around_async}

def broken(maker, body):
    return lambda owner, raw, _, switch: maker(owner, raw, body, switch)

for form, body in bodies.items():
    hook_forms.MAKERS[form] = broken(hook_forms.MAKERS[form], body)
"""


async def test_when_every_hook_fails_vllm_answers_as_ever_and_each_failure_is_told_once(
    tmp_path: Path,
) -> None:
    environment = {"NNRP_SCHED_PATCH": "1"}
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": "SmolLM2-135M-Instruct", "messages": [question], "temperature": 0}
    with anyio.fail_after(300):
        async with api_server(tmp_path, site=FAILING, environment=environment) as server:
            _, whole = await post_chat(server.address, body)
            _, chunks = await post_chat(server.address, {**body, "stream": True})
            several = {**body, "n": 2, "temperature": 1, "max_tokens": 5}
            status, choices = await post_chat(server.address, several)
            witnesses = await server.witnesses()
        log = server.log
    text = whole["choices"][0]["message"]["content"]
    assert "Paris" in text
    assert summary(chunks)["text"] == {0: text}
    assert status == 200
    assert len(choices["choices"]) == 2
    hooks = [
        (process["pid"], hook)
        for process in witnesses
        if "layer" in process
        for hook in process["layer"]["hooks"]
        if hook["state"] in (INSTALLED, TURNED_OFF)
    ]
    failed = {hook["name"]: hook for _, hook in hooks if hook["failures"]}
    assert {"F1", "F2", "F3", "F4", "E2.add_request", "E2.schedule", "E2.free_request"} <= set(
        failed
    )
    for name in ("F4", "E2.schedule"):
        # One call a step.
        assert (failed[name]["state"], failed[name]["failures"]) == (TURNED_OFF, 10)
        assert log.count(f"hook {name} failed 10 times and is off now") == 1
    for name in failed:
        assert log.count(f"the body of hook {name} failed") == 1, name
