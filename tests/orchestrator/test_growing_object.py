"""Objects that come in pieces."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched_orchestrator.growing_object import GrowingObject

TEXT = st.text(alphabet='ab"\\{}[] é', max_size=8)
VALUES = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(TEXT, VALUES, max_size=4), st.data())
def test_however_it_is_cut_it_is_complete_with_its_last_bracket_and_no_sooner(
    value: dict[str, Any], data: st.DataObject
) -> None:
    text = msgspec.json.encode(value).decode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=len(text))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    growing = GrowingObject()
    completed = [growing.add(piece) for piece in pieces]
    assert completed.index(True) == next(
        at for at in range(len(pieces)) if "".join(pieces[: at + 1]) == text
    )
    assert completed.count(True) == 1
    assert growing.text == text


@pytest.mark.parametrize("text", ["[]", "[{}]", "{", '"{}"', "{]", "}{", "{}{}", "{a}", "", "7 {}"])
def test_what_is_no_object_is_never_complete(text: str) -> None:
    growing = GrowingObject()
    assert not any([growing.add(text), growing.add(" ")])


def test_what_follows_a_complete_object_changes_nothing() -> None:
    growing = GrowingObject()
    assert growing.add('{"a":1}')
    assert not growing.add(" \n")
    assert not growing.add('{"b":2}')
