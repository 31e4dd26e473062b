"""Whether a vLLM command line says how its queue is ordered."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

PRIORITY_POLICY: Final = ("--scheduling-policy", "priority")
"""What `run --patch-vllm` adds when nobody said anything."""

_FLAG: Final = re.compile(r"--scheduling[-_]policy(=|$)")
_CONFIG_FLAG: Final = re.compile(r"--config(=|$)")
_CONFIG_LINE: Final = re.compile(r"^\s*['\"]?scheduling[-_]policy['\"]?\s*:", re.M)


def names_policy(arguments: Sequence[str]) -> bool:
    """Whether a policy is given, as a flag or in a file given as `--config`."""
    return any(map(_FLAG.match, arguments)) or any(
        _CONFIG_LINE.search(text) for text in _config_files(arguments)
    )


def _config_files(arguments: Sequence[str]) -> Iterator[str]:
    """The texts of the files; vLLM itself complains about one that cannot be read."""
    for position, argument in enumerate(arguments):
        if not _CONFIG_FLAG.match(argument):
            continue
        _, _, path = argument.partition("=")
        path = path or next(iter(arguments[position + 1 :]), "")
        if path and Path(path).is_file():
            yield Path(path).read_text(errors="replace")
