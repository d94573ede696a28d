"""A result as sections of lines and tables, which the terminal, Markdown and pages all show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Markup(str):
    """Text that is HTML. All other text is escaped."""

    __slots__ = ()


class Link(str):
    """Text that a page links to the nodes found by a search for `words`."""

    words: str

    def __new__(cls, text: str, words: str) -> Link:
        made = super().__new__(cls, text)
        made.words = words
        return made


class Toned(str):
    """Text of which terminals show `part` in a color."""

    part: str
    tone: str

    def __new__(cls, text: str, part: str, tone: str) -> Toned:
        made = super().__new__(cls, text)
        made.part, made.tone = part, tone
        return made


Fact = tuple[str, str]
"""A label and its value, such as nodes and their number. An empty label continues the fact before."""

NOTHING = Markup("")


class Section(NamedTuple):
    """Lines of text, and a table below them if there are rows. Columns whose names begin with > are aligned to the right.

    A page shows `figure` between the lines and the table; other views leave it out.
    """

    title: str
    lines: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    figure: Markup = NOTHING
    is_good: bool | None = None
    """The verdict in the title, if it has one. A terminal shows a good one in green and a bad one in red."""


def first_rows(title: str, rows: Sequence[T], most: int | None, what: str = "") -> tuple[str, Sequence[T]]:
    """The title of a table and its first rows, all without a limit. If some are left out, the title states the numbers, followed by
    `what`.
    """
    if most is None or len(rows) <= most:
        return title, rows
    return f"{title}, the first {most} of {len(rows)}{what}", rows[:most]
