"""Losses, optimizer steps, n-grams and image decoding. Losses have no kernel in onnxruntime: the formulas stand here."""

import io
import sys

import numpy as np
import pytest
from single_node import assert_same, compare, run_kernel

from ortconv.errors import BackendError, GraphError
from ortconv.executor.kernels.text import MOST_SKIPS
from tests.batches import batched

F32 = np.float32
RNG = np.random.default_rng(0)
SCORES = {shape: RNG.standard_normal(shape).astype(F32) for shape in [(3, 5), (3, 5, 2), (2, 4, 3, 2), (0, 5)]}
REDUCTIONS = ("none", "sum", "mean")


def labels_for(x, dtype=np.int64):
    return RNG.integers(0, x.shape[1], (x.shape[0], *x.shape[2:])).astype(dtype)


def loss_of(log_prob, labels, weights, ignored, reduction):
    """One sample after the other."""
    loss, total = np.zeros(labels.shape), 0.0
    for at in np.ndindex(labels.shape):
        c = labels[at]
        if c == ignored:
            continue
        w = 1.0 if weights is None else float(weights[c])
        loss[at] = -float(log_prob[(at[0], c, *at[1:])]) * w
        total += w
    with np.errstate(invalid="ignore"):
        return {"none": loss, "sum": loss.sum(), "mean": np.float64(loss.sum()) / total}[reduction]


@batched
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ignored", [None, 2, -5])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [s for s in SCORES if s[0]])
def test_losses(shape, weighted, ignored, reduction):
    x = SCORES[shape]
    labels = labels_for(x)
    if ignored == -5:
        labels.reshape(-1)[0] = -5
    weights = np.linspace(0.5, 2, x.shape[1]).astype(F32) if weighted else None
    attributes = {"reduction": reduction, **({} if ignored is None else {"ignore_index": ignored})}
    [got] = run_kernel("NegativeLogLikelihoodLoss", [x, labels, weights], attributes)
    assert_same(got, loss_of(x, labels, weights, ignored, reduction).astype(F32))
    log_prob = x - np.log(np.exp(x.astype(np.float64)).sum(axis=1, keepdims=True))
    got, probabilities = run_kernel("SoftmaxCrossEntropyLoss", [x, labels, weights], attributes, n_outputs=2)
    assert_same(probabilities, log_prob.astype(F32))
    assert_same(got, loss_of(log_prob, labels, weights, ignored, reduction).astype(F32))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_losses_of_other_types(dtype, index):
    x = SCORES[3, 5].astype(dtype)
    labels = labels_for(x, index)
    [got] = run_kernel("NegativeLogLikelihoodLoss", [x, labels])
    assert_same(got, np.asarray(loss_of(x, labels, None, None, "mean")).astype(dtype), rtol=1e-3)


def test_losses_of_nothing():
    x, labels = SCORES[0, 5], np.zeros(0, np.int64)
    assert run_kernel("SoftmaxCrossEntropyLoss", [x, labels], {"reduction": "none"})[0].shape == (0,)
    assert run_kernel("SoftmaxCrossEntropyLoss", [x, labels], {"reduction": "sum"})[0] == 0
    assert np.isnan(run_kernel("SoftmaxCrossEntropyLoss", [x, labels])[0])


def test_an_ignored_nan_does_not_count():
    x = np.array([[np.nan, 1.0], [-2.0, 3.0]], F32)
    [got] = run_kernel("NegativeLogLikelihoodLoss", [x, np.array([0, 1])], {"ignore_index": 0, "reduction": "sum"})
    assert got == -3


@pytest.mark.parametrize("label", [5, -1])
def test_labels_out_of_range(label):
    with pytest.raises(GraphError, match=r"\[0, 5\)"):
        run_kernel("NegativeLogLikelihoodLoss", [SCORES[3, 5], np.array([0, label, 1])])


STEP = {"domain": "ai.onnx.preview.training", "opset": 1}


@pytest.mark.parametrize(("mode", "count", "want"), [
    ("standard", 0, (0.79, 2.1)), ("standard", 3, (0.89, 1.1)), ("nesterov", 0, (0.59, 2.1)), ("nesterov", 3, (0.69, 1.1)),
])  # fmt: skip
def test_momentum(mode, count, want):
    """x = 1, g = 1.9, v = 0.1, and g + 0.1 x = 2: v' = v + 2 (beta 0.5 after the first step), x' by hand."""
    attributes = {"alpha": 1.0, "beta": 0.5, "mode": mode, "norm_coefficient": 0.1}
    inputs = [np.array(0.1), np.array(count), *(np.array([v]) for v in (1.0, 1.9, 0.1))]
    x, v = run_kernel("Momentum", inputs, attributes, n_outputs=2, **STEP)
    assert_same([x, v], [np.array([want[0]]), np.array([want[1]])])


@pytest.mark.parametrize(("op", "states", "attributes"), [
    ("Adagrad", 1, {}), ("Adam", 2, {}), ("Momentum", 1, {"alpha": 0.9, "beta": 0.5, "mode": "standard", "norm_coefficient": 0.0}),
])  # fmt: skip
def test_variables_are_optimized_independently(op, states, attributes):
    kinds = [[RNG.random(3).astype(F32), RNG.random((2, 2)).astype(F32)] for _ in range(2 + states)]
    head = [np.array(0.1, F32), np.array(2)]
    both = run_kernel(op, [*head, *(x for k in kinds for x in k)], attributes, n_outputs=2 + 2 * states, **STEP)
    for i in range(2):
        alone = run_kernel(op, [*head, *(k[i] for k in kinds)], attributes, n_outputs=1 + states, **STEP)
        assert_same(both[i::2], alone, rtol=0, atol=0)


def test_optimizers_go_downhill():
    for op, states, attributes in [("Adagrad", 1, {}), ("Adam", 2, {})]:
        x, state = np.array([3.0, -2.0]), [np.zeros(2)] * states
        for t in range(300):
            inputs = [np.array(0.5), np.array(t), x, 2 * x, *state]
            x, *state = run_kernel(op, inputs, attributes, n_outputs=1 + states, **STEP)
        assert np.abs(x).max() < 0.05


GRAMS = {"ngram_counts": (0, 4), "ngram_indexes": (0, 1, 2, 3, 4, 5, 6), "pool_int64s": (2, 3, 5, 4, 5, 6, 7, 8, 6, 7)}


@batched
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("skips", [0, 1, 5])
@pytest.mark.parametrize("x", [np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8]), np.array([[1, 3, 7, 6], [7, 8, 5, 5]])])
def test_tfidf(x, skips, shortest, longest, mode):
    attributes = {
        **GRAMS,
        "mode": mode,
        "min_gram_length": shortest,
        "max_gram_length": longest,
        "max_skip_count": skips,
    }
    if mode != "TF":
        attributes["weights"] = (0.5, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
    compare("TfIdfVectorizer", [x], attributes)


def test_tfidf_of_words_at_other_places():
    attributes = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "ngram_counts": (0, 2),
                  "ngram_indexes": (3, 0, 1), "pool_strings": ("a", "b", "a", "b")}  # fmt: skip
    compare("TfIdfVectorizer", [np.array([["a", "b", "a"], ["b", "b", "c"]], object)], attributes)


@pytest.mark.parametrize("shape", [(0,), (1, 0), (3, 0)])
def test_tfidf_without_words(shape):
    """As after a Tokenizer that finds none."""
    attributes = {"mode": "TFIDF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "ngram_counts": (0, 2),
                  "ngram_indexes": (3, 0, 1), "pool_strings": ("a", "b", "a", "b"), "weights": (0.5, 1.5, 2.0)}  # fmt: skip
    compare("TfIdfVectorizer", [np.empty(shape, object)], attributes)


def test_images_need_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(BackendError, match="Pillow"):
        run_kernel("ImageDecoder", [np.zeros(4, np.uint8)])


@pytest.mark.parametrize("pixel_format", ["RGB", "BGR", "Grayscale"])
def test_images(pixel_format):
    image = pytest.importorskip("PIL.Image")
    pixels = RNG.integers(0, 256, (4, 6, 3)).astype(np.uint8)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "PNG")
    [got] = run_kernel("ImageDecoder", [np.frombuffer(file.getvalue(), np.uint8)], {"pixel_format": pixel_format})
    gray = np.array(image.fromarray(pixels).convert("L"))[:, :, None]
    assert_same(got, {"RGB": pixels, "BGR": pixels[:, :, ::-1], "Grayscale": gray}[pixel_format])


def test_bytes_that_are_no_image():
    pytest.importorskip("PIL.Image")
    assert run_kernel("ImageDecoder", [np.arange(50, dtype=np.uint8)])[0].shape == (0, 0, 0)


@pytest.mark.parametrize("counts", [(-4, 4), (0, 1 << 62), (5, 4), (0, 11), (-(1 << 62), 0)])
def test_counts_of_ngrams_that_are_not_in_the_pool(counts):
    attributes = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, **GRAMS}
    with pytest.raises(GraphError, match=r"ngram_counts .* pool of 10 items"):
        run_kernel("TfIdfVectorizer", [np.arange(4)], {**attributes, "ngram_counts": counts})


def test_ngrams_longer_than_any_row_cost_nothing():
    attributes = {
        **GRAMS,
        "mode": "TF",
        "min_gram_length": -5,
        "max_gram_length": 1 << 62,
        "max_skip_count": MOST_SKIPS,
    }
    (got,) = run_kernel("TfIdfVectorizer", [np.array([2, 9, 9, 3])], attributes)
    np.testing.assert_array_equal(got, [1, 1, 0, 0, 0, 0, 0])


def test_labels_of_another_shape():
    scores = SCORES[3, 5, 2]
    for shape in [(1, 2), (3,), (3, 1), (3, 2, 1)]:
        for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
            with pytest.raises(GraphError, match="do not go with scores"):
                run_kernel(op, [scores, np.zeros(shape, np.int64)])
