"""Feature preparation of ai.onnx.ml: encoders, scalers, selection, maps. Maps are dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.class_scores import as_float, as_rows, rows_of
from ortconv.executor.algorithms.steps import counted
from ortconv.executor.kernels.registry import built, kernel, table
from ortconv.ir.operators import MICROSOFT, ML
from ortconv.ir.tensor import Array


@kernel("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(x: Array, indices: Array) -> Array:
    """Columns of the last axis; a vector counts as one row."""
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    at = indices.reshape(-1)
    if at.size and (at.min() < 0 or at.max() >= rows.shape[-1]):
        raise GraphError(f"a feature index is outside [0, {rows.shape[-1]})")
    return rows[..., at]


table({"Binarizer": lambda x, *, threshold=0.0: (x > threshold).astype(x.dtype)}, domain=ML)


@kernel("FeatureVectorizer", domain=ML)
def feature_vectorizer(*inputs: Array, inputdimensions: Sequence[int] | None = None) -> Array:
    """Rows side by side; each part is cut, or padded with zeros, to its stated width."""
    parts = [*map(as_rows, inputs)]
    widths = inputdimensions or [p.shape[1] for p in parts]
    if len(widths) != len(parts):
        raise GraphError(f"FeatureVectorizer has {len(widths)} inputdimensions for {len(parts)} inputs")
    sized = [np.pad(part[:, :n], ((0, 0), (0, max(0, n - part.shape[1])))) for part, n in zip(parts, widths)]
    return np.concatenate(sized, axis=1, dtype=np.float32, casting="unsafe")


@kernel("Imputer", domain=ML)
def imputer(
    x: Array,
    *,
    imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Sequence[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Array:
    floats, integers = (imputed_value_floats, replaced_value_float), (imputed_value_int64s, replaced_value_int64)
    values, replaced = floats if x.dtype.kind == "f" else integers
    if not values:
        raise GraphError(f"Imputer has no imputed values for {x.dtype}")
    missing = x != x if replaced != replaced else x == replaced
    return np.where(missing, np.asarray(values, x.dtype), x)


@kernel("Normalizer", domain=ML)
def normalizer(x: Array, *, norm: str = "MAX") -> Array:
    """Rows divided by their maximum, their sum of magnitudes, or their length; unchanged if that is zero."""
    wide = as_float(x)
    if norm == "MAX":
        size = wide.max(axis=-1, keepdims=True, initial=-np.inf)
    elif norm == "L1":
        size = np.abs(wide).sum(axis=-1, keepdims=True)
    elif norm == "L2":
        size = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
    else:
        raise GraphError(f"Normalizer has no norm '{norm}', only MAX, L1 and L2")
    return np.asarray(wide / np.where(size == 0, wide.dtype.type(1), size)).astype(np.float32, copy=False)


@kernel("Scaler", domain=ML)
def scaler(x: Array, *, offset: Sequence[float] | None = None, scale: Sequence[float] | None = None) -> Array:
    wide = as_float(x)
    shift = np.asarray(offset or (0.0,), np.float32)
    factor = np.asarray(scale or (1.0,), np.float32)
    return ((wide - shift) * factor).astype(np.float32, copy=False)


def _mapper(keys: Sequence[Any], values: Array, default: Any) -> Callable[[Array], Array]:
    """Elementwise table lookup. Later keys take precedence; NaN matches NaN."""
    table = {key: i for i, key in enumerate(keys)}
    choices = np.empty(len(values) + 1, values.dtype)
    choices[:-1], choices[-1] = values, default
    missing = len(values)
    nan = next((i for i in reversed(range(len(keys))) if keys[i] != keys[i]), missing)

    def look_up(x: Array) -> Array:
        found = [table.get(key, missing) if key == key else nan for key in x.ravel().tolist()]
        return choices[np.array(found, np.int64)].reshape(x.shape)

    return look_up


_UNKNOWN = "_Unused"


@built("LabelEncoder", domain=ML)
def label_encoder(
    *,
    classes_strings: Sequence[str] | None = None,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = _UNKNOWN,
    default_tensor: Array | None = None,
    keys_floats: Sequence[float] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_strings: Sequence[str] | None = None,
    keys_tensor: Array | None = None,
    values_floats: Sequence[float] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_strings: Sequence[str] | None = None,
    values_tensor: Array | None = None,
) -> Callable[[Array], Array]:
    if classes_strings is not None:
        return _both_ways(range(len(classes_strings)), classes_strings, default_int64, default_string)
    keys = _column(keys_tensor, keys_floats, keys_int64s, keys_strings)
    values = _column(values_tensor, values_floats, values_int64s, values_strings)
    if len(keys) != len(values):
        raise GraphError(f"LabelEncoder has {len(keys)} keys and {len(values)} values")
    default: Any = {"O": default_string, "f": default_float}.get(values.dtype.kind, default_int64)
    return _mapper(keys.tolist(), values, default if default_tensor is None else default_tensor.item())


def _column(
    tensor: Array | None, floats: Sequence[float] | None, int64s: Sequence[int] | None, strings: Sequence[str] | None
) -> Array:
    """A column of a table, whose attribute depends on its type."""
    if tensor is not None:
        return tensor
    if floats is not None:
        return np.asarray(floats, np.float32)
    return np.array(strings or (), object) if int64s is None else np.asarray(int64s, np.int64)


def _both_ways(
    numbers: Sequence[int], texts: Sequence[str], default_int64: int, default_string: str
) -> Callable[[Array], Array]:
    """Strings to int64 or int64 to strings, depending on the input."""
    to_number = _mapper(texts, np.asarray(numbers, np.int64), default_int64)
    to_text = _mapper(numbers, np.array(texts, object), default_string)
    return lambda x: to_number(x) if x.dtype.kind == "O" else to_text(x)


@built("CategoryMapper", domain=ML)
def category_mapper(
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = _UNKNOWN,
) -> Callable[[Array], Array]:
    if len(cats_int64s) != len(cats_strings):
        raise GraphError(f"CategoryMapper has {len(cats_int64s)} integers and {len(cats_strings)} strings")
    return _both_ways(cats_int64s, cats_strings, default_int64, default_string)


@built("OneHotEncoder", domain=ML)
def one_hot_encoder(
    *, cats_int64s: Sequence[int] | None = None, cats_strings: Sequence[str] | None = None, zeros: int = 1
) -> Callable[[Array], Array]:
    categories = cats_strings or cats_int64s or ()
    find = _mapper(categories, np.arange(len(categories)), len(categories))
    rows = np.eye(len(categories) + 1, len(categories), dtype=np.float32)

    def encode(x: Array) -> Array:
        at = find(x if x.dtype.kind in "OiU" else x.astype(np.int64))
        if not zeros and (at == len(categories)).any():
            raise GraphError("OneHotEncoder met an unknown category, which zeros=0 forbids")
        return rows[at]

    return encode


@kernel("ZipMap", domain=ML)
def zip_map(
    x: Array, *, classlabels_int64s: Sequence[int] | None = None, classlabels_strings: Sequence[str] | None = None
) -> list[dict[Any, float]]:
    keys = classlabels_strings or classlabels_int64s or ()
    rows = rows_of(x)
    if rows.shape[1] != len(keys):
        raise GraphError(f"ZipMap has {len(keys)} labels for {rows.shape[1]} columns")
    return [dict(zip(keys, row)) for row in rows.tolist()]


@kernel("DictVectorizer", domain=ML)
def dict_vectorizer(
    x: dict[Any, Any], *, int64_vocabulary: Sequence[int] | None = None, string_vocabulary: Sequence[str] | None = None
) -> Array:
    """One row, (1, size of the vocabulary). Python floats become float32, numpy doubles stay double."""
    vocabulary = string_vocabulary or int64_vocabulary or ()
    first = next(iter(x.values()), None)
    dtype: Any = next((dtype for kind, dtype in _ROW_TYPES if isinstance(first, kind)), np.float32)
    empty = "" if dtype is object else 0
    return np.array([[x.get(key, empty) for key in vocabulary]], dtype)


_ROW_TYPES: tuple[tuple[Any, Any], ...] = ((str, object), (int | np.integer, np.int64), (np.float64, np.float64))
"""The type of a row for each type of a map's first value."""

_CASTS: dict[str, tuple[Any, Callable[[Any], Any], Any]] = {
    "TO_FLOAT": (np.float32, float, 0.0),
    "TO_INT64": (np.int64, int, 0),
    "TO_STRING": (object, lambda v: v if isinstance(v, str) else f"{v:f}", "0.f"),
}
"""Type, conversion of a value, and the element of a sparse row for a missing key."""


@kernel("CastMap", domain=ML)
def cast_map(x: dict[int, Any], *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Array:
    """One row of the values, in the order of their keys or at the positions that equal the keys."""
    if cast_to not in _CASTS or map_form not in ("DENSE", "SPARSE"):
        raise GraphError(f"CastMap has no cast_to '{cast_to}' with map_form '{map_form}'")
    dtype, convert, empty = _CASTS[cast_to]
    if map_form == "DENSE":
        values = [convert(x[key]) for key in sorted(x)]
    else:
        if any(not 0 <= key < max_map for key in x):
            raise GraphError(f"a key of a sparse map is outside [0, {max_map})")
        values = [convert(x[i]) if i in x else empty for i in range(counted(max_map))]
    return np.array([values], dtype)


def squared_distances(a: Array, b: Array) -> Array:
    """(N, M): those of each row of a from each row of b."""
    found = [((a - row) ** 2).sum(axis=1) for row in b]
    return np.stack(found, axis=1) if found else np.zeros((len(a), 0), a.dtype)


@kernel("CDist", domain=MICROSOFT)
def cdist(a: Array, b: Array, *, metric: str = "sqeuclidean") -> Array:
    """(N, M): the distance of each row of a from each row of b."""
    if metric not in ("euclidean", "sqeuclidean"):
        raise GraphError(f"CDist has no metric '{metric}', only euclidean and sqeuclidean")
    squares = squared_distances(a, b)
    return np.asarray(np.sqrt(squares) if metric == "euclidean" else squares)
