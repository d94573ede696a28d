"""Convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from ortconv.executor.algorithms.sliding_window import same_padding
from ortconv.nnapi import Operand, PaddingCode
from ortconv.nnapi.operations.shapes import dilations
from ortconv.nnapi.operations.table import OperationCall
from ortconv.tflite.layout import Padding
from ortconv.tflite.table import emits, translated
from ortconv.tflite.translation import RefusedOperationError, Translation

Margins = tuple[tuple[int, int], tuple[int, int]]
"""Padding before and after, of rows and of columns."""

emits("FULLY_CONNECTED", inputs="x filter bias", types="F H Q S", fused_activation_function="activation")
emits("BATCH_MATMUL", inputs="a b", types="F H S", adj_x="adjoint_a", adj_y="adjoint_b")


def margins(u: OperationCall) -> Margins | None:
    """The explicit padding of an operation; None if it has a padding code."""
    return None if u.get("padding") is not None else ((u.pad_top, u.pad_bottom), (u.pad_left, u.pad_right))


def padding_code(
    t: Translation, u: OperationCall, window: Sequence[int], steps: tuple[int, int] = (1, 1)
) -> Padding | None:
    """LiteRT's padding code of an operation with windows; None for a padding without a code."""
    found = margins(u)
    if found is None:
        return Padding.SAME if u.padding == PaddingCode.SAME else Padding.VALID
    if not any((*found[0], *found[1])):
        return Padding.VALID
    sizes, strides = t.dims(u.x)[1:3], (u.stride_h, u.stride_w)
    same = tuple(same_padding(n, (k - 1) * d + 1, s) for n, k, d, s in zip(sizes, window, steps, strides))
    return Padding.SAME if all(sizes) and same == found else None


def padded(t: Translation, u: OperationCall, fill: float | None = None) -> int:
    """The image with its padding: zeros, or another number of the image's type."""
    found = margins(u)
    assert found is not None
    x = t.read(u.x)
    batch, rows, columns, depth = t.dims(u.x)
    grown = [n and n + sum(pads) for n, pads in zip((rows, columns), found)]
    out = t.temporary(x, (batch, *grown, depth))
    sizes = t.ints([(0, 0), *found, (0, 0)])
    if fill is None:
        t.emit("PAD", [x, sizes], [out])
    else:
        t.emit("PADV2", [x, sizes, t.value_like(x, fill)], [out])
    return out


def check_filter(t: Translation, u: OperationCall) -> None:
    kind = t.kind(u.filter)
    if u.main is Operand.TENSOR_QUANT8_ASYMM_SIGNED and kind.zero_point:
        raise RefusedOperationError(f"its int8 filters have zero point 0, not {kind.zero_point}")


@translated("CONV_2D", "GROUPED_CONV_2D", "DEPTHWISE_CONV_2D", types="F H Q S")
def convolution(t: Translation, u: OperationCall) -> None:
    """For LiteRT, a filter with fewer channels than the image means a convolution in groups."""
    check_filter(t, u)
    steps = dilations(u)
    code = padding_code(t, u, t.dims(u.filter)[1:3], steps)
    x = t.read(u.x) if code is not None else padded(t, u)
    options = {
        "padding": Padding.VALID if code is None else code, "stride_w": u.stride_w, "stride_h": u.stride_h,
        "fused_activation_function": u.activation, "dilation_w_factor": steps[1], "dilation_h_factor": steps[0],
    }  # fmt: skip
    name = "CONV_2D"
    if u.get("multiplier") is not None:
        name = "DEPTHWISE_CONV_2D"
        options["depth_multiplier"] = u.multiplier
    t.emit(name, [x, t.read(u.filter), t.read(u.bias)], [t.write(u.out)], **options)


@translated("TRANSPOSE_CONV_2D", types="F H Q S")
def transpose_convolution(t: Translation, u: OperationCall) -> None:
    """With explicit padding, the whole result is computed and its margins are cut off."""
    check_filter(t, u)
    inputs = [t.read(u.filter), t.read(u.x), t.read(u.bias)]
    options = {"stride_w": u.stride_w, "stride_h": u.stride_h, "fused_activation_function": u.activation}
    found = margins(u)
    if found is None:
        code = Padding.SAME if u.padding == PaddingCode.SAME else Padding.VALID
        t.emit("TRANSPOSE_CONV", [t.read(u.shape), *inputs], [t.write(u.out)], padding=code, **options)
        return
    batch, rows, columns, _ = t.dims(u.x)
    depth, *window, _ = t.dims(u.filter)
    if not all((batch, rows, columns)) or min(*found[0], *found[1]) < 0:
        raise RefusedOperationError("explicit padding needs known dimensions, and none may be negative")
    sizes = [(n - 1) * s + k for n, s, k in zip((rows, columns), (u.stride_h, u.stride_w), window)]
    whole, out = (batch, *sizes, depth), t.write(u.out)
    cut = [n - sum(pads) for n, pads in zip(sizes, found)]
    made = t.temporary(out, whole) if cut != sizes else out
    t.emit("TRANSPOSE_CONV", [t.ints(whole), *inputs], [made], padding=Padding.VALID, **options)
    if made != out:
        begin = t.ints([0, found[0][0], found[1][0], 0])
        t.emit("SLICE", [made, begin, t.ints([batch, *cut, depth])], [out])
