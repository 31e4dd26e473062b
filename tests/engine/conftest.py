"""Two real vLLMs on the embedded model, shared by the tests that only talk to them.

Each worker of pytest-xdist has its own two, and its own core for them to compute on. A machine
without vLLM fails these tests. `NNRP_SCHED_ENGINE=absent` leaves them out on purpose.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nnrp_sched_patches.launch import LaunchOptions, Serving, launch
from tests.support.two_slots import OPTIONS
from tools.lane_tests import BINDING, core

_HERE = Path(__file__).parent
_SHARED = ("serving", "two_slots")
"""The fixtures, the one that starts last first."""


def pytest_configure(config: pytest.Config) -> None:
    """Every vLLM would compute on the first core: each worker's gets the next one."""
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker is not None:
        place = int(worker["workerid"].removeprefix("gw"))
        os.environ.setdefault(BINDING, core(place))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give engines the time they need; the tests with engines of their own come first."""
    ours = [item for item in items if item.path.is_relative_to(_HERE)]
    rest = [item for item in items if not item.path.is_relative_to(_HERE)]
    if os.environ.get("NNRP_SCHED_ENGINE") == "absent":
        config.hook.pytest_deselected(items=ours)
        items[:] = rest
        return
    for item in ours:
        # vLLM's start alone takes up to a minute on two busy cores.
        item.add_marker(pytest.mark.timeout(400))
        # vLLM and what it imports warn of their own affairs.
        item.add_marker(pytest.mark.filterwarnings("default"))
        if not any(_shared(item)):
            item.add_marker(pytest.mark.own_engine)
    # Two busy engines are too much for a small machine: the shared ones start last, and stay.
    ours.sort(key=_shared)
    items[:] = [*ours, *rest]


def _shared(item: pytest.Item) -> list[bool]:
    return [name in getattr(item, "fixturenames", ()) for name in _SHARED]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """For fixtures that live as long as the session."""
    return "asyncio"


@pytest.fixture(scope="session")
async def serving(anyio_backend: str) -> AsyncIterator[Serving]:
    """A patched vLLM with its HTTP server."""
    async with launch(LaunchOptions(http="127.0.0.1:0", patch=True)) as running:
        yield running


@pytest.fixture(scope="session")
async def two_slots(anyio_backend: str) -> AsyncIterator[Serving]:
    """A patched vLLM with its HTTP server, that runs two requests at once, by priority."""
    async with launch(OPTIONS) as running:
        yield running
