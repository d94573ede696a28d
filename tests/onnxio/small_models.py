"""Small models in ONNX's text syntax that between them use what a file can hold."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from ortconv.ir.model import Model
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto

CONTROL_FLOW = """
<ir_version: 8, opset_import: ["" : 17]>
control_flow (float[N, 3] x, bool c) => (float[N, 3] y, float[M] z)
<float[3] w = {1.5, -2.0, 0.0}, int64 trips = {2}, bool go = {1}, float[1] start = {4.0}>
{
  t = Add(x, w)
  y = If (c) <
    then_branch = then_graph () => (float[N, 3] a) { a = Relu(t) },
    else_branch = else_graph () => (float[N, 3] b) { k = Constant<value_float = 2.0>()  b = Mul(t, k) }
  >
  z = Loop (trips, go, start) <
    body = body_graph (int64 i, bool on, float[1] v) => (bool still, float[1] next) {
      still = Identity(on)
      one = Constant<value = float[1] {1.0}>()
      next = Add(v, one)
    }
  >
}
"""

FUNCTIONS = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1], producer_name: "test">
functions (float[2, N] x) => (float[2, N] y) { y = local.twice<alpha = 0.5>(x) }
<domain: "local", opset_import: ["" : 17, "local" : 1]>
once <alpha> (a) => (b) { b = LeakyRelu<alpha : float = @alpha>(a) }
<domain: "local", opset_import: ["" : 17, "local" : 1]>
twice <alpha> (a) => (c) {
  b = local.once<alpha : float = @alpha>(a)
  c = local.once<alpha = 0.25>(b)
}
"""

SHAPES = """
<ir_version: 8, opset_import: ["" : 17]>
shapes (float[B, C, 4] x, float[2, 3, 5, 5] image, string[2] words) => (float[D, 4] y, float[2, 4, 1, 1] conv, string[2] t)
<int64[2] tail = {-1, 4}>
{
  s = Shape(x)
  zero = Constant<value_ints = [0]>()
  g = Gather(s, zero)
  r = Reshape(x, tail)
  n = NonZero(r)
  k = Transpose(n)
  y = Relu(r)
  conv = Conv<strides = [1, 1], kernel_shape = [5, 5]>(image, w)
  t = Identity(words)
}
"""


CONTRIBUTED = """
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
contributed (float[1, 2, 4, 4] x, float[2, 3, 8] t, float[2, 1, 4] s) =>
  (float[A, B, C, D] y, float[E, F, G] u, float[S, T, U] scanned)
<float[3, 2, 1, 1] w = {1, 2, 3, 4, 5, 6}, float[8] scale = {1, 1, 1, 1, 1, 1, 1, 1}, float zero = {0}>
{
  c = com.microsoft.FusedConv<activation = "Relu", kernel_shape = [1, 1]>(x, w)
  y = com.microsoft.Gelu(c)
  a, m, v, k = com.microsoft.SkipLayerNormalization<epsilon = 0.1>(t, t, scale)
  u = com.microsoft.FusedMatMul<transA = 1, alpha = 2.0>(a, k)
  last, scanned = Scan (zero, s) <
    num_scan_inputs = 1,
    body = step (float sum, float[1, 4] row) => (float next, float[1, 4] out) { next = Identity(sum)  out = Neg(row) }
  >
}
"""


def contributed() -> onnx.ModelProto:
    return parser.parse_model(CONTRIBUTED)


def control_flow() -> onnx.ModelProto:
    return parser.parse_model(CONTROL_FLOW)


def functions() -> onnx.ModelProto:
    return parser.parse_model(FUNCTIONS)


def shapes() -> onnx.ModelProto:
    model = parser.parse_model(SHAPES)
    weights = np.arange(300, dtype=np.float32).reshape(4, 3, 5, 5)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sp", 1, [2], [1.0, 2.0]), helper.make_tensor("", 7, [2], [1, 5]), [2, 3]
    )
    model.graph.sparse_initializer.append(sparse)
    strings = helper.make_tensor("st", onnx.TensorProto.STRING, [2], [b"a", b"\xff"])
    model.graph.initializer.append(strings)
    del model.graph.value_info[:]
    return model


ALL = {"control_flow": control_flow, "functions": functions, "shapes": shapes, "contributed": contributed}


def parsed(text: str, header: str = 'ir_version: 8, opset_import: ["" : 17]') -> Model:
    """The model of a graph in ONNX's text form, verified."""
    model = from_proto(parser.parse_model(f"<{header}>\n{text}"))
    verify(model.graph)
    return model
