"""The same model with other names and another order of nodes."""

from __future__ import annotations

import random

import onnx


def scrambled(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """A copy in which nodes and inner values have each other's names, and nodes another topological order."""
    rng = random.Random(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _scramble(copy.graph, {}, rng)
    return copy


def _scramble(graph: onnx.GraphProto, outer: dict[str, str], rng: random.Random) -> None:
    kept = {v.name for v in (*graph.input, *graph.output)}
    made = [name for node in graph.node for name in node.output if name] + [t.name for t in graph.initializer]
    names = [name for name in made if name not in kept]
    mixed = names[:]
    rng.shuffle(mixed)
    new = {**outer, **{name: name for name in kept}, **dict(zip(names, mixed, strict=True))}
    for tensor in graph.initializer:
        tensor.name = new[tensor.name]
    for info in graph.value_info:
        info.name = new.get(info.name, info.name)
    titles = [node.name for node in graph.node]
    rng.shuffle(titles)
    for node, title in zip(graph.node, titles, strict=True):
        node.name = title
        for attribute in node.attribute:
            for sub in (attribute.g,) if attribute.HasField("g") else attribute.graphs:
                _scramble(sub, new, rng)
        for names_of in (node.input, node.output):
            names_of[:] = [new.get(name, name) for name in names_of]
    _reorder(graph, rng)
    initializers = list(graph.initializer)
    rng.shuffle(initializers)
    del graph.initializer[:]
    graph.initializer.extend(initializers)


def _reads(node: onnx.NodeProto) -> set[str]:
    inner = [sub for a in node.attribute for sub in ((a.g,) if a.HasField("g") else a.graphs)]
    return set(node.input).union(*(_reads(n) for sub in inner for n in sub.node))


def _reorder(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Nodes in a random topological order."""
    nodes = list(graph.node)
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = [{maker[name] for name in _reads(node) if name in maker} for node in nodes]
    readers: dict[int, list[int]] = {}
    for i, need in enumerate(needs):
        for j in need:
            readers.setdefault(j, []).append(i)
    missing = [len(need) for need in needs]
    ready = [i for i, count in enumerate(missing) if not count]
    order = []
    while ready:
        at = rng.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        order.append(ready.pop())
        for reader in readers.get(order[-1], ()):
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    ordered = [onnx.NodeProto.FromString(nodes[i].SerializeToString()) for i in order]
    del graph.node[:]
    graph.node.extend(ordered)
