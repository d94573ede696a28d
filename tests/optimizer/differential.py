"""What the optimizer makes of a model against the model itself, both run by onnxruntime without optimizations of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ortconv.compare.gap import Gap, strict_gap
from ortconv.compare.tolerance import limit
from ortconv.errors import GraphError, UnsupportedError
from ortconv.ir.graph import Graph, Node
from ortconv.ir.types import DType
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.ortformat.functions import expand_functions
from ortconv.ortformat.writer import serialize
from ortconv.partition import Target
from ortconv.pipeline import optimize
from ortconv.runtime.session import Session
from tests.unoptimized import session

Feeds = Mapping[str, Any]
VARIANTS: tuple[tuple[str, bool], ...] = (
    ("basic", False), ("extended", False), ("layout", False), ("all", False), ("all", True), ("basic", True),
)  # fmt: skip
NOISE_RUNS = 8
TINY = 1e-7
"""onnxruntime's Sigmoid, Tanh, Exp and Erf are no more exact than that."""
STEPS = 4
"""Operators on integers round once where the pairs around an operator on floats round otherwise: so many steps are let pass."""
WITHOUT_NAN = ("ConvBranchFusion", "CubicUpsampling")
"""Rewrites after which sums of infinities are infinite or numbers where they were NaN, since terms come together beforehand."""
WITH_NAN = ("PartialRotaryFusion",)
"""Rewrites after which products are NaN where they were infinite, since infinities are multiplied by 0."""
BY_PLACE = frozenset({"MaxPool", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "Hardmax", "TopK"})
"""Operators that make of a NaN or infinity what suits the place where it stands: lost among others, or some integer."""


class DifferenceError(AssertionError):
    """A result is not what the source computes, is refused, or was not reached."""


def examine(proto: onnx.ModelProto, feeds: Iterable[Feeds], *, executor: bool = True) -> None:
    """Compare the result at every level with the source. Raises DifferenceError if onnxruntime runs the source, but not a result,
    or if numbers differ.
    """
    if any(map(_leaves_elements, proto.graph.node)) or _is_refused_rotation(proto):
        return
    source = proto.SerializeToString()
    try:
        reference = session(source)
    except Exception:
        return
    runs: list[tuple[Feeds, list[Any]]] = []
    for one in feeds:
        with suppress(Exception):  # inputs that the source refuses
            runs.append((one, reference.run(None, one)))
    if not runs:
        return
    if executor:
        _examine_executor(proto, runs[0])
    seen: set[bytes] = set()
    for level, with_target in VARIANTS:
        _examine_level(proto, level, with_target, runs, seen)


def _leaves_elements(node: onnx.NodeProto) -> bool:
    """True for a node of which onnxruntime leaves elements as memory happens to be: a rotation of an odd number of columns."""
    odd = any(a.name == "rotary_embedding_dim" and a.i % 2 for a in node.attribute)
    return node.op_type == "RotaryEmbedding" and odd


def _is_refused_rotation(proto: onnx.ModelProto) -> bool:
    """True for a rotation that ortconv refuses, such as one of no columns: onnxruntime reads other memory and may crash."""
    if all(node.op_type != "RotaryEmbedding" for node in proto.graph.node):
        return False
    try:
        from_proto(proto)
    except GraphError:
        return True
    return False


def _examine_executor(proto: onnx.ModelProto, run: tuple[Feeds, list[Any]]) -> None:
    try:
        runner = Session(from_proto(proto))
    except UnsupportedError:
        return
    # onnxruntime keeps the size of an axis that it reduces where another one is 0, and computes in float32 what is float16.
    if any(v.size == 0 for v in (*run[0].values(), *run[1])) or any(v.dtype == np.float16 for v in run[0].values()):
        return
    _compare("executor", proto, run, runner.run(None, run[0]))


def _examine_level(proto: onnx.ModelProto, level: str, with_target: bool, runs: list[Any], seen: set[bytes]) -> None:
    where = f"{level}{' for NNAPI' if with_target else ''}"
    model = from_proto(proto)
    done = optimize(model, level, Target() if with_target else None)
    verify(model.graph)
    where += f" after {', '.join(done.counts())}"
    expand_functions(model)
    result = model_proto(model).SerializeToString(deterministic=True)
    if result in seen:
        return
    seen.add(result)
    forms = {"": result}
    if level == "all":
        forms[" as .ort"] = b"".join(serialize(model))
    for form, data in forms.items():
        try:
            optimized = session(data)
        except Exception as error:
            raise DifferenceError(f"{where}{form}: refused: {str(error).splitlines()[0][:300]}") from None
        for one in runs:
            try:
                got = optimized.run(None, one[0])
            except Exception as error:
                raise DifferenceError(f"{where}{form}: {str(error).splitlines()[0][:300]}") from None
            _compare(where + form, proto, one, got)


def _compare(where: str, proto: onnx.ModelProto, run: tuple[Feeds, list[Any]], got: list[Any]) -> None:
    feeds, want = run
    step = _step(proto)
    found = [strict_gap(a, b) for a, b in zip(want, got, strict=True)]
    found = [d if not step else _of_codes(d, a, b) for d, a, b in zip(found, want, got, strict=True)]
    graph = _graph(proto.SerializeToString())
    allowed = limit(graph, [v.dtype for v in graph.outputs])
    forgiven = _forgiven(where)
    if forgiven is not None:
        want = [np.where(forgiven(a, b), b, a) if _is_float(a) and a.shape == b.shape else a for a, b in zip(want, got)]
        found = [strict_gap(a, b) for a, b in zip(want, got, strict=True)]
    if all(one.within(allowed) for one in found):
        return
    if all(strict_gap(_unsigned(a), _unsigned(b)).within(allowed) for a, b in zip(want, got, strict=True)):
        return  # but for the sign of a zero
    if any(node.op == "MatMulNBits" and node.attr("accuracy_level", 0) == 4 for node in graph.walk()):
        return  # it rounds to bytes once its weights are known to be constant
    spread = _spread(proto, run)
    tiny = max(TINY, STEPS * step)
    if any(map(_is_by_place, graph.walk())) and not all(
        map(_is_finite, (*feeds.values(), *want, *got, *_inner(proto, feeds)))
    ):
        return
    for output, one, noise in zip(proto.graph.output, found, spread, strict=True):
        if one.mismatch is None and one.largest < tiny:
            continue
        if noise.mismatch is None and not one.within(allowed + 10 * noise.scaled):
            text = (
                one.mismatch or f"scaled {one.scaled:.3g}, allowed {allowed:.3g}, rounding explains {noise.scaled:.3g}"
            )
            raise DifferenceError(f"{where}: output {output.name}: {text}")


def _forgiven(where: str) -> Callable[[Any, Any], Any] | None:
    """The places in which numbers that are not finite may differ, as a function of source and result; None if there are none."""
    if any(name in where for name in WITHOUT_NAN):
        return lambda a, b: np.isnan(a)
    return (lambda a, b: np.isinf(a) & np.isnan(b)) if any(name in where for name in WITH_NAN) else None


def _inner(proto: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    """What the nodes of the main graph compute."""
    opened = onnx.ModelProto()
    opened.CopyFrom(proto)
    del opened.graph.output[:]
    opened.graph.output.extend(onnx.ValueInfoProto(name=v) for n in proto.graph.node for v in n.output if v)
    values: list[Any] = session(opened.SerializeToString()).run(None, feeds)
    return values


def _is_finite(value: Any) -> bool:
    return not _is_float(value) or bool(np.isfinite(value).all())


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _is_by_place(node: Node) -> bool:
    return node.op in BY_PLACE or (node.op == "Cast" and node.out.dtype in (DType.INT32, DType.INT64, DType.BOOL))


def _of_codes(found: Gap, want: Any, got: Any) -> Gap:
    """No difference where quantized integers are at most as many steps apart as are let pass."""
    if (
        not isinstance(want, np.ndarray)
        or want.dtype.str[1:] not in ("i1", "u1", "i2", "u2")
        or want.shape != got.shape
    ):
        return found
    apart = np.abs(want.astype(np.int64) - got.astype(np.int64))
    return Gap() if apart.max(initial=0) <= STEPS else found


@lru_cache(maxsize=1)
def _graph(source: bytes) -> Graph:
    return from_proto(onnx.load_from_string(source)).graph


def _unsigned(array: Any) -> Any:
    """The array with infinities of either sign the same: a quotient by zero has that of the zero, which rewrites may change."""
    if not _is_float(array):
        return array
    return np.where(np.isinf(array), np.asarray(np.inf, array.dtype), array)


def _step(proto: onnx.ModelProto) -> float:
    """The coarsest step of quantization, 0 without quantization."""
    scales = {n.input[1] for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    known = [numpy_helper.to_array(t) for t in proto.graph.initializer if t.name in scales]
    return max((float(np.max(np.abs(a), initial=0)) for a in known), default=0.0)


def _spread(proto: onnx.ModelProto, run: tuple[Feeds, list[Any]]) -> list[Any]:
    """How far each output moves when every float value on the way is off by a few units in the last place, or next to nothing."""
    feeds, want = run
    results = [[strict_gap(a, a)] for a in want]
    for seed in range(NOISE_RUNS):
        noisy = _noisy(proto, "Mul" if seed % 2 else "Add", Random(seed))
        got = session(noisy.SerializeToString()).run(None, feeds)
        for kept, a, b in zip(results, want, got, strict=True):
            kept.append(strict_gap(a, b))
    return [max(one, key=lambda found: found.severity) for one in results]


def _noisy(proto: onnx.ModelProto, op: str, rng: Random) -> onnx.ModelProto:
    noisy = onnx.ModelProto()
    noisy.CopyFrom(proto)
    typed = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(proto).graph.value_info}
    typed |= {v.name: v.type.tensor_type.elem_type for v in proto.graph.output}
    kinds: dict[int, Any] = {1: np.float32, 10: np.float16, 11: np.float64}
    nodes = []
    for node in proto.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        nodes.append(copy)
        for i, name in enumerate(node.output):
            dtype = kinds.get(typed.get(name, 0))
            if dtype is None or node.op_type in ("Constant", "Identity", "DequantizeLinear"):
                continue
            copy.output[i] = f"{name}_exact"
            few, sign = np.finfo(dtype), rng.choice((-4, 4))
            noise = np.asarray(1 + sign * few.eps if op == "Mul" else sign * few.tiny, dtype)
            noisy.graph.initializer.append(numpy_helper.from_array(noise, f"{name}_noise"))
            nodes.append(helper.make_node(op, [f"{name}_exact", f"{name}_noise"], [name]))
    del noisy.graph.node[:]
    noisy.graph.node.extend(nodes)
    return noisy
