"""`nnrp-sched-control/1`: this project's own requests, on the same wire mapping as the profile.

Level 1 of the profile never depends on them (design, decision 10).
"""

from collections.abc import Callable
from typing import Any

from nnrp_sched.engine.port import Engine
from nnrp_sched.profile import (
    CONTROL_SCHEMA,
    Completed,
    Extension,
    capability_document,
    encode_event,
    parse_control,
)

CONTROL_EXTENSION = Extension(
    name=CONTROL_SCHEMA,
    critical=False,
    description="requests of nnrp-sched, such as capabilities.get for this document",
)


def capabilities(engine: Engine) -> dict[str, Any]:
    """The capability document of what `engine` serves, as plain JSON values."""
    description = engine.description
    document = capability_document(
        description.models, tool_calls=description.tool_calls, extensions=(CONTROL_EXTENSION,)
    )
    return document.to_builtins()


OPERATIONS: dict[str, Callable[[Engine], dict[str, Any]]] = {"capabilities.get": capabilities}
"""What can be asked, and what answers it."""


def answer(document: bytes, engine: Engine) -> bytes | None:
    """The terminal document for a control request; None when the document is not one.

    Raises `ProfileError` for a control request that cannot be served.
    """
    request = parse_control(document, frozenset(OPERATIONS))
    if request is None:
        return None
    return encode_event(Completed(body=OPERATIONS[request.operation](engine)))
