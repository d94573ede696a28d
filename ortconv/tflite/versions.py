"""The version of an operator that a use needs: the first one whose kernel takes it. An older LiteRT refuses the file by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortconv.tflite.layout import ElementType
from ortconv.tflite.model import Option, Tensor

INT8 = {
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
    "QUANTIZE": 1,
    "TRANSPOSE_CONV": 3,
    "RSQRT": 2,
    "FILL": 3,
}
"""The versions with int8; of other operators it is 2."""
SINCE_FIRST = frozenset({"BATCH_MATMUL", "CAST", "EMBEDDING_LOOKUP", "EXPAND_DIMS", "HARD_SWISH", "MIRROR_PAD", "PACK",
                         "PRELU", "RELU_N1_TO_1", "RESHAPE", "REVERSE_V2", "SELECT", "SQUEEZE", "TILE"})  # fmt: skip
"""Operators that have had int8 from their first version on, or whose version does not tell."""


def version_of(code: str, tensors: Sequence[Tensor], options: Mapping[str, Option]) -> int:
    """`tensors` are inputs and outputs."""
    types = {tensor.type for tensor in tensors}
    found = 1
    if ElementType.INT8 in types and code not in SINCE_FIRST:
        found = INT8.get(code, 2)
    if code == "QUANTIZE" and ElementType.FLOAT32 not in types:
        found = 2
    if code == "DEQUANTIZE" and ElementType.FLOAT16 in types:
        found = 3
    if code == "TRANSPOSE_CONV":
        found = 3  # with a bias
    if options.get("half_pixel_centers"):
        found = 3
    if options.get("dilation_w_factor", 1) != 1 or options.get("dilation_h_factor", 1) != 1:
        found = max(found, 2)
    if code == "CONV_2D" and len(tensors) > 1 and tensors[0].shape[3:] != tensors[1].shape[3:]:
        found = max(found, 6)  # in groups
    return found
