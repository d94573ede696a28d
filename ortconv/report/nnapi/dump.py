"""The NNAPI models of a graph's partitions, as documents and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from ortconv.backends.nnapi.backend import NnapiOptions, NnapiProgram, RecordingBackend
from ortconv.ir.graph import Node
from ortconv.ir.model import Model
from ortconv.ir.tensor import RuntimeValue
from ortconv.nnapi import dump
from ortconv.runtime.backend import Region
from ortconv.runtime.session import Session

Compiled = list[tuple[Region, NnapiProgram]]


def compiled(model: Model, options: NnapiOptions) -> Compiled:
    """The partitions of a model, lowered and compiled, in the order in which they run."""
    backend = RecordingBackend(options)
    Session(model, [backend, _Elsewhere()])
    return backend.compiled


class _Elsewhere:
    """The backend of all nodes outside partitions. It has no objection to any, since nothing runs."""

    name = RecordingBackend.fallback

    def available(self) -> None:
        return None

    def objections(self, node: Node) -> Iterator[str]:
        return iter(())

    def compile(self, region: Region) -> Self:
        return self

    def run(self, inputs: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        raise NotImplementedError


def document(model: Path, partitions: Compiled) -> dict[str, Any]:
    """The partitions as JSON values: the nodes of each, the devices of its plan, its NNAPI model."""
    described = [
        {
            "nodes": [node.label for node in region.nodes],
            "devices": [device.name for device in program.compilation.plan.devices],
            "model": dump.document(program.lowered.model, program.lowered.names, program.compilation.plan.places),
        }
        for region, program in partitions
    ]
    return {"version": 1, "model": str(model), "partitions": described}


def title(index: int, region: Region, program: NnapiProgram) -> str:
    """A partition in one line: its number, nodes and devices."""
    count, first, last = len(region.nodes), region.nodes[0].label, region.nodes[-1].label
    nodes = f"{count} nodes, {first} to {last}" if count > 1 else first
    return f"partition {index}: {nodes}; on {', '.join(device.name for device in program.compilation.plan.devices)}"


def text(partitions: Compiled) -> str:
    """The partitions as text for people."""
    lines = []
    for index, (region, program) in enumerate(partitions):
        plan, lowered = program.compilation.plan, program.lowered
        places = plan.places if len(plan.devices) > 1 else ()
        lines += [title(index, region, program), dump.text(lowered.model, lowered.names, places)]
    return "\n".join(lines)
