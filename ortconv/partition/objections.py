"""Reasons why a node is not assigned to an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Objection(NamedTuple):
    """One reason against a node: a stable rule id, a message with the limit and the actual value, and advice."""

    rule: str
    message: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.advice})" if self.advice else self.message


Objections = Iterator[Objection]
"""The result of a support rule; without objections, the node is supported."""
