"""What every object of the API has in common: it is a context manager and can be closed."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Handle:
    """Leaving the `with` block closes the object. Closing twice is no error."""

    def close(self) -> None:
        """Let go of what the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
