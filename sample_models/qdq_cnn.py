"""A small quantized CNN in QDQ form: uint8 activations, int8 weights per output channel, int32 biases.

Each operator stands between DequantizeLinear and QuantizeLinear, so it is one unit for an execution provider. The
scales come from running the float network on seeded images.
"""

from __future__ import annotations

import numpy as np
from builder import Array, GraphBuilder, Numbers, floats, half, model_bytes
from layers import conv2d, max_pool

SIZE, CLASSES = 32, 10


class QuantizedNet:
    """Builds the graph and runs the float network on the calibration images in step: a value is a name and numbers."""

    def __init__(self, seed: int) -> None:
        self.g = GraphBuilder("qdq_cnn")
        self.numbers = Numbers(seed)
        self._parameters: dict[str, tuple[Array, Array]] = {}  # quantized value -> its scale and zero point

    def quantize(self, name: str, x: str, seen: Array, *, like: str | None = None, output: str | None = None) -> str:
        """QuantizeLinear and DequantizeLinear of `x`; with the parameters of `like` where scales must agree."""
        if like is None:
            low, high = min(0.0, float(seen.min())), max(0.0, float(seen.max()))
            scale = half(np.asarray((high - low) / 255 * 1.001))
            zero = np.asarray(np.clip(np.rint(-low / scale), 0, 255), np.uint8)
        else:
            scale, zero = self._parameters[like]
        names = self.g.weight(f"{name}_scale", scale), self.g.weight(f"{name}_zero_point", zero)
        quantized = self.g.op("QuantizeLinear", x, *names, output=f"{name}_quantized")
        result = self.g.op("DequantizeLinear", quantized, *names, output=output or f"{name}_dequantized")
        self._parameters[result] = scale, zero
        return result

    def weight(self, name: str, x: str, w: Array, b: Array) -> tuple[str, str]:
        """The dequantized int8 weight and int32 bias of an operator that reads `x`; output channels are axis 0."""
        scale = half(np.abs(w).reshape(len(w), -1).max(axis=1) / 127 * 1.001)
        quantized = np.rint(w / scale.reshape(-1, *[1] * (w.ndim - 1))).astype(np.int8)
        bias_scale = scale * self._parameters[x][0]
        bias = np.rint(b / bias_scale).astype(np.int32)
        parts = (
            ("weight", quantized, scale, np.zeros(len(w), np.int8)),
            ("bias", bias, bias_scale, np.zeros(len(w), np.int32)),
        )
        result = []
        for kind, values, scales, zeros in parts:
            tensors = ("quantized", values), ("scale", scales), ("zero_point", zeros)
            names = [self.g.weight(f"{name}.{kind}_{suffix}", array) for suffix, array in tensors]
            result.append(self.g.op("DequantizeLinear", *names, axis=0))
        return result[0], result[1]

    def conv(self, name: str, x: str, seen: Array, out: int, kernel: int) -> tuple[str, Array]:
        """Conv with bias, stride 1, same size; not yet quantized."""
        channels = seen.shape[1]
        w = self.numbers.weight((out, channels, kernel, kernel), channels * kernel * kernel, gain=2.0)
        b = self.numbers.uniform((out,), -0.2, 0.2)
        seen = conv2d(seen, w, pad=kernel // 2) + b.reshape(-1, 1, 1)
        y = self.g.op(
            "Conv", x, *self.weight(name, x, w, b),
            dilations=[1, 1], group=1, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4, strides=[1, 1],
        )  # fmt: skip
        return y, seen

    def relu(self, name: str, x: str, seen: Array) -> tuple[str, Array]:
        seen = np.maximum(seen, 0)
        return self.quantize(name, self.g.op("Relu", x), seen), seen

    def residual(self, name: str, x: str, seen: Array) -> tuple[str, Array]:
        """Conv, Relu, Conv, Add, Relu; the first Relu follows its Conv directly, as static quantization leaves it."""
        inner, values = self.conv(f"{name}.conv1", x, seen, seen.shape[1], 3)
        inner, values = self.relu(f"{name}.relu1", inner, values)
        inner, values = self.conv(f"{name}.conv2", inner, values, seen.shape[1], 3)
        inner = self.quantize(f"{name}.conv2", inner, values)
        values = values + seen
        total = self.quantize(f"{name}.add", self.g.op("Add", inner, x), values)
        return self.relu(f"{name}.relu2", total, values)

    def pool(self, name: str, x: str, seen: Array) -> tuple[str, Array]:
        seen = max_pool(seen, 2)
        y = self.g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        return self.quantize(name, y, seen, like=x), seen


def build() -> bytes:
    net = QuantizedNet(seed=2019)
    seen = net.numbers.uniform((16, 3, SIZE, SIZE), -1.0, 1.0).astype(np.float64)
    x = net.quantize("input", "input", seen)
    x, seen = net.conv("stem", x, seen, 16, 3)
    x = net.quantize("stem", x, seen)
    x, seen = net.relu("stem.relu", x, seen)
    x, seen = net.pool("stem.pool", x, seen)
    x, seen = net.residual("block", x, seen)
    x, seen = net.conv("widen", x, seen, 32, 1)
    x, seen = net.relu("widen.relu", x, seen)
    x, seen = net.pool("widen.pool", x, seen)
    seen = seen.mean(axis=(2, 3), keepdims=True)
    x = net.quantize("average", net.g.op("GlobalAveragePool", x), seen)
    shape = net.g.weight("features_shape", np.array([1, -1], np.int64))
    seen = seen[:, :, 0, 0]
    x = net.quantize("features", net.g.op("Reshape", x, shape), seen, like=x)
    w = net.numbers.weight((CLASSES, seen.shape[1]), seen.shape[1], gain=2.0)
    b = net.numbers.uniform((CLASSES,), -0.2, 0.2)
    y = net.g.op("Gemm", x, *net.weight("classifier", x, w, b), alpha=1.0, beta=1.0, transB=1)
    net.quantize("logits", y, seen @ w.T.astype(np.float64) + b, output="logits")
    return model_bytes(net.g.graph([floats("input", [1, 3, SIZE, SIZE])], [floats("logits", [1, CLASSES])]), opset=13)
