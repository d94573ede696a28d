"""Which tests of many cases are fast."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests import batches


class Item:
    nodeid = "test_it[...]"

    def __init__(self, params: dict[str, object]) -> None:
        self.callspec: Any = type("CallSpec", (), {"params": params})
        self.is_slow = False

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        assert name == "parametrize"
        return [pytest.mark.parametrize(("a", "b"), []).mark, pytest.mark.parametrize("c", []).mark]

    def get_closest_marker(self, name: str) -> bool:
        return self.is_slow

    def add_marker(self, mark: object) -> None:
        assert mark == pytest.mark.slow
        self.is_slow = True


def test_each_value_of_a_product_of_parameters_stays_fast() -> None:
    rows = product([("x", 1), ("x", 2), ("y", 1)], ["p", "q"], ["fixture"])
    items: list[Any] = [Item({"a": a, "b": b, "c": c, "d": d}) for (a, b), c, d in rows]
    batches.thin_products(items)
    fast = [item.callspec.params for item in items if not item.is_slow]
    assert [(p["a"], p["b"], p["c"]) for p in fast] == [("x", 1, "p"), ("x", 2, "q"), ("y", 1, "p")]


def test_rows_of_one_parametrization_stay_fast() -> None:
    items: list[Any] = [Item({"a": "x", "b": b, "c": "p"}) for b in (1, 2, 3)]
    batches.thin_products(items)
    assert not any(item.is_slow for item in items)
