"""The NNAPI models of a graph's partitions, as documents and as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ortconv.backends.nnapi.backend import NnapiOptions, NnapiProgram, RecordingBackend
from ortconv.ir.model import Model
from ortconv.nnapi import dump
from ortconv.runtime.backend import Region
from ortconv.runtime.session import Session

Compiled = list[tuple[Region, NnapiProgram]]


def compiled(model: Model, options: NnapiOptions) -> Compiled:
    """The partitions of a model, lowered and compiled, in the order in which they run."""
    backend = RecordingBackend(options)
    Session(model, [backend])
    return backend.compiled


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
