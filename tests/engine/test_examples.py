"""The examples of the orchestrator tell their stories on the real engine."""

from pathlib import Path

import pytest

from nnrp_sched_patches.launch import Serving
from tests.support.stories import STORIES, check_story

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", STORIES)
async def test_an_example_tells_its_story(serving: Serving, name: str, tmp_path: Path) -> None:
    await check_story(serving, name, STORIES[name], tmp_path)
