"""What `doctor` says of activation, other tools, processes, frontends and schedulers."""

import sys
import types
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from nnrp_sched_patches import process_diagnosis
from nnrp_sched_patches.check import Check
from nnrp_sched_patches.process_diagnosis import process_checks

VARIABLES = (
    "NNRP_SCHED_PATCH",
    "NNRP_SCHED_PATCH_STRICT",
    "VLLM_PLUGINS",
    "VLLM_USE_RUST_FRONTEND",
    "VLLM_WORKER_MULTIPROC_METHOD",
)


class _Points(list[SimpleNamespace]):
    @property
    def names(self) -> set[str]:
        return {point.name for point in self}


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without any of the variables, where only we are installed."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    _installed(monkeypatch, plugins={"nnrp_sched": "nnrp_sched_patches.plugin:load"})


def _installed(
    monkeypatch: pytest.MonkeyPatch, *, plugins: dict[str, str], others: Sequence[str] = ()
) -> None:
    points = _Points(SimpleNamespace(name=name, value=value) for name, value in plugins.items())
    found = [SimpleNamespace(metadata={"Name": name}) for name in (*others, None)]

    def entry_points(group: str) -> _Points:
        assert group == "vllm.general_plugins"
        return points

    monkeypatch.setattr(process_diagnosis, "entry_points", entry_points)
    monkeypatch.setattr(process_diagnosis, "distributions", lambda: found)


def _checks(scheduler: str | None = None) -> dict[str, Check]:
    return {check.name: check for check in process_checks(scheduler)}


def test_in_a_bare_environment_nothing_is_to_be_done() -> None:
    found = _checks()
    assert {check.status for check in found.values()} == {"ok"}
    assert "once in a process however often" in found["plugin"].found
    assert "not patched" in found["activation"].found
    assert "loads every plugin" in found["VLLM_PLUGINS"].found
    assert found["frontend"].found == "Python"
    assert "spawned process loads the plugin itself" in found["start method"].found
    assert "a forked one inherits" in found["start method"].found
    assert "refuses --api-server-count above 1" in found["API servers"].found
    assert "each is patched for itself" in found["API servers"].found
    assert found["other tools in vLLM"].found == "none known"
    assert "--scheduler-cls" in found["scheduler"].advice


@pytest.mark.parametrize(
    ("variables", "name", "status", "found", "advice"),
    [
        (
            {"NNRP_SCHED_PATCH": "1"},
            "activation",
            "ok",
            "runs unpatched",
            "unset NNRP_SCHED_PATCH",
        ),
        (
            {"NNRP_SCHED_PATCH": "1", "NNRP_SCHED_PATCH_STRICT": "1"},
            "activation",
            "ok",
            "does not start",
            "unset NNRP_SCHED_PATCH",
        ),
        (
            {"NNRP_SCHED_PATCH": "true"},
            "activation",
            "warning",
            "'true' activates nothing",
            "set NNRP_SCHED_PATCH=1",
        ),
        ({"VLLM_PLUGINS": ""}, "VLLM_PLUGINS", "warning", "'' hides", "add nnrp_sched"),
        ({"VLLM_PLUGINS": "a,b"}, "VLLM_PLUGINS", "warning", "hides", "add nnrp_sched"),
        (
            {"VLLM_PLUGINS": "a, nnrp_sched"},
            "VLLM_PLUGINS",
            "warning",
            "hides",
            "without a space",
        ),
        ({"VLLM_PLUGINS": "a,nnrp_sched"}, "VLLM_PLUGINS", "ok", "names nnrp_sched", ""),
        (
            {"VLLM_USE_RUST_FRONTEND": "1"},
            "frontend",
            "warning",
            "cannot be patched",
            "unset VLLM_USE_RUST_FRONTEND",
        ),
        ({"VLLM_USE_RUST_FRONTEND": "0"}, "frontend", "ok", "Python", ""),
        (
            {"VLLM_WORKER_MULTIPROC_METHOD": "fork"},
            "start method",
            "ok",
            "fork by VLLM_WORKER_MULTIPROC_METHOD",
            "",
        ),
    ],
)
def test_what_a_variable_means_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    name: str,
    status: str,
    found: str,
    advice: str,
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    check = _checks()[name]
    assert check.status == status
    assert found in check.found
    assert advice in check.advice


def test_a_package_without_its_entry_point_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, plugins={})
    check = _checks()["plugin"]
    assert (check.status, check.advice) == ("failed", "install this package with pip")


def test_other_tools_are_named_with_what_deactivating_beside_them_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugins = {"nnrp_sched": "ours:load", "theirs": "theirs:load", "vllms": "vllm.plugins.x:load"}
    _installed(monkeypatch, plugins=plugins, others=("numpy", "DDTrace"))
    check = _checks()["other tools in vLLM"]
    assert check.found == "plugin theirs, distribution ddtrace"
    assert "restored by identity" in check.advice
    assert "left in place and switched off" in check.advice
    assert "deactivate again" in check.advice


class Own:
    """A scheduler that is none of vLLM's."""


def test_a_scheduler_of_the_users_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("their_scheduler")
    vars(module)["Own"] = Own
    monkeypatch.setitem(sys.modules, module.__name__, module)
    check = _checks("their_scheduler.Own")["scheduler"]
    assert check.status == "failed"
    assert "Own is not derived from" in check.found
    assert "derive it from vLLM's AsyncScheduler" in check.advice
    assert "run without --patch-vllm" in check.advice


@pytest.mark.parametrize("path", ["no_such.Scheduler", "sys.NoSuch", "sys.path", "nothing"])
def test_a_scheduler_that_cannot_be_had_is_named(path: str) -> None:
    check = _checks(path)["scheduler"]
    assert check.status == "failed"
    assert path in check.found
    assert "PYTHONPATH" in check.advice
