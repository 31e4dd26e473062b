"""Docstrings, taken apart."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched_orchestrator.docstring import documented

GOOGLE = """
    Search files.

    Only text files count.

    Args:
        pattern: A regular expression,
            as grep has it.
        path (str): Where to begin.

    Returns:
        The lines.
    """
SPHINX = """
    Search files.

    Only text files count.

    :param pattern: A regular expression,
        as grep has it.
    :param str path: Where to begin.
    :returns: The lines.
    """
NUMPY = """
    Search files.

    Only text files count.

    Parameters
    ----------
    pattern : str
        A regular expression,
        as grep has it.
    path : str, optional
        Where to begin.

    Returns
    -------
    str
        The lines.
    """


@pytest.mark.parametrize("text", [GOOGLE, SPHINX, NUMPY], ids=["google", "sphinx", "numpy"])
def test_each_style_gives_the_same_description_and_parameters(text: str) -> None:
    told = documented(inspect.cleandoc(text))
    assert told.description == "Search files.\n\nOnly text files count."
    assert told.parameters == {
        "pattern": "A regular expression, as grep has it.",
        "path": "Where to begin.",
    }


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("", ""),
        ("One line.", "One line."),
        ("Note: this is a sentence.\nAnd another.", "Note: this is a sentence.\nAnd another."),
        ("Do it.\n\nReturns:\n    Something.", "Do it."),
        ("Do it.\n\nRaises:\n    KeyError: Sometimes.", "Do it."),
    ],
)
def test_without_parameters_the_description_ends_where_results_begin(
    text: str, description: str
) -> None:
    told = documented(text)
    assert (told.description, told.parameters) == (description, {})


@given(st.text(alphabet="ab:-() \n*Args", max_size=80))
def test_no_text_is_too_strange(text: str) -> None:
    told = documented(text)
    assert all(name.isidentifier() for name in told.parameters)
    assert all("\n" not in words for words in told.parameters.values())
