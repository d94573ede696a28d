"""A small MobileNetV2 as exporters write it: BatchNormalization not yet folded, ReLU6 as Clip."""

from __future__ import annotations

import numpy as np
from builder import Array, GraphBuilder, Numbers, floats, half, model_bytes
from layers import conv2d

SIZE, CLASSES, HEAD = 64, 10, 160
STEM = 16
STAGES = [  # expansion, channels, blocks, stride of the first block
    (1, 8, 1, 1),
    (6, 16, 2, 2),
    (6, 24, 2, 2),
    (6, 32, 2, 2),
]  # fmt: skip


class MobileNet:
    """Builds the graph and runs it on seeded images in step: BatchNormalization gets the statistics that it sees."""

    def __init__(self, seed: int) -> None:
        self.g = GraphBuilder("mobilenet_v2_small")
        self.numbers = Numbers(seed)
        self.low = self.g.weight("relu6.min", np.asarray(0, np.float32))
        self.high = self.g.weight("relu6.max", np.asarray(6, np.float32))
        self.x: Array = self.numbers.uniform((8, 3, SIZE, SIZE), -1.7, 1.7).astype(np.float64)

    def conv_bn(
        self,
        name: str,
        x: str,
        out: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        depthwise: bool = False,
        clip: bool = True,
    ) -> str:
        channels = 1 if depthwise else self.x.shape[1]
        pad = kernel // 2
        w = self.numbers.weight((out, channels, kernel, kernel), channels * kernel * kernel, gain=2.0)
        self.x = conv2d(self.x, w, stride=stride, pad=pad, depthwise=depthwise)
        x = self.g.op(
            "Conv", x, self.g.weight(f"{name}.conv.weight", w),
            dilations=[1, 1], group=out if depthwise else 1, kernel_shape=[kernel] * 2, pads=[pad] * 4,
            strides=[stride] * 2,
        )  # fmt: skip
        x = self.batch_norm(f"{name}.bn", x)
        if not clip:
            return x
        self.x = self.x.clip(0, 6)
        return self.g.op("Clip", x, self.low, self.high)

    def batch_norm(self, name: str, x: str) -> str:
        channels = self.x.shape[1]
        scale = self.numbers.uniform((channels,), 0.6, 1.4)
        bias = self.numbers.uniform((channels,), -0.3, 0.3)
        mean, var = half(self.x.mean(axis=(0, 2, 3))), half(self.x.var(axis=(0, 2, 3)))
        column = (-1, 1, 1)
        normal = (self.x - mean.reshape(column)) / np.sqrt(var.reshape(column) + 1e-5)
        self.x = normal * scale.reshape(column) + bias.reshape(column)
        names = ("weight", scale), ("bias", bias), ("running_mean", mean), ("running_var", var)
        parameters = [self.g.weight(f"{name}.{suffix}", array) for suffix, array in names]
        return self.g.op("BatchNormalization", x, *parameters, epsilon=1e-5, momentum=0.9)

    def block(self, name: str, x: str, expansion: int, out: int, stride: int) -> str:
        """Inverted residual: expand, depthwise, project without activation; add the input where the shapes agree."""
        source, kept, channels = x, self.x, self.x.shape[1]
        hidden = channels * expansion
        if expansion != 1:
            x = self.conv_bn(f"{name}.expand", x, hidden)
        x = self.conv_bn(f"{name}.depthwise", x, hidden, kernel=3, stride=stride, depthwise=True)
        x = self.conv_bn(f"{name}.project", x, out, clip=False)
        if stride != 1 or channels != out:
            return x
        self.x = self.x + kept
        return self.g.op("Add", source, x)


def build() -> bytes:
    net = MobileNet(seed=2018)
    x = net.conv_bn("stem", "input", STEM, kernel=3, stride=2)
    number = 0
    for expansion, channels, blocks, first_stride in STAGES:
        for index in range(blocks):
            x = net.block(f"blocks.{number}", x, expansion, channels, first_stride if index == 0 else 1)
            number += 1
    x = net.conv_bn("head", x, HEAD)
    g = net.g
    x = g.op("Flatten", g.op("GlobalAveragePool", x), axis=1)
    weight = g.weight("classifier.weight", net.numbers.weight((CLASSES, HEAD), HEAD, gain=2.0))
    bias = g.weight("classifier.bias", net.numbers.uniform((CLASSES,), -0.1, 0.1))
    g.op("Gemm", x, weight, bias, output="logits", alpha=1.0, beta=1.0, transB=1)
    return model_bytes(g.graph([floats("input", [1, 3, SIZE, SIZE])], [floats("logits", [1, CLASSES])]), opset=13)
