"""docs/embedding.md says what is so."""

import importlib
import re
import tomllib
from pathlib import Path

from nnrp_sched_orchestrator.embed.records import EmbedSettings
from nnrp_sched_orchestrator.running import StreamSettings
from tests.support.pages import ROOT, page, printed_by_example

PAGE = page("embedding.md")


def test_the_example_runs(tmp_path: Path) -> None:
    printed = printed_by_example(PAGE, tmp_path)
    assert "word0" in printed
    assert "accepted=True, authoritative=True" in printed


def test_every_extra_module_name_and_story_is_there() -> None:
    rows = re.findall(r"^\| `(\S+)` \| `(\w+)` \| (.*?) \| (?:`(\S+)` )?\|$", PAGE, re.M)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    modules: set[str] = set()
    for extra, module, gives, story in rows:
        assert extra in extras
        found = importlib.import_module(f"nnrp_sched_orchestrator.embed.{module}")
        for name in re.findall(r"`(\w+)\(", gives):
            assert callable(getattr(found, name))
        assert not story or (ROOT / story / "README.md").exists()
        modules.add(module)
    assert modules == {
        "openai_client",
        "openai_transport",
        "openai_agents",
        "pydantic_ai",
        "langchain",
    }


def test_its_numbers_are_the_defaults() -> None:
    page = " ".join(PAGE.split())
    stream = StreamSettings()
    assert (
        f"its buffer of {stream.buffer_events} events was full for {stream.stall_seconds:g} s"
    ) in page
    assert f"goes on for {EmbedSettings().retry_seconds:g} s" in page
