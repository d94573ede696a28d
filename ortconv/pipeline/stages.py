"""The optimizer around the partitioner: everything between loading and writing a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ortconv.executor.guard import guarded
from ortconv.ir.journal import Journal
from ortconv.ir.model import Model
from ortconv.optimizer import recipe as recipes
from ortconv.optimizer.engine import Context, Rewrite
from ortconv.optimizer.levels import AnyPass, inexact, run_passes
from ortconv.ortformat.releases import target_release

if TYPE_CHECKING:
    from ortconv.offload import Gain
    from ortconv.partition import Partitioning, Target
    from ortconv.partition.limits import Limits
    from ortconv.pipeline.options import Options

Observer = Callable[[str, Model], None]
"""Called after every stage and pass with its name and the model as it is then."""


def optimize(
    model: Model,
    optimization_level: str = "all",
    target: Target | Sequence[Target] | None = None,
    *,
    recipe: recipes.Recipe | None = None,
    optimization_style: str = "Fixed",
    target_platform: str | None = None,
    context: Context | None = None,
    observer: Observer | None = None,
    limits: Limits | None = None,
    told: Callable[[Gain], None] | None = None,
) -> tuple[Context, tuple[Partitioning, ...]]:
    """Optimize a model in place; with a target, nodes that its execution provider takes are left as the basic level made them.

    Of several targets, the first that takes a node has it. The partitionings come back in the order of the targets, those of
    subgraphs behind that of the main graph where a target takes them. A recipe says which passes run, in place of the level. In
    Runtime style, fusions above the basic level are recorded in `model.saved`. `context` says how far; it comes
    back with the trace of all rewrites. `limits` say which partitions count. With `told`, passes of the
    offload stage run only where they put more nodes on the target, and what came of it is told; without, they run everywhere.
    """
    with guarded(model.graph, "optimizing"):
        return _optimize(
            model,
            optimization_level,
            target,
            recipe,
            optimization_style,
            target_platform,
            context,
            observer,
            limits,
            told,
        )


def _optimize(
    model: Model,
    optimization_level: str,
    target: Target | Sequence[Target] | None,
    recipe: recipes.Recipe | None,
    optimization_style: str,
    target_platform: str | None,
    context: Context | None,
    observer: Observer | None,
    limits: Limits | None,
    told: Callable[[Gain], None] | None,
) -> tuple[Context, tuple[Partitioning, ...]]:
    recipe = recipe or recipes.make(optimization_level)
    context = context or new_context(recipe)
    targets = target if isinstance(target, Sequence) else () if target is None else (target,)
    target_platform = context.target_platform = target_platform or context.target_platform
    _run(model, recipe.basic, context, observer)
    if targets and told is not None:
        from ortconv.offload import maximize

        told(maximize(model.graph, targets[0], recipe.offload, context, limits))
        tell(observer, "offload", model)
    else:
        _run(model, recipe.offload, context, observer)
    partitionings: tuple[Partitioning, ...] = ()
    if targets:
        from ortconv.partition.limits import divide

        partitionings = tuple(p for t in targets for p in divide(model.graph, t, limits))
        tell(observer, "partition", model)
    context.only_cpu = True
    if _run(model, recipe.basic_for_cpu, context, observer):
        _run(model, recipe.basic, context, observer)
    _prepare(model, context.release)
    if optimization_style == "Runtime":
        from ortconv.optimizer.runtime_style import passes, save_fusions

        _run(model, passes(recipe), context, observer)
        save_fusions(model, recipe, context, target_platform)
    else:
        _run(model, recipe.above_basic, context, observer)
    model.graph.prune()
    return context, partitionings


def optimize_traced(model: Model, optimization_level: str = "all") -> tuple[list[Rewrite], dict[str, str]]:
    """Optimize a model in place; its rewrites with what each one changed, and the names of values before and after."""
    journal = Journal(model.graph)
    context = Context(journal=journal, release=target_release(model, None))
    optimize(model, optimization_level, context=context)
    journal.close()
    return context.trace, journal.names()


def optimize_as_asked(
    model: Model,
    options: Options,
    recipe: recipes.Recipe,
    context: Context,
    observer: Observer | None = None,
) -> tuple[tuple[Partitioning, ...], Gain | None]:
    """Optimize a model in place by the options of a conversion; what targets took, and what rewriting for a target gained."""
    gains: list[Gain] = []
    _, partitionings = optimize(
        model,
        target=options.targets(),
        recipe=recipe,
        optimization_style=options.optimization_style,
        target_platform=options.target_platform,
        context=context,
        observer=observer,
        limits=options.limits(),
        told=gains.append if options.maximize_offload else None,
    )
    return partitionings, gains[0] if gains else None


def excused(context: Context, recipe: recipes.Recipe) -> tuple[str, ...]:
    """The rewrites so far that were asked for although they change the numbers."""
    names = inexact(recipe.stages)
    return tuple(name for name in context.counts() if name in names)


def _prepare(model: Model, release: int | None) -> None:
    """Rewrite what ONNX Runtime has kernels for in another form only."""
    from ortconv.ortformat.functions import expand_functions
    from ortconv.ortformat.precision import insert_casts

    expand_functions(model, release)
    insert_casts(model, release)


def new_context(recipe: recipes.Recipe) -> Context:
    """What a recipe says of how far the optimizer goes."""
    return Context(fold_limit=recipe.fold_limit, limit=recipe.stop_after)


def _run(model: Model, passes: tuple[AnyPass, ...], context: Context, observer: Observer | None) -> int:
    """Run passes until none changes anything; how often they changed something."""
    total = 0
    for p, changes in run_passes(model.graph, passes, context):
        total += changes
        if changes:
            tell(observer, p.name, model)
    return total


def tell(observer: Observer | None, stage: str, model: Model) -> None:
    """Call the observer, if there is one."""
    if observer is not None:
        observer(stage, model)
