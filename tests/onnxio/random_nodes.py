"""One node of an operator with inputs and attributes at random, most of them invalid: what shape inference must survive.

    python tests/onnxio/random_nodes.py SEEDS FIRST STEP

runs inference on every STEP-th operator from FIRST on, in all its versions, and prints those on which the process died or hung.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, TypeProto

from ortconv.errors import OrtconvError
from ortconv.onnxio.infer import infer_model

NUMBERS = [0, 1, 2, 3, -1, -2, 7, 64, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63)]
TEXTS = [
    b"SAME_UPPER",
    b"VALID",
    b"",
    b"ij,jk->ik",
    b"i.j",
    b"int64s",
    b"->",
    b"ii",
    b"a->>b",
    b"linear",
    b"TO_FLOAT",
    b"crop",
    b"DCR",
]
ELEMENTS = [1, 1, 1, 6, 7, 7, 8, 9, 10, 11, 2, 3, 0, 15, 16, 23]
SECONDS = 20
"""A node may take so long; the slowest ones run into the limit of memory."""


def sizes(draw: random.Random) -> list[int]:
    return [draw.choice([0, 1, 2, 3, 4, 8, draw.choice(NUMBERS)]) for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 4, 5]))]


def fill_type(draw: random.Random, made: TypeProto) -> None:
    kind = draw.random()
    if kind < 0.8:
        made.tensor_type.elem_type = draw.choice(ELEMENTS)
        if draw.random() < 0.8:
            made.tensor_type.shape.SetInParent()
            for size in sizes(draw):
                dim = made.tensor_type.shape.dim.add()
                if draw.random() < 0.2:
                    dim.dim_param = "N"
                elif draw.random() < 0.9:
                    dim.dim_value = size
    elif kind < 0.9:
        fill_type(draw, made.sequence_type.elem_type if draw.random() < 0.5 else made.optional_type.elem_type)
    elif kind < 0.95:
        made.map_type.key_type = draw.choice([7, 8])
        fill_type(draw, made.map_type.value_type)
    else:
        draw.choice([made.sparse_tensor_type, made.sequence_type, made.optional_type]).SetInParent()


def fill_tensor(draw: random.Random, made: TensorProto) -> None:
    made.data_type = draw.choice([1, 6, 7, 7, 7, 8, 9, 11])
    made.dims[:] = [min(abs(size), 9) for size in sizes(draw)][:2]
    count = 1
    for size in made.dims:
        count *= size
    count = max(0, count - (draw.random() < 0.1))
    if made.data_type == 7:
        made.int64_data[:] = [draw.choice(NUMBERS) for _ in range(count)]
    elif made.data_type in (6, 9):
        made.int32_data[:] = [draw.choice([0, 1, -1, 3]) for _ in range(count)]
    elif made.data_type == 8:
        made.string_data[:] = [b"x"] * count
    else:
        getattr(made, "float_data" if made.data_type == 1 else "double_data")[:] = [
            draw.choice([0.0, 1.0, -1.0, 1e30])
        ] * count


def fill_graph(draw: random.Random, made: GraphProto) -> None:
    for i in range(draw.randint(0, 4)):
        value = made.input.add(name=f"g{i}")
        if draw.random() < 0.8:
            fill_type(draw, value.type)
    made.node.add(op_type=draw.choice(["Identity", "Add", "Unknown"]), input=["g0"], output=["h"])
    for i in range(draw.randint(0, 3)):
        value = made.output.add(name=draw.choice(["h", f"g{i}", "nothing"]))
        if draw.random() < 0.3:
            fill_type(draw, value.type)


def fill_attribute(draw: random.Random, made: AttributeProto, kind: int) -> None:
    made.type = draw.choice([1, 2, 3, 4, 7]) if draw.random() < 0.05 else kind
    if kind == AttributeProto.INT:
        made.i = draw.choice(NUMBERS)
    elif kind == AttributeProto.FLOAT:
        made.f = draw.choice([0.0, 0.5, -1.0, 1e38])
    elif kind == AttributeProto.STRING:
        made.s = draw.choice(TEXTS)
    elif kind == AttributeProto.INTS:
        made.ints[:] = [draw.choice(NUMBERS) for _ in range(draw.choice([0, 1, 2, 2, 3, 4, 8]))]
    elif kind == AttributeProto.FLOATS:
        made.floats[:] = [draw.random() for _ in range(draw.randint(0, 3))]
    elif kind == AttributeProto.STRINGS:
        made.strings[:] = [draw.choice(TEXTS) for _ in range(draw.randint(0, 3))]
    elif kind == AttributeProto.TENSOR:
        fill_tensor(draw, made.t)
    elif kind == AttributeProto.GRAPH:
        fill_graph(draw, made.g)
    elif kind == AttributeProto.TYPE_PROTO:
        fill_type(draw, made.tp)


def model_of(found: Any, seed: int) -> ModelProto:
    """A model of one node. In some of them no input has a known type, as behind an operator that onnx does not know."""
    draw = random.Random(f"{found.domain}:{found.name}:{found.since_version}:{seed}")
    proto = ModelProto(ir_version=10)
    for domain, version in {"": 17, "c": 1, found.domain: found.since_version}.items():
        proto.opset_import.add(domain=domain, version=version)
    custom = proto.graph.node.add(op_type="Custom", domain="c", output=["unused"])
    node = proto.graph.node.add(op_type=found.name, domain=found.domain)
    reads = draw.randint(max(0, found.min_input - (draw.random() < 0.15)), min(found.max_input, found.min_input + 4))
    for i in range(reads):
        kind = 0.9 if seed % 5 == 0 else draw.random()
        node.input.append("" if kind > 0.95 else f"i{i}")
        if kind < 0.55:
            fill_type(draw, proto.graph.input.add(name=f"i{i}").type)
        elif kind < 0.8:
            fill_tensor(draw, proto.graph.initializer.add(name=f"i{i}"))
        elif kind <= 0.95:
            custom.output.append(f"i{i}")
    for i in range(draw.randint(found.min_output, min(found.max_output, found.min_output + 3))):
        node.output.append(f"o{i}")
        proto.graph.output.add(name=f"o{i}")
    for name, declared in found.attributes.items():
        if draw.random() < (0.9 if declared.required else 0.5):
            fill_attribute(draw, node.attribute.add(name=name), declared.type.value)
    return proto


def died(found: Any, seeds: int, place: mmap.mmap) -> str | None:
    """How a process of its own ended that ran inference on nodes of one operator; None if it survived all of them."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for seed in range(seeds):
            place[:4] = seed.to_bytes(4, "little")
            signal.alarm(SECONDS)
            try:
                infer_model(model_of(found, seed).SerializeToString())
            except OrtconvError:
                pass
            except BaseException:
                os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    seed = int.from_bytes(place[:4], "little")
    return f"{found.domain}:{found.name}:{found.since_version} seed {seed}: status {status}" if status else None


if __name__ == "__main__":
    seeds, first, step = map(int, sys.argv[1:])
    shared = mmap.mmap(-1, 4)
    for found in onnx.defs.get_all_schemas_with_history()[first::step]:
        if (how := died(found, seeds, shared)) is not None:
            print(how, flush=True)
