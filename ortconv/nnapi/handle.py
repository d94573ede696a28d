"""What every object of the API has in common: it is a context manager and can be closed."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, ParamSpec, Self, TypeVar

from ortconv.nnapi.arguments import checked
from ortconv.nnapi.timing import mark, ndk_name, timed

P = ParamSpec("P")
R = TypeVar("R")


def api(phase: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function of the API: its arguments are checked, its calls are marked with a phase."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return timed(phase)(checked(function))

    return decorate


class Handle:
    """Leaving the `with` block closes the object. Closing twice is no error."""

    api_name: ClassVar[str] = ""
    """In the NDK; the name of the class where this is empty."""

    def close(self) -> None:
        """Free the object. What is in use elsewhere lives on there."""
        with mark("LR", "PT", ndk_name(f"{self.api_name or type(self).__name__}.close")):
            self._free()

    @property
    def is_in_use(self) -> bool:
        """Whether `close` left the object as it was."""
        return False

    def _free(self) -> None:
        """Let go of what the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
