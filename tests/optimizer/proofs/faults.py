"""Mistakes that a rule could make, planted in what it has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Ints, Node
from ortconv.ir.tensor import Array, Tensor

Plant = Callable[[Graph], None]


class Fault(NamedTuple):
    """A mistake, in the result of the last rewrite of a golden case."""

    case: str
    what: str
    plant: Plant


def _nodes(graph: Graph, op: str) -> list[Node]:
    found = [node for node in graph.walk() if node.op == op]
    assert found, f"no {op}"
    return found


def attribute(op: str, name: str, value: Any) -> Plant:
    def plant(graph: Graph) -> None:
        for node in _nodes(graph, op):
            node.attrs[name] = value

    return plant


def swapped(op: str, first: int = 0, second: int = 1) -> Plant:
    def plant(graph: Graph) -> None:
        for node in _nodes(graph, op):
            inputs = list(node.inputs)
            inputs[first], inputs[second] = inputs[second], inputs[first]
            node.graph.set_inputs(node, inputs)  # type: ignore[union-attr]

    return plant


def constant(op: str, slot: int, change: Callable[[Array], Any]) -> Plant:
    def plant(graph: Graph) -> None:
        for node in _nodes(graph, op):
            value = node.input(slot)
            assert value is not None
            assert value.constant is not None
            old = value.constant.numpy()
            changed = np.asarray(change(old), old.dtype)
            node.graph.set_input(node, slot, node.graph.constant(Tensor.of(changed), "fault"))  # type: ignore[union-attr]

    return plant


def dropped(op: str, slot: int) -> Plant:
    def plant(graph: Graph) -> None:
        for node in _nodes(graph, op):
            node.graph.set_inputs(node, [v for i, v in enumerate(node.inputs) if i != slot])  # type: ignore[union-attr]

    return plant


FAULTS = (
    Fault("basic/layer_norm/square_by_mul", "axis", attribute("LayerNormalization", "axis", 1)),
    Fault("basic/layer_norm/square_by_mul", "epsilon", attribute("LayerNormalization", "epsilon", 0.0)),
    Fault("basic/layer_norm/square_by_mul", "scale and bias", swapped("LayerNormalization", 1, 2)),
    Fault("basic/layer_norm/square_by_mul", "bias dropped", dropped("LayerNormalization", 2)),
    Fault("basic/fold_conv/batch_norm", "sign of a bias", constant("Conv", 2, np.negative)),
    Fault("basic/fold_conv/batch_norm", "scale", constant("Conv", 1, lambda w: w * 1.00001)),
    Fault("basic/fold_conv/batch_norm", "filters reversed", constant("Conv", 1, lambda w: w[::-1])),
    Fault("basic/fold_matmul/batch_norm", "bias reversed", constant("Gemm", 2, lambda b: b[::-1])),
    Fault("basic/transpose/channels_last_chain", "order of axes", attribute("Transpose", "perm", Ints((0, 3, 2, 1)))),
    Fault("basic/pad/conv", "pads", attribute("Conv", "pads", Ints((3, 1, 1, 0)))),
    Fault("extended/fuse_gemm/selu", "alpha", attribute("FusedGemm", "alpha", 1.0)),
    Fault("extended/fuse_gemm/selu", "activation", attribute("FusedGemm", "activation", "Elu")),
    Fault("extended/qdq/dynamic", "zero point off by one", constant("DynamicQuantizeMatMul", 3, lambda z: z + 1)),
    Fault("extended/qdq/dynamic", "weights mixed up", constant("DynamicQuantizeMatMul", 1, lambda w: w[::-1])),
    Fault("extended/qdq/conv", "bias off by one", constant("QLinearConv", 8, lambda b: b + 1)),
    Fault("extended/qdq/conv", "scale of an input", constant("QLinearConv", 4, lambda s: s[::-1])),
    Fault("extended/qdq/bias_of_blocks", "bias reversed", constant("MatMulNBits", 5, lambda b: b[::-1])),
    Fault("extended/qdq/signed/shared", "zero point off by one", constant("DequantizeLinear", 2, lambda z: z + 1)),
    Fault("layout/nchwc/pooled", "filters mixed up", constant("Conv", 1, lambda w: w[::-1])),
    Fault("layout/conv_add/hard_swish", "sum dropped", dropped("FusedConv", 3)),
    Fault("extended/recurrent/lstm/backwards", "direction", attribute("LSTM", "direction", "forward")),
    Fault("extended/recurrent/lstm/backwards", "order of gates", constant("LSTM", 1, lambda w: w[:, ::-1])),
    Fault("extended/recurrent/lstm/backwards", "states", swapped("LSTM", 5, 6)),
    Fault("extended/attention/fusion/two_masks", "scale", attribute("MultiHeadAttention", "scale", 1.0)),
    Fault("extended/attention/fusion/two_masks", "heads", attribute("MultiHeadAttention", "num_heads", 4)),
)
