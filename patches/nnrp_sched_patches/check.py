"""One finding of a diagnosis."""

from typing import Literal

from msgspec import Struct


class Check(Struct, frozen=True):
    """One thing looked at."""

    name: str
    status: Literal["ok", "warning", "failed"]
    found: str
    advice: str = ""
    """What to do, or what to know."""
