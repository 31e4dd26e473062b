"""Fixtures that every test package shares."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The project runs on asyncio only (design, decision 13)."""
    return "asyncio"
