"""Moves more of a model to an accelerator: rewrites refused nodes into supported ones if that helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from ortconv.ir.graph import Graph, Node
from ortconv.ir.symbols import symbols_of
from ortconv.ir.types import DType
from ortconv.optimizer.engine import Context, Rule, apply, find
from ortconv.optimizer.levels import opt_in_passes, run_passes
from ortconv.optimizer.offload import float32, unsigned
from ortconv.optimizer.offload.masks import MASKS
from ortconv.optimizer.offload.quantization import WEIGHTS_TO_FLOAT
from ortconv.optimizer.passes import Pass, by_root
from ortconv.partition import Partition, Partitioning, Target, partition
from ortconv.partition.cost import cost, multiply_adds
from ortconv.partition.limits import Limits, below_limits, limit
from ortconv.partition.partitioner import Grouping
from ortconv.partition.policy import gate
from ortconv.partition.regions import region_inputs, region_outputs
from ortconv.pipeline.offload_gain import Count, Gain
from ortconv.pipeline.rewrite_trials import ROUNDS, Rules, refused_units, rewrite_each, roots_around, try_rewrite

FIXED = frozenset({"static-shape", "stop-op", "assigned"})
"""Rules of objections that no rewrite of a node can remove."""

SPECIAL = (WEIGHTS_TO_FLOAT, *MASKS)
"""Passes whose result the target does not support as a whole, so that no trial would accept it."""


class Offer(NamedTuple):
    """A rule that matches at a node, and the refused units that the target would support after the rewrite."""

    rule: Rule
    root: Node
    units: frozenset[int]


def maximize(
    graph: Graph,
    target: Target,
    passes: Iterable[Pass],
    context: Context,
    limits: Limits | None = None,
    earlier: Iterable[tuple[Pass, ...]] = (),
) -> Gain:
    """Rewrite refused nodes of a graph in place if the target supports every node of the result.

    A rewrite is first tried on a copy. It is applied only if the limits allow its partition, and the partition also has other nodes
    or is estimated to save time. The running time is linear in nodes plus offers. `earlier` are the stages that the graph went
    through: they run again if it was float16.
    """
    limits = Limits() if limits is None else limits
    if any(gate(graph, target)):
        count = _counted(partition(graph, target))
        return Gain(count, count, {})
    before = limit(partition(graph, target), limits)
    known = len(context.trace)
    passes = tuple(passes)
    if any(p.name == float32.NAME for p in passes) and _compute_in_float32(graph, target, context):
        for stage in earlier:
            _drain(run_passes(graph, stage, context))
    _rewrite(graph, target, passes, context, limits)
    rewrites = Counter(rewrite.rule for rewrite in context.trace[known:])
    if rewrites:
        _tidy(graph, context)
    after = limit(partition(graph, target), limits)
    return Gain(_counted(before), _counted(after), dict(rewrites), _open_dims(graph, after))


def _rewrite(graph: Graph, target: Target, passes: Sequence[Pass], context: Context, limits: Limits) -> None:
    """Change types of whole graphs, then rewrite single refused nodes."""
    if any(p.name == unsigned.NAME for p in passes):
        _make_unsigned(graph, target, context)
    weights = [r for p in passes if p.name == WEIGHTS_TO_FLOAT for r in p.rules]
    masks = [r for p in passes if p.name in MASKS for r in p.rules]
    _make_weights_float(graph, target, weights, context)
    known = len(context.trace)
    rules = _by_root(p for p in passes if p.name not in SPECIAL)
    work = Grouping(graph, target)
    for offer in _worthwhile(work, list(_offers(work, rules, context)), limits):
        _accept(offer, graph, target, rules, context)
    if len(context.trace) > known:
        _make_weights_float(graph, target, weights, context)
    _multiply_by_masks(graph, target, masks, context)


def repair(graph: Graph, target: Target, names: Collection[str], context: Context) -> bool:
    """Rewrite nodes in place that the provider of the target accepts although its session or run then fails.

    `names` are the passes of the offload stage to use. Return True if a node was rewritten.
    """
    rules = _by_root(p for p in opt_in_passes("offload") if p.name in names)
    known = len(context.trace)
    for _ in range(ROUNDS):
        failing = [[verdict.node] for verdict in partition(graph, target).failing]
        if not rewrite_each(failing, rules, context):
            break
    if len(context.trace) == known:
        return False
    _tidy(graph, context, Pass("ReshapeFusion", "basic.reshape:CHAINS"))
    return True


def _counted(partitioning: Partitioning) -> Count:
    inside = [node for p in partitioning.partitions for node in p.nodes]
    return Count(partitioning.total, partitioning.taken, len(partitioning.partitions), sum(map(multiply_adds, inside)))


def _open_dims(graph: Graph, partitioning: Partitioning) -> tuple[str, ...]:
    """Symbols in the shapes of inputs, if a node is refused because its shapes are not static."""
    if not any(o.rule == "static-shape" for verdict in partitioning.verdicts.values() for o in verdict.objections):
        return ()
    return tuple(symbols_of(graph.inputs))


def _by_root(passes: Iterable[Pass]) -> dict[tuple[str, str], list[Rule]]:
    return by_root(r for p in passes for r in p.rules)


# ---------------------------------------------------------------------- passes over the whole graph


def _compute_in_float32(graph: Graph, target: Target, context: Context) -> bool:
    """Compute a float16 model in float32 if the target refuses nodes because of float16. Return True if it does."""
    before = Grouping(graph, target)
    if context.exhausted or not any(_is_refused_as_float16(u, before) for u in before.against):
        return False
    done = float32.widen(graph)
    if done is None:
        return False
    if _count_refused(Grouping(graph, target)) > _count_refused(before):
        float32.undo(done)
        return False
    float32.complete(graph, done, context)
    return True


def _is_refused_as_float16(u: int, work: Grouping) -> bool:
    rules = {o.rule for o in work.against[u]}
    values = (v for node in work.units[u].nodes for v in (*node.present_inputs, *node.present_outputs))
    return "dtype" in rules and not FIXED & rules and any(v.dtype is DType.FLOAT16 for v in values)


def _drain(steps: Iterable[object]) -> None:
    for _ in steps:
        pass


def _make_unsigned(graph: Graph, target: Target, context: Context) -> None:
    """Change int8 activations to uint8 if the target then refuses fewer nodes."""
    before = _count_refused(Grouping(graph, target))
    if not before or context.exhausted:
        return
    done = unsigned.shift(graph)
    if (done.types or done.constants) and _count_refused(Grouping(graph, target)) < before:
        unsigned.trace_shift(done, context)
    else:
        unsigned.undo(done)


def _make_weights_float(graph: Graph, target: Target, rules: Iterable[Rule], context: Context) -> None:
    """Make float constants of those in 8 bits that are read outside the groups between quantizers, if a node there is refused."""
    if not any(node.is_op("DequantizeLinear") for node in graph):
        return
    work = Grouping(graph, target)
    for r in rules:
        for unit in work.units:
            (node, *others) = unit.nodes
            if node.is_op("DequantizeLinear") and not others and _is_refused_near(node, work):
                apply(r, node, context)


def _is_refused_near(node: Node, work: Grouping) -> bool:
    """True if the target refuses a node or one of its readers."""
    return not all(_is_supported(near, work) for near in (node, *node.out.consumers))


def _multiply_by_masks(graph: Graph, target: Target, rules: Sequence[Rule], context: Context) -> None:
    """Rewrite Where nodes between nodes of the target, if it computes no part of their masks."""
    wheres = [node for node in graph if node.is_op("Where")] if rules else []
    if not wheres:
        return
    work = Grouping(graph, target)
    dependent = _dependent(graph, work)
    for node in wheres:
        for r in rules if _is_between(node, work) else ():
            found = find(r, node, context)
            if found is not None and found[0].mask.producer not in dependent:
                apply(r, node, context)
                break


def _dependent(graph: Graph, work: Grouping) -> set[Node]:
    """The nodes that the target supports, and those that read what these compute."""
    dependent: set[Node] = set()
    for node in graph:
        if _is_supported(node, work) or any(v.producer in dependent for v in node.present_reads):
            dependent.add(node)
    return dependent


def _is_between(node: Node, work: Grouping) -> bool:
    """True if the target refuses a node because of its operator, and supports one before and one behind it."""
    if _is_supported(node, work) or _is_fixed(work.number[node], work):
        return False
    before = any(v.producer is not None and _is_supported(v.producer, work) for v in node.present_inputs)
    return before and any(_is_supported(reader, work) for reader in node.out.consumers)


def _is_fixed(u: int, work: Grouping) -> bool:
    """True if no rewrite can remove an objection to a refused unit."""
    return any(o.rule in FIXED for o in work.against[u])


def _is_supported(node: Node, work: Grouping) -> bool:
    return work.number.get(node) not in work.against


def _count_refused(work: Grouping) -> int:
    return sum(map(len, refused_units(work)))


def _tidy(graph: Graph, context: Context, reshapes: Pass | None = None) -> None:
    """Remove redundancy between rewrites: nodes with constant inputs, Reshapes that cancel out or follow each other, and several
    equal ones of one value. Shapes that became known spread.
    """
    from ortconv.optimizer import basic

    passes = (basic.SHAPES, basic.FOLDING, basic.SHARING, basic.COMMON, reshapes or basic.RESHAPES)
    _drain(run_passes(graph, passes, context))


# ---------------------------------------------------------------------- offers


def _offers(work: Grouping, rules: Rules, context: Context) -> Iterator[Offer]:
    """One rewrite for every refused node that has one. Offers do not overlap."""
    claimed: set[Node] = set()
    for u in sorted(work.against):
        if _is_fixed(u, work):
            continue
        for node in work.units[u].nodes:
            if node not in claimed and (offer := _offer(work, node, rules, context, claimed)) is not None:
                yield offer
                break


def _offer(work: Grouping, node: Node, rules: Rules, context: Context, claimed: set[Node]) -> Offer | None:
    """The first rule around a refused node whose whole result is supported. Rules rooted at a reader of the node come first."""
    for root in roots_around(node):
        for r in rules.get((root.domain, root.op), ()):
            found = find(r, root, context)
            if found is None:
                continue
            m = found[0]
            matched = {n for n, _ in m.nodes} | {root}
            if node not in matched or matched & claimed or (trial := try_rewrite(m, r, rules, work.target)) is None:
                continue
            gone = _claim(matched, claimed)
            trial.discard()
            return Offer(r, root, frozenset(work.number[n] for n in gone if n in work.number) & work.against.keys())
    return None


def _claim(matched: Collection[Node], claimed: set[Node]) -> list[Node]:
    """Claim matched nodes, and those before them that only claimed nodes read; return them. What a trial reads stays."""
    claimed.update(matched)
    gone = list(matched)
    for node in gone:
        for maker in {v.producer for v in node.present_inputs} - claimed:
            if maker is not None and not any(v.is_read_outside(claimed) for v in maker.present_outputs):
                claimed.add(maker)
                gone.append(maker)
    return gone


def _accept(offer: Offer, graph: Graph, target: Target, rules: Rules, context: Context) -> None:
    """Replace the match by the rule's result, and apply the rules to that result in turn."""
    found = find(offer.rule, offer.root, context) if offer.root.graph is graph else None
    trial = None if found is None else try_rewrite(found[0], offer.rule, rules, target)
    if trial is not None:
        trial.move_in(offer.rule, context)


# ---------------------------------------------------------------------- profit


def _worthwhile(work: Grouping, offers: Sequence[Offer], limits: Limits) -> list[Offer]:
    """The offers whose units end up in partitions that are kept."""
    chosen = list(offers)
    for _ in range(ROUNDS):
        supposed = frozenset().union(*(offer.units for offer in chosen)) if chosen else frozenset[int]()
        left = {u for group in work.groups(supposed) if not _is_kept(work, group, supposed, limits) for u in group}
        kept = [offer for offer in chosen if not offer.units & left]
        if len(kept) == len(chosen):
            break
        chosen = kept
    return chosen


def _is_kept(work: Grouping, group: list[int], supposed: frozenset[int], limits: Limits) -> bool:
    """False for a group that makes no partition, exceeds the limits, or has only rewritten nodes and saves no time."""
    if not group or work.refusal(group) is not None:
        return False
    island = supposed.issuperset(group)
    if not island and not limits:
        return True
    nodes = work.nodes(group)
    estimated = Partition("", work.members(group), tuple(region_inputs(nodes)), tuple(region_outputs(nodes)))
    costs = cost(estimated, limits.device)
    return (not island or costs.is_worthwhile) and below_limits(estimated, costs, limits) is None
