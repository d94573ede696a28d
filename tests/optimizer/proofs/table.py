"""The verdict on every rewrite: what its golden cases prove. docs/proofs.json keeps it for docs/passes.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from math import floor, inf
from pathlib import Path

from golden import cases

from ortconv.optimizer.catalog import entries, find

from .prove import Step, prove

PATH = Path(__file__).parents[3] / "docs" / "proofs.json"

LEAST_DIGITS = 5
"""Constants of half precision, rounded once, leave at least so many. A rewrite with less is APPROXIMATE, or wrong."""

APPROXIMATE = {
    "AttentionFusion": "scores below a mask of about -3e38, which float32 absorbs",
    "BiasQuantization": "a bias in steps of the integer sum",
    "GeluApproximation": "Gelu by tanh",
    "LossyCastChainElimination": "a rounding less",
    "Float16ToFloat32": "roundings less",
    "RoundedNormFusion": "a rounding less",
    "WeightBiasQuantization": "weights as int8",
}
"""Rewrites that change results by more than the rounding of constants, and by what."""

OF_SHAPES = "ShapePropagation"
"""It changes types and no node. Its shapes are held against those of the values, before and after every rewrite."""


@cache
def steps() -> tuple[Step, ...]:
    """The proofs of all golden cases that fire."""
    return tuple(step for case in cases() if case.fires for step in prove(case))


def verdict(name: str, found: Iterable[Step]) -> str:
    """The verdict on a rewrite by the steps that it made."""
    if name == OF_SHAPES:
        return "its shapes hold in every proof"
    mine = [s for s in found if name in {find(rule).name for rule in s.rules}]
    if not mine:
        return "not proved: no golden case"
    digits, apart = min(s.digits for s in mine), max(s.steps for s in mine)
    if digits == inf and not apart:
        return "exactly"
    if name in APPROXIMATE:
        return f"approximate by design, {max(digits, 0):.1f} digits: {APPROXIMATE[name]}"
    if apart or digits < LEAST_DIGITS:
        return f"not proved: {digits:.1f} digits, {apart} steps"
    return f"to {floor(digits)} digits"


def table() -> dict[str, str]:
    """The verdict on each rewrite, in the order of the catalog."""
    return {entry.name: verdict(entry.name, steps()) for entry in entries()}


def stored() -> dict[str, str]:
    found: dict[str, str] = json.loads(PATH.read_text("utf-8"))
    return found


def store() -> None:
    PATH.write_text(json.dumps(table(), indent=1) + "\n", "utf-8")
