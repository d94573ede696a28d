"""Tree ensembles against onnxruntime, and against a walk written down here where onnxruntime departs from the specification."""

import re
from collections import Counter

import numpy as np
import pytest
from single_node import assert_same

from ortconv.errors import OrtconvError
from tests import unoptimized
from tests.batches import batched, sampled
from tests.executor.kernels.test_ml import TRANSFORMS, compare, model_of, run

F32 = np.float32
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def rows(count=40, dtype=F32):
    """Few distinct values, so that equality and ties happen."""
    return np.random.default_rng(1).integers(-3, 4, (count, 4)).astype(dtype) / 2


def forest(trees=5, depth=4, modes=MODES, missing=False, seed=0):
    """Attributes of random trees, and the leaves as (tree, node)."""
    rng = np.random.default_rng(seed)
    nodes = {k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")}
    nodes["missing_value_tracks_true"] = []
    leaves = []
    grown = Counter()

    def grow(tree, level):
        number = grown[tree]
        grown[tree] += 1
        at = len(nodes["treeids"])
        leaf = level == depth or (level > 1 and rng.random() < 0.3)
        row = (
            tree,
            number,
            int(rng.integers(4)),
            float(rng.integers(-3, 4)) / 2,
            "LEAF" if leaf else str(rng.choice(modes)),
            0,
            0,
        )
        for key, value in zip(nodes, (*row, int(missing and rng.random() < 0.5))):
            nodes[key].append(value)
        if leaf:
            leaves.append((tree, number))
        else:
            nodes["truenodeids"][at] = grow(tree, level + 1)
            nodes["falsenodeids"][at] = grow(tree, level + 1)
        return number

    for tree in range(trees):
        grow(tree, 0)
    if not missing:
        del nodes["missing_value_tracks_true"]
    return {f"nodes_{k}": v for k, v in nodes.items()}, leaves


def votes(leaves, prefix, targets, per_leaf=1, seed=0, low=-1.0):
    rng = np.random.default_rng(seed)
    chosen = [leaf for leaf in leaves for _ in range(per_leaf)]
    ids = [int(t) for _ in leaves for t in rng.permutation(targets)[:per_leaf]]
    return {
        f"{prefix}_treeids": [t for t, _ in chosen],
        f"{prefix}_nodeids": [n for _, n in chosen],
        f"{prefix}_ids": ids,
        f"{prefix}_weights": rng.uniform(low, 1, len(chosen)).astype(F32).tolist(),
    }


@sampled(4)
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize(("targets", "per_leaf"), [(1, 1), (3, 1), (3, 3)])
@pytest.mark.parametrize("modes", [MODES[:1], MODES])
def test_regressor(tmp_path, modes, targets, per_leaf, aggregate):
    nodes, leaves = forest(modes=modes)
    attributes = {**nodes, **votes(leaves, "target", targets, per_leaf), "n_targets": targets,
                  "aggregate_function": aggregate}  # fmt: skip
    # onnxruntime leaves base values out where no leaf has voted.
    if per_leaf == targets:
        attributes["base_values"] = [0.5, -0.5, 1.0][:targets]
    compare(tmp_path, "TreeEnsembleRegressor", [rows()], attributes)


@pytest.mark.parametrize("aggregate", ["SUM", "MAX"])
@pytest.mark.parametrize("targets", [1, 2])
def test_several_weights_of_a_leaf_for_one_target(tmp_path, targets, aggregate):
    nodes, leaves = forest(trees=2)
    attributes = {**nodes, **votes([leaf for leaf in leaves for _ in range(3)], "target", 1), "n_targets": targets,
                  "aggregate_function": aggregate}  # fmt: skip
    compare(tmp_path, "TreeEnsembleRegressor", [rows()], attributes)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor_transforms(tmp_path, targets, transform):
    nodes, leaves = forest(trees=2)
    weights = votes(leaves, "target", targets, targets, low=0.1)
    weights["target_weights"] = [w * 0.4 for w in weights["target_weights"]]
    attributes = {**nodes, **weights, "n_targets": targets, "post_transform": transform}
    compare(tmp_path, "TreeEnsembleRegressor", [rows()], attributes, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_regressor_takes_other_numbers(tmp_path, dtype):
    nodes, leaves = forest()
    attributes = {**nodes, **votes(leaves, "target", 1), "n_targets": 1}
    x = (2 * rows()).astype(dtype)
    got = run(tmp_path, "TreeEnsembleRegressor", [x], attributes)
    model, feeds = model_of("TreeEnsembleRegressor", [x.astype(F32)], attributes)
    assert_same(got, unoptimized.run(model, feeds))


def test_regressor_in_double_precision(tmp_path):
    nodes, leaves = forest()
    exact = {**nodes, **votes(leaves, "target", 1), "n_targets": 1}
    for name in ("nodes_values", "target_weights"):
        exact[f"{name}_as_tensor"] = np.array(exact.pop(name), np.float64) + 1e-12
    compare(tmp_path, "TreeEnsembleRegressor", [rows(dtype=np.float64)], exact, version=3)


@pytest.mark.parametrize("missing", [False, True])
def test_missing_values(tmp_path, missing):
    nodes, leaves = forest(missing=missing, modes=MODES[:5])
    x = rows()
    x[np.random.default_rng(2).random(x.shape) < 0.3] = np.nan
    attributes = {**nodes, **votes(leaves, "target", 1), "n_targets": 1}
    compare(tmp_path, "TreeEnsembleRegressor", [x], attributes)


@pytest.mark.parametrize("count", [0, 1, pytest.param(5000, marks=pytest.mark.slow)])
def test_numbers_of_rows(tmp_path, count):
    nodes, leaves = forest(trees=150)
    attributes = {**nodes, **votes(leaves, "target", 1), "n_targets": 1}
    compare(tmp_path, "TreeEnsembleRegressor", [rows(count)], attributes, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("base", [None, [0.1, 0.2, 0.3]])
def test_classifier(tmp_path, base, transform):
    nodes, leaves = forest(trees=2)
    weights = votes(leaves, "class", 3, 3, low=0.0)
    weights["class_weights"] = [w * 0.3 for w in weights["class_weights"]]
    attributes = {**nodes, **weights, "classlabels_strings": ["a", "b", "c"], "post_transform": transform}
    if base:
        attributes["base_values"] = base
    compare(tmp_path, "TreeEnsembleClassifier", [rows()], attributes, n_outputs=2, atol=1e-4)


@batched
@pytest.mark.parametrize("transform", [t for t in TRANSFORMS if t != "PROBIT"])
@pytest.mark.parametrize("low", [0.0, -1.0])
@pytest.mark.parametrize("voted_for", [0, 1])
def test_classifier_of_two_classes(tmp_path, voted_for, low, transform):
    nodes, leaves = forest(trees=2)
    weights = votes(leaves, "class", 1, low=low)
    weights["class_ids"] = [voted_for] * len(weights["class_ids"])
    attributes = {**nodes, **weights, "classlabels_int64s": [5, 6], "post_transform": transform}
    compare(tmp_path, "TreeEnsembleClassifier", [rows()], attributes, n_outputs=2)


def test_classifier_whose_leaves_vote_for_both_classes(tmp_path):
    nodes, leaves = forest(trees=3)
    attributes = {**nodes, **votes(leaves, "class", 2, 2, seed=3, low=0.0), "classlabels_int64s": [5, 6]}
    label, scores = run(tmp_path, "TreeEnsembleClassifier", [rows()], attributes, n_outputs=2)
    regressor = {k.replace("class_", "target_"): v for k, v in attributes.items() if k != "classlabels_int64s"}
    assert_same(scores, run(tmp_path, "TreeEnsembleRegressor", [rows()], {**regressor, "n_targets": 2})[0])
    assert label.tolist() == [5 + int(b > a) for a, b in scores]
    assert set(label.tolist()) == {5, 6}


def test_a_tree_that_is_a_leaf(tmp_path):
    nodes = {"nodes_treeids": [0], "nodes_nodeids": [0], "nodes_featureids": [0], "nodes_values": [0.0], "nodes_modes": ["LEAF"],
             "nodes_truenodeids": [0], "nodes_falsenodeids": [0]}  # fmt: skip
    attributes = {
        **nodes,
        "n_targets": 1,
        "target_treeids": [0],
        "target_nodeids": [0],
        "target_ids": [0],
        "target_weights": [2.5],
    }
    compare(tmp_path, "TreeEnsembleRegressor", [rows(3)], attributes)


def test_nodes_may_have_any_numbers_in_any_order(tmp_path):
    nodes, leaves = forest(modes=MODES[:2])
    plain = {**nodes, **votes(leaves, "target", 1), "n_targets": 1}
    order = np.random.default_rng(4).permutation(len(nodes["nodes_nodeids"]))
    moved = {key: [values[i] for i in order] for key, values in nodes.items()}
    other = {**plain, **moved}
    for key in ("nodes_nodeids", "nodes_truenodeids", "nodes_falsenodeids", "target_nodeids"):
        other[key] = [3 * number - 7 for number in other[key]]
    for key in ("nodes_treeids", "target_treeids"):
        other[key] = [(1 << 40) - 5 * number for number in other[key]]
    got, want = (run(tmp_path, "TreeEnsembleRegressor", [rows()], one) for one in (other, plain))
    assert_same(got, want, 1e-6, 1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_truenodeids": [9, 0, 0]}, "refers to node (0, 9), which it does not have"),
        ({"target_treeids": [0, 1]}, "refers to node (1, 2), which it does not have"),
        ({"nodes_nodeids": [0, 1, 1]}, "two nodes of one number"),
        ({"nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAFS"]}, "there is no mode 'LEAFS' of tree nodes"),
        ({"nodes_falsenodeids": [2]}, "do not fit together"),
        ({"target_weights": [1.0]}, "do not fit together"),
    ],
)
def test_attributes_with_faults(tmp_path, change, message):
    attributes = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0], "n_targets": 1,
        "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
        "target_weights": [1.5, 2.5],
    }  # fmt: skip
    assert run(tmp_path, "TreeEnsembleRegressor", [rows(1)], attributes)[0].item() in (1.5, 2.5)
    with pytest.raises(OrtconvError, match=re.escape(message)):
        run(tmp_path, "TreeEnsembleRegressor", [rows(1)], {**attributes, **change})


def version_5(dtype, aggregate, members):
    """Two trees of five leaves, with a set or a threshold at the root of the first."""
    return {
        "n_targets": 2, "aggregate_function": aggregate, "tree_roots": [0, 2],
        "nodes_featureids": [0, 2, 1, 0], "nodes_modes": np.array([6 if members else 0, 0, 4, 1], np.uint8),
        "nodes_splits": np.array([0.0, -0.5, 0.5, 1.0], dtype),
        "nodes_truenodeids": [1, 0, 3, 3], "nodes_trueleafs": [0, 1, 0, 1],
        "nodes_falsenodeids": [2, 1, 2, 4], "nodes_falseleafs": [1, 1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 1], "leaf_weights": np.array([1.5, -0.25, 3.0, 0.75, -2.0], dtype),
        **({"membership_values": np.array([*members, np.nan], dtype)} if members else {}),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("aggregate", [0, 1])
@pytest.mark.parametrize("members", [(), (1.0, 2.0, 3.0)])
def test_tree_ensemble(tmp_path, members, aggregate, dtype):
    compare(tmp_path, "TreeEnsemble", [2 * rows(dtype=dtype)], version_5(dtype, aggregate, members), version=5)


@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_tree_ensemble_walk(tmp_path, dtype, aggregate):
    x = rows(dtype=dtype)
    [got] = run(tmp_path, "TreeEnsemble", [x], version_5(dtype, aggregate, (-1.0, 0.5, 1.5)), version=5)
    leaves = [(1.5, 0), (-0.25, 1), (3.0, 0), (0.75, 1), (-2.0, 1)]
    combine = (lambda v: sum(v) / 2, sum, min, max)[aggregate]
    for row, scores in zip(x.tolist(), got.tolist()):
        first = (0 if row[2] <= -0.5 else 1) if row[0] in (-1.0, 0.5, 1.5) else 2
        second = (3 if row[0] < 1 else 4) if row[1] == 0.5 else 2
        reached = [leaves[first], leaves[second]]
        want = [[w for w, t in reached if t == target] for target in (0, 1)]
        assert scores == [combine(w) if w else 0.0 for w in want]
    assert got.dtype == dtype
