"""The hooks in the engine process, and what their bodies use of vLLM there, as rows.

E1 are methods that vLLM's utility RPC reaches by name; E2 watch the scheduler's transitions, none
of them on a per-token path (hooks.md 2.1, hooks-verified.md C1). The rows are the same for every
family but for the scheduler's waiting containers, of which each family takes one set.
"""

from nnrp_sched_patches.hook import Hook, HookForm
from nnrp_sched_patches.seam import Seam, SeamKind

_ENGINE_CORE = "vllm.v1.engine.core"
_SCHEDULER = "vllm.v1.core.sched.scheduler"

_METHODS = {
    "hello": "nnrp_sched_patches.hello:engine_hello",
}
"""Bodies of `EngineCore.nnrp_*`."""

ENGINE_HOOKS = (
    *(
        Hook(
            name=f"E1.{method}",
            form=HookForm.ADDED,
            seam=Seam(_ENGINE_CORE, f"EngineCore.nnrp_{method}", SeamKind.ABSENT),
            body=body,
        )
        for method, body in _METHODS.items()
    ),
)

ENGINE_RELIED_ON = (
    Seam(_ENGINE_CORE, "EngineCore", SeamKind.CLASS),
    *(
        Seam(_ENGINE_CORE, f"EngineCore.{name}", SeamKind.INSTANCE_ATTRIBUTE)
        for name in ("vllm_config", "scheduler", "batch_queue_size", "step_fn")
    ),
    Seam(
        _ENGINE_CORE,
        "EngineCoreProc._handle_client_request",
        SeamKind.FUNCTION,
        ("request_type", "request"),
    ),
    Seam(_SCHEDULER, "Scheduler", SeamKind.CLASS),
)

KV_HOLDING_CONTAINERS = tuple(
    Seam(_SCHEDULER, f"Scheduler.{name}", SeamKind.INSTANCE_ATTRIBUTE)
    for name in ("waiting", "kv_holding_waiting", "deferred_waiting")
)
"""Where requests wait from 0.31 on."""

SKIPPED_CONTAINERS = tuple(
    Seam(_SCHEDULER, f"Scheduler.{name}", SeamKind.INSTANCE_ATTRIBUTE)
    for name in ("waiting", "skipped_waiting")
)
"""Where requests wait up to 0.30."""
