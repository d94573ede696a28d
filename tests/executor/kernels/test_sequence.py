"""Sequences, optionals, strings and random numbers."""

import numpy as np
import pytest
from single_node import assert_same, compare, run_kernel, run_onnxruntime

from ortconv.errors import UnsupportedError
from tests.batches import batched

F32 = np.float32
RNG = np.random.default_rng(0)
ITEMS = [RNG.standard_normal((2, 3)).astype(F32) for _ in range(3)]
X = RNG.standard_normal((2, 3, 5)).astype(F32)
WORDS = np.array(["Hello", "the", "World", "THE"], object)


def i64(*values):
    return np.array(values[0] if len(values) == 1 else values, np.int64)


def text(*values):
    return np.array(values, object)


SEQUENCES = [
    ("SequenceConstruct", ITEMS, {}),
    ("SequenceLength", [ITEMS], {}),
    ("SequenceErase", [ITEMS], {}),
    ("SequenceInsert", [ITEMS, ITEMS[0] * 2], {}),
    ("SequenceInsert", [ITEMS, ITEMS[0] * 2, i64(3)], {}),
    *[("SequenceAt", [ITEMS, i64(k)], {}) for k in (0, 2, -1, -3)],
    *[("SequenceErase", [ITEMS, i64(k)], {}) for k in (0, 2, -1, -3)],
    *[("SequenceInsert", [ITEMS, ITEMS[0] * 2, i64(k)], {}) for k in (0, 2, -1, -3)],
    *[("SplitToSequence", [X], {"axis": a, "keepdims": k}) for a in (0, 1, -1) for k in (0, 1)],
    *[("SplitToSequence", [X, i64(2)], {"axis": a}) for a in (0, 1, -1)],
    *[("SplitToSequence", [X, i64(1)], {"axis": a, "keepdims": 0}) for a in (0, 1, -1)],
    *[("SplitToSequence", [X, i64(1, 4)], {"axis": 2, "keepdims": k}) for k in (0, 1)],
    *[("ConcatFromSequence", [ITEMS], {"axis": a, "new_axis": n}) for a in (0, 1, -1) for n in (0, 1)],
]


@batched
@pytest.mark.parametrize(("op", "inputs", "attributes"), SEQUENCES)
def test_sequences(op, inputs, attributes):
    compare(op, inputs, attributes)


@pytest.mark.parametrize("position", [3, -4])
def test_position_outside_the_sequence(position):
    with pytest.raises(IndexError):
        run_kernel("SequenceErase", [ITEMS, i64(position)])
    with pytest.raises(IndexError):
        run_kernel("SequenceAt", [ITEMS, i64(position)])


def test_empty_sequence():
    assert run_kernel("SequenceEmpty", [], {"dtype": 7}) == [[]]


@pytest.mark.parametrize(("value", "present"), [(X, True), (ITEMS, True), ([], True), (None, False)])
def test_optionals(value, present):
    [optional] = run_kernel("Optional", [value] if present else [])
    assert_same(run_kernel("OptionalHasElement", [optional])[0], np.array(present))
    if present:
        assert_same(run_kernel("OptionalGetElement", [optional])[0], value)
    else:
        with pytest.raises(ValueError, match="empty"):
            run_kernel("OptionalGetElement", [optional])


def test_string_concat():
    compare("StringConcat", [WORDS, np.array("x", object)])
    compare("StringConcat", [WORDS[:, None], WORDS[None]])


@pytest.mark.parametrize(
    "attributes",
    [{}, {"delimiter": ","}, {"delimiter": ""}, {"maxsplit": 1}, {"delimiter": ",", "maxsplit": 1}, {"delimiter": "ab"},
     {"delimiter": " "}, {"maxsplit": 0}],
)  # fmt: skip
def test_string_split(attributes):
    x = text("a b c", "", " a  b ", "a,b,,c", ",", "abc").reshape(2, 3)
    compare("StringSplit", [x], attributes, n_outputs=2)


def test_string_split_of_nothing():
    compare("StringSplit", [np.zeros(0, object)], n_outputs=2)


def test_regex_full_match():
    compare("RegexFullMatch", [text("abc", "a1", "", "abcd").reshape(2, 2)], {"pattern": "[a-z]+"})


@pytest.mark.parametrize(
    ("attributes", "want"),
    [
        ({}, ["Hello", "the", "World", "THE"]),
        ({"stopwords": ("the",)}, ["Hello", "World"]),
        ({"stopwords": ("the",), "is_case_sensitive": 1}, ["Hello", "World", "THE"]),
        ({"case_change_action": "LOWER", "stopwords": ("the",), "is_case_sensitive": 1}, ["hello", "world", "the"]),
        ({"case_change_action": "UPPER"}, ["HELLO", "THE", "WORLD", "THE"]),
        ({"stopwords": ("hello", "the", "world")}, [""]),
    ],
)
def test_string_normalizer(attributes, want):
    assert run_kernel("StringNormalizer", [WORDS], attributes)[0].tolist() == want
    assert run_kernel("StringNormalizer", [WORDS[None]], attributes)[0].tolist() == [want]


RANDOM = [
    ("RandomNormal", [], {"shape": (200, 100), "mean": 3.0, "scale": 2.0}, 3, 2),
    ("RandomUniform", [], {"shape": (200, 100), "low": -1.0, "high": 5.0}, 2, 6 / 12**0.5),
    ("RandomNormalLike", [np.zeros((200, 100), F32)], {"mean": -1.0, "scale": 0.5}, -1, 0.5),
    ("RandomUniformLike", [np.zeros((200, 100), F32)], {}, 0.5, 1 / 12**0.5),
    ("Bernoulli", [np.full((200, 100), 0.3, F32)], {}, 0.3, 0.21**0.5),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "mean", "deviation"), RANDOM)
def test_random_numbers(op, inputs, attributes, mean, deviation):
    [x] = run_kernel(op, inputs, {**attributes, "seed": 1.5}, opset=21)
    [reference] = run_onnxruntime(op, inputs, {**attributes, "seed": 1.5}, opset=21)
    assert (x.shape, x.dtype) == (reference.shape, reference.dtype)
    assert abs(x.mean() - mean) < 0.06
    assert abs(x.std() - deviation) < 0.06
    assert_same(run_kernel(op, inputs, {**attributes, "seed": 1.5}, opset=21)[0], x, rtol=0, atol=0)
    assert (run_kernel(op, inputs, {**attributes, "seed": 2.5}, opset=21)[0] != x).any()
    assert run_kernel(op, inputs, {**attributes, "dtype": 11}, opset=21)[0].dtype == np.float64


def test_multinomial_follows_the_log_probabilities():
    logits = np.log(np.array([[0.2, 0.8, 0.0], [0.5, 0.25, 0.25]], F32), where=[[True, True, False], [True] * 3],
                    out=np.full((2, 3), -np.inf, F32))  # fmt: skip
    [x] = run_kernel("Multinomial", [logits], {"sample_size": 10000, "seed": 3.0, "dtype": 7})
    assert (x.shape, x.dtype) == ((2, 10000), np.int64)
    shares = np.array([np.bincount(row, minlength=3) for row in x]) / 10000
    np.testing.assert_allclose(shares, np.exp(logits), atol=0.02)


@pytest.mark.parametrize("split", [[], [np.array(1)]])
def test_a_sequence_of_more_than_a_million_parts(split):
    with pytest.raises(UnsupportedError, match="steps, the limit is"):
        run_kernel("SplitToSequence", [np.zeros((1 << 40, 0), F32), *split])
