"""Writes docs/compliance.md from the requirements manifest.

    python -m tools.compliance [--check]

`--check` writes nothing and ends with exit code 1 when the page is not what the manifest says.
"""

import sys
from collections.abc import Iterable
from typing import Final

from tools import steps
from tools.requirements import Chapter, Rule, Status, faults, load, tests_by_rule
from tools.steps import ROOT, SetupError, say

PAGE: Final = ROOT / "docs" / "compliance.md"

_HEAD: Final = """\
<!-- Made by `python -m tools.compliance` from docs/requirements; do not edit. -->
# What Level 1 asks for, and where it is proved

Each rule of `openai-compatible/1`, Level 1, and of the protocol that carries it, in our words, with
its source and the tests that prove it.

*Sources*: seed 000 is the adapter's specification, seed 001 the older English profile, seed 003 the
newer Chinese one (where they differ, 003 holds); "digest" is this project's reading of NNRP/1
preview4, whose rules have the numbers R, P, T and whose decided ambiguities have the numbers D;
"facts" is what the published adapter does. A test is a pytest node; `recipe` means a case of
`recipes/` that `nnrp-sched conformance` runs.

| mark | meaning |
|---|---|
| ✓ | kept, and proved by the tests named |
| ○ | not kept yet; what is missing is said |
| ✗ | decided otherwise, with the reason; the tests prove what is done instead |
"""
_LEVELS: Final = """
## Levels 2 and 3

Not advertised, and refused as `unsupported_operation`.

* **Level 2, `responses.create`**: an engine port that serves vLLM's Responses API beside chat, a
  mapper from its events (output items, reasoning, tool calls with their own ids) to the profile's,
  and recipes that show that streaming and tool-call semantics survive. The suite's Level 1 recipe
  `chat.unsupported-operation` submits `responses.create`, so a Level 2 server needs a configuration
  that hides it while Level 1 is tried.
* **Level 3, `models.list` and `embeddings.create`**: the first is the capability document's model
  list in OpenAI's form; the second needs a pooling model in the engine, an engine port that returns
  vectors, and recipes of its own. Each may be added without the other.
"""
_MARKS: Final[dict[Status, str]] = {"fulfilled": "✓", "open": "○", "declined": "✗"}


def page() -> str:
    """The whole page; raises SetupError when rules and tests do not fit together."""
    chapters = load()
    wrong = faults(chapters)
    if wrong:
        raise SetupError("the manifest is wrong:\n  " + "\n  ".join(wrong))
    proofs = tests_by_rule(chapters)
    return "".join((_HEAD, *_summary(chapters), *(_section(c, proofs) for c in chapters), _LEVELS))


def _summary(chapters: tuple[Chapter, ...]) -> Iterable[str]:
    rules = [rule for chapter in chapters for rule in chapter.rules]
    counts = {status: sum(r.status == status for r in rules) for status in _MARKS}
    yield (
        f"\n{len(rules)} rules: {counts['fulfilled']} kept, {counts['open']} open, "
        f"{counts['declined']} decided otherwise.\n"
    )
    missing = [rule for rule in rules if rule.open]
    if missing:
        yield "\n## Open\n\n"
        yield from (f"* **{rule.id}** {rule.rule} *{rule.open}*\n" for rule in missing)


def _section(chapter: Chapter, proofs: dict[str, list[str]]) -> str:
    rows = "".join(_row(rule, proofs[rule.id]) for rule in chapter.rules)
    return f"\n## {chapter.title}\n\n| | rule | | source | proof |\n|---|---|---|---|---|\n{rows}"


def _row(rule: Rule, tests: list[str]) -> str:
    said = rule.open or rule.declined
    text = f"{rule.rule} *{said}*" if said else rule.rule
    proof = [_test(test) for test in tests] + [f"recipe `{name}`" for name in rule.recipes]
    cells = (rule.id, text, _MARKS[rule.status], rule.source, "<br>".join(proof) or "none yet")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _test(node: str) -> str:
    path, _, name = node.partition("::")
    return f"[`{name}`](../{path})"


def main() -> int:
    """Write the page, or compare it."""
    made = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == made:
            return 0
        say(f"{PAGE} is not what the manifest says: python -m tools.compliance")
        return 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    steps.finish(main)
