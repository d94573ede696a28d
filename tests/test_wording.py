"""Numbers and counts in messages."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ortconv.files import size
from ortconv.report.labels import byte_text
from ortconv.wording import and_others, command_line, counted, installed, listed, shortened


@pytest.mark.parametrize(
    ("number", "in_tables", "in_pictures"),
    [
        (0, "0 B", "0 B"),
        (999, "999 B", "999 B"),
        (1000, "1.0 kB", "1 kB"),
        (314_000, "314.0 kB", "314 kB"),
        (999_960, "1.0 MB", "1 MB"),
        (12_345_678_901, "12.3 GB", "12.3 GB"),
    ],
)
def test_numbers_of_bytes_have_a_unit_in_which_they_are_below_1000(
    number: int, in_tables: str, in_pictures: str
) -> None:
    assert (size(number), byte_text(number)) == (in_tables, in_pictures)


def test_large_numbers() -> None:
    assert [shortened(n) for n in (7, 1_230, 4_560_000, 78e12)] == ["7", "1.2 k", "4.6 M", "78000.0 G"]


def test_nouns() -> None:
    assert (counted(1, "node"), counted(2, "node")) == ("1 node", "2 nodes")
    assert (and_others(["a"]), and_others(["a", "b", "c"])) == ("'a'", "'a' and 2 others")


@pytest.mark.parametrize(("number", "text"), [(4, "0, 1, 2, 3"), (5, "0, 1, 2, 3 and 1 more"), (0, "")])
def test_a_list_ends_with_the_number_of_the_others(number: int, text: str) -> None:
    assert listed(list(map(str, range(number))), 4) == text


def test_a_package_that_is_not_installed() -> None:
    assert installed(["numpy", "no-such-package"]) == {"numpy": np.__version__, "no-such-package": "not installed"}


@pytest.mark.parametrize(
    ("system", "line"),
    [
        ("posix", "ortconv check 'a b.onnx' --fail-on 'cosine<2' 'x\\y' 'say \"hi\"'"),
        ("nt", 'ortconv check "a b.onnx" --fail-on "cosine<2" x\\y "say \\"hi\\""'),
    ],
)
def test_a_line_for_the_shell(system: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortconv.wording.os", SimpleNamespace(name=system))
    words = ["ortconv", "check", "a b.onnx", "--fail-on", "cosine<2", "x\\y", 'say "hi"']
    assert command_line(words) == line
