"""What a docstring tells of a function and of its parameters. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

_GOOGLE: Final = re.compile(r"(Args|Arguments|Parameters|Params):\s*\Z")
_UNDERLINE: Final = re.compile(r"-{3,}\s*\Z")
_SPHINX: Final = re.compile(
    r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)"
)
_ENTRY: Final = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY: Final = re.compile(r"(\*{0,2}\w+)(?:\s*:.*)?\Z")
_SECTION: Final = re.compile(
    r"(Returns?|Yields?|Raises|Examples?|Notes?|See Also|Attributes|Warnings?|References)\s*:?\s*\Z"
)
_FIELD: Final = re.compile(r":\w+[^:]*:")


class Documented(Struct, frozen=True):
    """A docstring, taken apart."""

    description: str
    """What comes before the first list: of parameters, results, errors."""
    parameters: dict[str, str]
    """By name, what is said of each, on one line."""


def documented(text: str) -> Documented:
    """Take a docstring apart, as `inspect.getdoc` gives it: its margin is gone.

    Understands parameters in the style of Google, NumPy and Sphinx; what it does not understand
    stays in the description.
    """
    lines = text.splitlines()
    start = next((at for at, _ in enumerate(lines) if _ends_description(lines, at)), len(lines))
    told: dict[str, list[str]] = {}
    for at in range(start, len(lines)):
        title, underlined = lines[at], _is_underlined(lines, at)
        if _GOOGLE.match(title) or (underlined and title.strip() == "Parameters"):
            block = lines[at + (2 if underlined else 1) :]
            told |= _numpy(block) if underlined else _google(block)
    told |= _sphinx(lines[start:])
    parameters = {
        name.lstrip("*"): " ".join(" ".join(words).split()) for name, words in told.items()
    }
    return Documented("\n".join(lines[:start]).strip(), {n: t for n, t in parameters.items() if t})


def _ends_description(lines: Sequence[str], at: int) -> bool:
    line = lines[at]
    if _GOOGLE.match(line) or _FIELD.match(line):
        return True
    named = _SECTION.match(line) is not None or line.strip() == "Parameters"
    return named and (line.rstrip().endswith(":") or _is_underlined(lines, at))


def _is_underlined(lines: Sequence[str], at: int) -> bool:
    return at + 1 < len(lines) and _UNDERLINE.match(lines[at + 1]) is not None


def _google(lines: Sequence[str]) -> dict[str, list[str]]:
    """The entries of an indented block; deeper lines go on with the entry before."""
    found: dict[str, list[str]] = {}
    name, depth = "", 0
    for line in _indented(lines):
        indent = len(line) - len(line.lstrip())
        depth = depth or indent
        entry = _ENTRY.match(line.strip()) if indent <= depth else None
        if entry is not None:
            name = entry[1]
            found[name] = [entry[2]]
        elif name:
            found[name].append(line.strip())
    return found


def _indented(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if not line.strip():
            continue
        if not line[0].isspace():
            return
        yield line


def _numpy(lines: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    name = ""
    for at, line in enumerate(lines):
        if not line.strip():
            continue
        if _is_underlined(lines, at):
            break
        entry = _NUMPY_ENTRY.match(line)
        if entry is not None:
            name = entry[1]
            found[name] = []
        elif name and line[0].isspace():
            found[name].append(line.strip())
    return found


def _sphinx(lines: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        entry = _SPHINX.match(line)
        if entry is not None:
            name = entry[1]
            found[name] = [entry[2]]
        elif name and line.strip() and line[0].isspace():
            found[name].append(line.strip())
        else:
            name = ""
    return found
