"""docs/streams.md says what is so."""

import inspect
import re
from pathlib import Path

from nnrp_sched_orchestrator import fanout, first_event_times, streams
from tests.support.pages import page, printed_by_example

PAGE = page("streams.md")


def test_the_example_runs(tmp_path: Path) -> None:
    printed = printed_by_example(PAGE, tmp_path)
    assert "OutputTextDelta" in printed
    assert "You said: Name a colour." in printed
    assert "accepted=True" in printed


def test_every_operator_is_there_with_five_lines_and_no_other() -> None:
    found = re.findall(r"^\*\*(\w+)\*\*\((.*)\)\n((?:- .*\n)+)", PAGE, re.M)
    operators = {
        name
        for name, value in vars(streams).items()
        if inspect.isfunction(value) and value.__module__ == streams.__name__ and name[0] != "_"
    }
    assert {name for name, _, _ in found} == operators
    assert [lines.count("\n") for _, _, lines in found] == [5] * len(found)
    assert f"Up to {streams.BUFFER} items" in PAGE


def test_every_fanout_is_there_with_its_parameters() -> None:
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)`", PAGE, re.M))
    functions = {
        name: value
        for name, value in vars(fanout).items()
        if inspect.iscoroutinefunction(value) and name[0] != "_"
    }
    assert rows.keys() == functions.keys()
    for name, parameters in rows.items():
        named = {each.partition("=")[0].strip() for each in parameters.split(",")}
        assert named <= inspect.signature(functions[name]).parameters.keys()


def test_what_a_hedge_remembers_is_so() -> None:
    signature = inspect.signature(first_event_times.FirstEventTimes).parameters
    assert f"the last {signature['window'].default} times" in PAGE
    assert f"once there are {signature['enough'].default}" in " ".join(PAGE.split())
