"""The handwritten digit model of the ONNX model zoo (CNTK's, 12 nodes), trained here on scikit-learn's digits.

The digits are 8x8 images; they are scaled to 28x28 and to pixels of 0..255, which is what the model takes. Training is
plain numpy in float64, and the weights are then rounded to float16 values, which absorbs the last-bit differences
between machines.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from builder import Array, GraphBuilder, Numbers, floats, half, ints, model_bytes
from layers import max_pool, pad2d, patches

SIDE, TEST_IMAGES, EPOCHS, BATCH, REACH = 28, 400, 30, 32, 2
CONV1, BIAS1, CONV2, BIAS2 = "Parameter5", "Parameter6", "Parameter87", "Parameter88"
DENSE, BIAS3 = "Parameter193", "Parameter194"
SHAPES = {
    DENSE: (16, 4, 4, 10), CONV2: (16, 8, 5, 5), CONV1: (8, 1, 5, 5),
    BIAS1: (8, 1, 1), BIAS2: (16, 1, 1), BIAS3: (1, 10),
}  # fmt: skip
ACTIVATIONS = {
    "Parameter193_reshape1": (256, 10),
    "Convolution28_Output_0": (1, 8, 28, 28), "Plus30_Output_0": (1, 8, 28, 28), "ReLU32_Output_0": (1, 8, 28, 28),
    "Pooling66_Output_0": (1, 8, 14, 14),
    "Convolution110_Output_0": (1, 16, 14, 14), "Plus112_Output_0": (1, 16, 14, 14),
    "ReLU114_Output_0": (1, 16, 14, 14),
    "Pooling160_Output_0": (1, 16, 4, 4), "Pooling160_Output_0_reshape0": (1, 256), "Times212_Output_0": (1, 10),
}  # fmt: skip

Weights = dict[str, Array]


def build(weights: Weights) -> bytes:
    """The model around these weights. At IR version 3 initializers are graph inputs as well."""
    g = GraphBuilder("CNTKGraph")
    shapes = {
        "Pooling160_Output_0_reshape0_shape": np.array([1, 256], np.int64),
        "Parameter193_reshape1_shape": np.array([256, 10], np.int64),
    }
    order = [DENSE, CONV2, CONV1, BIAS1, BIAS2, *shapes, BIAS3]
    for name in order:
        g.weight(name, shapes[name] if name in shapes else weights[name])

    def node(op_type: str, name: str, *inputs: str, output: str | None = None, **attributes: object) -> str:
        result = g.op(op_type, *inputs, output=output or f"{name}_Output_0", **attributes)
        g.nodes[-1].name = name
        return result

    def conv(name: str, x: str, w: str) -> str:
        return node(
            "Conv", name, x, w, auto_pad="SAME_UPPER", dilations=[1, 1], group=1, kernel_shape=[5, 5], strides=[1, 1]
        )

    def pool(name: str, x: str, size: int) -> str:
        return node("MaxPool", name, x, auto_pad="NOTSET", kernel_shape=[size] * 2, pads=[0] * 4, strides=[size] * 2)

    dense = node("Reshape", "Times212_reshape1", DENSE, "Parameter193_reshape1_shape", output="Parameter193_reshape1")
    x = node("Relu", "ReLU32", node("Add", "Plus30", conv("Convolution28", "Input3", CONV1), BIAS1))
    x = pool("Pooling66", x, 2)
    x = node("Relu", "ReLU114", node("Add", "Plus112", conv("Convolution110", x, CONV2), BIAS2))
    x = pool("Pooling160", x, 3)
    flat = "Pooling160_Output_0_reshape0"
    x = node("Reshape", "Times212_reshape0", x, f"{flat}_shape", output=flat)
    node("Add", "Plus214", node("MatMul", "Times212", x, dense), BIAS3)

    inputs = [ints(name, [2]) if name in shapes else floats(name, SHAPES[name]) for name in order]
    graph = g.graph([floats("Input3", [1, 1, SIDE, SIDE]), *inputs], [floats("Plus214_Output_0", [1, 10])])
    graph.value_info.extend(floats(name, shape) for name, shape in ACTIVATIONS.items())
    return model_bytes(graph, opset=8, ir_version=3)


def upscale(images: Array, side: int) -> Array:
    """Bilinear, corners aligned: [N, s, s] -> [N, side, side]."""
    source = images.shape[-1]
    at = np.arange(side) * (source - 1) / (side - 1)
    low = np.minimum(at.astype(np.int64), source - 2)
    share = at - low
    weights = np.zeros((side, source))
    weights[np.arange(side), low] = 1 - share
    weights[np.arange(side), low + 1] = share
    return weights @ images @ weights.T


def digits() -> tuple[Array, Array]:
    """Shuffled uint8 images [N, 1, 28, 28] and int64 labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = np.rint(upscale(data.images, SIDE) * (255 / 16)).astype(np.uint8)
    order = np.random.RandomState(7).permutation(len(pixels))
    return pixels[order, None], data.target[order].astype(np.int64)


class Conv:
    """5x5, same size, with bias and Relu behind it."""

    def __init__(self, w: Array, b: Array) -> None:
        self.w, self.b = w, b

    def forward(self, x: Array) -> Array:
        self.windows = patches(pad2d(x, (2, 2, 2, 2)), 5)
        y = np.tensordot(self.windows, self.w, axes=([1, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2) + self.b
        self.live = y > 0
        return y * self.live

    def backward(self, grad: Array) -> tuple[Array, Array]:
        """Gradients of the weight and the bias."""
        grad = grad * self.live
        return np.tensordot(grad, self.windows, axes=([0, 2, 3], [0, 2, 3])), grad.sum(axis=(0, 2, 3))[:, None, None]

    def input_gradient(self, grad: Array) -> Array:
        windows = patches(pad2d(grad * self.live, (2, 2, 2, 2)), 5)
        flipped = self.w[:, :, ::-1, ::-1]
        return np.tensordot(windows, flipped, axes=([1, 4, 5], [0, 2, 3])).transpose(0, 3, 1, 2)


def pool_backward(x: Array, y: Array, grad: Array, size: int) -> Array:
    """The gradient goes to the maxima, in equal parts; rows and columns that do not fill a window get none."""
    covered = y.shape[-1] * size

    def spread(pooled: Array) -> Array:
        return pooled.repeat(size, axis=2).repeat(size, axis=3)

    hits = x[:, :, :covered, :covered] == spread(y)
    count = patches(hits, size, size).sum(axis=(4, 5))
    missing = x.shape[-1] - covered
    return pad2d(hits * spread(grad / count), (0, 0, missing, missing))


def forward(weights: Weights, x: Array) -> Array:
    """Scores [N, 10] for images [N, 1, 28, 28]."""
    x = max_pool(Conv(weights[CONV1], weights[BIAS1]).forward(x), 2)
    x = max_pool(Conv(weights[CONV2], weights[BIAS2]).forward(x), 3)
    return x.reshape(len(x), -1) @ weights[DENSE].reshape(256, 10) + weights[BIAS3]


def gradients(weights: Weights, x: Array, labels: Array) -> Weights:
    """Of the mean cross entropy."""
    first, second = Conv(weights[CONV1], weights[BIAS1]), Conv(weights[CONV2], weights[BIAS2])
    dense = weights[DENSE].reshape(256, 10)
    a = first.forward(x)
    b = max_pool(a, 2)
    c = second.forward(b)
    d = max_pool(c, 3)
    flat = d.reshape(len(x), -1)
    scores = flat @ dense + weights[BIAS3]
    grad = np.exp(scores - scores.max(axis=1, keepdims=True))
    grad /= grad.sum(axis=1, keepdims=True)
    grad[np.arange(len(x)), labels] -= 1
    grad /= len(x)
    grad_d = (grad @ dense.T).reshape(d.shape)
    grad_c = pool_backward(c, d, grad_d, 3)
    conv2, bias2 = second.backward(grad_c)
    conv1, bias1 = first.backward(pool_backward(a, b, second.input_gradient(grad_c), 2))
    return {
        CONV1: conv1, BIAS1: bias1, CONV2: conv2, BIAS2: bias2,
        DENSE: (flat.T @ grad).reshape(SHAPES[DENSE]), BIAS3: grad.sum(axis=0, keepdims=True),
    }  # fmt: skip


def shifted(images: Array, down: int, right: int) -> Array:
    """Moved by up to REACH pixels, black moving in."""
    side = images.shape[-1]
    padded = pad2d(images, [REACH] * 4)
    return padded[:, :, REACH - down : REACH - down + side, REACH - right : REACH - right + side]


def adam(weights: Weights, images: Array, labels: Array) -> None:
    """Trains in place on shifted images; the step size falls linearly to zero."""
    mean = {name: np.zeros_like(w) for name, w in weights.items()}
    square = {name: np.zeros_like(w) for name, w in weights.items()}
    shuffle = np.random.RandomState(8)
    steps = EPOCHS * (len(images) // BATCH)
    step = 0
    for _ in range(EPOCHS):
        order = shuffle.permutation(len(images))
        for start in range(0, len(images) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            step += 1
            rate = 4e-3 * (1 - (step - 1) / steps)
            x = shifted(images[batch], *shuffle.randint(-REACH, REACH + 1, 2))
            for name, g in gradients(weights, x, labels[batch]).items():
                mean[name] = 0.9 * mean[name] + 0.1 * g
                square[name] = 0.999 * square[name] + 0.001 * g * g
                corrected = square[name] / (1 - 0.999**step)
                weights[name] -= rate * mean[name] / (1 - 0.9**step) / (np.sqrt(corrected) + 1e-8)


def train() -> tuple[Weights, Array, Array]:
    """Weights, and the test images and labels that training did not see."""
    pixels, labels = digits()
    numbers = Numbers(6)
    fan_in = {CONV1: 25, CONV2: 200, DENSE: 256}
    weights = {
        name: numbers.weight(shape, fan_in[name], 2.0).astype(np.float64) if name in fan_in else np.zeros(shape)
        for name, shape in SHAPES.items()
    }
    adam(weights, pixels[TEST_IMAGES:] / 256.0, labels[TEST_IMAGES:])
    rounded = {name: half(w) for name, w in weights.items()}
    rounded[CONV1] = rounded[CONV1] / np.float32(256)
    return rounded, pixels[:TEST_IMAGES], labels[:TEST_IMAGES]


def accuracy(weights: Weights, pixels: Array, labels: Array) -> float:
    wide = {name: w.astype(np.float64) for name, w in weights.items() if name in SHAPES}
    return float((forward(wide, pixels.astype(np.float64)).argmax(axis=1) == labels).mean())


def read_test_set(path: Path) -> tuple[Array, Array]:
    with np.load(path) as arrays:
        return arrays["images"], arrays["labels"]
