"""Runs the cases of a plan, each on a connection of its own."""

import time
from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from nnrp_sched.conformance.capability import SCRIPTED
from nnrp_sched.conformance.case_run import run_case
from nnrp_sched.conformance.judge import judge
from nnrp_sched.conformance.peer import NO_SECURITY, connected
from nnrp_sched.conformance.recipe import EXAMPLE_MODEL, Case
from nnrp_sched.conformance.seen import Seen
from nnrp_sched.errors import ConnectionLost, PeerUnreachable
from nnrp_sched.transport import ClientSecurity, Endpoint

_FAILING_MODEL: Final = "backend-error"
"""The model that only exists to fail; a real engine has none of that name."""
_FIXTURE_MODELS: Final = frozenset({EXAMPLE_MODEL, _FAILING_MODEL, "reference-model"})


class Targets(Struct, frozen=True):
    """Where the cases run."""

    endpoint: Endpoint
    fixture: Endpoint
    """A scripted server, for what only that can be made to do; it may be the same."""
    models: tuple[str, ...] = ()
    """The models of the endpoint, when it is known."""
    security: ClientSecurity = NO_SECURITY
    """How to reach the endpoint; the fixture is on this machine and asks for nothing."""

    def of(self, case: Case) -> tuple[Endpoint, Case]:
        """Where this case runs, and the case as it runs there: the fixture has its own models."""
        if not self._needs_fixture(case):
            return self.endpoint, case
        request = case.request
        if request.body.get("model", EXAMPLE_MODEL) not in _FIXTURE_MODELS:
            body = {**request.body, "model": EXAMPLE_MODEL}
            case = replace(case, request=replace(request, body=body))
        return self.fixture, case

    def _needs_fixture(self, case: Case) -> bool:
        body = case.request.body
        model = body.get("model")
        scripted = SCRIPTED in case.required_capabilities
        fails = model == _FAILING_MODEL and model not in self.models
        # Whether a model calls a tool that it need not call says nothing about the server.
        free = "tools" in body and body.get("tool_choice", "auto") == "auto"
        return scripted or fails or free


class CaseResult(Struct, frozen=True):
    """One case, run."""

    case: Case
    outcome: Literal["passed", "failed"]
    seen: Seen
    reasons: list[str]
    """Why it failed."""
    target: str
    """The address it ran on."""


async def run_cases(
    cases: Sequence[Case],
    targets: Targets,
    *,
    seconds: float = 60.0,
    told: Callable[[CaseResult], None] = lambda _: None,
) -> list[CaseResult]:
    """Run cases one after the other; `told` hears of each as it ends.

    Each wait for the server ends after `seconds`. A case that cannot be run has failed.
    """
    results: list[CaseResult] = []
    for planned in cases:
        target, case = targets.of(planned)
        started = time.monotonic()
        seen = Seen()
        try:
            security = targets.security if target == targets.endpoint else NO_SECURITY
            async with connected(target, seconds, security) as peer:
                await run_case(case, peer, seen, seconds)
        except (ConnectionLost, PeerUnreachable) as error:
            seen.faults.append(str(error))
        seen.milliseconds = round((time.monotonic() - started) * 1000, 1)
        reasons = judge(case.expect, seen)
        outcome: Literal["passed", "failed"] = "failed" if reasons else "passed"
        results.append(CaseResult(case, outcome, seen, reasons, str(target)))
        told(results[-1])
    return results
