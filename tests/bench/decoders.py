"""Attention of a decoder with past keys and values: onnxruntime's time of the fused node over that of the nodes it replaces.

python tests/bench/decoders.py [--rounds N]

Four layers of attention with a mask and its projections, head size 64, batch 1, one thread; CPU time, tenth percentiles of
runs in turn. `heads` are those of queries and those of keys.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from _latency import seconds, session

from ortconv import convert

SIZE, LAYERS = 64, 4
FUSED = ("AttentionFusion",)


def decoder(heads: int, shared: int) -> onnx.ModelProto:
    """Attention of as many heads of queries and of keys, with its four projections; each layer behind the one before it."""
    width, rows = heads * SIZE, shared * SIZE
    reads, returns, body, x = [f"float[1,S,{width}] x, float[1,1,S,T] m"], [], [], "x"
    for i in range(LAYERS):
        reads.append(f"float[1,{shared},P,{SIZE}] pk{i}, float[1,{shared},P,{SIZE}] pv{i}")
        returns.append(f"float[1,{shared},T,{SIZE}] nk{i}, float[1,{shared},T,{SIZE}] nv{i}")
        body.append(LAYER.format(i=i, x=x) + (REPEAT if shared < heads else "").format(i=i))
        body.append(ATTENTION.format(i=i, g="g" if shared < heads else "n"))
        x = f"y{i}"
    text = f"g ({', '.join(reads)}) => ({', '.join([f'float[1,S,{width}] {x}', *returns])}) {{ {' '.join(body)} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    draw = np.random.default_rng(0).standard_normal
    wide, narrow = (width, width), (width, rows)
    shapes = {f"{name}{i}": wide if name in "wo" else narrow for i in range(LAYERS) for name in "wuvo"}
    constants: dict[str, np.ndarray] = {name: draw(shape).astype(np.float32) / width for name, shape in shapes.items()}
    constants |= {"heads": np.array([0, 0, heads, SIZE]), "shared": np.array([0, 0, shared, SIZE])}
    constants |= {"rows": np.array([0, 0, width]), "copies": np.repeat(np.arange(shared), heads // shared)}
    constants["scale"] = np.array(SIZE**-0.5, np.float32)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return model


LAYER = """a{i} = MatMul({x}, w{i}) b{i} = MatMul({x}, u{i}) c{i} = MatMul({x}, v{i})
    ar{i} = Reshape(a{i}, heads) br{i} = Reshape(b{i}, shared) cr{i} = Reshape(c{i}, shared)
    q{i} = Transpose<perm = [0, 2, 1, 3]>(ar{i}) k{i} = Transpose<perm = [0, 2, 1, 3]>(br{i})
    h{i} = Transpose<perm = [0, 2, 1, 3]>(cr{i})
    nk{i} = Concat<axis = 2>(pk{i}, k{i}) nv{i} = Concat<axis = 2>(pv{i}, h{i})"""
REPEAT = " gk{i} = Gather<axis = 1>(nk{i}, copies) gv{i} = Gather<axis = 1>(nv{i}, copies)"
ATTENTION = """kt{i} = Transpose<perm = [0, 1, 3, 2]>({g}k{i}) s{i} = MatMul(q{i}, kt{i}) d{i} = Mul(s{i}, scale)
    e{i} = Add(d{i}, m) p{i} = Softmax<axis = -1>(e{i}) f{i} = MatMul(p{i}, {g}v{i})
    t{i} = Transpose<perm = [0, 2, 1, 3]>(f{i}) r{i} = Reshape(t{i}, rows) y{i} = MatMul(r{i}, o{i})"""


def inputs(heads: int, shared: int, past: int, rows: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).standard_normal
    found = {"x": draw((1, rows, heads * SIZE)), "m": np.zeros((1, 1, rows, past + rows))}
    for i in range(LAYERS):
        found |= {f"{name}{i}": draw((1, shared, past, SIZE)) for name in ("pk", "pv")}
    return {name: array.astype(np.float32) for name, array in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention with a past, fused and not.")
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    print(f"{'heads':>8}{'rows':>6}{'past':>6}{'apart':>12}{'fused':>12}   ratio")
    with tempfile.TemporaryDirectory() as folder:
        for heads, shared in ((6, 6), (12, 12), (6, 2), (16, 4)):
            paths = [Path(folder, f"{heads}_{shared}_{kind}.ort") for kind in ("apart", "fused")]
            for path, without in zip(paths, (FUSED, ()), strict=True):
                convert(decoder(heads, shared), path, validate=False, disable_passes=without)
            sessions = [session(path) for path in paths]
            for rows, past in ((1, 0), (1, 64), (1, 1024), (16, 0), (64, 0), (64, 512), (256, 0)):
                apart, fused = seconds(sessions, inputs(heads, shared, past, rows), max(10, rounds // rows))
                print(
                    f"{heads:>5}/{shared:<2}{rows:>6}{past:>6}{apart * 1e6:>9.0f} us{fused * 1e6:>9.0f} us   x{fused / apart:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
