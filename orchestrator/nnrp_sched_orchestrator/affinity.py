"""Which endpoint a conversation belongs to, so that it finds its prefix cache again."""

from collections import OrderedDict


class Affinity:
    """The endpoints of keys; those unused for longest are forgotten."""

    def __init__(self, limit: int) -> None:
        """Remember up to `limit` keys."""
        self._limit = limit
        self._endpoints: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._endpoints)

    def of(self, key: str | None) -> str | None:
        """Where a key belongs; None for one that belongs nowhere yet."""
        return None if key is None else self._endpoints.get(key)

    def settle(self, key: str | None, endpoint: str) -> None:
        """A call of a key went to an endpoint."""
        if key is not None:
            self._endpoints[key] = endpoint
            self._endpoints.move_to_end(key)
            if len(self._endpoints) > self._limit:
                self._endpoints.popitem(last=False)
