"""Many small cases in one test, because a test costs more than most of them."""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
    return _batched(test, 1)


def sampled(every: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `batched`, but batches of the first case and every n-th after it come first, and those of the others are slow.

    Where each case has a test of its own, all of them are fast.
    """
    return lambda test: _batched(test, every)


def slow_except(fast: Iterable[object], values: Iterable[object]) -> list[Any]:
    """The values as parameters of a test, which is slow with all but these. Those must be among the values."""
    listed, kept = list(values), list(fast)
    assert all(value in listed for value in kept), "a fast parameter is none of the test's"
    return [value if value in kept else pytest.param(value, marks=pytest.mark.slow) for value in listed]


def thin_products(items: Iterable[pytest.Item]) -> None:
    """Mark combinations of parameters as slow, so that those left of each test have each value of each parameter."""
    tests: dict[str, list[tuple[pytest.Item, set[object]]]] = {}
    for item in items:
        values = _values(item)
        if len(values) > 1 and not item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append((item, values))
    for combinations in tests.values():
        for item in _repeating(combinations):
            item.add_marker(pytest.mark.slow)


def _values(item: pytest.Item) -> set[object]:
    """One for each parametrization of the test or of its fixtures: what it gives to this item."""
    if not hasattr(item, "callspec"):
        return set()
    left = {name: id(value) for name, value in item.callspec.params.items()}
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    rows = [[name.strip() for name in listed.split(",")] if isinstance(listed, str) else listed for listed in names]
    return {tuple((name, left.pop(name)) for name in row) for row in rows} | {*left.items()}


def _repeating(combinations: list[tuple[pytest.Item, set[object]]]) -> list[pytest.Item]:
    """The combinations without which each value still occurs, and about as often as the others."""
    left, used = [*combinations], Counter[object]()

    def news(combination: tuple[pytest.Item, set[object]]) -> tuple[int, int]:
        values = combination[1]
        return len(values - used.keys()), -sum(used[value] for value in values)

    while left:
        best = max(left, key=news)
        if best[1] <= used.keys():
            break
        left.remove(best)
        used.update(best[1])
    return [item for item, _ in left]


def _batched(test: Callable[..., None], every: int) -> Callable[..., None]:
    if SIZE == 1:
        return test
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    tables = [list(_rows(mark)) for mark in marks if mark.name == "parametrize"]
    cases = [
        Case(", ".join(row.name for row in rows), dict(chain.from_iterable(row.arguments.items() for row in rows)))
        for rows in product(*reversed(tables))
    ]
    fast = cases[::every]
    cases = [*fast, *(case for i, case in enumerate(cases) if i % every)]

    def run(batch: range, **fixtures: object) -> None:
        run_cases(test, [cases[i] for i in batch], **fixtures)

    own = inspect.signature(test).parameters.values()
    others = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.name not in cases[0].arguments]
    described: Any = wraps(test)(run)
    described.__signature__ = inspect.Signature(
        [inspect.Parameter("batch", inspect.Parameter.POSITIONAL_OR_KEYWORD), *others]
    )
    described.pytestmark = [mark for mark in marks if mark.name != "parametrize"]
    batches = [
        pytest.param(range(i, min(i + SIZE, stop)), id=f"{i}-{min(i + SIZE, stop) - 1}", marks=own_marks)
        for start, stop, own_marks in ((0, len(fast), []), (len(fast), len(cases), [pytest.mark.slow]))
        for i in range(start, stop, SIZE)
    ]
    return pytest.mark.parametrize("batch", batches)(run)


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
