"""A bounded memory of keys."""

from collections import OrderedDict


class RecentKeys:
    """Remembers the last `limit` keys added; older ones are forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: int) -> None:
        """Remember a key, forgetting the oldest one over the limit."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._limit:
            self._keys.popitem(last=False)

    def discard(self, key: int) -> None:
        """Forget a key."""
        self._keys.pop(key, None)
