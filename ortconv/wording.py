"""Small parts of sentences that many messages share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun, or another phrase, whose plural ends in -s by default: "1 node", "2 nodes"."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def escaped(text: str, kept: str = "") -> str:
    """The text with control characters escaped, except those in `kept`. Names of files and models may have any."""
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def listed(names: Sequence[str], most: int) -> str:
    """The first names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def installed(packages: Iterable[str]) -> dict[str, str]:
    """The versions of packages; "not installed" for one that is missing."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = NOT_INSTALLED
    return found


NOT_INSTALLED = "not installed"

BYTES = ("B", "kB", "MB", "GB")


def scaled(number: float, units: Sequence[str]) -> tuple[float, str]:
    """A number in the first unit in which it rounds to less than 1000, else in the last. Each unit is 1000 of the one before."""
    value, (unit, *larger) = float(number), units
    for next_unit in larger:
        if value < 999.5:
            break
        value, unit = value / 1000, next_unit
    return value, unit


def shortened(number: float) -> str:
    """A large number for people: 950, 1.2 k, 3.4 M."""
    value, unit = scaled(number, ("", " k", " M", " G"))
    return f"{value:.1f}{unit}" if unit else f"{number:g}"


def tally(counts: dict[str, int], most: int = 6) -> str:
    """The first of these names with their counts, in one line."""
    shown = [f"{name} x{count}" if count > 1 else name for name, count in list(counts.items())[:most]]
    return ", ".join(shown) + (f", and {len(counts) - most} more" if len(counts) > most else "")


def and_others(names: Sequence[str]) -> str:
    """The first name in quotes, and the number of the others."""
    return f"'{names[0]}'" + (f" and {counted(len(names) - 1, 'other')}" if len(names) > 1 else "")


def fix_dim_options(names: Iterable[str], size: str = "SIZE") -> str:
    """The options that set these dimensions, in the syntax of a shell."""
    return " ".join(command_line(["--fix-dim", f"{name}={size}"]) for name in names)


def count_as_one(dims: Sequence[str]) -> list[str]:
    """A line that states which dimensions have no size, or none."""
    return [f"free dimensions count as 1: {', '.join(dims)}; --fix-dim sets their sizes"] if dims else []


def command_line(words: Sequence[str]) -> str:
    """Words as a line for the system's shell."""
    if os.name == "posix":
        from shlex import join

        return join(words)
    from subprocess import list2cmdline

    return " ".join(
        f'"{word}"' if re.fullmatch(r'[^\s"]*[&|<>^()][^\s"]*', word) else list2cmdline([word]) for word in words
    )
