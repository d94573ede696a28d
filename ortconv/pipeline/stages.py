"""The optimizer and the partitioner: all stages between loading and writing a model."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ortconv.choices import TARGET_ORT
from ortconv.errors import UsageError
from ortconv.executor.guard import guarded
from ortconv.ir.graph import Graph
from ortconv.ir.journal import Journal
from ortconv.ir.kernels import newest_opset, release_named
from ortconv.ir.model import Model
from ortconv.optimizer import recipe as recipes
from ortconv.optimizer.engine import Context, PassSettings, Rewrite, rule_counts
from ortconv.optimizer.levels import inexact, run_passes
from ortconv.optimizer.passes import Pass
from ortconv.ortformat.functions import expand_functions
from ortconv.ortformat.releases import target_release
from ortconv.ortformat.subbyte import narrow_readers, widen_constants
from ortconv.public import public

if TYPE_CHECKING:
    from ortconv.partition import Partitioning, Target
    from ortconv.partition.limits import Limits
    from ortconv.pipeline.float16 import Float16
    from ortconv.pipeline.offload_gain import Gain
    from ortconv.pipeline.options import Options

Observer = Callable[[str, Model], None]
"""Called after every stage and pass with its name and the model in its present state."""


class Offload(Enum):
    """When the passes of the offload stage run, which rewrite nodes for an accelerator."""

    NONE = "none"
    EVERYWHERE = "everywhere"
    WHERE_IT_HELPS = "where it helps"
    """Only if they put more nodes on the first target."""


class Optimized(NamedTuple):
    """The result of the optimizer.

    The partitionings are in the order of the targets. If a target supports nodes in subgraphs, partitionings of subgraphs follow
    that of the main graph. `gain` is set only with Offload.WHERE_IT_HELPS and a target.
    """

    trace: list[Rewrite]
    partitionings: tuple[Partitioning, ...] = ()
    gain: Gain | None = None
    float16: Float16 | None = None

    def counts(self) -> dict[str, int]:
        """Number of rewrites for each rule, in order of first use."""
        return rule_counts(self.trace)


def _targets(target: Target | Sequence[Target] | None) -> Sequence[Target]:
    """The targets of `optimize` as a sequence. UsageError for an object that is no target."""
    found = target if isinstance(target, Sequence) else () if target is None else (target,)
    if not found:
        return found
    from ortconv.partition import Target

    if not all(isinstance(one, Target) for one in found):
        raise UsageError(f"target is {reprlib.repr(target)}", hint="give a Target, such as Target('nnapi')")
    return found


@public
def optimize(
    model: Model,
    level: str | recipes.Recipe = "all",
    target: Target | Sequence[Target] | None = None,
    *,
    offload: Offload = Offload.NONE,
    limits: Limits | None = None,
    context: Context | None = None,
    observer: Observer | None = None,
    narrow: Callable[[Model], Float16] | None = None,
) -> Optimized:
    """Optimize a model in place, by a level or a recipe.

    Nodes that a target supports stay as the basic level left them. A node is assigned to the first target that supports it.
    `limits` restrict the partitions. `offload` selects when the passes of the offload stage run: the passes are those of the recipe
    or, for a level, all that preserve the numbers. `context` holds the limits of passes and collects the trace. `narrow` converts
    the model to float16. It is called after the basic level, since constant folding is more exact in float32, and before nodes are
    assigned. UsageError if `model` is not a Model.
    """
    if not isinstance(model, Model):
        raise UsageError(f"not a Model, but of type {type(model).__name__}", hint="load it: ortconv.load(path)")
    targets = _targets(target)
    nnapi = any(one.ep == "nnapi" for one in targets)
    recipe = recipes.make(level, offload=offload is not Offload.NONE, nnapi=nnapi) if isinstance(level, str) else level
    context = context or Context(PassSettings(recipe.fold_limit, recipe.stop_after))
    if narrow is not None or any(recipe.stages.values()):
        _import_onnx(model.graph, context.settings.release)
    with guarded(model.graph, "optimizing"):
        _run(model, recipe.basic, context, observer)
        float16 = None
        if narrow is not None:
            float16 = narrow(model)
            notify(observer, "float16", model)
        if offload is not Offload.NONE:
            _run(model, recipe.basic_for_nnapi, context, observer)
        gain = None
        if offload is Offload.WHERE_IT_HELPS and targets:
            from ortconv.pipeline.maximize_offload import maximize

            earlier = (recipe.basic, recipe.basic_for_nnapi)
            gain = maximize(model.graph, targets[0], recipe.offload, context, limits, earlier)
            notify(observer, "offload", model)
        elif offload is not Offload.NONE:
            _run(model, recipe.offload, context, observer)
        _run(model, recipe.basic_for_nnapi, context, observer)
        partitionings = _divide(model, targets, limits, observer)
        with context.for_cpu():
            if _fuse(model, recipe, partitionings, context, observer):
                partitionings = _divide(model, targets, limits, observer)
        model.graph.prune()
    return Optimized(context.trace, partitionings, gain, float16)


def _import_onnx(graph: Graph, release: int | None) -> None:
    """Import ONNX's operators in a version that a release supports if no node uses them: rewrites may add such nodes."""
    if any(node.domain == "" for node in graph.walk()):
        return
    newest = newest_opset(release_named(TARGET_ORT) if release is None else release)
    graph.opsets[""] = min(graph.opset() or newest, newest)


def _divide(
    model: Model, targets: Sequence[Target], limits: Limits | None, observer: Observer | None
) -> tuple[Partitioning, ...]:
    if not targets:
        return ()
    from ortconv.partition.limits import divide

    found = tuple(p for t in targets for p in divide(model.graph, t, limits))
    notify(observer, "partition", model)
    return found


def _fuse(
    model: Model,
    recipe: recipes.Recipe,
    partitionings: Sequence[Partitioning],
    context: Context,
    observer: Observer | None,
) -> bool:
    """Apply the fusions for ONNX Runtime's CPU provider; in Runtime style, record them instead.

    Of the nodes that are not fused, rewrite those on which a target would fail. Return True if there were any.
    """
    from ortconv.ortformat.precision import insert_casts

    if _run(model, recipe.basic_for_cpu, context, observer):
        _run(model, recipe.basic, context, observer)
    # ONNX Runtime has kernels for some nodes only in another form.
    expanded = expand_functions(model, context.settings.release)
    widened = insert_casts(model, context.settings.release)
    failing = [p.target for p in partitionings if expanded or widened or p.failing]
    if expanded:
        _run(model, recipe.basic, context, observer)
    _run(model, recipe.basic_for_nnapi, context, observer)
    if narrow_readers(model):
        from ortconv.optimizer.runtime_style import passes

        _run(model, passes(recipe), context, observer)
        widen_constants(model)
    if context.settings.optimization_style == "Runtime":
        from ortconv.optimizer.runtime_style import save_fusions

        repaired = _repair(model, recipe, failing, context, observer)
        save_fusions(model, recipe, context)
        return repaired
    _run(model, recipe.above_basic, context, observer)
    return _repair(model, recipe, failing, context, observer)


def _repair(
    model: Model, recipe: recipes.Recipe, failing: Sequence[Target], context: Context, observer: Observer | None
) -> bool:
    """Rewrite nodes on which these targets fail, or may fail. Return True if there were any."""
    if not (failing and recipe.repairs):
        return False
    from ortconv.pipeline.maximize_offload import repair

    repaired = sum(repair(model.graph, target, recipe.repairs, context) for target in failing) > 0
    notify(observer, "repair", model)
    return repaired


def optimize_traced(model: Model, optimization_level: str = "all") -> tuple[list[Rewrite], dict[str, str]]:
    """Optimize a model in place. Return its rewrites, each with its changes, and the current names of values by original name."""
    journal = Journal(model.graph)
    context = Context(PassSettings(release=target_release(model, None)), journal)
    optimize(model, optimization_level, context=context)
    journal.close()
    return context.trace, journal.names()


def optimize_as_asked(
    model: Model,
    options: Options,
    recipe: recipes.Recipe,
    context: Context,
    observer: Observer | None = None,
    narrow: Callable[[Model], Float16] | None = None,
) -> Optimized:
    """Optimize a model in place with the options of a conversion."""
    return optimize(
        model,
        recipe,
        options.targets(),
        offload=Offload.WHERE_IT_HELPS if options.maximize_offload else Offload.EVERYWHERE,
        limits=options.limits(),
        context=context,
        observer=observer,
        narrow=narrow,
    )


def settings_of(options: Options, recipe: recipes.Recipe, release: int) -> PassSettings:
    """The settings for the passes of a conversion."""
    return PassSettings(
        recipe.fold_limit, recipe.stop_after, release, options.target_platform, options.optimization_style
    )


def excused(context: Context, recipe: recipes.Recipe) -> tuple[str, ...]:
    """The names of rewrites made so far that were requested although they change the numbers."""
    names = inexact(recipe.stages)
    return tuple(name for name in context.counts() if name in names)


def _run(model: Model, passes: tuple[Pass, ...], context: Context, observer: Observer | None) -> int:
    """Run passes until none changes anything. Return the number of changes."""
    total = 0
    for p, changes in run_passes(model.graph, passes, context):
        total += changes
        if changes:
            notify(observer, p.name, model)
    return total


def notify(observer: Observer | None, stage: str, model: Model) -> None:
    if observer is not None:
        observer(stage, model)
