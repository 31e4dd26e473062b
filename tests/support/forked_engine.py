"""A program: vLLM's engine forked from an activated parent, under a scheduler class of the user's.

    python -m tests.support.forked_engine SCHEDULER_CLASS VALUES_OF_VLLM_PLUGINS_AS_JSON

prints one JSON line of what it saw, and before that of what vLLM loads with each list of plugins.
On the CPU vLLM itself forces spawn while it makes its configuration; the variable is set back to
fork after that (hooks-verified.md, C5).
"""

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import msgspec

from nnrp_sched_patches import install
from nnrp_sched_patches.abort import engine_abort
from nnrp_sched_patches.bindings import bind_installed
from nnrp_sched_patches.channel import call_engine
from nnrp_sched_patches.child_environment import PLUGINS_VARIABLE, applied
from nnrp_sched_patches.embedded_model import prepare
from nnrp_sched_patches.hello import hello_receipts
from nnrp_sched_patches.plugin import PATCH_VARIABLE
from nnrp_sched_patches.slot import slots

PROCESS_TARGETS = (
    "vllm.v1.engine.core:EngineCoreProc.run_engine_core",
    "vllm.v1.executor.multiproc_executor:WorkerProc.worker_main",
    "vllm.v1.engine.coordinator:DPCoordinatorProc.run_coordinator",
    "vllm.v1.utils:run_api_server_worker_proc",
    # Up to 0.18 it is there.
    "vllm.entrypoints.cli.serve:run_api_server_worker_proc",
)
"""What vLLM starts processes with: under spawn each is pickled (hooks.md 1.4)."""

_ENDLESS = "endless"


def _slots() -> Iterator[tuple[tuple[str, str], Any]]:
    for hook in bind_installed().family.hooks:
        owner, _, attribute = hook.seam.name.rpartition(".")
        held = slots(slots(import_module(hook.seam.module))[owner])
        yield (owner, attribute), held.get(attribute)


def _pickled() -> dict[str, bool]:
    """Whether each target that this vLLM has can be pickled."""
    found: dict[str, bool] = {}
    for place in PROCESS_TARGETS:
        module, _, name = place.partition(":")
        target: Any = import_module(module)
        for part in name.split("."):
            target = getattr(target, part, None)
        if target is None:
            continue
        try:
            found[name] = bool(pickle.dumps(target))
        except (pickle.PicklingError, NotImplementedError, AttributeError):
            found[name] = False
    return found


def _loaded(lists: list[str]) -> dict[str, int]:
    """How many hooks are there after vLLM loaded its plugins twice, by its list of them."""
    plugins: Any = import_module("vllm.plugins")
    found: dict[str, int] = {}
    for allowed in lists:
        with applied({PLUGINS_VARIABLE: allowed, PATCH_VARIABLE: "1"}, {}):
            for _ in range(2):
                plugins.plugins_loaded = False
                plugins.load_general_plugins()
        found[allowed] = len(install.status().hooks)
        install.deactivate()
    return found


async def _seen(scheduler: str) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(
        model=str(prepare()),
        dtype="float32",
        max_model_len=512,
        max_num_seqs=2,
        enforce_eager=True,
        scheduler_cls=scheduler,
    )
    config = arguments.create_engine_config()
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    llm: Any = AsyncLLM.from_vllm_config(config)
    try:
        receipts = await hello_receipts(llm, 60)
        sampling = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
        last: Any = None
        aborted: dict[str, Any] | None = None
        async for output in llm.generate("Count: one, two,", sampling, _ENDLESS):
            last = output
            if aborted is None:
                (internal_id,) = llm.output_processor.request_states
                answers = await engine_abort(llm, [internal_id], wait_s=60)
                aborted = msgspec.to_builtins(answers[internal_id])
                llm.output_processor.abort_requests([internal_id], internal=True)
        polled = await call_engine(llm, "nnrp_poll", {"since": 0}, wait_s=60)
        (process,) = llm.engine_core.resources.engine_manager.processes
        return {
            "start": type(process).__name__,
            "engine_pid": process.pid,
            "receipts": msgspec.to_builtins(receipts),
            "aborted": aborted,
            "reason": last.outputs[0].finish_reason,
            "tokens": len(last.outputs[0].token_ids),
            "kinds": [event[1] for event in polled["events"]],
        }
    finally:
        llm.shutdown()


def main() -> None:
    loaded = _loaded(json.loads(sys.argv[2]))
    before = dict(_slots())
    install.activate()
    patched = dict(_slots())
    answer = {
        "loaded": loaded,
        "pid": os.getpid(),
        "changed": sum(patched[place] is not before[place] for place in before),
        "hooks": len(before),
        "pickled": _pickled(),
        **asyncio.run(_seen(sys.argv[1])),
    }
    install.deactivate()
    answer["restored"] = all(held is before[place] for place, held in _slots())
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
