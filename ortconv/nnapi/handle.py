"""The base of every object of the API: a context manager that can be closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, ParamSpec, Self, TypeVar

from ortconv.nnapi.arguments import checked
from ortconv.nnapi.tracing.timing import mark, ndk_name, timed

P = ParamSpec("P")
R = TypeVar("R")


def api(phase: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of API functions: it checks their arguments, and marks calls with a phase of the trace."""
    return lambda function: timed(phase)(checked(function))


class Handle:
    """An object of the API. The end of its `with` block closes it. Closing it twice is not an error."""

    api_name: ClassVar[str] = ""
    """The name in the NDK, if it differs from that of the class."""

    def close(self) -> None:
        """Free the object. Other objects that use it keep its data."""
        with mark("LR", "PT", ndk_name(f"{self.api_name or type(self).__name__}.close")):
            self._free()

    @property
    def is_in_use(self) -> bool:
        """True if the object is in use, so that `close` has no effect."""
        return False

    def _free(self) -> None:
        """Release the resources of the object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
