"""Tree ensembles of ai.onnx.ml: all trees descend together, one level per step, for all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.class_scores import TRANSFORMS, both_classes, class_labels, rows_of, transformed
from ortconv.executor.kernels.registry import built
from ortconv.ir.operators import ML
from ortconv.ir.tensor import Array

_BLOCK = 1 << 19
"""Maximum of rows times trees that are evaluated at once."""

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_CODES = {"LEAF": -1, **{mode: code for code, mode in enumerate(_MODES)}}
_MEMBER = _MODES.index("BRANCH_MEMBER")
_COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_AGGREGATES = {"AVERAGE": (0, np.add), "SUM": (0, np.add), "MIN": (np.inf, np.minimum), "MAX": (-np.inf, np.maximum)}


@dataclass(frozen=True, slots=True)
class Forest:
    """Nodes of all trees under one numbering. A leaf is a node of mode -1 whose votes are a slice of targets and weights."""

    roots: Array
    features: Array
    thresholds: Array
    modes: Array
    on_true: Array
    on_false: Array
    nan_is_true: Array
    members: Array
    """Sorted (node, value) pairs of set membership, as complex numbers."""
    vote_start: Array
    vote_count: Array
    vote_target: Array
    vote_weight: Array

    def leaves(self, x: Array) -> Array:
        """The leaf that each row of x (N, features) reaches in each tree, (N, trees)."""
        at = np.tile(self.roots, len(x))
        rows = np.repeat(np.arange(len(x)), len(self.roots))
        active = np.flatnonzero(self.modes[at] >= 0)
        for _ in range(len(self.modes) + 1):
            if not active.size:
                return at.reshape(len(x), -1)
            node = at[active]
            taken = self._branch(x[rows[active], self.features[node]], node)
            following = np.where(taken, self.on_true[node], self.on_false[node])
            at[active] = following
            active = active[self.modes[following] >= 0]
        raise GraphError("a tree of the ensemble has a cycle")

    def _branch(self, x: Array, node: Array) -> Array:
        modes = self.modes[node]
        present = np.unique(modes)
        taken = np.zeros(len(x), bool)
        for mode in present:
            chosen = slice(None) if len(present) == 1 else modes == mode
            if mode == _MEMBER:
                taken[chosen] = np.isin(node[chosen] + 1j * x[chosen].astype(np.float64), self.members)
            else:
                taken[chosen] = _COMPARE[mode](x[chosen], self.thresholds[node[chosen]])
        if x.dtype.kind == "f":
            missing = np.isnan(x)
            taken[missing] = self.nan_is_true[node[missing]]
        return taken

    def votes(self, x: Array, targets: int, aggregate: str) -> tuple[Array, Array]:
        """The aggregate of the votes for each target, (N, targets) of float64, 0 without votes; and which targets have votes."""
        if aggregate not in _AGGREGATES:
            raise GraphError(f"there is no aggregate_function '{aggregate}', only {', '.join(_AGGREGATES)}")
        total = np.zeros((len(x), targets))
        voted = np.zeros((len(x), targets), bool)
        step = max(1, _BLOCK // max(1, len(self.roots)))
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            self._count(x[part], aggregate, total[part], voted[part])
        return (total / max(1, len(self.roots)) if aggregate == "AVERAGE" else total), voted

    def _count(self, x: Array, aggregate: str, total: Array, voted: Array) -> None:
        leaf = self.leaves(x).ravel()
        count = self.vote_count[leaf]
        first = np.cumsum(count) - count
        vote = np.repeat(self.vote_start[leaf] - first, count) + np.arange(count.sum())
        rows = np.repeat(np.repeat(np.arange(len(x)), len(self.roots)), count)
        slot = rows * total.shape[1] + self.vote_target[vote]
        weight = self.vote_weight[vote]
        voted.reshape(-1)[slot] = True
        flat = total.reshape(-1)
        neutral, accumulate = _AGGREGATES[aggregate]
        flat[slot] = neutral
        accumulate.at(flat, slot, weight)


def _numbering(trees: Array, nodes: Array) -> Callable[[Array, Array], Array]:
    """A function that finds the positions of nodes by the numbers of their trees and their own."""
    keys = trees + 1j * nodes
    order = np.argsort(keys)
    known = np.append(keys[order], np.nan)  # where numbers beyond the last one are sought
    if (known[1:] == known[:-1]).any():
        raise GraphError("a tree ensemble has two nodes of one number in one tree")

    def find(trees: Array, nodes: Array) -> Array:
        wanted = trees + 1j * nodes
        place = np.searchsorted(known, wanted)
        lost = wanted[known[place] != wanted]
        if lost.size:
            missing = int(lost[0].real), int(lost[0].imag)
            raise GraphError(f"a tree ensemble refers to node {missing}, which it does not have")
        return np.asarray(order[place])

    return find


def _forest(prefix: str, attributes: Mapping[str, Any]) -> tuple[Forest, Array]:
    """The forest and the base values of an operator that numbers nodes within trees. `prefix` begins the names of weights."""

    def integers(name: str) -> Array:
        return np.asarray(attributes.get(name, ()), np.int64)

    def numbers(name: str) -> Array:
        """A float attribute that may be given as a tensor of doubles instead."""
        exact = attributes.get(f"{name}_as_tensor")
        return np.asarray(attributes.get(name, ()), np.float32) if exact is None else exact.reshape(-1)

    trees, ids, modes = integers("nodes_treeids"), integers("nodes_nodeids"), _codes(attributes.get("nodes_modes", ()))
    following, thresholds = (integers("nodes_truenodeids"), integers("nodes_falsenodeids")), numbers("nodes_values")
    holders, weights = (integers(f"{prefix}_treeids"), integers(f"{prefix}_nodeids")), numbers(f"{prefix}_weights")
    targets, parts = integers(f"{prefix}_ids"), (trees, ids, modes, *following, thresholds)
    if len({*map(len, parts)}) > 1 or len({*map(len, (*holders, targets, weights))}) > 1:
        raise GraphError("the node attributes of a tree ensemble do not fit together")
    find, inner = _numbering(trees, ids), modes >= 0
    on_true, on_false = children = np.tile(np.arange(len(ids)), (2, 1))
    for side, numbered in zip(children, following):
        side[inner] = find(trees[inner], numbered[inner])
    is_root = np.ones(len(ids), bool)
    is_root[children[:, inner]] = False
    holder = find(*holders)
    order = np.argsort(holder, kind="stable")
    count = np.bincount(holder, minlength=len(ids))
    forest = Forest(
        np.flatnonzero(is_root), integers("nodes_featureids"), thresholds, modes, on_true, on_false,
        np.asarray(attributes.get("nodes_missing_value_tracks_true") or (0,) * len(ids), bool), np.zeros(0, complex),
        np.cumsum(count) - count, count, targets[order], weights[order],
    )  # fmt: skip
    return forest, numbers("base_values")


def _codes(modes: Sequence[str]) -> Array:
    try:
        return np.array([_CODES[mode] for mode in modes], np.int64)
    except KeyError as error:
        raise GraphError(f"there is no mode {error} of tree nodes") from None


def _based(scores: Array, base: Array) -> Array:
    if base.size not in (0, scores.shape[1]):
        raise GraphError(f"{base.size} base values do not go with {scores.shape[1]} targets")
    return scores + base if base.size else scores


@built("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(
    *, aggregate_function: str = "SUM", n_targets: int = 1, post_transform: str = "NONE", **attributes: Any
) -> Callable[[Array], Array]:
    forest, base = _forest("target", attributes)
    # onnxruntime counts one vote of each leaf; scikit-learn's converter relies on it for numbers of leaves
    if n_targets == 1:
        forest = replace(forest, vote_count=np.minimum(forest.vote_count, 1))

    def regress(x: Array) -> Array:
        votes, _ = forest.votes(rows_of(x), n_targets, aggregate_function)
        return transformed(_based(votes, base), post_transform)

    return regress


@built("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(
    *,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    post_transform: str = "NONE",
    **attributes: Any,
) -> Callable[[Array], tuple[Array, Array]]:
    """Two classes with votes for only one of them are a binary model: the votes are the score of the second class."""
    labels = class_labels(classlabels_int64s, classlabels_strings)
    forest, base = _forest("class", attributes)
    voted_for, positive = set(forest.vote_target.tolist()), bool((forest.vote_weight >= 0).all())

    def classify(x: Array) -> tuple[Array, Array]:
        votes, voted = forest.votes(rows_of(x), len(labels), "SUM")
        if len(labels) == 2 and len(voted_for) == 1:
            score = votes[:, next(iter(voted_for))] + (base[-1] if base.size else 0)
            label = labels[(score > (0.5 if positive else 0)).astype(int)]
            if voted_for == {0}:
                return label, both_classes(score, post_transform, complement=positive)
            return label, transformed(_based(votes, base), post_transform)
        scores = _based(votes, base)
        top = np.where(voted | bool(base.size), scores, -np.inf).argmax(axis=1)
        return labels[top], transformed(scores, post_transform)

    return classify


@built("TreeEnsemble", domain=ML)
def tree_ensemble(
    *,
    aggregate_function: int = 1,
    leaf_targetids: Sequence[int],
    leaf_weights: Array,
    membership_values: Array | None = None,
    n_targets: int = 1,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Callable[[Array], Array]:
    """Leaves are numbered after the nodes."""
    size, leaves = len(nodes_modes), len(leaf_targetids)
    own = np.arange(size, size + leaves)

    def children(ids: Sequence[int], is_leaf: Sequence[int]) -> Array:
        return np.concatenate([np.asarray(ids, np.int64) + size * np.asarray(is_leaf, np.int64), own])

    def padded(values: Any, fill: Any) -> Array:
        return np.concatenate([np.asarray(values), np.full(leaves, fill, np.asarray(values).dtype)])

    forest = Forest(
        np.asarray(tree_roots, np.int64), padded(np.asarray(nodes_featureids, np.int64), 0), padded(nodes_splits, 0),
        padded(nodes_modes.astype(np.int64), -1), children(nodes_truenodeids, nodes_trueleafs),
        children(nodes_falsenodeids, nodes_falseleafs),
        padded(np.asarray(nodes_missing_value_tracks_true or (0,) * size, bool), False), _members(nodes_modes, membership_values),
        np.concatenate([np.zeros(size, np.int64), np.arange(leaves)]), np.repeat([0, 1], [size, leaves]),
        np.asarray(leaf_targetids, np.int64), leaf_weights,
    )  # fmt: skip

    def run(x: Array) -> Array:
        votes, _ = forest.votes(rows_of(x), n_targets, tuple(_AGGREGATES)[aggregate_function])
        return transformed(votes, TRANSFORMS[post_transform]).astype(x.dtype, copy=False)

    return run


def _members(modes: Array, values: Array | None) -> Array:
    """The sets of the membership nodes, in the order of the nodes; a NaN ends each."""
    nodes = np.flatnonzero(modes == _MEMBER)
    given = np.zeros(0) if values is None else values.astype(np.float64)
    ends = np.isnan(given)
    if ends.sum() != len(nodes):
        raise GraphError(f"{len(nodes)} set membership nodes have {ends.sum()} sets of membership_values")
    owner = (np.cumsum(ends) - ends)[~ends]
    return np.asarray(nodes[owner] + 1j * given[~ends])
