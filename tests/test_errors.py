"""Errors keep their cause when they get a location."""

from __future__ import annotations

import pytest

from ortconv.errors import FormatError, located


def test_a_located_error_keeps_its_cause() -> None:
    with pytest.raises(FormatError, match=r"a\.ort: no magic number") as caught, located("a.ort"):
        raise FormatError("no magic number") from EOFError("0 bytes")
    assert isinstance(caught.value.__cause__, EOFError)


def test_a_located_error_keeps_the_first_file() -> None:
    with pytest.raises(FormatError, match=r"^inner\.ort: ") as caught, located("outer.toml"):
        raise FormatError("no magic number", file="inner.ort")
    assert caught.value.file == "inner.ort"
