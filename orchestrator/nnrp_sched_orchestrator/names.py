"""Names of programs and agents: what can be one, and one that is free. Pure."""

import itertools
from collections.abc import Container

from nnrp_sched.profile.workflow import MAX_NAME


def free_name(name: str, taken: Container[str], *, whose: str, above: str = "") -> str:
    """The name, with a number behind it where it is taken.

    `whose` says in an error what it is for, `above` is the path in front of it. Raises `ValueError`
    for a name that cannot travel, stand in a path, or be shown on a terminal.
    """
    if not _is_name(name):
        raise ValueError(
            f"{name!a} cannot be {whose} name: use some printable text without / and #"
        )
    names = itertools.chain([name], (f"{name}~{number}" for number in itertools.count(2)))
    free = next(each for each in names if each not in taken)
    if len(above + free) > MAX_NAME:
        raise ValueError(f"{above}{free} is longer than {MAX_NAME} characters; shorten it")
    return free


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or not name.strip():
        return False
    return name.isprintable() and "/" not in name and "#" not in name
