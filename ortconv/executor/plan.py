"""Plans of the numpy executor: a flat list of steps with kernels bound to slots, created once and run many times."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import BackendError
from ortconv.executor.constants import Constants, shape_dataflow
from ortconv.executor.fusion.group import Constant, Scope
from ortconv.executor.fusion.int8_steps import is_of_weights
from ortconv.executor.fusion.table import FLOAT, QUANTIZED, fuse
from ortconv.executor.guard import SMALLER
from ortconv.executor.half import widened
from ortconv.executor.kernels.evaluate import kernel_of
from ortconv.executor.kernels.registry import Kernel
from ortconv.executor.replay.recorder import ABSENT, Recording, Step
from ortconv.executor.replay.work import ChangedError, Function, Recordable, as_tuple, or_else, with_inner
from ortconv.ir.graph import Graph, Node, Value, captures
from ortconv.ir.tensor import Array, RuntimeValue
from ortconv.ir.types import DType, ValueType
from ortconv.process import return_freed_memory, without_collections
from ortconv.runtime.backend import TimedStep
from ortconv.runtime.deadline import watched

_Bound = tuple[Function, list[Value | None], Sequence[Value | None], Node]
"""The function to call, its operands, its outputs, and the node for messages."""

_MOST_SIGNATURES = 16
"""Number of combinations of input shapes for which a plan remembers shape-dependent values."""

_LARGEST_REMEMBERED = 1 << 20
"""Larger results are not kept, but computed again."""

_MOST_RECORDINGS = 2
"""Number of combinations of input shapes for which a plan holds memory."""


Watch = Callable[[Node, Function], Function]
"""Replaces the kernel of a node by a function of the same operands, such as one that observes them."""


class Plan:
    """Steps over numbered slots. One plan may run in several threads.

    Constants are folded at plan time; values that depend only on shapes, in the first run of a signature. The second
    run is recorded. With `reference`, each node runs its plain kernel, and nothing is fused, prepared or recorded.
    `watch` may then replace the kernels, including those of subgraphs.
    """

    @without_collections()
    @np.errstate(all="ignore")
    def __init__(
        self,
        nodes: Sequence[Node],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        *,
        records: bool = True,
        reference: bool = False,
        watch: Watch | None = None,
    ) -> None:
        if not reference:
            nodes, inputs, outputs = widened(nodes, inputs, outputs)
        # No step refers to the plan, so that its memory is freed as soon as the last reference to the plan goes.
        constants = Constants()
        bind = partial(_bind, constants, reference=reference, watch=watch)
        folding, following = shape_dataflow(nodes, inputs)
        scope = _folded(nodes, folding, {*outputs, *_made(following)}, constants, bind, fuses=not reference)
        bound = self._bound(scope)
        last_use = _last_uses(bound, [*outputs, *_made(node for *_, node in bound if node in following)])
        self._slots: dict[Value, int] = {}
        self._initial: list[RuntimeValue] = [None]
        self._inputs = [self._slot(v, lambda _: None) for v in inputs]
        self.steps = [self._step(index, *parts, last_use, constants) for index, parts in enumerate(bound)]
        self._outputs = [self._slot(v, constants) for v in outputs]
        constants.forget()
        self._following = {index for index, (*_, node) in enumerate(bound) if node in following}
        self._remembered: dict[Hashable, tuple[list[RuntimeValue], list[Step]]] = {}
        self._recordings: dict[Hashable, Recording | None] = {}
        lie_in_memory = (v.dtype not in (None, DType.STRING, DType.UNDEFINED) for v in _made(nodes))
        self._records = records and not reference and all(lie_in_memory)

    def _bound(self, scope: Scope) -> list[_Bound]:
        self._together = {node: group.nodes for node, group in scope.groups.items()}
        bound: list[_Bound] = []
        for node in scope.nodes:
            group = scope.groups.get(node)
            if group is not None and group.function is not None:
                bound.append((group.function, group.reads, node.outputs, node))
            elif node not in scope.claimed:
                bound.append((*scope.bind(node), node.outputs, node))
        return bound

    def _step(
        self,
        index: int,
        function: Function,
        reads: list[Value | None],
        makes: Sequence[Value | None],
        node: Node,
        last_use: Mapping[Value, int],
        constant: Constant,
    ) -> Step:
        ins = tuple([ABSENT if v is None else self._slot(v, constant) for v in reads])
        outs = tuple([self._new_slot() if v is None else self._slot(v, constant) for v in makes])
        read_last = {slot for v, slot in zip(reads, ins, strict=True) if v is not None and last_use[v] == index}
        dead = {slot for slot in read_last if self._initial[slot] is None}
        dead |= {slot for v, slot in zip(makes, outs, strict=True) if v not in last_use}
        # An itemgetter of one slot would not give a sequence.
        operands = itemgetter(*ins) if len(ins) > 1 else itemgetter(slice(ins[0], ins[0] + 1) if ins else slice(0))
        return Step(function, operands, outs, tuple(sorted(dead)), node)

    def _new_slot(self, initial: RuntimeValue = None) -> int:
        self._initial.append(initial)
        return len(self._initial) - 1

    def _slot(self, value: Value, constant: Constant) -> int:
        slot = self._slots.get(value)
        if slot is None:
            slot = self._slots[value] = self._new_slot(constant(value))
        return slot

    def profile(self, inputs: Sequence[RuntimeValue]) -> tuple[list[RuntimeValue], list[TimedStep]]:
        """The same as `run`, and the time of each step."""
        events: list[TimedStep] = []
        return self.run(inputs, events), events

    def _label(self, node: Node) -> str:
        """A label for the step of a node: the node, or the first and last node of a fused step."""
        nodes = self._together.get(node, (node,))
        return node.label if len(nodes) == 1 else f"{nodes[0].label} to {nodes[-1].label}"

    def _timed(self, step: Step, events: list[TimedStep]) -> Step:
        function, node = step.function, step.node
        operators = "+".join(n.op for n in self._together.get(node, (node,)))

        def call(*operands: Any) -> Any:
            start = time.perf_counter()
            result = function(*operands)
            seconds = time.perf_counter() - start
            results = as_tuple(result)[: len(step.outs)]
            shapes = tuple(getattr(r, "shape", None) for r in results)
            events.append(TimedStep(node.name or node.label, operators, "numpy", start, seconds, shapes))
            return result

        return step._replace(function=call)

    def run(self, inputs: Sequence[RuntimeValue], events: list[TimedStep] | None = None) -> list[RuntimeValue]:
        """The outputs for the inputs. Adds the time of each step to `events`. BackendError names the node whose kernel fails."""
        shapes = tuple([getattr(value, "shape", None) for value in inputs])
        results = self._run_again(shapes, inputs, events)
        if results is not None:
            return results
        known = self._remembered.get(shapes)
        results = self._record(shapes, inputs, *known) if known is not None and events is None else None
        if results is not None:
            return results
        initial, steps = known or (self._initial, self.steps)
        slots = initial.copy()
        for slot, value in zip(self._inputs, inputs, strict=True):
            slots[slot] = value
        self._execute(steps, slots, events)
        results = [slots[i] for i in self._outputs]
        if known is None and len(self._remembered) < _MOST_SIGNATURES:
            self._remembered[shapes] = self._remember(slots)
        return results

    def _run_again(
        self, shapes: Hashable, inputs: Sequence[RuntimeValue], events: list[TimedStep] | None
    ) -> list[RuntimeValue] | None:
        """The outputs by a recording for such inputs; None if there is none, or if it is not valid for them."""
        recording = self._recordings.get(shapes)
        if recording is None or not recording.lock.acquire(blocking=False):
            return None
        try:
            slots = recording.begin(inputs)
            self._execute(recording.joined if events is None else recording.steps, slots, events)
            return recording.results(slots)
        except ChangedError:
            self._recordings[shapes] = None
        except BackendError:
            pass  # the ordinary run reports the error
        finally:
            recording.lock.release()
        return None

    def _record(
        self, shapes: Hashable, inputs: Sequence[RuntimeValue], initial: list[RuntimeValue], steps: list[Step]
    ) -> list[RuntimeValue] | None:
        """The outputs of a run that is recorded; None if it cannot be. The ordinary run then reports the step."""
        if not self._records or shapes in self._recordings or len(self._recordings) == _MOST_RECORDINGS:
            return None
        self._recordings[shapes] = None
        return_freed_memory()
        recording = Recording(self._inputs, self._outputs)
        try:
            results = recording.record(steps, initial, inputs)
        except MemoryError as error:
            raise BackendError("a run needs more memory than there is", backend="numpy", hint=SMALLER) from error
        except Exception:
            return None
        self._recordings[shapes] = recording
        return results

    def _execute(self, steps: list[Step], slots: list[RuntimeValue], events: list[TimedStep] | None) -> None:
        steps = steps if events is None else [self._timed(step, events) for step in steps]
        try:
            for function, operands, outs, dead, node in watched(steps, "numpy"):  # noqa: B007
                result = function(*operands(slots))
                if len(outs) == 1:
                    slots[outs[0]] = result[0] if type(result) is tuple else result
                else:
                    for slot, value in zip(outs, result if type(result) is tuple else (result,), strict=False):
                        slots[slot] = value
                for slot in dead:
                    slots[slot] = None
        except (BackendError, ChangedError):
            raise
        except MemoryError as error:
            raise BackendError(
                f"{node.label} needs more memory than there is", backend="numpy", hint=SMALLER
            ) from error
        except Exception as error:
            shapes = [getattr(v, "shape", None) for v in operands(slots)]
            what = f"{self._label(node)} failed on input shapes {shapes}"
            raise BackendError(f"{what}: {error}", backend="numpy") from error

    def _remember(self, slots: list[RuntimeValue]) -> tuple[list[RuntimeValue], list[Step]]:
        """For later runs with the same input shapes: the initial slots, and the remaining steps."""
        if not self._following:
            return self._initial, self.steps
        initial, steps = self._initial.copy(), []
        for index, step in enumerate(self.steps):
            results = [slots[i] for i in step.outs] if index in self._following else []
            arrays = [r for r in results if isinstance(r, np.ndarray) and r.nbytes <= _LARGEST_REMEMBERED]
            if arrays and len(arrays) == len(results):
                for slot, array in zip(step.outs, arrays, strict=True):
                    array.setflags(write=False)
                    initial[slot] = array
            else:
                steps.append(step)
        return initial, steps


def _folded(
    nodes: Sequence[Node],
    folding: set[Node],
    live_out: set[Value],
    constants: Constants,
    bind: Callable[..., tuple[Function, list[Value | None]]],
    fuses: bool,
) -> Scope:
    """The nodes that each run computes, and their groups if the plan fuses. Nodes in `folding` compute constants.

    Weights are dequantized only if no int8 step reads their integers.
    """
    fold = partial(constants.fold, bind=bind)
    late = {node for node in folding if is_of_weights(node)}
    left = [n for n in nodes if n in late or n not in folding or not fold(n)]
    scope = Scope(left, constants, partial(bind, align=constants.align), live_out)
    fuse(scope, QUANTIZED if fuses else {})
    scope.narrow([n for n in left if n in scope.claimed or n not in late or not fold(n)])
    fuse(scope, FLOAT if fuses else {})
    return scope


def _last_uses(bound: Sequence[_Bound], lasting: Iterable[Value]) -> dict[Value, int]:
    """The number of the last step that reads each value. Those in `lasting` stay: outputs, and what depends only on shapes."""
    found = {value: index for index, (_, reads, *_) in enumerate(bound) for value in reads if value is not None}
    return found | dict.fromkeys(lasting, len(bound))


def _made(nodes: Iterable[Node]) -> set[Value]:
    return {v for node in nodes for v in node.outputs if v is not None}


def _bind(
    constant: Constant,
    node: Node,
    align: Constant = lambda _: None,
    reference: bool = False,
    watch: Watch | None = None,
) -> tuple[Function, list[Value | None]]:
    """A node's kernel with all constants bound, and the values that are its operands. `constant` returns the known
    arrays.

    `align` is called for operands that are not prepared.
    """
    kernel, attributes = kernel_of(node)
    reads = list(node.inputs)
    if node.subgraphs:
        outer = captures(node)
        reads += outer
        make = partial(_body, outer=outer, reference=reference, watch=watch)
        function = _with_bodies(kernel.reference, attributes, len(node.inputs), make)
    elif kernel.build is not None:
        function = kernel.build(**attributes)
    elif reference:
        function = partial(kernel.reference, **attributes)
    else:
        function, prepared = _accelerated(kernel, [*map(constant, reads)], attributes)
        if prepared:
            return function, reads
    for value in reads:
        align(value)
    return function if watch is None else watch(node, function), reads


def _accelerated(kernel: Kernel, operands: Sequence[Array | None], attributes: dict[str, Any]) -> tuple[Function, bool]:
    """The fastest form of a kernel for operands, arrays if they are constant; True if it has laid them out."""
    inner = {name: made for name, make in kernel.inner.items() if (made := make(operands, **attributes)) is not None}
    definition = partial(kernel.reference, **attributes)
    definition = with_inner(definition, inner) if inner else definition
    prepared = None if kernel.prepare is None else kernel.prepare(operands, **attributes)
    if prepared is not None:
        return or_else(prepared, definition), True
    if kernel.fast is not None:
        return or_else(partial(kernel.fast, **attributes), definition), False
    if kernel.record is not None:
        return Recordable(definition, partial(kernel.record, **attributes)), False
    return definition, False


class Body(NamedTuple):
    """A subgraph as a function of its inputs."""

    plan: Plan
    input_types: tuple[ValueType | None, ...]
    output_types: tuple[ValueType | None, ...]
    """The types of its inputs and outputs, as far as known."""
    keeps_condition: bool
    """True for the body of a Loop that never ends it by its condition."""
    captured: Sequence[RuntimeValue] = ()

    def __call__(self, *inputs: RuntimeValue) -> tuple[RuntimeValue, ...]:
        return tuple(self.plan.run([*inputs, *self.captured]))


def _with_bodies(function: Function, attributes: dict[str, Any], count: int, make: Callable[[Graph], Body]) -> Function:
    """A kernel whose subgraph attributes are replaced by functions of their inputs. Outer values follow the operands."""
    bodies = {name: make(value) for name, value in attributes.items() if isinstance(value, Graph)}

    def call(*values: Any) -> Any:
        bound = {name: body._replace(captured=values[count:]) for name, body in bodies.items()}
        return function(*values[:count], **(attributes | bound))

    return call


def _body(graph: Graph, outer: Sequence[Value], reference: bool, watch: Watch | None) -> Body:
    inputs = [*graph.inputs, *outer]
    # A body with inputs runs many times in a row, with shapes that may change each time.
    plan = Plan(list(graph), inputs, graph.outputs, records=not graph.inputs, reference=reference, watch=watch)
    given, made = (tuple([v.type for v in values]) for values in (inputs, graph.outputs))
    return Body(plan, given, made, _keeps_condition(graph))


def _keeps_condition(body: Graph) -> bool:
    """True for the body of a Loop whose condition is unchanged, or always true."""
    value = body.outputs[0].original if body.outputs else None
    if value is not None and value.constant is not None:
        return bool(value.constant.numpy().all())
    return len(body.inputs) > 1 and value is body.inputs[1]
