"""The version of an operator that a use needs: the first version whose kernel supports it. An older LiteRT then refuses the file.

The facts are those of TensorFlow Lite's tensorflow/lite/tools/versioning/op_version.cc (revision 02087409073e).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ortconv.tflite.layout import ElementType
from ortconv.tflite.model import Option, Tensor


class OperatorUse(NamedTuple):
    code: str
    tensors: Sequence[Tensor]
    options: Mapping[str, Option]

    def has(self, kind: ElementType) -> bool:
        return any(tensor.type is kind for tensor in self.tensors)

    def option(self, name: str) -> Option:
        return self.options.get(name, 0)

    @property
    def rank(self) -> int:
        """The largest rank of an input or output."""
        return max(len(tensor.shape) for tensor in self.tensors)


PLAIN_INT8 = frozenset({"EMBEDDING_LOOKUP", "EXPAND_DIMS", "HARD_SWISH", "PRELU", "QUANTIZE", "RELU_N1_TO_1", "RESHAPE",
                        "SELECT", "SQUEEZE"})  # fmt: skip
"""Operators whose first version supports int8, or whose version does not depend on it."""
INT8 = {"CAST": 3, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FILL": 3, "FLOOR_DIV": 3, "FULLY_CONNECTED": 4, "REVERSE_V2": 3,
        "TILE": 3}  # fmt: skip
"""The first versions with int8. For other operators it is 2."""
BOOL = {"FILL": 2, "GATHER": 3, "REVERSE_V2": 2, "STRIDED_SLICE": 3, "TRANSPOSE": 3}
FLOAT16 = {"CAST": 5, "DEQUANTIZE": 3, "FILL": 4}

RANK_5 = {"MAXIMUM": 3, "MINIMUM": 3, "PAD": 4, "PADV2": 4, "SELECT": 3, "SLICE": 5, "STRIDED_SLICE": 4, "SUB": 3,
          "TRANSPOSE": 4, "DIV": 2}  # fmt: skip
"""The first versions with more than four dimensions."""
BROADCASTS = frozenset({"DIV", "MAXIMUM", "MINIMUM", "SUB"})
"""Of these, the operators for which it counts only if the shapes of the inputs differ."""


def version_of(code: str, tensors: Sequence[Tensor], options: Mapping[str, Option]) -> int:
    """`tensors` are inputs and outputs."""
    use = OperatorUse(code, tensors, options)
    found = [version for applies, version in SPECIAL.get(code, ()) if applies(use)]
    if use.has(ElementType.INT8) and code not in PLAIN_INT8:
        found.append(INT8.get(code, 2))
    if use.has(ElementType.BOOL):
        found.append(BOOL.get(code, 1))
    if use.has(ElementType.FLOAT16):
        found.append(FLOAT16.get(code, 1))
    if use.rank > 4 and (code not in BROADCASTS or tensors[0].shape != tensors[1].shape):
        found.append(RANK_5.get(code, 1))
    return max(found, default=1)


def _is_dilated(use: OperatorUse) -> bool:
    return (use.option("dilation_w_factor") or 1, use.option("dilation_h_factor") or 1) != (1, 1)


def _is_grouped(use: OperatorUse) -> bool:
    return use.tensors[0].shape[3:] != use.tensors[1].shape[3:]


def _grows(use: OperatorUse) -> bool:
    """Whether the product of the inputs' scales is at least the scale of the output."""
    scales = [one.quantization.scales[0] for one in use.tensors if one.quantization is not None]
    return len(scales) == 3 and scales[0] * scales[1] >= scales[2]


SPECIAL: Mapping[str, Sequence[tuple[Callable[[OperatorUse], object], int]]] = {
    "ABS": [(lambda use: use.has(ElementType.INT32), 5)],
    "BATCH_TO_SPACE_ND": [(lambda use: len(use.tensors[0].shape) != 4, 3)],
    "CONV_2D": [(_is_grouped, 6)],
    "DEPTHWISE_CONV_2D": [(_is_dilated, 2)],
    "FLOOR_DIV": [(lambda use: use.has(ElementType.FLOAT32), 2)],
    "FULLY_CONNECTED": [(lambda use: len(use.tensors) == 3, 6)],
    "MUL": [(_grows, 3)],
    "RELU": [(lambda use: use.has(ElementType.UINT8), 2)],
    "RESIZE_BILINEAR": [(lambda use: use.option("half_pixel_centers"), 3)],
    "RESIZE_NEAREST_NEIGHBOR": [(lambda use: use.option("half_pixel_centers") or use.option("align_corners"), 3)],
    "SPACE_TO_BATCH_ND": [(lambda use: len(use.tensors[0].shape) != 4, 3)],
    "SPLIT": [(lambda use: use.tensors[1].type is ElementType.INT32, 3)],
    "TRANSPOSE": [(lambda use: use.rank > 5, 6)],
    "TRANSPOSE_CONV": [
        (lambda use: len(use.tensors) == 5, 3),
        (lambda use: use.option("fused_activation_function"), 4),
    ],
}
"""Versions by other properties of a use."""
