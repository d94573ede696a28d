"""What a conversion is asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortconv.choices import (
    COREML_FORMATS,
    COREML_VERSION,
    ENGINES,
    ERROR_BUDGET,
    FEATURE_LEVEL,
    LEVELS,
    PLATFORMS,
    STYLES,
    feature_level,
)
from ortconv.errors import UsageError
from ortconv.optimizer import recipe as recipes
from ortconv.optimizer.engine import FOLD_LIMIT
from ortconv.ortformat.releases import check_target
from ortconv.pipeline.settings import FeedSets, check_names, check_values
from ortconv.report.gates import parse_gates

if TYPE_CHECKING:
    from ortconv.compare.reference import ValidationSettings
    from ortconv.partition import Target
    from ortconv.partition.limits import Limits
    from ortconv.partition.profile import DeviceProfile


@dataclass(frozen=True, slots=True)
class Options:
    """What a conversion does beyond its defaults. The names are those of the command line's flags."""

    optimization_level: str = "all"
    optimization_style: str = "Fixed"
    target_platform: str | None = None
    use_nnapi: bool = False
    nnapi_feature_level: int = FEATURE_LEVEL
    nnapi_partitioning_stop_ops: tuple[str, ...] | None = None
    use_coreml: bool = False
    coreml_format: str = COREML_FORMATS[0]
    coreml_version: int = COREML_VERSION
    coreml_static_inputs: bool = False
    coreml_on_subgraphs: bool = False
    device: DeviceProfile | None = None
    max_partitions: int | None = None
    min_nodes: int = 1
    only_worthwhile: bool = False
    maximize_offload: bool = False
    """Rewrite unsupported nodes into supported ones, where that helps; opt-in passes of the offload stage join in."""
    enable_type_reduction: bool = False
    save_optimized_onnx_model: bool = False
    write_config: bool = True
    fix_dims: Mapping[str, int] = field(default_factory=dict)
    fold_limit: int = FOLD_LIMIT
    enable_passes: tuple[str, ...] = ()
    disable_passes: tuple[str, ...] = ()
    only_passes: tuple[str, ...] = ()
    stop_after: int | None = None
    pipeline: str | None = None
    """The passes as text (see `ortconv.optimizer.recipe`). It takes the place of level, fold limit and all choices of passes."""
    float16: bool = False
    """Convert float32 constants and values to float16, inputs and outputs excepted; see docs/float16.md."""
    error_budget: float = ERROR_BUDGET
    """With float16: the largest error of an output, relative to its largest element."""
    keep_float32: tuple[str, ...] = ()
    """With float16: names of nodes, of their outputs, or operators that stay float32."""
    details: bool = False
    """Trace what each rewrite changed."""
    verify_each: bool = False
    validate: bool = True
    validate_on: str = "both"
    """Where source and result are run: numpy, onnxruntime or both. onnxruntime opens the result as an app does."""
    validate_with: FeedSets | None = None
    """Inputs for that, one set or several; made up otherwise."""
    validate_budget: str | None = None
    """How much time and memory the runs may take, such as "30s,2GiB"; see `ortconv.compare.budget`."""
    allow_unchecked: bool = False
    """Write the file even if nothing could be compared or onnxruntime does not load it; the result reports this."""
    custom_op_library: Path | None = None
    target_ort: str | None = None
    """The oldest release of ONNX Runtime that must load the file, such as 1.18; by default TARGET_ORT, or what the source needs."""
    manifest: bool = False
    """Also write what is known of the result, as x.manifest.json; see `ortconv.pipeline.manifest`."""
    stamp: bool = False
    """Write version, source and options into the metadata of the file."""
    fail_on: tuple[str, ...] = ()
    """Conditions under which nothing is written and GateError raised, such as "size>1.1x"; see `ortconv.report.gates`."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Options:
        """The options of keyword arguments. TypeError for a name that there is not."""
        check_names(settings, [f.name for f in fields(cls)])
        return cls(**settings)

    def __post_init__(self) -> None:
        check_values(self)
        if self.pipeline is not None:
            found = recipes.parse(self.pipeline)
            for name, value in (
                ("optimization_level", found.level),
                ("fold_limit", found.fold_limit),
                ("stop_after", found.stop_after),
            ):
                object.__setattr__(self, name, value)
        self._check_choices()
        if self.validate_budget is not None:
            from ortconv.compare.budget import Budget

            Budget.parse(self.validate_budget)
        parse_gates(self.fail_on, "convert")
        self._check_together()

    def _check_choices(self) -> None:
        """Each option by itself."""
        for what, value, known in (
            ("optimization level", self.optimization_level, LEVELS),
            ("optimization style", self.optimization_style, STYLES),
            ("CoreML format", self.coreml_format, COREML_FORMATS),
            ("target platform", self.target_platform, PLATFORMS),
            ("validation on", self.validate_on, ENGINES),
        ):
            if value is not None and value not in known:
                raise UsageError(f"{what} '{value}' is not one of {', '.join(known)}")
        if self.target_ort is not None:
            check_target(self.target_ort)
        feature_level(self.nnapi_feature_level)

    def _check_together(self) -> None:
        """Options that need or exclude one another."""
        if self.nnapi_partitioning_stop_ops is not None and not self.use_nnapi:
            raise UsageError("stop ops are given, but not --use-nnapi", hint="add --use-nnapi, or leave them out")
        if self.maximize_offload and self.use_nnapi == self.use_coreml:
            raise UsageError("nodes are rewritten for one accelerator", hint="give one of --use-nnapi and --use-coreml")
        if self.maximize_offload and self.optimization_level == "disable":
            raise UsageError(
                "level disable rewrites nothing", hint="choose level basic to rewrite for the accelerator only"
            )
        if not self.float16 and (self.keep_float32 or self.error_budget != ERROR_BUDGET):
            raise UsageError("an error budget and nodes to keep in float32 are for float16", hint="add --float16")
        if self.float16 and self.verify_each:
            raise UsageError(
                "--verify-each compares exact rewrites, and --float16 rounds",
                hint="verify the passes without --float16 first",
            )

    def recipe(self) -> recipes.Recipe:
        """What the optimizer is to do."""
        if self.pipeline is not None:
            found = recipes.parse(self.pipeline)
            if not self.maximize_offload or found.offload:
                return found
            return replace(found, stages={**found.stages, "offload": recipes.make("basic", offload=True).offload})
        return recipes.make(
            self.optimization_level,
            enable=self.enable_passes,
            disable=(*self.disable_passes, *(("FuseFp16InitializerToFp32NodeTransformer",) if self.float16 else ())),
            only=self.only_passes,
            fold_limit=self.fold_limit,
            stop_after=self.stop_after,
            offload=self.maximize_offload,
        )

    def validation(self) -> ValidationSettings:
        """How source and result are held against each other."""
        from ortconv.compare.budget import Budget
        from ortconv.compare.reference import ValidationSettings

        given = self.validate_with or ()
        return ValidationSettings(
            engines=("numpy", "onnxruntime") if self.validate_on == "both" else (self.validate_on,),
            given=(given,) if isinstance(given, Mapping) else tuple(given),
            budget=Budget() if self.validate_budget is None else Budget.parse(self.validate_budget),
            fix_dims=self.fix_dims,
            custom_op_library=self.custom_op_library,
            numpy="numpy:reference" if self.verify_each else "numpy",
            error_budget=self.error_budget if self.float16 else None,
        )

    def targets(self) -> tuple[Target, ...]:
        """The execution providers whose nodes are kept as they want them, in the order in which ONNX Runtime asks them."""
        if not (self.use_nnapi or self.use_coreml):
            return ()
        from ortconv.partition import Target

        found = []
        if self.use_nnapi:
            stop_ops = self.nnapi_partitioning_stop_ops
            found.append(Target(feature_level=self.nnapi_feature_level))
            if stop_ops is not None:
                found[0] = replace(found[0], stop_ops=stop_ops)
        if self.use_coreml:
            names = ("coreml_format", "coreml_version", "coreml_static_inputs", "coreml_on_subgraphs")
            found.append(Target("coreml", **{name: getattr(self, name) for name in names}))
        return tuple(target if self.device is None else self.device.narrow(target) for target in found)

    def limits(self) -> Limits | None:
        """Which partitions count; None without a target."""
        if not (self.use_nnapi or self.use_coreml):
            return None
        from ortconv.partition.limits import Limits
        from ortconv.partition.profile import DeviceProfile

        return Limits(self.max_partitions, self.min_nodes, self.only_worthwhile, self.device or DeviceProfile())
