"""The names of a model's values and nodes."""

from __future__ import annotations


class Names(set[str]):
    """The names in use. A name from `fresh` differs from all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """Return a name like `hint` that is not in use, and reserve it."""
        name = hint = hint or "value"
        if hint in self:
            n = self._last.get(hint, 0) + 1
            while (name := f"{hint}_{n}") in self:
                n += 1
            self._last[hint] = n
        self.add(name)
        return name
