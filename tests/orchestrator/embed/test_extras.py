"""A module whose framework is not installed says which extra of ours brings it."""

import subprocess
import sys

import pytest

_WITHOUT = """
import sys
sys.modules[{framework!r}] = None
import nnrp_sched_orchestrator.embed.{module}
"""


@pytest.mark.parametrize(
    ("module", "framework", "extra"),
    [
        ("openai_client", "openai", "openai"),
        ("openai_client", "httpx2", "openai"),
        ("openai_agents", "agents", "agents"),
        ("openai_agents", "openai", "agents"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("langchain", "langchain_openai", "langchain"),
    ],
)
def test_a_missing_framework_is_named_with_its_extra(
    module: str, framework: str, extra: str
) -> None:
    script = _WITHOUT.format(framework=framework, module=module)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        f"nnrp_sched_orchestrator.embed.{module} needs {framework}, which is not installed: "
        f"pip install 'nnrp-sched[{extra}]'"
    )


def test_the_transport_needs_only_the_library_that_is_asked_for() -> None:
    script = _WITHOUT.format(framework="openai", module="openai_transport") + (
        "sys.modules['httpx2'] = None\n"
        "from nnrp_sched_orchestrator.embed.http_library import HttpLibrary\n"
        "HttpLibrary('httpx')\n"
        "HttpLibrary('httpx2')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "needs httpx2, which is not installed: pip install 'nnrp-sched[openai]'" in done.stderr
