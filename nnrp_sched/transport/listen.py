"""Listening on an endpoint."""

from collections.abc import Awaitable, Callable

from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.endpoint import Endpoint


class Listener:
    """An endpoint that takes connections."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens, with the port the system chose."""
        raise NotImplementedError

    async def serve(self, handler: Callable[[Carrier], Awaitable[None]]) -> None:
        """Run `handler` for each connection until closed or cancelled."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Stop listening; running handlers go on."""
        raise NotImplementedError


async def listen(endpoint: Endpoint) -> Listener:
    """Bind an endpoint."""
    raise NotImplementedError
