"""A result as sections of lines and tables: what a terminal, Markdown and pages show alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class Markup(str):
    """Text that is HTML already. All other text is escaped."""

    __slots__ = ()


class Link(str):
    """Text that a page links to the nodes which a search for `words` finds."""

    words: str

    def __new__(cls, text: str, words: str) -> Link:
        made = super().__new__(cls, text)
        made.words = words
        return made


NOTHING = Markup("")


@dataclass(frozen=True)
class Section:
    """Lines of text, and a table below them where it has rows. Columns whose names begin with > are aligned to the right.

    A page shows `figure` between the lines and the table; other views leave it out.
    """

    title: str
    lines: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    figure: Markup = NOTHING
