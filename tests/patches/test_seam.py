"""Checking seams against source text."""

from pathlib import Path

import pytest

from nnrp_sched_patches.seam import Seam, SeamKind, verify

_SOURCE = """
import typing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    class OnlyForTypes: ...

try:
    import fast
except ImportError:
    def fallback(argument): ...

LIMIT = 3

def plain(one, /, two, *, three, **rest): ...

async def waits(): ...

async def yields():
    def inner():
        return 1
    yield inner()

async def inner_yields():
    def inner():
        yield 1
    return inner

class Base:
    def inherited(self): ...

class Owner(Base):
    member = 1
    field: int

    def __init__(self, config):
        self.plain_attribute = 1
        self.annotated: int | None = None
        if config:
            self.first, self.second = 1, 2

    def method(self, request, late=None): ...

    @property
    def value(self): ...

    @staticmethod
    def static(argument): ...

    class Nested:
        def method(self): ...
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    package = tmp_path / "vllm"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("from .home import Owner as Renamed\n")
    (package / "home.py").write_text(_SOURCE)
    (package / "deep" / "__init__.py").write_text("from ..home import Owner, plain\n")
    (package / "deep" / "door.py").write_text("from . import Owner\nfrom vllm.gone import Lost\n")
    (package / "deep" / "circle.py").write_text("from .circle import turn\n")
    (package / "broken.py").write_text("def broken(\n")
    return package


def _problems(root: Path, *seams: Seam) -> list[str]:
    return [str(fault) for fault in verify(root, seams)]


@pytest.mark.parametrize(
    "seam",
    [
        Seam("vllm.home", "", SeamKind.MODULE),
        Seam("vllm.deep", "", SeamKind.MODULE),
        Seam("vllm.home", "plain", SeamKind.FUNCTION, ("one", "two", "three")),
        Seam("vllm.home", "fallback", SeamKind.FUNCTION, ("argument",)),
        Seam("vllm.home", "waits", SeamKind.ASYNC_FUNCTION),
        Seam("vllm.home", "yields", SeamKind.ASYNC_GENERATOR),
        Seam("vllm.home", "inner_yields", SeamKind.ASYNC_FUNCTION),
        Seam("vllm.home", "LIMIT", SeamKind.ATTRIBUTE),
        Seam("vllm.home", "Owner", SeamKind.CLASS),
        Seam("vllm.home", "Owner.member", SeamKind.ATTRIBUTE),
        Seam("vllm.home", "Owner.field", SeamKind.ATTRIBUTE),
        Seam("vllm.home", "Owner.method", SeamKind.FUNCTION, ("request",), without=("early",)),
        Seam("vllm.home", "Owner.static", SeamKind.FUNCTION, ("argument",)),
        Seam("vllm.home", "Owner.value", SeamKind.PROPERTY),
        Seam("vllm.home", "Owner.Nested.method", SeamKind.FUNCTION),
        Seam("vllm.home", "Owner.plain_attribute", SeamKind.INSTANCE_ATTRIBUTE),
        Seam("vllm.home", "Owner.annotated", SeamKind.INSTANCE_ATTRIBUTE),
        Seam("vllm.home", "Owner.ours", SeamKind.ABSENT),
        Seam("vllm.gone", "", SeamKind.ABSENT),
        Seam("vllm.deep", "plain", SeamKind.FUNCTION, ("two",), reexported=True),
        Seam("vllm.deep.door", "Owner.method", SeamKind.FUNCTION, reexported=True),
        Seam("vllm", "Renamed.method", SeamKind.FUNCTION, reexported=True),
    ],
    ids=str,
)
def test_a_seam_that_the_source_has_is_no_fault(root: Path, seam: Seam) -> None:
    assert _problems(root, seam) == []


@pytest.mark.parametrize(
    ("seam", "problem"),
    [
        (Seam("vllm.gone", "", SeamKind.MODULE), "vllm.gone is missing: there is no such module"),
        (
            Seam("vllm.gone", "x", SeamKind.CLASS),
            "vllm.gone:x is missing: there is no module vllm.gone",
        ),
        (Seam("vllm.home", "", SeamKind.ABSENT), "vllm.home exists, and must not"),
        (
            Seam("vllm.home", "Owner.lost", SeamKind.FUNCTION),
            "vllm.home:Owner.lost is missing: vllm.home does not define lost",
        ),
        (
            Seam("vllm.home", "Lost.method", SeamKind.FUNCTION),
            "vllm.home:Lost.method is missing: vllm.home does not define Lost",
        ),
        (
            Seam("vllm.home", "plain.method", SeamKind.FUNCTION),
            "vllm.home:plain.method is missing: plain is not a class",
        ),
        (
            Seam("vllm.home", "Owner.inherited", SeamKind.FUNCTION),
            "vllm.home:Owner.inherited is missing: vllm.home does not define inherited",
        ),
        (
            Seam("vllm.home", "OnlyForTypes", SeamKind.CLASS),
            "vllm.home:OnlyForTypes is missing: vllm.home does not define OnlyForTypes",
        ),
        (
            Seam("vllm.home", "waits", SeamKind.FUNCTION),
            "vllm.home:waits is of kind async function, not function",
        ),
        (
            Seam("vllm.home", "plain", SeamKind.FUNCTION, ("two", "rest", "four")),
            "vllm.home:plain lacks the parameter rest, four",
        ),
        (
            Seam("vllm.home", "Owner.method", SeamKind.FUNCTION, without=("late",)),
            "vllm.home:Owner.method has the parameter late, which this family must not have",
        ),
        (
            Seam("vllm.home", "Owner.lost", SeamKind.INSTANCE_ATTRIBUTE),
            "vllm.home:Owner.lost is missing: Owner.__init__ does not set self.lost",
        ),
        (
            Seam("vllm.home", "Owner.method", SeamKind.ABSENT),
            "vllm.home:Owner.method exists already, and must not",
        ),
        (
            Seam("vllm.deep", "plain", SeamKind.FUNCTION),
            "vllm.deep:plain is missing: vllm.deep only imports plain, from vllm.home",
        ),
        (
            Seam("vllm.deep.door", "Lost", SeamKind.CLASS, reexported=True),
            "vllm.deep.door:Lost is missing: vllm.deep.door imports Lost from vllm.gone,"
            " which is not there",
        ),
        (
            Seam("vllm.deep.circle", "turn", SeamKind.FUNCTION, reexported=True),
            "vllm.deep.circle:turn is missing: turn is imported in a circle",
        ),
    ],
    ids=str,
)
def test_a_fault_names_the_module_the_object_and_what_is_wrong(
    root: Path, seam: Seam, problem: str
) -> None:
    assert _problems(root, seam) == [problem]


def test_a_source_that_does_not_parse_is_a_fault_of_its_seams(root: Path) -> None:
    (problem,) = _problems(root, Seam("vllm.broken", "broken", SeamKind.FUNCTION))
    assert problem.startswith("vllm.broken:broken cannot be read:")


def test_every_fault_is_reported_in_the_order_of_the_seams(root: Path) -> None:
    seams = [Seam("vllm.home", name, SeamKind.CLASS) for name in ("Zebra", "Owner", "Ape")]
    assert [fault.seam.name for fault in verify(root, seams)] == ["Zebra", "Ape"]
