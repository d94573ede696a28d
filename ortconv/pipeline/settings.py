"""The settings of a conversion as keyword arguments: names and types for type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from ortconv.partition.profile import DeviceProfile


FeedSets = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""One or several sets of arrays by input name."""


class Settings(TypedDict, total=False):
    """The fields of Options. Lists are accepted as tuples, and strings as paths."""

    optimization_level: str
    optimization_style: str
    target_platform: str | None
    use_nnapi: bool
    nnapi_feature_level: int
    nnapi_partitioning_stop_ops: Sequence[str] | None
    use_coreml: bool
    coreml_format: str
    coreml_version: int
    coreml_static_inputs: bool
    coreml_on_subgraphs: bool
    device: DeviceProfile | None
    max_partitions: int | None
    min_nodes: int
    only_worthwhile: bool
    maximize_offload: bool
    enable_type_reduction: bool
    save_optimized_onnx_model: bool
    write_config: bool
    fix_dims: Mapping[str, int]
    freeze_initializers: bool
    fold_limit: int
    enable_passes: Sequence[str]
    disable_passes: Sequence[str]
    only_passes: Sequence[str]
    stop_after: int | None
    pipeline: str | None
    float16: bool
    error_budget: float
    keep_float32: Sequence[str]
    details: bool
    verify_each: bool
    validate: bool
    validate_on: str
    validate_with: FeedSets | None
    validate_budget: str | None
    allow_unchecked: bool
    custom_op_library: str | Path | None
    target_ort: str | None
    manifest: bool
    stamp: bool
    fail_on: Sequence[str]
