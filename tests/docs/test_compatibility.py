"""The compatibility page is what the patch layer's tables say."""

from nnrp_sched_patches.bindings import FAMILIES
from tools import lane_record
from tools.compatibility import PAGE, page
from tools.engine_lanes import LANES


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.compatibility"


def test_the_page_names_every_family_and_every_hook_with_what_it_does() -> None:
    text = page()
    for family in FAMILIES:
        assert f"| {family.name} | `{family.versions}` |" in text
        for hook in family.hooks:
            assert f"| {hook.name} | " in text


def test_every_anchor_has_an_engine_lane() -> None:
    anchors = {version for family in FAMILIES for version in family.tested}
    assert anchors <= {lane.version for lane in LANES}


def test_a_run_that_is_shown_passed_on_every_anchor() -> None:
    record = lane_record.read()
    if record is None:
        assert "None is recorded" in page()
        return
    passed = {lane.version for lane in record.lanes if lane.outcome == lane_record.PASSED}
    assert {version for family in FAMILIES for version in family.tested} <= passed
    assert record.commit in page()
