"""Golden cases: golden/<level>/<module>/<case>.txt, each one model before and after the rewrites of one module.

A module in a package has its folder in the folder of that package, as extended/attention/rotary.

    # What the case is about.
    # fires: yes                    whether anything may be rewritten at all
    # feeds: special                optional: NaN, infinities and zeros of both signs among the numbers
    # run: no                       optional: onnxruntime cannot run it, or not twice the same
    # pass: NAME                    optional: only the pass of this name in the module
    # platform: amd64               optional: the platform that the result is for
    # release: 1.17                 optional: the oldest release of onnxruntime that must run the result
    # tolerance: 0                  optional: 0 demands the same bits; the default is a few units in the last place
    <ir_version: 8, ...> g (...)    the model in ONNX's text syntax
    # ---
    graph (...) -> (...)            what `ortconv.ir.text` says of the result

`UPDATE_GOLDEN=1 pytest tests/optimizer/test_golden.py` writes the last part again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

from ortconv.ir.kernels import release_named
from ortconv.ir.model import Model
from ortconv.ir.text import text
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context, PassSettings, Rule
from ortconv.optimizer.levels import STAGES, opt_in_passes, passes_of, run_passes
from ortconv.optimizer.passes import Pass, rules_of
from tests.model_inputs import drawn

ROOT = Path(__file__).parent / "golden"
SEPARATOR = "# ---\n"
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)


@dataclass(frozen=True)
class Case:
    path: Path
    header: dict[str, str]
    source: str
    expected: str

    @property
    def id(self) -> str:
        return self.path.relative_to(ROOT).with_suffix("").as_posix()

    @property
    def fires(self) -> bool:
        return self.header["fires"] == "yes"

    @property
    def tolerance(self) -> float:
        return float(self.header.get("tolerance", "1e-5"))

    def proto(self) -> onnx.ModelProto:
        return onnx.parser.parse_model(self.source)

    def passes(self) -> tuple[Pass, ...]:
        module = ".".join(self.path.parent.relative_to(ROOT).parts)
        if "pass" in self.header:
            return (pass_in(module, self.header["pass"]),)
        return passes_in(module)

    def context(self, limit: int | None = None) -> Context:
        release = self.header.get("release")
        return Context(
            PassSettings(
                limit=limit,
                release=None if release is None else release_named(release),
                target_platform=self.header.get("platform"),
            )
        )

    def update(self, result: str) -> None:
        before = self.path.read_text("utf-8").split(SEPARATOR)[0]
        self.path.write_text(before + SEPARATOR + result, "utf-8")


@cache
def passes_in(module: str) -> tuple[Pass, ...]:
    """The passes of a module, as "basic.cse", or of a package with a table.

    Those that run only on request are only included if there are no others. Other rules of a module are one pass.
    """
    found = importlib.import_module(f"ortconv.optimizer.{module}")
    if hasattr(found, "PASSES"):
        return tuple(found.PASSES)
    rules = _rules(module)
    passes = _rows(module, rules, passes_of) or _rows(module, rules, opt_in_passes)
    alone = tuple(r for r in rules if not any(r in p.rules for p in passes))
    return ((Pass(module, alone),) if alone else ()) + passes


@cache
def pass_in(module: str, name: str) -> Pass:
    """The only pass of a module with this name, even if it runs only on request."""
    rules = _rules(module)
    rows = (*_rows(module, rules, passes_of), *_rows(module, rules, opt_in_passes))
    (found,) = (p for p in rows if p.name == name)
    return found


def _rules(module: str) -> tuple[Rule, ...]:
    """The rules of a module: its RULES or, unless passes name only parts of it, all."""
    found = importlib.import_module(f"ortconv.optimizer.{module}")
    rules = rules_of(found)
    passes = [p for stage in STAGES for p in (*passes_of(stage), *opt_in_passes(stage))]
    in_parts = any(isinstance(p.source, str) and p.source.startswith(f"{module}:") for p in passes)
    together = hasattr(found, "RULES") or any({*rules} <= {*p.rules} for p in passes)
    return rules if together or not in_parts else ()


def _rows(module: str, rules: Sequence[Rule], table: Callable[[str], tuple[Pass, ...]]) -> tuple[Pass, ...]:
    """The rows of the levels that name a part of the module, or that consist of some of its rules."""
    return tuple(
        dict.fromkeys(
            p
            for stage in STAGES
            for p in table(stage)
            if (p.source.split(":")[0] == module if isinstance(p.source, str) else {*p.rules} <= {*rules})
        )
    )


def read(path: Path) -> Case:
    before, _, expected = path.read_text("utf-8").partition(SEPARATOR)
    lines = before.splitlines(keepends=True)
    comments = [line[2:].strip() for line in lines if line.startswith("# ")]
    header = dict(line.split(": ", 1) for line in comments if ": " in line and " " not in line.split(": ")[0])
    assert header.get("fires") in ("yes", "no"), f"{path} needs a line '# fires: yes' or '# fires: no' before the model"
    return Case(path, header, "".join(line for line in lines if not line.startswith("#")), expected)


@cache
def cases() -> tuple[Case, ...]:
    return tuple(read(path) for path in sorted(ROOT.rglob("*.txt")))


@cache
def repeatable() -> list[onnx.ModelProto]:
    """The models of all cases, except those that draw random numbers."""
    return [case.proto() for case in cases() if not any(word in case.id for word in ("dropout_training", "random"))]


def optimize(model: Model, passes: tuple[Pass, ...], context: Context | None = None) -> Context:
    """Run the passes to a fixpoint, verifying the graph after each of them."""
    context = context or Context()
    for _ in run_passes(model.graph, passes, context):
        verify(model.graph)
    return context


def optimized(case: Case) -> tuple[Model, Context]:
    model = from_proto(case.proto())
    context = optimize(model, case.passes(), case.context())
    model.graph.prune()
    return model, context


def dump(model: Model) -> str:
    return text(model.graph)


def feeds(proto: onnx.ModelProto, seed: int, *, special: bool) -> dict[str, np.ndarray]:
    """Random values for the inputs; some of them special, if wanted. All symbols have the same size."""

    def numbers(rng: np.random.Generator, shape: list[int], dtype: np.dtype[Any]) -> np.ndarray:
        if dtype.kind in "iu":
            return rng.integers(0 if dtype.kind == "u" else -5, 6, shape)
        array = np.asarray(rng.normal(size=shape) * 2)
        if special and array.size:
            where = rng.choice(array.size, max(1, array.size // 4), replace=False)
            array.reshape(-1)[where] = rng.choice(SPECIAL, len(where))
        return array

    return drawn(proto, numbers, seed)
