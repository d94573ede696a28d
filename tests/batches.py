"""Many small cases in one test, because a test costs more than most of them."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_BATCH_ID = re.compile(r"\[\d+-\d+\]$")

SIZE = int(os.environ.get("BATCH", "64"))
"""Cases in one test. With 1, each has a test of its own, with its own name: `BATCH=1 pytest`, or see `select_by_name`."""


def select_by_name(config: pytest.Config) -> None:
    """One case per test where tests are selected by `-k` or a node id, unless that is the id of a batch."""
    global SIZE
    ids = [arg for arg in config.args if "::" in arg]
    if "BATCH" not in os.environ and (config.option.keyword or (ids and not any(_BATCH_ID.search(i) for i in ids))):
        SIZE = 1


class Case(NamedTuple):
    name: str
    arguments: dict[str, object]


def batched(test: Callable[..., None]) -> Callable[..., None]:
    """Run the cases of a parametrized test `SIZE` at a time. All of them run; a failure names each case that fails.

    The cases of a batch share the values of other fixtures, except `tmp_path`: each case has its own folder.
    """
    if SIZE == 1:
        return test
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    tables = [list(_rows(mark)) for mark in marks if mark.name == "parametrize"]
    cases = [
        Case(", ".join(row.name for row in rows), dict(chain.from_iterable(row.arguments.items() for row in rows)))
        for rows in product(*reversed(tables))
    ]

    def run(batch: range, **fixtures: object) -> None:
        run_cases(test, [cases[i] for i in batch], **fixtures)

    own = inspect.signature(test).parameters.values()
    others = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.name not in cases[0].arguments]
    described: Any = wraps(test)(run)
    described.__signature__ = inspect.Signature(
        [inspect.Parameter("batch", inspect.Parameter.POSITIONAL_OR_KEYWORD), *others]
    )
    described.pytestmark = [mark for mark in marks if mark.name != "parametrize"]
    batches = [range(i, min(i + SIZE, len(cases))) for i in range(0, len(cases), SIZE)]
    return pytest.mark.parametrize("batch", batches, ids=[f"{b.start}-{b.stop - 1}" for b in batches])(run)


def _rows(mark: pytest.Mark) -> Iterator[Case]:
    names, values, *rest = mark.args
    assert not rest
    assert not set(mark.kwargs) - {"ids"}
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    ids = mark.kwargs.get("ids")
    for i, value in enumerate(values):
        given = value if hasattr(value, "marks") else pytest.param(*(value if len(listed) > 1 else [value]))
        assert not given.marks, "a batch has the marks of its test, its cases have none"
        arguments = dict(zip(listed, given.values, strict=True))
        name = given.id or (", ".join(map(str, map(ids, given.values))) if callable(ids) else ids[i] if ids else None)
        yield Case(str(name or ", ".join(f"{n}={v!r:.80}" for n, v in arguments.items())), arguments)


def run_cases(test: Callable[..., None], cases: list[Case], **fixtures: object) -> None:
    """Run a test with the arguments of each case. All of them run; a failure names each case that fails."""
    failed: list[BaseException] = []
    skipped = []
    folder = fixtures.get("tmp_path")
    for i, case in enumerate(cases):
        if isinstance(folder, Path):
            fixtures["tmp_path"] = folder / str(i)
            (folder / str(i)).mkdir()
        try:
            test(**case.arguments, **fixtures)
        except pytest.skip.Exception as reason:
            skipped.append(reason)
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"case {case.name}")
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {len(cases)} cases", failed)
    if skipped and len(skipped) == len(cases):
        raise skipped[0]
