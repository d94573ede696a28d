"""The work on a candidate before it is measured, done in a worker: convert, validate and estimate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ortconv.files import digest, temporary_folder
from ortconv.partition import Target
from ortconv.partition.profile import DeviceProfile
from ortconv.pipeline.analysis import analyze
from ortconv.pipeline.conversion import convert
from ortconv.pipeline.options import Options


@dataclass(frozen=True, slots=True)
class ConversionTask:
    """A conversion, and the accelerator whose time is to be estimated for the result."""

    source: Path
    output: Path
    options: Options
    target: Target


@dataclass(frozen=True, slots=True)
class UncheckedFile:
    """A converted file without validation: its SHA-256, size, nodes, and the oldest onnxruntime that loads it."""

    digest: str
    bytes: int
    nodes: int
    saved_fusions: int
    oldest_onnxruntime: str


@dataclass(frozen=True, slots=True)
class Estimated:
    """The estimate of a device profile for a target: seconds of a run on the CPU alone, and with the partitions.

    `taken` of `nodes` nodes are in partitions.
    """

    target: str
    cpu_seconds: float
    seconds: float
    partitions: int
    taken: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Proof:
    """How far the outputs are from the source's, relative to the largest element, the limit, and the estimate.

    `unchecked` is the reason why nothing was compared, if that is allowed.
    """

    scaled: float
    limit: float
    unchecked: str | None
    estimated: Estimated


def draft(task: ConversionTask) -> UncheckedFile:
    """Convert without validation. Many candidates give the same file, which is then validated once."""
    with temporary_folder() as folder:
        output = folder / task.output.name
        result = convert(task.source, output, options=replace(task.options, validate=False))
        found = digest(output)
    return UncheckedFile(
        found, result.bytes_after, result.nodes_after, result.saved_fusions, result.oldest_onnxruntime.release
    )


def prove(task: ConversionTask) -> Proof:
    """Convert again with validation, and estimate the time on accelerators."""
    found = convert(task.source, task.output, options=task.options).validation
    estimated = _estimated(task)
    if found is None:
        return Proof(0.0, 0.0, "validation is off", estimated)
    return Proof(found.scaled, found.limit, found.skipped, estimated)


def target_of(shared: Options, name: str) -> Target:
    """The accelerator of a name, with its settings from the options."""
    asked = replace(shared, use_nnapi=name == "nnapi", use_coreml=name == "coreml", maximize_offload=False)
    return asked.targets()[0]


def _estimated(task: ConversionTask) -> Estimated:
    found = analyze(task.output, task.target, device=task.options.device or DeviceProfile())
    times, divided = found.estimate, found.partitioning
    return Estimated(
        task.target.ep, times.cpu_seconds, times.seconds, len(divided.partitions), divided.taken, divided.total
    )
