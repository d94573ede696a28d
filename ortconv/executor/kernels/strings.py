"""Operators on strings: object arrays of str."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortconv.executor.kernels.registry import kernel
from ortconv.ir.tensor import Array

_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@kernel("StringNormalizer")
def string_normalizer(
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] = (),
) -> Array:
    key = str if is_case_sensitive else str.lower
    stops = {key(s) for s in stopwords}
    kept = [_CASES[case_change_action](s) for s in x.reshape(-1) if key(s) not in stops] or [""]
    return np.array(kept, object).reshape([1] * (x.ndim - 1) + [len(kept)])


@kernel("StringConcat")
def string_concat(x: Array, y: Array) -> Array:
    out = np.empty(np.broadcast(x, y).shape, dtype=object)
    return np.add(x, y, out=out)


@kernel("StringSplit")
def string_split(x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Array, Array]:
    limit = -1 if maxsplit is None else maxsplit
    rows = [_split(s, delimiter or None, limit) for s in x.reshape(-1)]
    width = max(map(len, rows), default=0)
    parts = [part for row in rows for part in row + [""] * (width - len(row))]
    lengths = np.array([len(row) for row in rows], np.int64)
    return np.array(parts, object).reshape(*x.shape, width), lengths.reshape(x.shape)


def _split(text: str, delimiter: str | None, limit: int) -> list[str]:
    if delimiter is None:
        text = text.strip()
    return text.split(delimiter, limit) if text else []


@kernel("RegexFullMatch")
def regex_full_match(x: Array, *, pattern: str) -> Array:
    match: Any = re.compile(pattern).fullmatch
    return np.array([match(s) is not None for s in x.reshape(-1)], dtype=bool).reshape(x.shape)


@kernel("Tokenizer", domain="com.microsoft")
def tokenizer(
    x: Array,
    *,
    mark: int = 0,
    mincharnum: int = 1,
    pad_value: str = "",
    separators: Sequence[str] = (),
    tokenexp: str = "",
) -> Array:
    """The tokens of each text, padded to the number of the longest one: the matches of `tokenexp`, or what is between separators;
    single characters if the separator is empty. `mark` puts tokens of control characters around each text.
    """
    rows = [[t for t in _tokens(text, separators, tokenexp) if len(t) >= mincharnum] for text in x.reshape(-1)]
    rows = [["\x02", *row, "\x03"] for row in rows] if mark and any(rows) else rows
    width = max(map(len, rows), default=0)
    parts = [part for row in rows for part in (*row, *[pad_value] * (width - len(row)))]
    return np.array(parts, object).reshape(*x.shape, width)


def _tokens(text: str, separators: Sequence[str], expression: str) -> list[str]:
    if expression:
        return [match[0] for match in re.finditer(expression, text, re.ASCII)]
    if list(separators) == [""]:
        return list(text)
    parts = [text]
    for separator in separators:
        parts = [piece for part in parts for piece in _between(part, re.compile(separator, re.ASCII))]
    return parts


def _between(text: str, separator: re.Pattern[str]) -> list[str]:
    """The parts of a text between matches of a separator."""
    spans = [match.span() for match in separator.finditer(text) if match[0]]
    starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
    return [text[a:b] for a, b in zip(starts, ends)]
