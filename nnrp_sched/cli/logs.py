"""Logging of the command line: one handler on stderr, for this project's loggers only."""

import json
import logging
import sys
from typing import Any

from nnrp_sched.observe.log import NAME

_NOISY = ("quic",)
"""Loggers of libraries that warn of what peers do, on stderr by themselves; we say what matters."""

_PACKAGES = ("nnrp_sched", "nnrp_sched_patches", "nnrp_sched_orchestrator")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        observation = getattr(record, "observation", None)
        if observation is not None:
            entry["message"], entry["observation"] = NAME, observation
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure_logging(level: str, form: str) -> None:
    """Send this project's log records to stderr; vLLM keeps its own configuration."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter()
        if form == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    for name in _PACKAGES:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
