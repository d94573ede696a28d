"""The JSON documents of verbs whose results are no dataclasses. The schemas of docs/schemas come from here."""

# Annotations are values here: a TypedDict looks for NotRequired in them when it is made.
from typing import Any, NotRequired, TypedDict

from ortconv.optimizer.catalog import RewriteEntry
from ortconv.ortformat.check import Finding
from ortconv.ortformat.opconfig import Missing
from ortconv.partition import Objection
from ortconv.partition.refusals import Refusal
from ortconv.pipeline.export_tflite import ExportedFile, Reason
from ortconv.pipeline.float16 import Float16
from ortconv.pipeline.result import Fold, LeftToCpu
from ortconv.report.run import Share
from ortconv.validation.validate import Validation

Numbers = dict[str, float | None]

# ------------------------------------------------------------------ all verbs


class Error(TypedDict):
    """What a verb prints that fails before it prints anything else."""

    error: str
    file: str | None
    node: str | None
    hint: str | None
    exit_code: int


class Failure(TypedDict):
    """A model of a directory that failed."""

    source: str
    kind: str
    error: str
    exit_code: int
    hint: str | None


class Batch(TypedDict):
    """The last line of a verb with a directory. The count of models that are done has the verb's name for that."""

    total: int
    converted: NotRequired[int]
    partitioned: NotRequired[int]
    checked: NotRequired[int]
    verified: NotRequired[int]
    unchanged: int
    failed: int
    seconds: float
    written: list[str]
    failures: list[Failure]


# ------------------------------------------------------------------ convert


class Trace(TypedDict):
    """One rewrite."""

    rule: str
    operator: str
    name: str
    removed: int
    added: int
    consumed: list[str]
    made: list[str]
    nodes_before: int
    nodes_after: int
    bytes_before: int
    bytes_after: int
    seconds: float


class Part(TypedDict):
    """A partition."""

    provider: NotRequired[str]
    name: str
    nodes: list[str]
    ops: dict[str, int]
    inputs: list[str]
    constants: int
    outputs: list[str]
    cost: NotRequired["Cost"]


class Counts(TypedDict):
    nodes: int
    taken: int
    partitions: int
    multiply_adds: int
    refused: int


class Offload(TypedDict):
    """What rewriting for an accelerator made of a model."""

    before: Counts
    after: Counts
    rewrites: dict[str, int]
    advice: str | None


class Converted(TypedDict):
    """One conversion."""

    source: str
    files: list[str]
    warnings: list[str]
    nodes_before: int
    nodes_after: int
    saved_fusions: int
    rewrites: dict[str, int]
    trace: list[Trace]
    partitions: list[Part] | None
    nodes_divided: int
    offload: Offload | None
    float16: Float16 | None
    refusals: list[LeftToCpu]
    without_fallback: int
    oldest_onnxruntime: dict[str, str]
    seconds: dict[str, float]
    validation: Validation | None
    operators: dict[str, int]
    bytes_before: int
    bytes_after: int
    constants_before: int
    constants_after: int
    folded_bytes: int
    folds: list[Fold]
    external: list[str]
    unchanged: bool


class Convert(TypedDict):
    models: list[Converted]
    failures: list[Failure]


# ------------------------------------------------------------------ partition


class Cost(TypedDict):
    bytes_in: int
    bytes_out: int
    multiply_adds: int
    cpu_seconds: float
    accelerator_seconds: float
    copy_seconds: float
    gain_seconds: float
    worthwhile: bool


class Verdict(TypedDict):
    node: str
    op: str
    domain: str
    partition: int | None
    objections: list[Objection]


class DeviceUsed(TypedDict):
    name: str
    vendor: str
    feature_level: int | None
    refused_ops: list[str]
    cpu: dict[str, float]
    accelerator: dict[str, float]
    copies: dict[str, float]


class Estimate(TypedDict):
    device: DeviceUsed
    multiply_adds: int
    multiply_adds_taken: int
    cpu_seconds: float
    seconds: float
    best_seconds: float
    assumptions: list[str]


class Divided(TypedDict):
    """What becomes of one graph."""

    nodes: int
    nodes_taken: int
    coverage_percent: float
    partitions: list[Part]
    refusals: list[Refusal]
    estimate: Estimate
    verdicts: list[Verdict]


class Subgraph(Divided):
    graph: str


class Merge(TypedDict):
    """Nodes that join partitions if they can be rewritten."""

    nodes: list[str]
    ops: dict[str, int]
    rules: list[str]
    partitions_before: int
    partitions_after: int
    nodes_taken_before: int
    nodes_taken_after: int
    text: str


class LevelRow(TypedDict):
    level: str
    nodes: int
    partitions: int
    nodes_taken: int
    coverage_percent: float
    largest: int
    cpu_seconds: float
    seconds: float


class Partition(Divided):
    """The options of the target stand beside the rest: the first four of NNAPI, the others of CoreML."""

    model: str
    level: str
    ep: str
    feature_level: NotRequired[int]
    stop_ops: NotRequired[list[str]]
    use_nchw: NotRequired[bool]
    refused_ops: NotRequired[list[str]]
    coreml_format: NotRequired[str]
    coreml_version: NotRequired[int]
    coreml_static_inputs: NotRequired[bool]
    coreml_on_subgraphs: NotRequired[bool]
    advice: list[Merge]
    levels: NotRequired[list[LevelRow]]
    subgraphs: NotRequired[list[Subgraph]]
    offload: NotRequired[Offload]


# ------------------------------------------------------------------ compare


class Subject(TypedDict):
    model: str
    backends: list[str]


class Measure(TypedDict):
    """How far one value is from another; null for an infinite number, or where the measure is not defined."""

    name: str
    dtype: str
    shape: list[int]
    max_abs: float | None
    scaled: float | None
    ulp: float | None
    cosine: float | None
    snr: float | None
    mismatch: str | None
    limit: float
    same: bool


class Layer(Measure):
    other: str
    node: str
    permuted: bool


class Loss(Layer):
    scaled_before: float | None


class Divergence(Layer):
    rewrites: list[str]


class Compared(Subject):
    outputs: list[Measure]
    same: bool
    layers: NotRequired[list[Layer]]
    largest_loss: NotRequired[Loss | None]
    first_divergence: NotRequired[Divergence | None]


class Compare(TypedDict):
    reference: Subject
    models: list[Compared]
    same: bool


# ------------------------------------------------------------------ run


class Described(TypedDict):
    """A value: type and shape of a tensor with what its numbers are, or the length of a sequence."""

    type: str
    shape: NotRequired[list[int]]
    length: NotRequired[int]
    min: NotRequired[float | None]
    max: NotRequired[float | None]
    mean: NotRequired[float | None]


Top = TypedDict("Top", {"row": int, "class": int, "value": float})


class Place(TypedDict):
    node: str
    backend: str
    partition: int | None
    refused: dict[str, str]


class Check(TypedDict):
    expected: list[str]
    differences: dict[str, str]


class Run(TypedDict):
    model: str
    backends: list[str]
    load_seconds: float
    runs: int
    median_seconds: float
    p90_seconds: float
    peak_bytes: int | None
    made_up: list[str]
    inputs: dict[str, Described]
    outputs: dict[str, Described]
    timing: NotRequired[dict[str, Numbers]]
    top: NotRequired[dict[str, list[Top]]]
    profile: NotRequired[list[Share]]
    plan: NotRequired[list[Place]]
    check: NotRequired[Check]


# ------------------------------------------------------------------ NNAPI


class Figures(TypedDict):
    exec_time: float
    power_usage: float


class Device(TypedDict):
    """An NNAPI device; the last four are those of simulated ones."""

    name: str
    profile: str | None
    type: str
    version: str
    feature_level: int
    api_level: int
    performance: dict[str, Figures | None]
    supported_operations: int
    extensions: list[str]
    cache_files: dict[str, int]
    memory: dict[str, int]
    fp16: NotRequired[bool]
    gets_work: NotRequired[bool]
    costs: NotRequired[Numbers]
    faults: NotRequired[dict[str, str | float]]


class WholeDevice(Device):
    operations: dict[str, list[str]]


class Devices(TypedDict):
    devices: list[Device]


class ShownDevice(TypedDict):
    device: WholeDevice


class Operand(TypedDict):
    index: int
    type: str
    dimensions: list[int]
    lifetime: str
    name: NotRequired[str]
    scale: NotRequired[float]
    zero_point: NotRequired[int]
    channel_quant: NotRequired["ChannelQuant"]
    bytes: NotRequired[int]
    value: NotRequired[Any]
    """The elements of a small constant, nested as its dimensions are."""
    model: NotRequired["NnapiModel"]


class ChannelQuant(TypedDict):
    dim: int
    scales: list[float]


class Operation(TypedDict):
    type: str
    inputs: list[int]
    outputs: list[int]
    device: NotRequired[str]


class NnapiModel(TypedDict):
    feature_level: int
    relaxed: bool
    inputs: list[int]
    outputs: list[int]
    operands: list[Operand]
    operations: list[Operation]


class DumpedPartition(TypedDict):
    nodes: list[str]
    devices: list[str]
    model: NnapiModel


class Dump(TypedDict):
    model: str
    partitions: list[DumpedPartition]


class Row(TypedDict):
    """One contender of a benchmark."""

    name: str
    flags: str
    error: str | None
    load_ms: float | None
    median_ms: float | None
    p90_ms: float | None
    simulated_ms: float | None
    partitions: int
    nodes: int
    nodes_total: int
    operations: dict[str, int]
    max_abs: float | None
    scaled: float | None
    mismatch: str | None
    timing: dict[str, Numbers] | None


class Benchmark(TypedDict):
    model: str
    compared_with: str
    runs: int
    inputs: dict[str, Described]
    rows: list[Row]


class LiteRt(TypedDict):
    """What `nnapi export` wrote."""

    source: str
    files: list[ExportedFile]
    nodes: int
    refusals: list[Reason]
    validation: Validation | None


class Written(TypedDict):
    files: list[str]


# ------------------------------------------------------------------ others


class Verify(TypedDict):
    model: str
    path: str
    bytes: int
    format_version: str
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[str]
    outputs: list[str]
    nodes: int
    graphs: int
    initializers: int
    weight_bytes: int
    saved_optimizations: int
    operators: dict[str, int]
    oldest_onnxruntime: str
    oldest_reason: str
    findings: list[Finding]


class Passes(TypedDict):
    passes: list[RewriteEntry]


class OpsLint(TypedDict):
    config: str
    models: list[str]
    missing: list[Missing]


DOCUMENTS: dict[str, type] = {
    "batch": Batch,
    "compare": Compare,
    "convert": Convert,
    "devices": Devices,
    "devices_show": ShownDevice,
    "error": Error,
    "nnapi_benchmark": Benchmark,
    "nnapi_dump": Dump,
    "nnapi_export": LiteRt,
    "nnapi_ndk": Written,
    "ops_lint": OpsLint,
    "partition": Partition,
    "passes_explain": RewriteEntry,
    "passes_list": Passes,
    "run": Run,
    "verify": Verify,
}
"""By the name of the schema: what the document consists of beside its version, which is 1."""
