"""The examples of the orchestrator tell their stories on the real engine."""

import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from nnrp_sched_patches.launch import Serving
from tests.support.carriers import Place
from tests.support.serving import scripted_server
from tests.support.stories import STORIES

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
SECONDS = 200


@pytest.mark.parametrize("name", STORIES)
async def test_an_example_tells_its_story(serving: Serving, name: str, tmp_path: Path) -> None:
    async with scripted_server(serving.engine, place=Place("tcp", tmp_path)) as served:
        endpoint = str(served.server.endpoints[0])
        with anyio.fail_after(SECONDS):
            done = await anyio.run_process(
                [sys.executable, "-m", f"examples.{name}", "--endpoint", endpoint],
                cwd=ROOT,
                stderr=subprocess.STDOUT,
                check=False,
            )
        printed = done.stdout.decode()
        assert done.returncode == 0, printed
        for line in STORIES[name]:
            assert re.search(line, printed), f"{line} is not in\n{printed}"
        assert not (await serving.engine.queue()).operations
