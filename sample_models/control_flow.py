"""An If and a Loop whose subgraphs read values of the graph around them."""

from __future__ import annotations

import numpy as np
from builder import Dims, GraphBuilder, Numbers, bools, floats, ints, model_bytes

WIDTH = 8


def if_branch() -> bytes:
    """A linear layer and Tanh where the mean of x is positive, else a scaled Relu; both read values outside."""
    numbers = Numbers(13)
    g = GraphBuilder("if_branch")
    weight = g.weight("weight", numbers.weight((WIDTH, WIDTH), WIDTH))
    scale = g.weight("scale", numbers.uniform((WIDTH,), 0.5, 1.5))
    bias = g.weight("bias", numbers.uniform((WIDTH,), -0.5, 0.5))
    hidden = g.op("Add", g.op("MatMul", "x", weight), bias, output="hidden")
    positive = g.op("Greater", g.op("ReduceMean", "x", keepdims=0), g.weight("zero", np.asarray(0, np.float32)))

    then_branch = GraphBuilder("then_branch", prefix="then_branch.")
    inner = then_branch.weight("then_weight", numbers.weight((WIDTH, WIDTH), WIDTH))
    then_branch.op("Tanh", then_branch.op("Add", then_branch.op("MatMul", hidden, inner), bias), output="then_result")

    else_branch = GraphBuilder("else_branch", prefix="else_branch.")
    else_branch.op("Mul", else_branch.op("Relu", hidden), scale, output="else_result")

    dims: Dims = ["rows", WIDTH]
    chosen = g.op(
        "If", positive, output="chosen",
        then_branch=then_branch.graph([], [floats("then_result", dims)]),
        else_branch=else_branch.graph([], [floats("else_result", dims)]),
    )  # fmt: skip
    g.op("Add", chosen, "x", output="y")
    return model_bytes(g.graph([floats("x", dims)], [floats("y", dims)]), opset=13)


def loop_accumulate() -> bytes:
    """Adds rows of `sequence` times `gain` until the sum's L1 norm reaches `limit`; `sums` holds all partial sums."""
    g = GraphBuilder("loop_accumulate")
    gain = g.weight("gain", Numbers(14).uniform((WIDTH,), 0.5, 1.5))
    start = g.weight("start", np.zeros(WIDTH, np.float32))
    proceed = g.weight("proceed", np.asarray(True))
    steps = g.op("Gather", g.op("Shape", "sequence"), g.constant(0, np.int64), axis=0)

    body = GraphBuilder("body", prefix="body.")
    row = body.op("Gather", "sequence", "step", axis=0)
    body.op("Add", "sum_in", body.op("Mul", row, gain), output="sum_out")
    norm = body.op("ReduceL1", "sum_out", keepdims=0)
    body.op("Less", norm, "limit", output="proceed_out")
    body.op("Identity", "sum_out", output="partial_sum")
    inputs = [ints("step", []), bools("proceed_in", []), floats("sum_in", [WIDTH])]
    outputs = [bools("proceed_out", []), floats("sum_out", [WIDTH]), floats("partial_sum", [WIDTH])]

    g.op("Loop", steps, proceed, start, output="total", body=body.graph(inputs, outputs))
    g.nodes[-1].output.append("sums")
    feeds = [floats("sequence", ["steps", WIDTH]), floats("limit", [])]
    return model_bytes(g.graph(feeds, [floats("total", [WIDTH]), floats("sums", ["taken", WIDTH])]), opset=13)
