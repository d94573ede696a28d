"""Class scores of ai.onnx.ml: the transforms after a model, and labels. Scores are (N, classes)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.ir.tensor import Array


def logistic(x: Array) -> Array:
    v = 1 / (1 + np.exp(-np.abs(x)))
    return np.where(x < 0, 1 - v, v)


def _softmax(x: Array, zeros_stay: bool = False) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    e = np.where(np.abs(x) > 1e-7, e, x.dtype.type(0)) if zeros_stay else e
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _probit(x: Array) -> Array:
    """The inverse of the normal distribution function by Winitzki's formula with a = 0.147, as runtimes compute it."""
    centered = 2 * x - 1
    log = np.log((1 - centered) * (1 + centered))
    half = 2 / (np.pi * 0.147) + log / 2
    return np.asarray(np.copysign(np.sqrt(2) * np.sqrt(np.sqrt(half * half - log / 0.147) - half), centered))


_TRANSFORMS: dict[str, Any] = {
    "NONE": lambda x: x, "SOFTMAX": _softmax, "LOGISTIC": logistic, "SOFTMAX_ZERO": lambda x: _softmax(x, True), "PROBIT": _probit,
}  # fmt: skip

TRANSFORMS = tuple(_TRANSFORMS)
"""Names in the order of their numbers in TreeEnsemble."""


def transformed(scores: Array, transform: str) -> Array:
    """Scores after a post_transform, as float32. Only PROBIT changes a single column, as in ONNX Runtime."""
    if transform not in _TRANSFORMS:
        raise GraphError(f"there is no post_transform '{transform}', only {', '.join(_TRANSFORMS)}")
    if scores.shape[1] == 1 and transform != "PROBIT":
        transform = "NONE"
    return np.asarray(_TRANSFORMS[transform](scores)).astype(np.float32, copy=False)


def both_classes(positive: Array, transform: str, complement: bool) -> Array:
    """The scores of two classes from the score of the second, (N,) to (N, 2). LOGISTIC and PROBIT are applied, softmax
    is not.

    The first score is 1 - s if the scores are complementary, else -s.
    """
    if transform == "LOGISTIC":
        pair = [logistic(-positive), logistic(positive)]
    elif transform == "PROBIT":
        pair = [-_probit(positive), _probit(positive)]
    else:
        transformed(positive[:, None], transform)
        pair = [1 - positive if complement else -positive, positive]
    return np.stack(pair, axis=1).astype(np.float32, copy=False)


def class_labels(ints: Sequence[int] | None, strings: Sequence[str] | None) -> Array:
    """The labels as an array of int64 or of strings."""
    if not ints and not strings:
        raise GraphError("a classifier has no class labels")
    return np.array(strings, object) if strings else np.asarray(ints, np.int64)


def as_float(x: Array) -> Array:
    """float32, unless the type is double."""
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


def rows_of(x: Array) -> Array:
    """(N, features); a vector is one row."""
    return x.reshape(1, -1) if x.ndim < 2 else x.reshape(len(x), prod(x.shape[1:]))


def as_rows(x: Array) -> Array:
    """The same, of float64 or float32."""
    return as_float(rows_of(x))
