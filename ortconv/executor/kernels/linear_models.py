"""Linear models and support vector machines of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.class_scores import as_rows, both_classes, class_labels, logistic, transformed
from ortconv.executor.kernels.features import squared_distances
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.operators import ML
from ortconv.ir.tensor import Array


def _affine(x: Array, coefficients: Sequence[float], intercepts: Sequence[float] | None, targets: int) -> Array:
    """(N, targets) from rows; each target has contiguous coefficients. Further ones and intercepts of another number are unused."""
    weights = np.asarray(coefficients, x.dtype)[: targets * x.shape[1]]
    if weights.size < targets * x.shape[1]:
        raise GraphError(f"{weights.size} coefficients do not go with {targets} targets of {x.shape[1]} features")
    y = x @ weights.reshape(targets, x.shape[1]).T
    return np.asarray(y + np.asarray(intercepts, x.dtype) if len(intercepts or ()) == targets else y)


@kernel("LinearRegressor", domain=ML)
def linear_regressor(
    x: Array,
    *,
    coefficients: Sequence[float] = (),
    intercepts: Sequence[float] | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Array:
    return transformed(_affine(as_rows(x), coefficients, intercepts, targets), post_transform)


@kernel("LinearClassifier", domain=ML)
def linear_classifier(
    x: Array,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float],
    intercepts: Sequence[float] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Array, Array]:
    """Without labels, a single score says whether a row belongs to the class."""
    rows = as_rows(x)
    classes = len(intercepts) if intercepts else len(coefficients) // max(1, rows.shape[1])
    scores = _affine(rows, coefficients, intercepts, classes)
    if classes == 1 and not classlabels_ints and not classlabels_strings:
        return (scores[:, 0] > 0).astype(np.int64), transformed(scores, post_transform)
    labels = class_labels(classlabels_ints, classlabels_strings)
    if classes == 1 and len(labels) == 2:
        positive = scores[:, 0]
        return labels[(positive > 0).astype(int)], both_classes(positive, post_transform, complement=True)
    return labels[scores.argmax(axis=1)], transformed(scores, post_transform)


def _kernel_matrix(x: Array, vectors: Array, kind: str, parameters: Sequence[float] | None) -> Array:
    """(N, vectors): the kernel of every row with every support vector."""
    gamma, offset, degree = parameters or (0.0, 0.0, 0.0)
    if kind == "RBF":
        return np.asarray(np.exp(-gamma * squared_distances(x, vectors)))
    dot = x @ vectors.T
    if kind == "LINEAR":
        return np.asarray(dot)
    if kind == "POLY":
        return np.asarray((gamma * dot + offset) ** degree)
    if kind == "SIGMOID":
        return np.asarray(np.tanh(gamma * dot + offset))
    raise GraphError(f"there is no SVM kernel '{kind}', only LINEAR, POLY, RBF and SIGMOID")


@kernel("SVMRegressor", domain=ML)
def svm_regressor(
    x: Array,
    *,
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] = (0.0,),
    support_vectors: Sequence[float] = (),
) -> Array:
    rows = as_rows(x)
    if n_supports:
        vectors = np.asarray(support_vectors, rows.dtype).reshape(n_supports, -1)
        rows = _kernel_matrix(rows, vectors, kernel_type, kernel_params)
    y = _affine(rows, coefficients, rho[:1], 1)
    if one_class:
        y = np.where(y > 0, y.dtype.type(1), y.dtype.type(-1))
    return transformed(y, post_transform)


@kernel("SVMClassifier", domain=ML)
def svm_classifier(
    x: Array,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] | None = None,
    prob_b: Sequence[float] | None = None,
    rho: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
    vectors_per_class: Sequence[int] | None = None,
) -> tuple[Array, Array]:
    """Without support vectors, one linear score per class. With them, one score per pair of classes, or probabilities."""
    labels = class_labels(classlabels_ints, classlabels_strings)
    rows = as_rows(x)
    if not vectors_per_class:
        scores = _affine(rows, coefficients, None, len(labels)) + rows.dtype.type(rho[0])
        return labels[scores.argmax(axis=1)], transformed(scores, post_transform)
    if len(vectors_per_class) != len(labels):
        raise GraphError(f"SVMClassifier has {len(labels)} classes and {len(vectors_per_class)} vectors_per_class")
    vectors = np.asarray(support_vectors, rows.dtype).reshape(sum(vectors_per_class), -1)
    similar = _kernel_matrix(rows, vectors, kernel_type, kernel_params)
    pairwise = _pairwise_scores(similar, coefficients, vectors_per_class, rho)
    winner = _votes(pairwise, len(labels)).argmax(axis=1)
    if prob_a and prob_b:
        ratio = _pairwise_probabilities(pairwise, prob_a, prob_b, len(labels))
        scores = np.stack([_coupled(r) for r in ratio]) if len(ratio) else np.zeros((0, len(labels)))
        return labels[winner], transformed(scores, post_transform)
    if len(labels) == 2:
        return labels[winner], both_classes(pairwise[:, 0], post_transform, complement=post_transform != "NONE")
    return labels[winner], transformed(pairwise, post_transform)


def _pairwise_scores(
    similar: Array, coefficients: Sequence[float], counts: Sequence[int], rho: Sequence[float]
) -> Array:
    """(N, pairs): the decision between classes i < j, positive for i.

    Row r of the coefficients has, for the vectors of a class, those against the r-th of the other classes. Later ones are not used.
    """
    ends = np.cumsum(counts)
    spans = [slice(e - n, e) for e, n in zip(ends, counts)]
    weights = np.asarray(coefficients, np.float64)[: (len(counts) - 1) * ends[-1]].reshape(len(counts) - 1, ends[-1])
    columns = [
        similar[:, spans[i]] @ weights[j - 1, spans[i]] + similar[:, spans[j]] @ weights[i, spans[j]] + rho[pair]
        for pair, (i, j) in enumerate(combinations(range(len(counts)), 2))
    ]
    return np.stack(columns, axis=1).astype(similar.dtype)


def _votes(pairwise: Array, classes: int) -> Array:
    votes = np.zeros((len(pairwise), classes), np.int64)
    for column, (i, j) in zip(pairwise.T, combinations(range(classes), 2)):
        votes[:, i] += column > 0
        votes[:, j] += column <= 0
    return votes


def _pairwise_probabilities(pairwise: Array, a: Sequence[float], b: Sequence[float], classes: int) -> Array:
    """(N, classes, classes): the probability of the row's class against the column's, by Platt scaling."""
    ratio = np.zeros((len(pairwise), classes, classes))
    for pair, (i, j) in enumerate(combinations(range(classes), 2)):
        p = np.clip(1 - logistic(pairwise[:, pair] * a[pair] + b[pair]), 1e-7, 1 - 1e-7)
        ratio[:, i, j], ratio[:, j, i] = p, 1 - p
    return ratio


def _coupled(ratio: Array) -> Array:
    """Class probabilities from pairwise ones: the second method of Wu, Lin and Weng, with LIBSVM's stopping rule."""
    classes = len(ratio)
    q = -ratio.T * ratio
    np.fill_diagonal(q, (ratio.T**2).sum(axis=1))
    p = np.full(classes, 1 / classes)
    for _ in range(100):
        qp = q @ p
        pqp = p @ qp
        if np.abs(qp - pqp).max() < 0.005 / classes:
            break
        for t in range(classes):
            step = (pqp - qp[t]) / q[t, t]
            p[t] += step
            pqp = (pqp + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) ** 2
            qp = (qp + step * q[t]) / (1 + step)
            p /= 1 + step
    return p
