"""The versions of operators, as TensorFlow Lite's own tool numbers them."""

from __future__ import annotations

from typing import Any

import pytest

from ortconv.tflite.layout import ElementType
from ortconv.tflite.model import QuantizationParameters, Tensor
from ortconv.tflite.versions import version_of
from tests.batches import batched

KINDS = {"f": ElementType.FLOAT32, "h": ElementType.FLOAT16, "i": ElementType.INT32, "b": ElementType.BOOL,
         "u": ElementType.UINT8, "s": ElementType.INT8}  # fmt: skip


def tensor(text: str) -> Tensor:
    """A tensor from its letter and dimensions, such as f:1,4,4,2, with a scale behind @."""
    text, _, scale = text.partition("@")
    letter, _, dims = text.partition(":")
    shape = tuple(map(int, dims.split(","))) if dims else (1, 4, 4, 2)
    return Tensor("x", KINDS[letter], shape, QuantizationParameters((float(scale),), (0,)) if scale else None)


RANK_5, RANK_6 = "1,2,2,2,2", "1,2,2,2,2,2"
FILTER = "2,3,3,1"
CASES: list[tuple[str, str, dict[str, Any], int]] = [
    ("ABS", "f f", {}, 1),
    ("ABS", "i i", {}, 5),
    ("ADD", "f f f", {}, 1),
    ("ADD", "u u u", {}, 1),
    ("ADD", "s s s", {}, 2),
    ("ADD", f"f:{RANK_5} f f:{RANK_5}", {}, 1),
    ("ARG_MAX", "s i i", {}, 2),
    ("BATCH_MATMUL", "f f f", {}, 1),
    ("BATCH_MATMUL", "s s s", {}, 2),
    ("BATCH_TO_SPACE_ND", "s i i s", {}, 2),
    ("BATCH_TO_SPACE_ND", "f:1,4,2 i i f:1,4,2", {}, 3),
    ("CAST", "f i", {}, 1),
    ("CAST", "s f", {}, 3),
    ("CAST", "h f", {}, 5),
    ("CONCATENATION", "s s s", {}, 2),
    ("CONV_2D", "f f f f", {"dilation_w_factor": 2}, 1),
    ("CONV_2D", "s s i s", {}, 3),
    ("CONV_2D", f"s s:{FILTER} i s", {}, 6),
    ("DEPTHWISE_CONV_2D", "f f f f", {"dilation_w_factor": 1, "dilation_h_factor": 1}, 1),
    ("DEPTHWISE_CONV_2D", "f f f f", {"dilation_w_factor": 1, "dilation_h_factor": 2}, 2),
    ("DEPTHWISE_CONV_2D", "s s i s", {"dilation_w_factor": 2}, 3),
    ("DEQUANTIZE", "u f", {}, 1),
    ("DEQUANTIZE", "s f", {}, 2),
    ("DEQUANTIZE", "h f", {}, 3),
    ("DIV", f"f:{RANK_5} f:{RANK_5} f:{RANK_5}", {}, 1),
    ("DIV", f"f:{RANK_5} f:2 f:{RANK_5}", {}, 2),
    ("EQUAL", "b b b", {}, 1),
    ("EQUAL", "s s b", {}, 2),
    ("FILL", "i f f", {}, 1),
    ("FILL", "i b b", {}, 2),
    ("FILL", "i s s", {}, 3),
    ("FLOOR_DIV", "i i i", {}, 1),
    ("FLOOR_DIV", "f f f", {}, 2),
    ("FULLY_CONNECTED", "u u i u", {}, 1),
    ("FULLY_CONNECTED", "s s i s", {}, 4),
    ("FULLY_CONNECTED", "f f f", {}, 6),
    ("GATHER", "b i b", {}, 3),
    ("HARD_SWISH", "s s", {}, 1),
    ("MAXIMUM", "s s s", {}, 2),
    ("MAXIMUM", f"f:{RANK_5} f:2 f:{RANK_5}", {}, 3),
    ("MIRROR_PAD", "s i s", {}, 2),
    ("MUL", "u@0.5 u@0.5 u@0.3", {}, 1),
    ("MUL", "u@0.5 u@0.5 u@0.25", {}, 3),
    ("MUL", "s@0.5 s@0.5 s@0.3", {}, 2),
    ("PACK", "s s s", {}, 2),
    ("PAD", f"f:{RANK_5} i f:{RANK_5}", {}, 4),
    ("PRELU", "s s s", {}, 1),
    ("QUANTIZE", "f s", {}, 1),
    ("QUANTIZE", "u s", {}, 1),
    ("RELU", "f f", {}, 1),
    ("RELU", "u u", {}, 2),
    ("RELU6", "u u", {}, 1),
    ("RELU6", "s s", {}, 2),
    ("RESHAPE", "s i s", {}, 1),
    ("RESIZE_BILINEAR", "s i s", {"align_corners": True}, 2),
    ("RESIZE_BILINEAR", "f i f", {"half_pixel_centers": True}, 3),
    ("RESIZE_NEAREST_NEIGHBOR", "f i f", {"align_corners": True}, 3),
    ("REVERSE_V2", "b i b", {}, 2),
    ("REVERSE_V2", "s i s", {}, 3),
    ("RSQRT", "s s", {}, 2),
    ("SELECT", "b s s s", {}, 1),
    ("SELECT", f"b f:{RANK_5} f f", {}, 3),
    ("SLICE", f"f:{RANK_5} i i f:{RANK_5}", {}, 5),
    ("SPLIT", "i f f f", {}, 1),
    ("SPLIT", "i s s s", {}, 2),
    ("SPLIT", "i i i i", {}, 3),
    ("STRIDED_SLICE", "b i i i b", {}, 3),
    ("STRIDED_SLICE", f"f:{RANK_5} i i i f", {}, 4),
    ("SUB", f"s:{RANK_5} s:2 s:{RANK_5}", {}, 3),
    ("TILE", "s i s", {}, 3),
    ("TRANSPOSE", "b i b", {}, 3),
    ("TRANSPOSE", f"s:{RANK_5} i s:{RANK_5}", {}, 4),
    ("TRANSPOSE", f"f:{RANK_6} i f:{RANK_6}", {}, 6),
    ("TRANSPOSE_CONV", "i s s s", {}, 2),
    ("TRANSPOSE_CONV", "i f f f f", {}, 3),
    ("TRANSPOSE_CONV", "i f f f f", {"fused_activation_function": 1}, 4),
]


@batched
@pytest.mark.parametrize(("code", "tensors", "options", "version"), CASES)
def test_versions(code: str, tensors: str, options: dict[str, Any], version: int) -> None:
    assert version_of(code, [tensor(one) for one in tensors.split()], options) == version
