"""The candidates of a tuning: a table of axes, and the options of `convert` for a combination of their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path

from ortconv.choices import LEVELS, PLATFORMS, STYLES, TARGETS
from ortconv.errors import UsageError, known_names
from ortconv.ir.kernels import releases
from ortconv.pipeline.options import Options
from ortconv.wording import command_line

ABOVE_BASIC = LEVELS[2:]
"""The levels that make fusions for the CPU, so that Runtime style and awareness of an accelerator matter."""

ANY, NONE, DEFAULT = "any", "none", "default"

OPT_IN = (
    "GeluApproximation",
    "MatMulNBitsAccuracyLevel4",
    "QDQS8ToU8Shared",
    "RoundedNormFusion",
    "SkipLayerNormFusion",
    "Avx2WeightS8ToU8Transformer",
)
"""The rewrites for the CPU that run only on request."""


@dataclass(frozen=True, slots=True)
class TuningAxis:
    """A choice in which candidates differ. `values` are all possible ones, `tried` those that are tried by default.

    The first value is the default of `ortconv convert` or of onnxruntime.
    """

    values: tuple[str, ...]
    tried: tuple[str, ...]
    help: str


def _axis(help: str, *values: str, tried: Sequence[str] = ()) -> TuningAxis:
    return TuningAxis(values, tuple(tried or values), help)


CONVERSION = {
    "level": _axis("optimization level", *reversed(LEVELS)),
    "style": _axis("optimization style", *STYLES),
    "aware": _axis("the accelerator whose nodes stay unfused", NONE, *TARGETS),
    "offload": _axis("rewrite nodes that this accelerator refuses", "no", "yes"),
    "platform": _axis("the CPU that runs the model", ANY, *PLATFORMS, tried=(ANY, "arm")),
    "ort": _axis("oldest onnxruntime that must load it", DEFAULT, *releases(), tried=(DEFAULT, releases()[-1])),
    "float16": _axis("float16 weights and activations", "no", "yes", tried=("no",)),
    "opt_in": _axis("a rewrite that runs only on request", NONE, *OPT_IN, tried=(NONE,)),
}
"""Axes of the conversion, by the names of the fields of Form."""

SESSION = {
    "threads": _axis("threads of a node", *map(str, range(1, 65)), tried=("1", "2", "4")),
    "direct": _axis("use constants where they lie in the file's bytes", "no", "yes"),
    "saved": _axis("make the fusions that a Runtime style file holds", "yes", "no"),
}
"""Axes of the session, by the names of the fields of SessionSettings."""

AXES = {**CONVERSION, **SESSION}


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a file: one value of each axis of CONVERSION. The defaults are those of `ortconv convert`."""

    level: str = "all"
    style: str = "Fixed"
    aware: str = NONE
    offload: str = "no"
    platform: str = ANY
    ort: str = DEFAULT
    float16: str = "no"
    opt_in: str = NONE

    @property
    def unusual(self) -> dict[str, str]:
        """The values that are not the defaults of `ortconv convert`."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}

    @property
    def label(self) -> str:
        """Such as: all nnapi offload."""
        words = {"offload": "offload", "float16": "float16", "ort": f"ort {self.ort}"}
        unusual = self.unusual
        unusual.pop("level", None)
        return " ".join([self.level, *(words.get(name, value) for name, value in unusual.items())])

    @property
    def flags(self) -> list[str]:
        """The options of `ortconv convert`."""
        spelled = {
            "level": ["--optimization-level", self.level],
            "style": ["--optimization-style", self.style],
            "aware": [f"--use-{self.aware}"],
            "offload": ["--maximize-offload"],
            "platform": ["--target-platform", self.platform],
            "ort": ["--target-ort", self.ort],
            "float16": ["--float16"],
            "opt_in": ["--enable-pass", self.opt_in],
        }
        return [word for name in self.unusual for word in spelled[name]]

    def options(self, shared: Options) -> Options:
        """The options of the conversion; `shared` are those that no axis sets. UsageError if they exclude each other."""
        return replace(
            shared,
            optimization_level=self.level,
            optimization_style=self.style,
            use_nnapi=self.aware == "nnapi",
            use_coreml=self.aware == "coreml",
            maximize_offload=self.offload == "yes",
            nnapi_partitioning_stop_ops=shared.nnapi_partitioning_stop_ops if self.aware == "nnapi" else None,
            target_platform=None if self.platform == ANY else self.platform,
            target_ort=None if self.ort == DEFAULT else self.ort,
            float16=self.float16 == "yes",
            enable_passes=shared.enable_passes if self.opt_in == NONE else (*shared.enable_passes, self.opt_in),
            write_config=False,
        )


def command(model: str, form: Form, more: Mapping[str, Sequence[str]]) -> str:
    """The command line that makes a file of this form. `more` has further options by accelerator; those of "" are always added."""
    return command_line(["ortconv", "convert", model, *form.flags, *more.get(form.aware, ()), *more.get("", ())])


def file_name(model: Path, form: Form) -> str:
    """A unique name for the file of a form."""
    return f"{model.stem}.{form.label.replace(' ', '-')}.ort"


# ---------------------------------------------------------------------- choosing


def chosen(only: Mapping[str, Sequence[str]], cores: int) -> dict[str, tuple[str, ...]]:
    """The values of each axis to try. UsageError for an unknown axis or value."""
    for name, values in only.items():
        if name not in AXES:
            raise UsageError(f"there is no axis '{name}' of candidates", hint=known_names(name, AXES))
        for value in values:
            if value not in AXES[name].values:
                hint = known_names(value, AXES[name].values)
                raise UsageError(f"axis {name} has no value '{value}'", hint=hint)
    few = {"threads": tuple(n for n in SESSION["threads"].tried if int(n) <= max(cores, 1))}
    return {name: tuple(dict.fromkeys(only.get(name) or few.get(name, axis.tried))) for name, axis in AXES.items()}


def forms(values: Mapping[str, Sequence[str]]) -> list[Form]:
    """The combinations that can make a difference, those with the fewest unusual values first. UsageError if there is none."""
    names = [field.name for field in fields(Form)]
    every = [Form(*combination) for combination in product(*(values[name] for name in names))]
    found = [form for form in every if next(_pointless(form), None) is None]
    if not found:
        reason = next(_pointless(every[0]))
        raise UsageError(f"no candidate is left: {reason}", hint="allow more values of an axis")
    return sorted(found, key=lambda form: len(form.unusual))


def _pointless(form: Form) -> Iterator[str]:
    """The reason why a combination gives the same file as a simpler one, or no file."""
    if form.style == "Runtime" and form.level not in ABOVE_BASIC:
        yield f"level {form.level} has no fusions to save"
    if form.opt_in != NONE and form.level not in ABOVE_BASIC:
        yield f"level {form.level} does not run {form.opt_in}"
    if form.aware == NONE and form.offload == "yes":
        yield "nodes are rewritten for one accelerator, and none is named"
    if form.offload == "yes" and form.level == "disable":
        yield "level disable rewrites nothing"
    if form.aware != NONE and form.offload == "no" and form.level not in ABOVE_BASIC:
        yield f"level {form.level} fuses nothing that an accelerator could run"
