"""Calls without a detour: what a function of arrays calls of numpy, for arrays that stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Call = tuple[Callable[..., Any], tuple[Any, ...]]

_F = TypeVar("_F", bound=Callable[..., Any])


def with_direct(direct: Callable[..., Call]) -> Callable[[_F], _F]:
    """A function together with the one that makes, of its operands, the call that it comes down to."""

    def decorate(function: _F) -> _F:
        function.direct = direct  # type: ignore[attr-defined]
        return function

    return decorate


def direct_call(function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    """The call that a call comes down to."""
    direct = getattr(function, "direct", None)
    return (function, args) if direct is None else direct(*args)
