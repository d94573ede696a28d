"""Puts categories and words that a model knows into generated inputs. Others would be refused, or would all look alike to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.executor.kernels.evaluate import run_kernel
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.tensor import Array, Tensor, dense

KNOWN: dict[str, tuple[str, ...]] = {
    "OneHotEncoder": ("cats_strings", "cats_int64s"),
    "LabelEncoder": ("classes_strings", "keys_strings", "keys_int64s", "keys_floats", "keys_tensor"),
    "CategoryMapper": ("cats_strings", "cats_int64s"),
    "TfIdfVectorizer": ("pool_strings", "pool_int64s"),
}
"""The attributes, lists or tensors, with the elements that an operator knows."""

SPLITTING = frozenset(("StringNormalizer", "Tokenizer"))

LONGEST_TEXT = 6
"""Limit on the number of words of a text."""

SHARE = 0.75
"""The share of known elements where others are allowed."""

Places = dict[Value, Array]
"""For each element of a value, the number of the input element that it is a copy of; -1 if it is no copy of one."""


def with_known_elements(graph: Graph, feeds: dict[str, Any], seed: int, *, all_kinds: bool) -> dict[str, Any]:
    """The feeds with known elements wherever an operator forbids others. With `all_kinds`, most of the other elements that are
    looked up are known, too, and texts consist of known words.
    """
    readers = [node for node in graph if node.op in KNOWN and (all_kinds or _forbids_others(node))]
    inputs = [v for v in graph.inputs if isinstance(feeds.get(v.name), np.ndarray)]
    if not readers or not inputs:
        return feeds
    ends = np.cumsum([feeds[v.name].size for v in inputs])
    elements = np.concatenate([feeds[v.name].astype(object).reshape(-1) for v in inputs])
    numbers = np.split(np.arange(ends[-1]), ends[:-1])
    places, texts = _places(graph, {v: n.reshape(feeds[v.name].shape) for v, n in zip(inputs, numbers)})
    _put_known(elements, readers, places, texts, np.random.default_rng(seed))
    parts = np.split(elements, ends[:-1])
    return feeds | {v.name: _converted(part, feeds[v.name]) for v, part in zip(inputs, parts)}


def _converted(elements: Array, old: Array) -> Array:
    """The elements with the shape and type of `old`. Those that this type does not hold remain as in `old`."""
    try:
        return elements.reshape(old.shape).astype(old.dtype)
    except (ValueError, OverflowError):
        pairs = zip(elements, old.reshape(-1).tolist())
        return np.array([_held(new, was, old.dtype) for new, was in pairs], old.dtype).reshape(old.shape)


def _held(new: object, was: object, dtype: np.dtype[Any]) -> object:
    try:
        return np.array(new, object).astype(dtype).item()
    except (ValueError, OverflowError):
        return was


def _put_known(
    elements: Array, readers: Sequence[Node], places: Places, texts: Places, rng: np.random.Generator
) -> None:
    """Put known elements where these nodes read them; those that forbid others come last."""
    for node in sorted(readers, key=_forbids_others):
        source, known = node.input(0), _known(node)
        if not known.size:
            continue
        if source in places:
            at = places[source][places[source] >= 0]
            at = at if _forbids_others(node) else at[rng.random(at.size) < SHARE]
            elements[at] = rng.choice(known, at.size)
        elif source in texts:
            for at in texts[source]:
                elements[at] = _text(rng, known)


def _known(node: Node) -> Array:
    found = (node.attrs.get(name, ()) for name in KNOWN[node.op])
    return np.concatenate([np.array(f.numpy() if isinstance(f, Tensor) else f, object).reshape(-1) for f in found])


def _forbids_others(node: Node) -> bool:
    return node.op == "OneHotEncoder" and node.attr("zeros", 1) == 0


def _text(rng: np.random.Generator, words: Array) -> str:
    """Words that follow each other in a list, since a list of n-grams has the words of each in their order."""
    start = int(rng.integers(len(words)))
    return " ".join(map(str, words[start : start + int(rng.integers(1, LONGEST_TEXT))]))


def _places(graph: Graph, places: Places) -> tuple[Places, Places]:
    """The places of all elements that are only moved, and those of the texts that tokens come from."""
    texts: Places = {}
    for node in graph:
        tracked = [v for v in node.inputs if v in places]
        source = node.input(0)
        moves = node.op == "ArrayFeatureExtractor" or traits(node).has(Trait.JOINS, Trait.MOVES)
        if node.op in SPLITTING and (source in places or source in texts):
            found = (places if source in places else texts)[source]
            texts[node.out] = found[found >= 0]
        elif node.op == "Cast" and tracked:
            places[node.out] = places[tracked[0]]
        elif source in texts and moves:
            texts[node.out] = texts[source]
        elif tracked and moves:
            moved = _moved(node, places)
            places.update((v, array) for v, array in zip(node.outputs, moved) if v is not None)
    return places, texts


def _moved(node: Node, places: Places) -> Sequence[Array]:
    """The places of a node's results; nothing if they are not known."""
    operands: list[Array | None] = []
    for k, value in enumerate(node.inputs):
        if value is None:
            operands.append(None)
        elif value in places:
            operands.append(places[value])
        elif value.const is not None:
            const = dense(value.const)
            operands.append(np.full(const.shape, -1) if k == 0 or traits(node).has(Trait.JOINS) else const)
        else:
            return ()
    try:
        result = run_kernel(node, operands)
    except Exception:  # the run of the model tells what is wrong with the node
        return ()
    return result if isinstance(result, tuple) else (result,)
