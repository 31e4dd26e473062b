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


def test_the_last_run_of_every_anchor_passed_and_is_shown() -> None:
    passed = {
        record.run.version: record
        for record in lane_record.read()
        if record.run.outcome == lane_record.PASSED
    }
    for family in FAMILIES:
        for version in family.tested:
            assert f"| {passed[version].date} | {passed[version].commit} | passed |" in page()
