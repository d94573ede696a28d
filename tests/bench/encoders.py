"""Rewrites of encoders that pay for some shapes only: onnxruntime's time of each form over that of the nodes.

python tests/bench/encoders.py [--rounds N]

One thread; CPU time, tenth percentiles of runs in turn. "*" marks the form that ortconv chooses.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from _latency import seconds, session
from _processes import row

from ortconv import convert, load

ATTENTION = (
    (1, 16, 4, 64), (1, 64, 4, 64), (1, 197, 3, 64), (1, 128, 4, 32), (64, 49, 3, 32), (4, 64, 4, 16), (1, 49, 12, 48),
    (64, 49, 2, 24), (16, 49, 4, 24), (4, 64, 4, 20), (1, 49, 16, 24), (1, 64, 12, 26), (1, 64, 8, 40), (1, 64, 8, 72),
    (4, 8, 8, 16), (8, 2, 4, 64), (64, 2, 8, 8), (64, 8, 8, 32), (256, 4, 8, 16),
)  # fmt: skip
"""Batch, rows, heads, and the size of a head."""

PRODUCTS = (
    (38416, 4, 4), (3136, 32, 32), (4096, 32, 128), (4096, 128, 32), (1024, 64, 256), (1024, 256, 64), (256, 160, 640),
    (256, 640, 160), (196, 192, 192), (64, 256, 1024), (64, 1024, 256), (49, 256, 1024), (49, 1024, 256),
)  # fmt: skip
"""Points, and channels before and after the product."""

PROJECTIONS = " ".join(f"{n}x = MatMul(x, w{n}) {n}p = Add({n}x, b{n})" for n in "qkv")
HEADS = """qr = Reshape(qp, heads) kr = Reshape(kp, heads) vr = Reshape(vp, heads)
    q = Transpose<perm = [0, 2, 1, 3]>(qr) k = Transpose<perm = [0, 2, 3, 1]>(kr) v = Transpose<perm = [0, 2, 1, 3]>(vr)"""
SCORES = "d = MatMul(q, k) s = Mul(d, scale) {added} p = Softmax<axis = -1>({scores}) f = MatMul(p, v)"
NODES = f"{PROJECTIONS} {HEADS} {SCORES} t = Transpose<perm = [0, 2, 1, 3]>(f) y = Reshape(t, rows)"
PLAIN, MASKED = NODES.format(added="", scores="s"), NODES.format(added="a = Add(s, m)", scores="a")
FUSED = "y = com.microsoft.Attention<num_heads = {heads}, scale = {scale}>(x, w, b{mask})"
BESIDE = (
    f"{PROJECTIONS} y = com.microsoft.MultiHeadAttention<num_heads = {{heads}}, scale = {{scale}}>(qp, kp, vp{{mask}})"
)

SWAP = "Transpose<perm = [0, 2, 1]>"
DENSE = "d = MatMul({x}, w) {y} = Add(d, b)"
SIDES = {
    "after": (f"{DENSE.format(x='x', y='a')} y = {SWAP}(a)", f"t = {SWAP}(x) y = Conv(t, c, b)"),
    "before": (f"t = {SWAP}(x) {DENSE.format(x='t', y='y')}", f"a = Conv(x, c, b) y = {SWAP}(a)"),
    "both": (f"t = {SWAP}(x) {DENSE.format(x='t', y='a')} y = {SWAP}(a)", "y = Conv(x, c, b)"),
}
"""Where the Transposes are; the nodes with a product, and those with a Conv."""


def model(body: str, reads: str, returns: str, constants: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A model of these nodes, inputs and outputs, with those of the constants that the nodes read."""
    text = f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g ({reads}) => ({returns}) {{ {body} }}'
    made = onnx.parser.parse_model(text)
    used = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(a, name) for name, a in constants.items() if name in used
    )
    return made


def attention(batch: int, rows: int, heads: int, size: int, *, masked: bool) -> Iterator[onnx.ModelProto]:
    """Attention with its projections: as nodes, as Attention, and as MultiHeadAttention."""
    width = heads * size
    draw = np.random.default_rng(0).standard_normal
    weights, biases = (draw(shape).astype(np.float32) / width for shape in ((width, 3 * width), 3 * width))
    constants = {"w": weights, "b": biases, "heads": np.array([0, 0, heads, size]), "rows": np.array([0, 0, width])}
    constants |= {f"w{n}": part for n, part in zip("qkv", np.split(weights, 3, 1), strict=True)}
    constants |= {f"b{n}": part for n, part in zip("qkv", np.split(biases, 3), strict=True)}
    constants["scale"] = np.array(size**-0.5, np.float32)
    reads = f"float[{batch},{rows},{width}] x" + f", float[1,{heads},{rows},{rows}] m" * masked
    mask = ', "", "", m' * masked
    fused = (form.format(heads=heads, scale=size**-0.5, mask=mask) for form in (FUSED, BESIDE))
    for body in (MASKED if masked else PLAIN, *fused):
        yield model(body, reads, f"float[{batch},{rows},{width}] y", constants)


def product(points: int, before: int, after: int, side: str) -> Iterator[onnx.ModelProto]:
    """A product with weights next to one or two Transposes: as a product, and as a Conv."""
    draw = np.random.default_rng(0).standard_normal
    weights = draw((before, after)).astype(np.float32) / before
    constants = {"w": weights, "c": weights.T.copy()[:, :, None], "b": draw(after).astype(np.float32)}
    x, y = (f"{points},{before}", f"{before},{points}"), (f"{points},{after}", f"{after},{points}")
    reads, returns = x[side != "after"], y[side != "before"]
    for body in SIDES[side]:
        yield model(body, f"float[1,{reads}] x", f"float[1,{returns}] y", constants)


def ratios(source: onnx.ModelProto, forms: Mapping[str, onnx.ModelProto], fusion: str, rounds: int) -> list[str]:
    """The time of each form, named by its operator, over that of the source converted without this fusion. The one with
    the operator that ortconv chooses is marked.
    """
    draw = np.random.default_rng(0).standard_normal
    inputs = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in source.graph.input}
    feeds = {name: draw(shape).astype(np.float32) for name, shape in inputs.items()}
    with tempfile.TemporaryDirectory() as folder:
        apart, chosen = Path(folder, "apart.ort"), Path(folder, "chosen.ort")
        convert(source, apart, validate=False, disable_passes=(fusion,))
        convert(source, chosen, validate=False)
        operators = {node.op for node in load(chosen).graph}
        sessions = [session(apart), *map(session, forms.values())]
    first, *others = (each.run(None, feeds)[0] for each in sessions)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-3, atol=1e-4)
    base, *times = seconds(sessions, feeds, rounds)
    return [f"{t / base:.2f}{' *'[op in operators]}" for t, op in zip(times, forms, strict=True)]


def attention_ratios(shape: tuple[int, int, int, int], *, masked: bool, rounds: int) -> list[str]:
    source, fused, beside = attention(*shape, masked=masked)
    return ratios(source, {"Attention": fused, "MultiHeadAttention": beside}, "AttentionFusion", rounds)


def product_ratio(points: int, before: int, after: int, side: str, rounds: int) -> str:
    source, conv = product(points, before, after, side)
    return ratios(source, {"Conv": conv}, "PointwiseConvFusion", rounds)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Rewrites of encoders, each form against the nodes of the source.")
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    row("batch, rows, heads, size", "Attention", "MultiHead", "with a mask:", "Attention", "MultiHead")
    for shape in ATTENTION:
        plain, masked = (attention_ratios(shape, masked=masked, rounds=rounds) for masked in (False, True))
        row(", ".join(map(str, shape)), *plain, "", *masked)
    row("points, channels before and after", *SIDES)
    for points, before, after in PRODUCTS:
        found = (product_ratio(points, before, after, side, rounds) for side in SIDES)
        row(f"{points}, {before} and {after}", *found)


if __name__ == "__main__":
    main()
