"""The optimizer's pipeline as text: what is printed runs the same passes again, and mistakes are named with their line."""

from __future__ import annotations

import pytest

from ortconv.choices import LEVELS
from ortconv.errors import UsageError
from ortconv.optimizer import catalog, recipe
from ortconv.optimizer.levels import STAGES, passes_of
from ortconv.optimizer.recipe import Recipe
from tests.batches import batched


def passes(r: Recipe) -> list[tuple[str, str, tuple[object, ...]]]:
    """What runs: stage, pass, and its rules."""
    return [(stage, p.name, p.rules or (p,)) for stage, group in r.stages.items() for p in group]


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_comes_back_as_it_was(level: str) -> None:
    chosen = recipe.make(level)
    again = recipe.parse(recipe.text(chosen))
    assert again == chosen
    assert [p for group in again.stages.values() for p in group] == [
        p for stage in STAGES if stage in again.stages for p in passes_of(stage)
    ]


def test_what_was_chosen_comes_back_as_it_was() -> None:
    enabled = [entry.name for entry in catalog.entries() if entry.opt_in]
    chosen = recipe.make(enable=enabled, disable=["EliminateSlice", "ConstantFolding"], fold_limit=1000, stop_after=7)
    text = recipe.text(chosen)
    again = recipe.parse(text)
    assert passes(again) == passes(chosen)
    assert recipe.text(again) == text
    assert (again.fold_limit, again.stop_after) == (1000, 7)
    assert not again.repairs
    running = {name for group in again.stages.values() for p in group for name in recipe.names_of(p)}
    assert running >= set(enabled)
    assert not {"EliminateSlice", "ConstantFolding"} & running


def test_only_some_rules() -> None:
    chosen = recipe.make(only=["ConvAddFusion", "GeluApproximation"])
    assert [(stage, name) for stage, name, _ in passes(chosen)] == [
        ("basic", "Level1Rules"),
        ("extended", "GeluApproximation"),
    ]
    assert passes(recipe.parse(recipe.text(chosen))) == passes(chosen)


def test_the_order_of_the_lines_is_the_order_of_the_passes() -> None:
    text = """
        basic:
          ConstantFolding     # before everything else
          Level1Rules:
            EliminateSlice
            EliminateIdentity
          # CommonSubexpressionElimination
          UnusedNodeElimination
    """
    text = "\n".join(line[8:] for line in text.splitlines())
    chosen = recipe.parse(text)
    assert [name for _, name, _ in passes(chosen)] == ["ConstantFolding", "Level1Rules", "UnusedNodeElimination"]
    assert [r.name for r in passes(chosen)[1][2]] == ["EliminateSlice", "EliminateIdentity"]  # type: ignore[attr-defined]
    again = recipe.text(chosen)
    assert passes(recipe.parse(again)) == passes(chosen)
    assert recipe.text(recipe.parse(again)) == again


def test_passes_of_one_name_are_told_apart() -> None:
    whole = recipe.make("basic")
    twins = [p for p in whole.basic if p.name == "MatMulAddFusion"]
    assert len(twins) == 2
    assert list(recipe.parse("level basic\nbasic:\n  MatMulAddFusion#2\n").basic) == twins[1:]


@batched
@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("basic:\n  ConstantFoldin\n", "line 2: there is no pass of level basic 'ConstantFoldin'", "ConstantFolding"),
        ("basic:\n  GeluApproximation\n", "line 2: there is no pass of level basic", None),
        ("level basic\nbasic:\n  Level1Rules:\n    EliminatSlice\n", "line 4: there is no rule of Level1Rules", "EliminateSlice"),
        ("basic:\n  Level1Rules:\n", "line 2: no rule follows 'Level1Rules:'", "leave out the line"),
        ("basic:\n  ConstantFolding:\n    EliminateSlice\n", "line 2: no rule follows", None),
        ("basic:\n    EliminateSlice\n", "line 2: rule 'EliminateSlice' stands in no pass", "colon"),
        ("  ConstantFolding\n", "line 1: 'ConstantFolding' stands in no level", "basic:"),
        ("basic:\n  ConstantFolding\n  ConstantFolding\n", "line 3: 'ConstantFolding' stands here twice", None),
        ("basic:\n\nbasic:\n", "line 3: 'basic' stands here twice", None),
        ("basi:\n", "line 1: there is no level 'basi'", "basic"),
        ("level basic\nextended:\n  GeluFusion\n", "line 3: level basic has no passes of level extended", "all"),
        ("level most\n", "line 1: there is no level 'most'", None),
        ("fold_limit 5\n", "line 1: there is no setting 'fold_limit'", "fold-limit"),
        ("fold-limit lots\n", "line 1: fold-limit takes a number, got 'lots'", None),
        ("stop-after -1\n", "line 1: stop-after takes a number, got '-1'", None),
        ("repairs ReluToMax Relu\n", "line 1: there is no repair 'Relu'", "ReluToMax"),
        ("version 0.0.0\n", "line 1: written by ortconv 0.0.0", "delete the line"),
        ("basic:\n\tConstantFolding\n", "line 2: lines are indented", None),
        ("basic:\n   ConstantFolding\n", "line 2: lines are indented", None),
    ],
)  # fmt: skip
def test_mistakes(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        recipe.parse(text)
    assert message in str(caught.value)
    assert hint is None or hint in (caught.value.hint or "")


def test_repairs_come_back() -> None:
    chosen = recipe.make("basic", disable=["ReluToMax"], nnapi=True)
    assert chosen.repairs == tuple(name for name in recipe.NNAPI_REPAIRS if name != "ReluToMax")
    assert recipe.parse(recipe.text(chosen)).repairs == chosen.repairs
    assert not recipe.make("disable", nnapi=True).repairs


def test_a_size_may_have_a_unit() -> None:
    assert recipe.parse("fold-limit 64M").fold_limit == 64 << 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable": ["ConstantFolding"]}, "runs without being enabled"),
        ({"enable": ["GeluAproximation"]}, "there is no pass"),
        ({"disable": ["Level1Rules"]}, "'Level1Rules' is a group of passes"),
        ({"level": "basic", "enable": ["GeluApproximation"]}, "which level basic does not run"),
        ({"level": "most"}, "is not one of"),
    ],
)
def test_choices_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe.make(**options)  # type: ignore[arg-type]
