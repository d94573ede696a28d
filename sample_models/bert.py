"""A small BERT encoder as exporters write it at opset 14: LayerNorm and Gelu decomposed, shapes computed."""

from __future__ import annotations

import math

import numpy as np
from builder import GraphBuilder, Numbers, floats, ints, model_bytes

LAYERS, HIDDEN, HEADS, INTERMEDIATE = 2, 64, 4, 256
VOCABULARY, POSITIONS, TYPES = 512, 128, 2
HEAD_SIZE = HIDDEN // HEADS


class Bert:
    def __init__(self, seed: int) -> None:
        self.g = GraphBuilder("bert_tiny")
        self.numbers = Numbers(seed)

    def vector(self, name: str, size: int, around: float = 0.0, spread: float = 0.2) -> str:
        return self.g.weight(name, self.numbers.uniform((size,), around - spread, around + spread))

    def table(self, name: str, rows: int) -> str:
        return self.g.weight(name, self.numbers.weight((rows, HIDDEN), 1, gain=0.3))

    def linear(self, name: str, x: str, fan_in: int, out: int) -> str:
        """MatMul and Add: what a Linear on a rank-3 input is exported as."""
        weight = self.g.weight(f"{name}.weight", self.numbers.weight((fan_in, out), fan_in))
        return self.g.op("Add", self.vector(f"{name}.bias", out), self.g.op("MatMul", x, weight))

    def layer_norm(self, name: str, x: str, output: str | None = None) -> str:
        g = self.g
        centered = g.op("Sub", x, g.op("ReduceMean", x, axes=[-1]))
        variance = g.op("ReduceMean", g.op("Pow", centered, g.constant(2.0, np.float32)), axes=[-1])
        deviation = g.op("Sqrt", g.op("Add", variance, g.constant(1e-12, np.float32)))
        scaled = g.op("Mul", g.op("Div", centered, deviation), self.vector(f"{name}.weight", HIDDEN, around=1.0))
        return g.op("Add", scaled, self.vector(f"{name}.bias", HIDDEN), output=output)

    def gelu(self, x: str) -> str:
        g = self.g
        erf = g.op("Erf", g.op("Div", x, g.constant(math.sqrt(2.0), np.float32)))
        product = g.op("Mul", x, g.op("Add", erf, g.constant(1.0, np.float32)))
        return g.op("Mul", product, g.constant(0.5, np.float32))

    def dim(self, x: str, axis: int) -> str:
        """The size of one axis as a vector of one element."""
        g = self.g
        size = g.op("Gather", g.op("Shape", x), g.constant(axis, np.int64), axis=0)
        return g.op("Unsqueeze", size, g.constant([0], np.int64))

    def reshape(self, x: str, *tail: int) -> str:
        """[batch, sequence, *tail] with both leading sizes read from x."""
        g = self.g
        sizes = [self.dim(x, 0), self.dim(x, 1), *(g.constant([size], np.int64) for size in tail)]
        return g.op("Reshape", x, g.op("Concat", *sizes, axis=0))

    def attention(self, name: str, x: str, mask: str) -> str:
        g = self.g

        def heads(which: str, perm: list[int]) -> str:
            projected = self.linear(f"{name}.{which}", x, HIDDEN, HIDDEN)
            return g.op("Transpose", self.reshape(projected, HEADS, HEAD_SIZE), perm=perm)

        query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
        scores = g.op("Div", g.op("MatMul", query, key), g.constant(math.sqrt(HEAD_SIZE), np.float32))
        weights = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
        context = g.op("Transpose", g.op("MatMul", weights, value), perm=[0, 2, 1, 3])
        return self.linear(f"{name}.output", self.reshape(context, HIDDEN), HIDDEN, HIDDEN)

    def layer(self, name: str, x: str, mask: str, output: str | None) -> str:
        g = self.g
        x = self.layer_norm(f"{name}.attention.norm", g.op("Add", self.attention(f"{name}.attention", x, mask), x))
        hidden = self.gelu(self.linear(f"{name}.intermediate", x, HIDDEN, INTERMEDIATE))
        return self.layer_norm(
            f"{name}.norm", g.op("Add", self.linear(f"{name}.output", hidden, INTERMEDIATE, HIDDEN), x), output
        )

    def embeddings(self) -> str:
        g = self.g
        every = g.weight("embeddings.position_ids", np.arange(POSITIONS, dtype=np.int64)[None])
        first, axis, step = (g.constant([value], np.int64) for value in (0, 1, 1))
        positions = g.op("Slice", every, first, self.dim("input_ids", 1), axis, step)
        words = g.op("Gather", self.table("embeddings.word", VOCABULARY), "input_ids")
        types = g.op("Gather", self.table("embeddings.token_type", TYPES), "token_type_ids")
        places = g.op("Gather", self.table("embeddings.position", POSITIONS), positions)
        return self.layer_norm("embeddings.norm", g.op("Add", g.op("Add", words, types), places))

    def mask(self) -> str:
        """0 where attention is allowed, the lowest float where it is not: [batch, 1, 1, sequence]."""
        g = self.g
        mask = g.op("Unsqueeze", "attention_mask", g.constant([1], np.int64))
        mask = g.op("Cast", g.op("Unsqueeze", mask, g.constant([2], np.int64)), to=1)
        barred = g.op("Sub", g.constant(1.0, np.float32), mask)
        return g.op("Mul", barred, g.constant(np.finfo(np.float32).min, np.float32))


def build() -> bytes:
    bert = Bert(seed=2014)
    g = bert.g
    mask = bert.mask()
    x = bert.embeddings()
    for index in range(LAYERS):
        x = bert.layer(f"layers.{index}", x, mask, "last_hidden_state" if index == LAYERS - 1 else None)
    first = g.op("Gather", x, g.constant(0, np.int64), axis=1)
    weight = g.weight("pooler.weight", bert.numbers.weight((HIDDEN, HIDDEN), HIDDEN))
    dense = g.op("Gemm", first, weight, bert.vector("pooler.bias", HIDDEN), alpha=1.0, beta=1.0, transB=1)
    g.op("Tanh", dense, output="pooler_output")
    inputs = [ints(name, ["batch", "sequence"]) for name in ("input_ids", "attention_mask", "token_type_ids")]
    outputs = [floats("last_hidden_state", ["batch", "sequence", HIDDEN]), floats("pooler_output", ["batch", HIDDEN])]
    return model_bytes(g.graph(inputs, outputs), opset=14)
