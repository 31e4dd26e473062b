"""Fixtures for the patch layer over stand-ins."""

import types
from collections.abc import Iterator

import pytest

from nnrp_sched_patches.install import PatchLayer
from tests.support.toy_vllm import toy_modules


@pytest.fixture
def toy() -> Iterator[types.SimpleNamespace]:
    """Stand-in modules: `Engine`, `Base`, and `calls`, what the recording body saw."""
    with toy_modules() as namespace:
        yield namespace


@pytest.fixture
def layer() -> Iterator[PatchLayer]:
    """A patch layer of the test's own."""
    layer = PatchLayer()
    yield layer
    layer.deactivate()
