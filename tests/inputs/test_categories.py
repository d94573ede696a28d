"""Generated inputs consist of the categories and words that a model knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import ortconv
from ortconv.inputs.categories import with_known_elements
from ortconv.inputs.feeds import KINDS, Draw, free_problem, make, sizes_to_try
from ortconv.ir.graph import Graph
from ortconv.onnxio.load import from_proto

COLUMNS = """<ir_version: 8, opset_import: ["": 15, "ai.onnx.ml": 1]>
g (string[n, 2] x, string[n, 1] more, float[n, 1] size) => (float[n, m] y) <int64[1] one = {1}, int64[2] two = {0, 2}> {
  all = Concat<axis = 1>(x, more)
  middle = ai.onnx.ml.ArrayFeatureExtractor(all, one)
  outer = Gather<axis = 1>(all, two)
  rounded = Cast<to = 7>(size)
  a = ai.onnx.ml.OneHotEncoder<cats_strings = ["q", "r"], zeros = 0>(middle)
  b = ai.onnx.ml.OneHotEncoder<cats_strings = ["s", "t"], zeros = 0>(outer)
  c = ai.onnx.ml.OneHotEncoder<cats_int64s = [30, 70], zeros = 0>(rounded)
  flat = Constant<value_ints = [0, -1]>()
  p = Reshape(a, flat)
  q = Reshape(b, flat)
  r = Reshape(c, flat)
  y = Concat<axis = 1>(p, q, r)
}"""

WORDS = """<ir_version: 8, opset_import: ["": 15, "com.microsoft": 1]>
g (string[n] x, string[n] z) => (float[n, 4] y, int64[n] k) {
  plain = StringNormalizer<case_change_action = "NONE">(x)
  words = com.microsoft.Tokenizer<mark = 0, mincharnum = 1, pad_value = "#", separators = [" "]>(plain)
  flat = Identity(words)
  y = TfIdfVectorizer<max_gram_length = 2, max_skip_count = 0, min_gram_length = 1, mode = "TF", ngram_counts = [0, 2],
      ngram_indexes = [0, 1, 2, 3], pool_strings = ["the", "cat", "the", "cat", "cat", "sat"]>(flat)
  k = ai.onnx.ml.LabelEncoder<keys_strings = ["one", "two"], values_int64s = [1, 2], default_int64 = 0>(z)
}"""


def graph_of(text: str) -> Graph:
    return from_proto(onnx.parser.parse_model(text)).graph


def feeds_of(graph: Graph, seed: int, kind: str = "drawn", **draws: Draw) -> dict[str, Any]:
    problem = free_problem(graph, {}, draws)
    return make(problem, next(sizes_to_try(problem, 5))[0], seed, draws, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_each_column_has_the_categories_of_its_encoder(kind: str) -> None:
    feeds = [feeds_of(graph_of(COLUMNS), seed, kind) for seed in range(3)]
    x, more, size = (np.concatenate([each[name] for each in feeds]) for name in ("x", "more", "size"))
    assert [{*column} for column in (x[:, 0], x[:, 1], more[:, 0])] == [{"s", "t"}, {"q", "r"}, {"s", "t"}]
    assert size.dtype == np.float32
    assert {*size.reshape(-1)} == {30.0, 70.0}


def test_a_model_that_forbids_other_categories_is_validated(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(COLUMNS), tmp_path / "m.onnx")
    assert ortconv.convert(tmp_path / "m.onnx", tmp_path / "m.ort").validation is not None


def test_texts_have_known_words_and_some_tokens_are_unknown() -> None:
    feeds = [feeds_of(graph_of(WORDS), seed) for seed in range(8)]
    assert {word for each in feeds for text in each["x"] for word in text.split()} == {"the", "cat", "sat"}
    assert any("cat sat" in text for each in feeds for text in each["x"])
    labels = {label for each in feeds for label in each["z"]}
    assert labels > {"one", "two"}


LABELS = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 4]>
g (int64[n] i, float[n] f, int64[n] s) => (int64[n] a, string[n] b, int64[n] c) {
  a = ai.onnx.ml.LabelEncoder<keys_tensor = int64[2] {70, 71}, values_tensor = int64[2] {1, 2}, default_tensor = int64[1] {0}>(i)
  b = ai.onnx.ml.LabelEncoder<keys_floats = [50.0, 51.0], values_strings = ["u", "v"]>(f)
  words = Cast<to = 8>(s)
  c = ai.onnx.ml.LabelEncoder<keys_strings = ["word", "40"], values_int64s = [1, 2]>(words)
}"""


def test_keys_may_be_tensors_or_floats_or_have_another_type_than_the_input() -> None:
    feeds = [feeds_of(graph_of(LABELS), seed) for seed in range(8)]
    assert [{*np.concatenate([each[name] for each in feeds])} & {70, 71, 50.0, 51.0, 40} for name in "ifs"] == [
        {70, 71},
        {50.0, 51.0},
        {40},
    ]
    assert feeds[0]["s"].dtype == np.int64


def test_ranges_that_a_user_gives_are_kept() -> None:
    assert (feeds_of(graph_of(COLUMNS), 0, size=Draw(low=1, high=2))["size"] < 3).all()


def test_other_graphs_keep_their_inputs() -> None:
    text = '<ir_version: 8, opset_import: ["": 15]> g (string[2] x) => (string[2] y) { y = Identity(x) }'
    feeds = {"x": np.array(["a", "b"], object)}
    assert with_known_elements(graph_of(text), feeds, 0, all_kinds=True) is feeds
