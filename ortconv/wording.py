"""Small parts of sentences that many messages share."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """A number with its noun, which has a plural in -s: "1 node", "2 nodes"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def and_others(names: Sequence[str]) -> str:
    """The first name in quotes, and the number of the others."""
    return f"'{names[0]}'" + (f" and {counted(len(names) - 1, 'other')}" if len(names) > 1 else "")
