"""Plans of the numpy executor: a flat list of steps with kernels bound to slots, made once and run many times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ortconv.errors import BackendError, UnsupportedError
from ortconv.executor.backend import Event
from ortconv.executor.foreseen import foreseen
from ortconv.executor.fusion import Unit, units
from ortconv.executor.quantized import is_of_weights, quantized_units
from ortconv.executor.registry import Function, Kernel, lookup, preparer
from ortconv.ir.garbage import without_collections
from ortconv.ir.graph import Attribute, Graph, Graphs, Node, Tensors, Value, captures
from ortconv.ir.schema import schema_of, since_version
from ortconv.ir.tensor import Array, SparseTensor, Tensor

Step = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], tuple[int, ...], Node]
"""Function, slots it reads, slots it fills, slots that nobody reads after it, and the node for messages."""

_Bound = tuple[Function, list[Value | None], Sequence[Value | None], Node]
"""What to call, with which values, what it makes, and the node for messages."""

ABSENT = 0
"""The slot that always holds None: inputs left out read it."""


_MOST_SIGNATURES = 16
"""For how many combinations of input shapes a plan remembers what follows from them."""

_FORESEEN_BYTES = 1 << 20
"""Larger results are computed again rather than kept, unless constant inputs of a quarter of that size stand for them."""


class Plan:
    """Steps over numbered slots. One plan may run in several threads.

    What constants alone determine is computed here, once; what the shapes of the inputs determine, in the first run with them.
    """

    @without_collections()
    def __init__(self, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        self._slots: dict[Value, int] = {}
        self._initial: list[Any] = [None]
        self._together: dict[Node, tuple[Node, ...]] = {}
        self._inputs = [self._slot(v) for v in inputs]
        folding, following = foreseen(nodes, inputs)
        kept = {*outputs, *_made(following)}
        late = {node for node in folding if is_of_weights(node)}
        left = [n for n in nodes if n in late or n not in folding or not self._folded(n)]
        taken = quantized_units(left, self._constant, self._bind, kept)
        left = [n for n in left if n in taken or n not in late or not self._folded(n)]
        bound = self._fused(left, kept, taken)
        last_use = {value: index for index, (_, reads, *_) in enumerate(bound) for value in reads if value is not None}
        last_use |= dict.fromkeys(outputs, len(bound))
        # What follows from shapes stays until the end of the run, to be remembered.
        last_use |= {v: len(bound) for *_, node in bound if node in following for v in node.outputs if v is not None}
        self.steps = [self._step(index, *parts, last_use) for index, parts in enumerate(bound)]
        self._outputs = [self._slot(v) for v in outputs]
        self.output_types = tuple(v.type for v in outputs)
        self._following = {index for index, (*_, node) in enumerate(bound) if node in following}
        self._remembered: dict[Any, tuple[list[Any], list[Step]]] = {}

    def _constant(self, value: Value) -> Array | None:
        if value.constant is not None or (value.producer is not None and value in self._slots):
            known: Array | None = self._initial[self._slot(value)]
            return known
        return None

    def _bind(self, node: Node) -> tuple[Function, list[Value | None]]:
        return _bind(node, self._constant)

    def _fused(self, nodes: list[Node], kept: set[Value], taken: dict[Node, Unit | None]) -> list[_Bound]:
        together = units(nodes, self._constant, self._bind, kept, taken)
        bound: list[_Bound] = []
        for node in nodes:
            unit = together.get(node)
            if unit is not None:
                self._together[node] = unit.nodes
                bound.append((unit.function, unit.reads, unit.makes, node))
            elif node not in together:
                bound.append((*self._bind(node), node.outputs, node))
        return bound

    def _folded(self, node: Node) -> bool:
        """Compute a step of constants now; False to leave it to the runs, failures included."""
        function, reads = _bind(node, self._constant)
        operands = [None if v is None else self._initial[self._slot(v)] for v in reads]
        if any(v is not None and operand is None for v, operand in zip(reads, operands, strict=True)):
            return False
        try:
            with np.errstate(all="ignore"):
                result = function(*operands)
        except Exception:
            return False
        results = result if type(result) is tuple else (result,)
        read = sum(operand.nbytes for operand in operands if operand is not None)
        if not all(isinstance(r, np.ndarray) and r.nbytes <= max(_FORESEEN_BYTES, 8 * read) for r in results):
            return False
        for value, array in zip(node.outputs, results, strict=False):
            if value is not None:
                self._initial[self._slot(value)] = array
        return True

    def _step(
        self,
        index: int,
        function: Function,
        reads: list[Value | None],
        makes: Sequence[Value | None],
        node: Node,
        last_use: dict[Value, int],
    ) -> Step:
        ins = tuple(ABSENT if v is None else self._slot(v) for v in reads)
        outs = tuple(self._new_slot() if v is None else self._slot(v) for v in makes)
        dead = {self._slot(v) for v in reads if v is not None and v.const is None and last_use[v] == index}
        dead |= {s for v, s in zip(makes, outs, strict=True) if v is None or v not in last_use}
        return function, ins, outs, tuple(sorted(dead)), node

    def _new_slot(self) -> int:
        self._initial.append(None)
        return len(self._initial) - 1

    def _slot(self, value: Value) -> int:
        slot = self._slots.get(value)
        if slot is None:
            slot = self._slots[value] = self._new_slot()
            if value.const is not None:
                self._initial[slot] = _array(value.const)
        return slot

    def profile(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Event]]:
        """The same as `run`, and the time of each step."""
        events: list[Event] = []
        return self.run(inputs, lambda steps: [(self._timed(step, events), *step[1:]) for step in steps]), events

    def _timed(self, step: Step, events: list[Event]) -> Function:
        function, node = step[0], step[-1]
        operators = "+".join(n.op for n in self._together.get(node, (node,)))

        def call(*operands: Any) -> Any:
            start = time.perf_counter()
            result = function(*operands)
            seconds = time.perf_counter() - start
            shapes = tuple(getattr(r, "shape", None) for r in (result if type(result) is tuple else (result,)))
            events.append(Event(node.name or node.label, operators, "numpy", start, seconds, shapes))
            return result

        return call

    def run(
        self, inputs: Sequence[Any], prepare: Callable[[list[Step]], list[Step]] = lambda steps: steps
    ) -> list[Any]:
        """The outputs for the inputs. BackendError naming the node where a kernel fails.

        `prepare` may put other functions in the place of the steps'.
        """
        shapes = tuple([getattr(value, "shape", None) for value in inputs]) if self._following else None
        initial, steps = self._remembered.get(shapes, (self._initial, self.steps))
        slots = initial.copy()
        for slot, value in zip(self._inputs, inputs, strict=True):
            slots[slot] = value
        self._execute(prepare(steps), slots)
        results = [slots[i] for i in self._outputs]
        if shapes is not None and steps is self.steps and len(self._remembered) < _MOST_SIGNATURES:
            self._remembered[shapes] = self._remember(slots)
        return results

    def _execute(self, steps: list[Step], slots: list[Any]) -> None:
        node: Node | None = None
        try:
            for function, ins, outs, dead, node in steps:  # noqa: B007
                result = function(*[slots[i] for i in ins])
                if len(outs) == 1:
                    slots[outs[0]] = result[0] if type(result) is tuple else result
                else:
                    for slot, value in zip(outs, result if type(result) is tuple else (result,), strict=False):
                        slots[slot] = value
                for slot in dead:
                    slots[slot] = None
        except (BackendError, MemoryError):
            raise
        except Exception as error:
            label = "?" if node is None else node.label
            shapes = [getattr(slots[i], "shape", None) for i in ins]
            raise BackendError(f"{label} failed on input shapes {shapes}: {error}", backend="numpy") from error

    def _remember(self, slots: list[Any]) -> tuple[list[Any], list[Step]]:
        """Where later runs with the same input shapes start, and the steps that are left to them."""
        initial, steps = self._initial.copy(), []
        for index, step in enumerate(self.steps):
            results = [slots[i] for i in step[2]] if index in self._following else []
            if results and all(isinstance(r, np.ndarray) and r.nbytes <= _FORESEEN_BYTES for r in results):
                for slot, array in zip(step[2], results, strict=True):
                    initial[slot] = array
            else:
                steps.append(step)
        return initial, steps


def _made(nodes: Iterable[Node]) -> set[Value]:
    return {v for node in nodes for v in node.outputs if v is not None}


def objection(node: Node) -> str | None:
    """Why the numpy executor cannot run a node; None if it can. Subgraphs are looked into."""
    kernel = lookup(node.domain, node.op, since_version(node))
    if kernel is None:
        return f"no kernel for {node.domain + ':' if node.domain else ''}{node.op} version {since_version(node)}"
    unknown = [
        name for name in _stated(node, kernel) if kernel.attributes is not None and name not in kernel.attributes
    ]
    if unknown:
        return f"the kernel of {node.op} does not take attribute {unknown[0]}={node.attrs[unknown[0]]}"
    return next((reason for sub in node.subgraphs for n in sub if (reason := objection(n))), None)


_MEMORY_HINT = "consumed_inputs"
"""Before opset 6 it told which inputs may be overwritten."""


def _stated(node: Node, kernel: Kernel) -> list[str]:
    """The attributes that the kernel must be given: all that a node has, but for unknown ones with their default."""
    known = kernel.attributes
    if known is None:
        return [k for k in node.attrs if k != _MEMORY_HINT]
    schema = schema_of(node)
    defaults = {} if schema is None else schema.defaults
    return [
        k
        for k, v in node.attrs.items()
        if k in known or (k != _MEMORY_HINT and (k not in defaults or defaults[k] != v))
    ]


def _bind(node: Node, constant: Callable[[Value], Array | None]) -> tuple[Function, list[Value | None]]:
    """A node's kernel with everything constant bound, and the values that it is called with. `constant` tells what is known."""
    kernel = lookup(node.domain, node.op, since_version(node))
    reason = objection(node)
    if kernel is None or reason is not None:
        raise UnsupportedError(str(reason), node=node.label)
    attributes = {name: _argument(node.attrs[name]) for name in _stated(node, kernel)}
    if kernel.wants_n_outputs:
        attributes["n_outputs"] = len(node.outputs)
    reads = list(node.inputs)
    if node.subgraphs:
        outer = captures(node)
        return _with_bodies(kernel.function, attributes, len(reads), outer), [*reads, *outer]
    prepare = preparer(node.domain, node.op)
    if prepare is not None:
        operands = [None if v is None else constant(v) for v in reads]
        prepared = prepare(operands, **attributes)
        if prepared is not None:
            return prepared, reads
    return (partial(kernel.function, **attributes) if attributes else kernel.function), reads


def _argument(value: Attribute) -> Any:
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, Tensors):
        return tuple(t.numpy() for t in value)
    if isinstance(value, SparseTensor):
        return value.dense().numpy()
    return value


def _with_bodies(function: Function, attributes: dict[str, Any], count: int, outer: Sequence[Value]) -> Function:
    """A kernel whose subgraph attributes become functions of their inputs; outer values arrive behind the operands."""
    plans: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, Graph):
            plans[name] = _body_plan(value, outer)
        elif isinstance(value, Graphs):
            plans[name] = [_body_plan(sub, outer) for sub in value]
    plain = {k: v for k, v in attributes.items() if k not in plans}

    def call(*values: Any) -> Any:
        captured = values[count:]

        bodies = {
            k: tuple(Body(one, captured) for one in p) if isinstance(p, list) else Body(p, captured)
            for k, p in plans.items()
        }
        return function(*values[:count], **plain, **bodies)

    return call


class Body:
    """A subgraph as a function of its inputs. `output_types` are the types of its outputs as far as they are known."""

    __slots__ = ("_captured", "_plan", "output_types")

    def __init__(self, plan: Plan, captured: Sequence[Any]) -> None:
        self._plan = plan
        self._captured = captured
        self.output_types = plan.output_types

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return tuple(self._plan.run([*inputs, *self._captured]))


def _body_plan(graph: Graph, outer: Sequence[Value]) -> Plan:
    return Plan(list(graph), [*graph.inputs, *outer], graph.outputs)


def evaluate(node: Node) -> tuple[Any, ...]:
    """The outputs of a node whose inputs are all constants. UnsupportedError where there is no kernel; kernel errors pass."""
    function, reads = _bind(node, lambda v: None if v.constant is None else _array(v.constant))
    with np.errstate(all="ignore"):
        result = function(*[None if v is None or v.const is None else _array(v.const) for v in reads])
    return result if isinstance(result, tuple) else (result,)


def _array(const: Tensor | SparseTensor) -> Any:
    """A constant where numpy and BLAS can work on it. Model files align nothing, and both would copy it on every use."""
    array = const.numpy() if isinstance(const, Tensor) else const.dense().numpy()
    return array if array.flags.aligned else array.copy()
