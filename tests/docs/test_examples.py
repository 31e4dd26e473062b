"""The examples of the orchestrator, on the scripted engine, and their pages."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_commands import SECONDS, serving
from tests.support.stories import STORIES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LANDS = ("France", "Italy", "Spain", "Japan")
TIMES = re.compile(r"\d+(\.\d+)? (?=ms|s of)")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a running scripted server."""
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        yield ready["endpoints"][0]


def printed(name: str, endpoint: str) -> list[str]:
    """The lines of an example, its times left out."""
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", "--endpoint", endpoint],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return TIMES.sub("", done.stdout).splitlines()


def test_subagents_explore_are_cut_by_a_budget_and_are_cancelled_with_their_tools(
    endpoint: str,
) -> None:
    lines = printed("subagent_fanout", endpoint)
    for line in (
        r'fix-bug-42/reader called read_file\(\{"path": "README.md"\}\)',
        r"fix-bug-42/reader says: You said: Read README.md: what is this project\?",
        r"fix-bug-42/wanderer#\d+ was local: stopped after ms, confirmed: True",
        r"fix-bug-42/wanderer#\d+ was running: .*, confirmed: True, \d+ of 600 tokens made",
        r"  fix-bug-42/talker: 48 tokens in 1 calls",
        r"  fix-bug-42/wanderer: \d+ tokens in 1 calls",
    ):
        assert [each for each in lines if re.fullmatch(line, each)], line
    (cut,) = [line for line in lines if "allows no more" in line]
    assert cut.startswith("the tokens budget of 'fix-bug-42/talker' (48) allows no more")
    assert cut.endswith("48 words of it are kept")


def test_of_several_calls_the_losers_are_stopped_and_counted(endpoint: str) -> None:
    lines = printed("race_and_hedge", endpoint)
    assert lines[:5] == [
        *(f"map: {land}: You said: What is the capital of {land}?" for land in LANDS),
        "race: You said: What is the capital of France?",
    ]
    assert sum("confirmed: True" in line for line in lines) >= 3
    assert not [line for line in lines if "confirmed: False" in line]
    assert "gather: completed, 40 characters: You said: What is the capital of France?" in lines
    assert any(line.startswith("gather: cancelled, ") for line in lines)


def test_tools_of_three_kinds_stream_at_once_and_leave_nothing_behind(endpoint: str) -> None:
    lines = printed("tool_streams", endpoint)
    counted = {name: int(count) for name, count in re.findall(r"'(\w+)': (\d+)", lines[0])}
    assert lines[0].startswith(f"{sum(counted.values())} events in one order: ")
    assert list(counted) == ["model", "headings", "grep", "count_lines"]
    assert all(count >= 3 for count in counted.values())
    assert lines[2:] == [
        "It says: You said: Read README.md: which headings are there?",
        "Stopped here after ms; no process of it is left: True",
        "Stopped tool-host after ms; no process of it is left: True",
    ]


@pytest.mark.parametrize("name", STORIES)
def test_an_example_is_short_and_its_page_says_how_to_run_it_and_what_it_prints(name: str) -> None:
    source = (EXAMPLES / name / "__main__.py").read_text()
    assert len(source.splitlines()) <= 150
    page = (EXAMPLES / name / "README.md").read_text()
    assert f"\n$ python -m examples.{name}\n" in page
    assert f"\n$ python -m examples.{name} --endpoint nnrp://127.0.0.1:7437\n" in page
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S)
    for line in STORIES[name]:
        assert re.search(line, shown), line


def test_the_list_of_examples_is_whole() -> None:
    page = (EXAMPLES / "README.md").read_text()
    folders = sorted(path.parent.name for path in EXAMPLES.glob("*/__main__.py"))
    assert sorted(re.findall(r"^\| \[(\w+)\]\(\1/README\.md\)", page, re.M)) == folders
