"""When `run --patch-vllm` orders vLLM's queue by priority."""

from pathlib import Path

import pytest

from nnrp_sched.cli.scheduling_policy import names_policy


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], False),
        (["--max-model-len", "8192"], False),
        (["--scheduling-policy", "fcfs"], True),
        (["--scheduling-policy=priority"], True),
        (["--scheduling_policy", "fcfs"], True),
        (["--scheduling-policy-of-mine"], False),
        (["--scheduler-cls", "mine.Scheduler"], False),
        (["--config"], False),
        (["--config", "/nowhere/at/all.yaml"], False),
    ],
)
def test_a_policy_is_known_by_its_flag(arguments: list[str], named: bool) -> None:
    assert names_policy(arguments) is named


@pytest.mark.parametrize("form", ["two", "one"])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model: m\nscheduling-policy: fcfs\n", True),
        ("scheduling_policy: priority", True),
        ("model: m\n# scheduling-policy: fcfs\n", False),
        ("max-model-len: 8192", False),
    ],
)
def test_a_policy_in_vllm_s_configuration_file_counts_too(
    tmp_path: Path, text: str, named: bool, form: str
) -> None:
    path = tmp_path / "vllm.yaml"
    path.write_text(text)
    arguments = ["--config", str(path)] if form == "two" else [f"--config={path}"]
    assert names_policy(["--max-num-seqs", "4", *arguments]) is named
