"""Type and shape rules for standard operators that onnx's inference does not cover or crashes on."""

from __future__ import annotations

from collections.abc import Sequence

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.operands import axes_of, ints, scalar
from ortconv.ir.resize import resizing
from ortconv.ir.shape_rules import spatial_pads, squeezed, unsqueezed
from ortconv.ir.slices import axis_slices
from ortconv.ir.symbols import broadcast_dims
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import Dim, DType, MapType, SequenceType, Shape, TensorType, ValueType
from ortconv.onnxio.attention_types import standard_attention
from ortconv.onnxio.type_rules import TypeRule, einsum_labels, shape_of, shaped, tensor


def _einsum(node: Node) -> Shape | None:
    """Axes of size 1 are broadcast to the other axes of the same label, as in onnxruntime."""
    given, arrow, result = str(node.attr("equation", "")).replace(" ", "").partition("->")
    sizes: dict[str | int, set[Dim]] = {}
    for slot, term in enumerate(given.split(",")):
        source = shape_of(node, slot)
        if source is None:
            return None
        for label, dim in zip(einsum_labels(term, len(source)), source, strict=True):
            sizes.setdefault(label, set()).add(dim)
    if not arrow:
        result = "..." + "".join(sorted(label for label in set(given) if label.isalpha() and given.count(label) == 1))
    of_ellipsis = sum(isinstance(label, int) for label in sizes)
    labels = einsum_labels(result, len(result.replace(".", "")) + of_ellipsis)
    return tuple(broadcast_dims(sizes[label]) for label in labels)


def _eye_like(node: Node) -> list[ValueType | None]:
    dtype = DType(node.attrs["dtype"]) if "dtype" in node.attrs else node.dtype(0)  # type: ignore[arg-type]
    return [tensor(dtype, shape_of(node, 0))]


def _non_zero(node: Node) -> list[ValueType | None]:
    """One row per axis. As in onnxruntime, a scalar has one, too."""
    x = shape_of(node, 0)
    return [TensorType(DType.INT64, (None if x is None else max(1, len(x)), None))]


def _resized(node: Node) -> Shape | None:
    x, does = node.inputs[0], resizing(node, ints)
    if x is None or x.shape is None:
        return None
    return does.shape(x.shape) or tuple(None if axis in does.axes else dim for axis, dim in enumerate(x.shape))


def _gather_nd(node: Node) -> Shape | None:
    data, indices = shape_of(node, 0), shape_of(node, 1)
    if data is None or not indices or not isinstance(indices[-1], int):
        return None
    first: int = node.attr("batch_dims", 0) + indices[-1]
    return (*indices[:-1], *data[first:]) if 0 <= first <= len(data) else None


def _moved_axes(node: Node) -> Shape | None:
    source, axes = shape_of(node, 0), axes_of(node)
    if source is None or axes is None:
        return None
    return squeezed(source, axes) if node.op == "Squeeze" else unsqueezed(source, axes)


def _conv_transpose(node: Node) -> Shape | None:
    """In SAME padding, the result is no larger than the image times the strides, even with output_padding."""
    x, w = shape_of(node, 0), shape_of(node, 1)
    if x is None or w is None or len(x) != len(w):
        return None
    rank, group = len(x) - 2, node.attr("group", 1)
    channels = (x[0], w[1] * group if isinstance(w[1], int) else None)
    if stated := tuple(node.attr("output_shape", Ints())):
        return (*channels, *stated[-rank:])
    names = (("strides", 1), ("dilations", 1), ("output_padding", 0))
    geometry = zip(*(node.attr(name, Ints((default,) * rank)) for name, default in names), strict=True)
    pads = spatial_pads(node, rank)
    cut = [None] * rank if pads is None else [a + b for a, b in zip(pads, pads[rank:])]
    return (*channels, *(_spread(*axis) for axis in zip(x[2:], w[2:], geometry, cut, strict=True)))


def _spread(size: Dim, kernel: Dim, geometry: tuple[int, int, int], cut: int | None) -> Dim:
    """An axis of the result of a ConvTranspose from which so much is cut; None means as much as SAME padding."""
    if not isinstance(size, int) or not isinstance(kernel, int):
        return None
    stride, dilation, extra = geometry
    reach = (size - 1) * stride + (kernel - 1) * dilation + 1 + extra
    return min(reach, size * stride) if cut is None else max(0, reach - cut)


def _stft(node: Node) -> Shape | None:
    """Windows of a signal with their frequencies, by default those up to half of the sampling rate."""
    signal, window = shape_of(node, 0), shape_of(node, 2)
    if not signal or len(signal) < 2:
        return None
    size = window[0] if window else scalar(node.input(3))
    if not isinstance(size, int):
        return signal[0], None, None, 2
    length, step, windows = signal[1], scalar(node.input(1)), None
    if isinstance(length, int) and isinstance(step, int) and step > 0:
        windows = (length - size) // step + 1
    return signal[0], windows, size // 2 + 1 if node.attr("onesided", 1) else size, 2


def _slice(node: Node) -> Shape | None:
    source, parts = shape_of(node, 0), axis_slices(node, _bounds)
    if source is None or parts is None:
        return None if source is None else (None,) * len(source)
    dims = list(source)
    for part in parts:
        dims[part.axis] = part.length(dims[part.axis])
    return tuple(dims)


def _bounds(value: Value | None) -> Sequence[int | None] | None:
    """The starts or ends of a Slice. Unknown ones are None; the result is None if their number is unknown, too."""
    known, count = ints(value), None if value is None else value.dim(0)
    return (None,) * count if known is None and isinstance(count, int) else known


# ---------------------------------------------------------------------- ai.onnx.ml

_KINDS = {"strings": DType.STRING, "int64s": DType.INT64, "floats": DType.FLOAT}


def _label_encoder(node: Node) -> list[ValueType | None]:
    """Version 1 maps strings to their positions and back; later versions have attributes for keys and values."""
    values = node.attrs.get("values_tensor")
    dtype = values.dtype if isinstance(values, Tensor) else None
    if dtype is None:
        dtype = next((kind for name, kind in _KINDS.items() if f"values_{name}" in node.attrs), None)
    if dtype is None and "classes_strings" in node.attrs:
        return _category_mapper(node)
    return [tensor(dtype, shape_of(node, 0))]


def _category_mapper(node: Node) -> list[ValueType | None]:
    dtype = {DType.STRING: DType.INT64, DType.INT64: DType.STRING}.get(node.dtype(0) or DType.UNDEFINED)
    return [tensor(dtype, shape_of(node, 0))]


def _dict_vectorizer(node: Node) -> list[ValueType | None]:
    source = node.input(0)
    of = source.type.value if source is not None and isinstance(source.type, MapType) else None
    return [TensorType(of.dtype) if isinstance(of, TensorType) else None]


def _cast_map(node: Node) -> list[ValueType | None]:
    kinds = {"TO_FLOAT": DType.FLOAT, "TO_STRING": DType.STRING, "TO_INT64": DType.INT64}
    return [tensor(kinds.get(node.attr("cast_to", "TO_FLOAT")), None)]


def _zip_map(node: Node) -> list[ValueType | None]:
    key = DType.STRING if "classlabels_strings" in node.attrs else DType.INT64
    return [SequenceType(MapType(key, TensorType(DType.FLOAT, ())))]


def _rows(node: Node) -> Shape:
    """The shape of a result with one element per row of the input."""
    x = shape_of(node, 0)
    return (None,) if x is None or len(x) != 2 else x[:1]


def _classifier(node: Node) -> list[ValueType | None]:
    """Labels and scores."""
    label = DType.STRING if node.attrs.get("classlabels_strings") else DType.INT64
    return [TensorType(label, _rows(node)), TensorType(DType.FLOAT, (*_rows(node), None))]


_ML_TYPES: dict[str, TypeRule] = {
    "CastMap": _cast_map,
    "CategoryMapper": _category_mapper,
    "DictVectorizer": _dict_vectorizer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _classifier,
    "SVMClassifier": _classifier,
    "TreeEnsemble": shaped(lambda node: (*_rows(node), node.attr("n_targets", None))),
    "TreeEnsembleClassifier": _classifier,
    "ZipMap": _zip_map,
}

STANDARD_TYPES: dict[tuple[str, str], TypeRule] = {
    ("", "Attention"): standard_attention,
    ("", "ConvTranspose"): shaped(_conv_transpose),
    ("", "Einsum"): shaped(_einsum),
    ("", "EyeLike"): _eye_like,
    ("", "GatherND"): shaped(_gather_nd),
    ("", "GroupNormalization"): shaped(lambda node: shape_of(node, 0)),
    ("", "NonZero"): _non_zero,
    ("", "RegexFullMatch"): lambda node: [TensorType(DType.BOOL, shape_of(node, 0))],
    **{("", op): shaped(_resized) for op in ("Resize", "Upsample")},
    ("", "STFT"): shaped(_stft),
    ("", "Slice"): shaped(_slice),
    **{("", op): shaped(_moved_axes) for op in ("Squeeze", "Unsqueeze")},
    **{("ai.onnx.ml", op): rule for op, rule in _ML_TYPES.items()},
}
"""Rules for the output types of a node, by (domain, operator)."""
