"""Where vLLM keeps the objects that serve a chat in this process, by version, as data.

Needed with and without patches, and without them all that is needed. Each object has one or more
homes, newest first: the old modules re-export some names with a DeprecationWarning (hooks.md 4,
hooks-verified.md 7).
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches.seam import Seam, SeamFault, SeamKind, verify

_ENTRY = "vllm.entrypoints.launchers.api_server.entry"
_APP_STATE = "vllm.entrypoints.launchers.api_server.app_state"
_OLD_SERVER = "vllm.entrypoints.openai.api_server"
_CLI_ARGS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
_OUTPUT_PROCESSOR = ("vllm.v1.engine.output_processor",)
_BUILD_APP = ("args", "supported_tasks", "model_config")
_INIT_STATE = ("engine_client", "state", "args", "supported_tasks")


def _homes(
    name: str, kind: SeamKind, modules: tuple[str, ...], parameters: tuple[str, ...] = ()
) -> tuple[Seam, ...]:
    return tuple(Seam(module, name, kind, parameters, reexported=True) for module in modules)


SERVING: dict[str, tuple[Seam, ...]] = {
    "make_arg_parser": _homes("make_arg_parser", SeamKind.FUNCTION, _CLI_ARGS, ("parser",)),
    "validate_parsed_serve_args": _homes(
        "validate_parsed_serve_args", SeamKind.FUNCTION, _CLI_ARGS, ("args",)
    ),
    "FlexibleArgumentParser": _homes(
        "FlexibleArgumentParser", SeamKind.CLASS, ("vllm.utils.argparse_utils",)
    ),
    "build_async_engine_client": _homes(
        "build_async_engine_client", SeamKind.ASYNC_GENERATOR, (_ENTRY, _OLD_SERVER), ("args",)
    ),
    "build_app": (
        *_homes(
            "build_app",
            SeamKind.FUNCTION,
            ("vllm.entrypoints.launchers.app", _OLD_SERVER),
            _BUILD_APP,
        ),
        # 0.18 builds the app without knowing the model.
        *_homes("build_app", SeamKind.FUNCTION, (_OLD_SERVER,), _BUILD_APP[:2]),
    ),
    "init_app_state": _homes(
        "init_app_state", SeamKind.ASYNC_FUNCTION, (_APP_STATE, _OLD_SERVER), _INIT_STATE
    ),
    "ChatCompletionRequest": _homes(
        "ChatCompletionRequest",
        SeamKind.CLASS,
        ("vllm.entrypoints.openai.chat_completion.protocol",),
    ),
    "create_chat_completion": _homes(
        "OpenAIServingChat.create_chat_completion",
        SeamKind.ASYNC_FUNCTION,
        ("vllm.entrypoints.openai.chat_completion.serving",),
        ("request", "raw_request"),
    ),
    # What an abort and the release of a call read of the frontend's tables.
    "abort": _homes(
        "AsyncLLM.abort",
        SeamKind.ASYNC_FUNCTION,
        ("vllm.v1.engine.async_llm",),
        ("request_id", "internal"),
    ),
    "request_states": _homes(
        "OutputProcessor.request_states", SeamKind.INSTANCE_ATTRIBUTE, _OUTPUT_PROCESSOR
    ),
    "external_req_ids": _homes(
        "OutputProcessor.external_req_ids", SeamKind.INSTANCE_ATTRIBUTE, _OUTPUT_PROCESSOR
    ),
    "parent_req": _homes("RequestState.parent_req", SeamKind.INSTANCE_ATTRIBUTE, _OUTPUT_PROCESSOR),
    "detokenizer": _homes(
        "RequestState.detokenizer", SeamKind.INSTANCE_ATTRIBUTE, _OUTPUT_PROCESSOR
    ),
    "ToolParserManager": _homes("ToolParserManager", SeamKind.CLASS, ("vllm.tool_parsers",)),
    "ReasoningParserManager": _homes("ReasoningParserManager", SeamKind.CLASS, ("vllm.reasoning",)),
}


def serving_faults(root: Path) -> list[SeamFault]:
    """The objects that none of their homes has, each by the fault of its newest home."""
    found: list[SeamFault] = []
    for homes in SERVING.values():
        problems = verify(root, homes)
        if len(problems) == len(homes):
            found.append(problems[0])
    return found


class ServingObjects:
    """vLLM's serving objects, imported from whichever home the source at `root` has."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __getitem__(self, key: str) -> Any:
        """The object of a row of `SERVING`; raises UnsupportedVllm when no home has it."""
        seam = self._home(key)
        found: Any = import_module(seam.module)
        for part in seam.name.split("."):
            found = getattr(found, part)
        return found

    def call(self, key: str, **offered: Any) -> Any:
        """Call a function of `SERVING` with those of the arguments that its home has."""
        names = self._home(key).parameters
        return self[key](**{name: offered[name] for name in names})

    def _home(self, key: str) -> Seam:
        homes = SERVING[key]
        missing = {fault.seam for fault in verify(self._root, homes)}
        for seam in homes:
            if seam not in missing:
                return seam
        raise UnsupportedVllm(f"vLLM in {self._root} does not serve chats: {homes[0]} is missing")
