"""Runtime style: fusions are saved, not applied. onnxruntime applies them to nodes that no other provider has claimed.

The rules are those of the extended level. A match is recorded if onnxruntime's own action on the same nodes has the
same result as the rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.kernels import first_release_of_action
from ortconv.ir.model import NODES_MADE, Arity, Model, SavedFusion
from ortconv.ir.schema import schema
from ortconv.ir.tensor import Tensor
from ortconv.optimizer.engine import Context, New, NewInput, Out, Replacement, Rule, apply, find
from ortconv.optimizer.extended import fuse_conv
from ortconv.optimizer.extended.qdq import drop, elementwise, nbits, product
from ortconv.optimizer.levels import run_passes
from ortconv.optimizer.passes import Pass, by_root
from ortconv.optimizer.pattern import Match
from ortconv.optimizer.quantizers import OPS, is_quantizer, quantized
from ortconv.optimizer.recipe import Recipe, names_of

QDQ = "QDQSelectorActionTransformer"


class Action(NamedTuple):
    """onnxruntime's action that rewrites a node, the target, and its neighbors.

    `slots` are the inputs of the target that may come from a DequantizeLinear; None means all inputs.
    """

    name: str
    slots: tuple[int, ...] | None


ACTIONS: dict[tuple[str, str], Action] = {
    **{(QDQ, op): Action("drop", (0,)) for op in drop.MOVERS},
    **{
        (QDQ, op): Action("drop_no_int16_support_and_positive_scale", (0,))
        for op in ("MaxPool", "ReduceMax", "ReduceMin")
    },
    **{(QDQ, op): Action("drop_no_int16_support", (0,)) for op in ("Resize", "DepthToSpace")},
    (QDQ, "ArgMax"): Action("dropDQ", (0,)),
    (QDQ, "Split"): Action("dropSplitQDQ", (0,)),
    **{(QDQ, op): Action("1DQ", (0,)) for op in ("AveragePool", "GlobalAveragePool", "Sigmoid")},
    **{(QDQ, op): Action("1DQ_CPU", (0,)) for op in ("LeakyRelu", "Softmax")},
    **{(QDQ, op): Action("2DQ", (0, 1)) for op in ("Add", "Mul")},
    (QDQ, "Concat"): Action("*DQ", None),
    (QDQ, "Where"): Action("Where", (1, 2)),
    (QDQ, "Conv"): Action("Conv", (0, 1, 2)),
    (QDQ, "Gemm"): Action("Gemm", (0, 1, 2)),
    (QDQ, "MatMul"): Action("MatMul", (0, 1)),
    ("ConvActivationFusion", "Conv"): Action("ConvAct", ()),
    ("MatMulNBitsFusion", "MatMulNBits"): Action("FuseBias", ()),
}
"""By (optimizer name, which is the rule's name, operator of the target)."""

OLDER_NAMES = {
    "1DQ_CPU": "1DQ",
    "drop_no_int16_support_and_positive_scale": "drop_no_int16_support",
    "drop_no_int16_support": "drop",
}
"""Replacements for actions that older releases lack. They have the same effect on the nodes that the rules match."""

TARGETS = ("target", "conv", "product")
"""Names of the target in rules whose root is another node."""

ABSORBED = {"beta"}
"""Attributes of the target that the action does not copy to the node that it creates, where they would be unknown."""

BIAS = 2
"""The input slot of a Conv or Gemm that may be absent."""


# ---------------------------------------------------------------------- which rules


def _rules(allowed: Collection[str], *, signed: bool) -> tuple[tuple[Rule, ...], ...]:
    """The rules in `allowed` whose rewrites are saved, in groups in the order of their use.

    `signed` adds products of int8 and int8 beyond those of Gemm.
    """

    def chosen(rules: Iterable[Rule]) -> list[Rule]:
        return [product.with_signed(r) if signed or r in product.GEMM_RULES else r for r in rules]

    products, floats = chosen(product.RULES), chosen(product.FLOAT_RULES)
    computing = (*elementwise.RULES, *products)
    quantized = (*drop.RULES, *computing, *map(drop.behind_clamp, computing))
    groups = (quantized, floats, fuse_conv.fuse_conv_activation, nbits.fuse_bias)
    return tuple(tuple(r for r in group if r.name in allowed) for group in groups)


_PACKED = Pass(QDQ, nbits.RULES)
_CLEANUP = Pass("QDQFinalCleanupTransformer", drop.cancel_pair)
_CHANNELS_LAST = Pass("NhwcTransformer", "layout.nhwc:convert_all_regions", "QLinearConv")


def passes(recipe: Recipe) -> tuple[Pass, ...]:
    """Passes above the basic level for 4-bit weights, which an .ort file cannot store as they are. They are never saved."""
    return (_PACKED,) if QDQ in _saved_by(recipe) else ()


def _saved_by(recipe: Recipe) -> set[str]:
    """Names of the recipe's rules at the extended level."""
    return {name for p in recipe.stages.get("extended", ()) for name in names_of(p)}


# ---------------------------------------------------------------------- saved fusions


def save_fusions(model: Model, recipe: Recipe, context: Context) -> None:
    """Record the fusions of a model and all its subgraphs, and replace those recorded before. Below extended, there are none.

    The graph is unchanged, except that DequantizeLinear and QuantizeLinear nodes get an explicit zero point if onnxruntime uses it.
    """
    model.saved = []
    groups = _rules(_saved_by(recipe), signed=context.settings.target_platform == "arm")
    for graph in list(model.graph.graphs()):
        model.saved += [saved for _, _, saved in _fusions(graph, context, groups)]
    for saved in model.saved:
        for node in saved.nodes if saved.produced else ():
            if node is not None and node.op in OPS and node.input(2) is None:
                _state_zero_point(node)
    model.graph.prune()


def replay(model: Model, recipe: Recipe, target_platform: str | None) -> int:
    """Apply the fusions that `save_fusions` recorded, then onnxruntime's passes that follow. Return the number of fusions."""
    if "extended" not in recipe.stages:
        return 0
    context, saved, model.saved = Context(only_cpu=True), model.saved, []
    wanted = {(fusion.optimizer, fusion.target) for fusion in saved}
    groups = _rules(_saved_by(recipe), signed=target_platform == "arm")
    made = 0
    for graph in list(model.graph.graphs()):
        for r, root, fusion in list(_fusions(graph, context, groups)):
            if root.graph is graph and (fusion.optimizer, fusion.target) in wanted:
                made += apply(r, root, context) is not None
    behind = (_CLEANUP, _CHANNELS_LAST) if "layout" in recipe.stages else (_CLEANUP,)
    for _ in run_passes(model.graph, behind, context):
        pass
    model.graph.prune()
    return made


def _fusions(
    graph: Graph, context: Context, groups: Sequence[Sequence[Rule]]
) -> Iterator[tuple[Rule, Node, SavedFusion]]:
    """The fusions to save for one graph, group by group in the order of its nodes, each with its rule and root."""
    taken: set[tuple[str, Node]] = set()
    for rules in map(by_root, groups):
        for root in list(graph):
            for r in rules.get((root.domain, root.op), ()):
                found = find(r, root, context)
                saved = None if found is None else _saved(r, *found, context)
                if saved is not None and (r.name, saved.target) not in taken:
                    taken.add((r.name, saved.target))
                    yield r, root, saved
                    break


def _saved(r: Rule, m: Match, replacement: Replacement, context: Context) -> SavedFusion | None:
    """The record of a match; None if onnxruntime's action would not have the same result as the rule."""
    target = next((m.node(name) for name in TARGETS if name in m.bound), m.root)
    action = ACTIONS[r.name, target.op]
    new = _made(replacement)
    before, behind = _dequantizers(target, action, new), _behind(target, m.root)
    name = _known_name(action.name, context)
    if before is None or name is None:
        return None
    if "clamp" in m.bound and not any(find(r, m.root, context) for r in drop.CLAMP_RULES):
        return None  # onnxruntime would keep the clamp
    if not _is_made_of(new, [target, *behind, *before]):
        return None
    made = NODES_MADE[r.name, name]
    if made and target.attrs.keys() - new.attrs.keys() - ABSORBED:
        return None
    return SavedFusion(
        r.name,
        name,
        (*before, target, *behind, *([m.node("clamp")] if "clamp" in m.bound else [])),
        Arity(len(before)) if action.slots is not None else Arity(1, len(before)),
        Arity(len(behind)) if target.op != "Split" else Arity(1, len(behind)),
        (_operator_id(new, m.graph),) * made,
    )


def _known_name(action: str, context: Context) -> str | None:
    """The name of an action in the release that must load the file; None if that release lacks it."""
    name: str | None = action
    release = context.settings.release
    while name is not None and release is not None and first_release_of_action(name) > release:
        name = OLDER_NAMES.get(name)
    return name


def _made(replacement: Replacement) -> New:
    """The node that a rule creates. For a Split, it is the node before the DequantizeLinear nodes to cancel."""
    first = replacement[0] if isinstance(replacement, tuple) else replacement
    assert isinstance(first, New)
    source = first.inputs[0]
    return source.new if isinstance(source, Out) else first


def _dequantizers(target: Node, action: Action, new: New) -> list[Node | None] | None:
    """The DequantizeLinear nodes before a target, None for a bias without one. None if another input has none."""
    slots = range(len(target.inputs)) if action.slots is None else action.slots
    found = {slot: _dequantizer(target.input(slot), new) for slot in slots}
    missing = {slot for slot, dq in found.items() if dq is None}
    return list(found.values()) if missing <= {BIAS} else None


def _dequantizer(value: Value | None, new: New) -> Node | None:
    """The DequantizeLinear of a value that has no other reader, if the new node reads its input; else None."""
    node = None if value is None or value.is_output or len(value.uses) > 1 else value.producer
    if node is None or not is_quantizer(node, "DequantizeLinear"):
        return None
    return node if any(source is node.inputs[0] for source in new.inputs) else None


def _behind(target: Node, root: Node) -> list[Node]:
    """The nodes after a target that belong to the fusion."""
    if target.op == "Split":
        return [reader for value in target.present_outputs for reader in value.consumers]
    return [] if root is target else [root]


def _is_made_of(new: New, nodes: list[Node | None]) -> bool:
    """True if all inputs of the new node are inputs of these nodes; zero points that were absent do not count."""
    there = {value for node in nodes if node is not None for value in node.present_inputs}
    others = (source for source in new.inputs if source is not None and not _is_zero_point(source))
    return all(isinstance(source, Value) and source in there for source in others)


def _is_zero_point(source: NewInput) -> bool:
    return isinstance(source, np.ndarray) and source.itemsize < 4 and not source.any()


def _operator_id(new: New, graph: Graph) -> str:
    found = schema(new.domain, new.op, graph.opset(new.domain))
    assert found is not None
    return found.id


def _state_zero_point(node: Node) -> None:
    """Add an explicit zero point of 0 to a node without one, for each scale."""
    found = quantized(node)
    assert found is not None
    zero = Tensor.of(np.asarray(found.zero), found.dtype)
    node.parent.set_input(node, 2, node.parent.constant(zero, f"{node.out.name}_zero_point"))
