"""The last error that vLLM's other processes logged, so that a failed start can name it.

The frontend only learns that "engine core initialization failed"; the reason is in the engine
process's log. A logging configuration like vLLM's own, with one more handler for errors, is handed
to the children through the environment.
"""

import copy
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG_VARIABLE = "VLLM_LOGGING_CONFIG_PATH"
_USER_FLAGS = ("--log-", "--logging-config")
_ELSEWHERE = "root cause"
"""In the exceptions with which one vLLM process reports another's: "See root cause above"."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Killed)\b.*")


class EngineErrors:
    """A file in `folder` that vLLM's processes log their errors to."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "errors.log"
        self._config = folder / "logging.json"

    def variables(
        self, default_config: Mapping[str, Any], user_arguments: tuple[str, ...]
    ) -> dict[str, str]:
        """The environment that turns the file on; empty where the user configured logging.

        `default_config` is vLLM's `DEFAULT_LOGGING_CONFIG`.
        """
        theirs = any(argument.startswith(_USER_FLAGS) for argument in user_arguments)
        if (
            theirs
            or CONFIG_VARIABLE in os.environ
            or os.environ.get("VLLM_CONFIGURE_LOGGING") == "0"
        ):
            return {}
        config = copy.deepcopy(dict(default_config))
        config["formatters"]["nnrp_sched_errors"] = {"format": "%(message)s"}
        config["handlers"]["nnrp_sched_errors"] = {
            "class": "logging.FileHandler",
            "formatter": "nnrp_sched_errors",
            "level": "ERROR",
            "filename": str(self._log),
            "delay": True,
        }
        config["loggers"]["vllm"]["handlers"].append("nnrp_sched_errors")
        self._config.write_text(json.dumps(config), encoding="utf-8")
        return {CONFIG_VARIABLE: str(self._config)}

    def last(self) -> str | None:
        """The last exception logged that gives a reason; None when no error was logged.

        Without any exception it is the last line.
        """
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        exceptions = [line for line in lines if _EXCEPTION.fullmatch(line)]
        reasons = [line for line in exceptions if _ELSEWHERE not in line]
        found = reasons or exceptions or lines
        return found[-1] if found else None
