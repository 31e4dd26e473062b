"""Writes docs/vllm-compatibility.md from the tables that the patch layer itself goes by.

    python -m tools.compatibility [--check]

`--check` writes nothing and ends with exit code 1 when the page is not what the tables say.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.version import Version

from nnrp_sched_patches.bindings import FAMILIES, Family, family_of
from nnrp_sched_patches.hook import Hook
from nnrp_sched_patches.native_features import NATIVE, NativeFeature
from nnrp_sched_patches.seam import Seam
from tools import lane_record, steps
from tools.engine_lanes import LANES
from tools.lane_build import PYTHON_VERSION
from tools.steps import ROOT, say
from tools.vllm_sources import WHEELS

PAGE = ROOT / "docs" / "vllm-compatibility.md"

_HEAD = """\
<!-- Made by `python -m tools.compatibility` from the patch layer's tables; do not edit. -->
# vLLM compatibility

The patch layer knows the families of vLLM versions below. A family is chosen by the installed
version and confirmed by reading the installed source: everything that the tables name must be there
as they say, or nothing is patched and the diagnostic names what is missing. Any other version is
refused with `--patch-vllm`; without it the server runs on vLLM's public interfaces.
"""
_FAMILIES = """
## Families

*On a real engine*: the engine tests run on these versions (`make test-engines`). *Source checked*:
every place that the family needs was found in the source of these versions.
"""
_OURS = """
## What we add

The hooks of the patch layer, and where they sit. A hook runs before, after or around a method of
vLLM's, or is a method that vLLM did not have.
"""
_NATIVE = """
## What vLLM does itself

Used as it is where it is there; none of it is patched in.
"""
_LANES = """
## Engine lanes

The environments of `make test-engines`.
"""
_RUNS = """
## The last run of each lane
"""
_RUN = """
`make test-engines`: all of tests/engine and tests/patches, two lanes at once, on {machine}.
"""
_SKIPPED = """
Skipped, with the reason that each test gives, and how many:

"""


def page() -> str:
    """The whole page."""
    names = [family.name for family in FAMILIES]
    families = _table(
        ("family", "vLLM versions", "on a real engine", "source checked"),
        (
            (f.name, f"`{f.versions}`", ", ".join(f.tested) or "none", ", ".join(_checked(f)))
            for f in FAMILIES
        ),
    )
    ours = _table(("hook", "place", "how", "what it does", *names), _hook_rows())
    native = _table(("what", "place", *names), map(_native_row, NATIVE))
    lanes = _table(
        ("vLLM", "Python", "torch"),
        (
            (lane.version, "3.11, 3.12" if lane.everyday else PYTHON_VERSION, lane.torch)
            for lane in LANES
        ),
    )
    parts = (_HEAD, _FAMILIES, families, _OURS, ours, _NATIVE, native, _LANES, lanes)
    return "".join((*parts, *_last_run()))


def _last_run() -> Iterator[str]:
    records = lane_record.read()
    yield _RUNS
    if not records:
        yield "\nNone is recorded: `make test-engines` records one.\n"
        return
    yield _RUN.format(machine=", or ".join(dict.fromkeys(each.machine for each in records)))
    head = ("vLLM", "Python", "begun", "commit", "outcome", "passed", "failed", "skipped", "time")
    yield _table(head, lane_record.rows(records))
    reasons = [
        f"- {each.run.version}: {reason} ({count})\n"
        for each in records
        for reason, count in each.run.reasons.items()
    ]
    if reasons:
        yield _SKIPPED
        yield from reasons


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _checked(family: Family) -> list[str]:
    return [version for version in WHEELS if family_of(Version(version)) is family]


def _hook_rows() -> Iterator[Sequence[str]]:
    # A hook may sit in another place in another family: one row for each place.
    rows: dict[tuple[str, str], Hook] = {}
    for family in FAMILIES:
        for hook in family.hooks:
            rows.setdefault((hook.name, _place(hook.seam)), hook)
    for (name, place), hook in rows.items():
        has = (
            any((other.name, _place(other.seam)) == (name, place) for other in family.hooks)
            for family in FAMILIES
        )
        yield name, place, str(hook.form), _summary(hook), *map(_mark, has)


def _native_row(feature: NativeFeature) -> Sequence[str]:
    def mark(family: Family) -> str:
        found = {feature.in_version(Version(version)) for version in _checked(family)}
        return f"`{feature.versions}`" if len(found) == 2 else _mark(True in found)

    return feature.what, _place(feature.seam), *map(mark, FAMILIES)


def _place(seam: Seam) -> str:
    arguments = f"({', '.join(seam.parameters)})" if seam.parameters else ""
    return f"`{seam.module.removeprefix('vllm.')}` `{seam.name}{arguments}`"


def _mark(present: bool) -> str:
    return "yes" if present else "no"


def _summary(hook: Hook) -> str:
    """The first line of the docstring of a hook's body."""
    module, _, name = hook.body.partition(":")
    source = ROOT / "patches" / Path(*module.split(".")).with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            told = (ast.get_docstring(node) or "").partition("\n")[0].rstrip(".")
            return told.removeprefix(f"Body of hook {hook.name}: ")
    raise steps.SetupError(f"{hook.body}, the body of hook {hook.name}, is not there")


def main() -> int:
    """Write the page, or compare it."""
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        say(f"{PAGE} is not what the tables say: python -m tools.compatibility")
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    steps.finish(main)
