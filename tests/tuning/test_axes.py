"""The candidates: which combinations there are, and what each means for a conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ortconv.choices import GOALS
from ortconv.cli import cli
from ortconv.cli.tune import AXES as SHOWN
from ortconv.errors import UsageError
from ortconv.optimizer.levels import opt_in_passes
from ortconv.pipeline.options import Options
from ortconv.tuning.axes import AXES, CONVERSION, NONE, OPT_IN, Form, chosen, command, file_name, forms
from ortconv.tuning.ranking import GOALS as RANKINGS


def of(**only: tuple[str, ...]) -> list[Form]:
    return forms(chosen(only, 4))


def test_names_stand_once() -> None:
    assert tuple(AXES) == tuple(SHOWN.split(", "))
    assert tuple(RANKINGS) == GOALS


@pytest.mark.parametrize("name", AXES)
def test_what_is_tried_is_a_value_and_the_usual_one_is_among_it(name: str) -> None:
    assert set(AXES[name].tried) <= set(AXES[name].values)
    assert AXES[name].values[0] in AXES[name].tried


def test_a_plain_form_is_a_plain_conversion() -> None:
    assert Form().unusual == {}
    assert Form().options(Options()) == Options(write_config=False)
    assert command("m.onnx", Form(), {}) == "ortconv convert m.onnx"


def test_the_plainest_come_first_and_each_makes_sense() -> None:
    found = of()
    assert found[0] == Form()
    assert len(set(found)) == len(found)
    assert [len(form.unusual) for form in found] == sorted(len(form.unusual) for form in found)
    for form in found:
        form.options(Options())


COUNTS: list[tuple[dict[str, tuple[str, ...]], int]] = [
    ({"level": ("basic",), "aware": ("none",), "platform": ("any",), "ort": ("default",)}, 1),
    ({"level": ("all",), "aware": ("none",), "platform": ("any",), "ort": ("default",)}, 2),
    ({"level": ("all", "basic"), "aware": ("nnapi",), "platform": ("any",), "ort": ("default",)}, 5),
    ({"level": ("all",), "aware": ("none", "coreml"), "platform": ("any", "arm"), "ort": ("default",)}, 12),
]


@pytest.mark.parametrize(("only", "count"), COUNTS)
def test_counts(only: dict[str, tuple[str, ...]], count: int) -> None:
    assert len(of(**only)) == count


FLAGS = [
    (Form("basic"), "--optimization-level basic"),
    (Form(aware="nnapi", offload="yes"), "--use-nnapi --maximize-offload"),
    (
        Form("extended", "Runtime", platform="arm"),
        "--optimization-level extended --optimization-style Runtime --target-platform arm",
    ),
    (Form(ort="1.18", float16="yes"), "--target-ort 1.18 --float16"),
    (Form(opt_in="GeluApproximation"), "--enable-pass GeluApproximation"),
]


@pytest.mark.parametrize(("form", "flags"), FLAGS)
def test_the_command_makes_the_form(form: Form, flags: str) -> None:
    assert command("m.onnx", form, {}) == f"ortconv convert m.onnx {flags}"
    convert: Any = cli.get_command(None, "convert")  # type: ignore[arg-type]
    given = convert.make_context("convert", [__file__, *flags.split()]).params
    options = form.options(Options())
    assert given["optimization_level"] == options.optimization_level
    assert given["styles"][-1] == options.optimization_style
    for name in (
        "use_nnapi",
        "use_coreml",
        "maximize_offload",
        "target_platform",
        "target_ort",
        "float16",
        "enable_passes",
    ):
        assert given[name] == getattr(options, name), name


def test_every_rewrite_for_the_cpu_on_request_can_be_tried() -> None:
    assert set(OPT_IN) == {p.name for p in opt_in_passes("extended")}
    assert Form(opt_in=OPT_IN[0]).options(Options(enable_passes=("PadSeparation",))).enable_passes == (
        "PadSeparation", OPT_IN[0],
    )  # fmt: skip


def test_further_options_go_with_their_accelerator() -> None:
    more = {"": ["--fix-dim", "n=1"], "nnapi": ["--nnapi-feature-level", "29"], "coreml": ["--coreml-version", "6"]}
    assert command("m.onnx", Form(aware="nnapi"), more) == (
        "ortconv convert m.onnx --use-nnapi --nnapi-feature-level 29 --fix-dim n=1"
    )
    assert command("m.onnx", Form(), more) == "ortconv convert m.onnx --fix-dim n=1"


def test_files_have_names_of_their_own() -> None:
    every = of(**{name: axis.values for name, axis in CONVERSION.items()} | {"opt_in": (NONE, OPT_IN[0])})
    names = {file_name(Path("m.onnx"), form) for form in every}
    assert len(names) == len(every)
    assert "m.all.ort" in names


WRONG = [
    ({"levl": ("all",)}, "there is no axis 'levl'", "did you mean level?"),
    ({"level": ("basick",)}, "axis level has no value 'basick'", "did you mean basic?"),
    ({"threads": ("0",)}, "axis threads has no value '0'", ""),
    ({"level": ("disable",), "offload": ("yes",)}, "no candidate is left", "allow more values"),
]


@pytest.mark.parametrize(("only", "message", "hint"), WRONG)
def test_wrong_choices(only: dict[str, tuple[str, ...]], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        of(**only)
    assert hint in (caught.value.hint or "")


def test_threads_are_no_more_than_cores() -> None:
    assert chosen({}, 2)["threads"] == ("1", "2")
    assert chosen({}, 1)["threads"] == ("1",)
    assert chosen({"threads": ("8",)}, 2)["threads"] == ("8",)
