"""Attributes and shapes that no valid node has end in the error of a run: what reads them before a run raises nothing."""

from __future__ import annotations

import random

import pytest

from ortconv.inputs.demands import ROWS, TO_SHAPE, Numbers, demands
from ortconv.inputs.operand_roles import ROLES, operand_role
from ortconv.inputs.ranks import rank_of
from ortconv.ir.graph import Graph, Value
from ortconv.ir.types import DType, TensorType
from tests.batches import batched
from tests.conftest import examples

NUMBERS = [
    "allowzero",
    "axis",
    "batch_dims",
    "blocksize",
    "group",
    "hidden_size",
    "K",
    "kv_num_heads",
    "layout",
    "local_window_size",
    "num_heads",
    "num_outputs",
    "sliding_window_cache",
    "transA",
    "transB",
]
LISTS = ["axes", "dilations", "kernel_shape", "pads", "perm", "qkv_hidden_sizes", "split", "strides"]
TEXTS = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "VALID"),
    "direction": ("forward", "bidirectional"),
    "equation": ("ij,jk->ik", "ii", "", "i j,jk", "...i,i"),
}
WITH_BODIES = ("If", "Loop", "Scan")

OPERATORS = sorted(
    {(domain, op) for rows in (ROWS, ROLES) for domain, own in rows.items() for op in own if op not in WITH_BODIES}
    | {("", op) for op in (*TO_SHAPE, "Transpose", "Unsqueeze", "Shape", "Softmax", "AveragePool")}
)


def odd_attributes(rng: random.Random) -> dict[str, object]:
    found: dict[str, object] = {name: rng.choice((-3, -1, 0, 1, 2, 8)) for name in NUMBERS}
    found |= {name: tuple(rng.choice((-3, -1, 0, 1, 2, 4)) for _ in range(rng.randint(0, 4))) for name in LISTS}
    found |= {name: rng.choice(texts) for name, texts in TEXTS.items()}
    return {name: value for name, value in found.items() if rng.random() < 0.3}


@batched
@pytest.mark.parametrize(("domain", "op"), OPERATORS)
def test_odd_attributes_raise_nothing_before_a_run(domain: str, op: str) -> None:
    rng = random.Random(f"{domain}:{op}")
    for _ in range(examples(100).max_examples):
        graph = Graph("g")
        graph.opsets = {"": 18, "com.microsoft": 1}
        shapes: dict[Value, Numbers] = {}
        inputs: list[Value | None] = []
        for i in range(rng.randint(1, 9)):
            dims = tuple(rng.choice((0, 1, 2, 4, "N")) for _ in range(rng.randint(0, 5)))
            value = graph.add_input(f"i{i}", TensorType(DType.FLOAT, dims if rng.random() < 0.8 else None))
            inputs.append(value if rng.random() < 0.85 else None)
            if rng.random() < 0.8:
                shapes[value] = tuple(d if isinstance(d, int) else rng.choice((2, None)) for d in dims)
        held = {value: [rng.choice((-1, 0, 1, 2)) for _ in range(rng.randint(0, 4))] for value in shapes}
        node = graph.add_node(op, inputs, ["y"], odd_attributes(rng), domain=domain)  # type: ignore[arg-type]
        assert all(demand.is_met in (True, False) for demand in demands(node, shapes, held))
        for slot, read in enumerate(node.inputs):
            role = operand_role(node, slot)
            for shape in ((), (1,), (3,)) if role.content else ():
                role.content(node, shape)
            if role.indexed is not None:
                role.indexed(node)
            if read is not None:
                rank_of(read)
