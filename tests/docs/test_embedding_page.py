"""docs/embedding.md says what is so."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from nnrp_sched_orchestrator.embed.records import EmbedSettings
from nnrp_sched_orchestrator.running import StreamSettings
from tests.cli.test_commands import SECONDS, serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "embedding.md").read_text()


def test_the_example_runs(tmp_path: Path) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        script = tmp_path / "example.py"
        script.write_text(source.replace("nnrp://127.0.0.1:7437", ready["endpoints"][0]))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    assert "word0" in done.stdout
    assert "accepted=True, authoritative=True" in done.stdout


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
