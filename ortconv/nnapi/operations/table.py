"""The table of operations. A row states the operand forms of an operation, its types per feature level, checks, shape inference
and arithmetic.

A form is a line of slots, `name:kind`, in the order of the operands:

    x:T filter:W bias:bias padding:i stride_w:i stride_h:i activation:i [nchw:b=0 @3] [dilation_w:i=1 dilation_h:i=1 @3]

`[...]` is a group of trailing operands that may be absent together, with their defaults and the level that introduced
them. `?` after a kind means that the operand may be omitted (have no value), `*` that the slot accepts any number of operands.
The kinds are:

    T                    a tensor of the main type: the type of the first T operand, one of the row's `types`
    F H Q S I B          TENSOR_FLOAT32, _FLOAT16, _QUANT8_ASYMM, _QUANT8_ASYMM_SIGNED, _INT32, _BOOL8
    P S8 Q16 S16         TENSOR_QUANT8_SYMM_PER_CHANNEL, _QUANT8_SYMM, _QUANT16_ASYMM, _QUANT16_SYMM
    i b f32 f16          INT32, BOOL, FLOAT32, FLOAT16
    f W bias ...         follow from the main type, see DERIVED
    any model            any tensor or scalar; a model

Several kinds are separated by `|`; `@n` after a kind is the feature level (1 to 8) that introduced it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Any

from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FeatureLevel, Operand, Operation
from ortconv.nnapi.errors import bad_data, op_failed
from ortconv.nnapi.operand import OperandType, Tensor

Dims = tuple[int, ...]


class Advice(str):
    """An objection from the documentation that devices need not raise."""

    __slots__ = ()


Findings = Iterator["str | FeatureLevel"]
"""Objections, or the feature level that a use needs."""
OperationCheck = Callable[["OperationCall"], Findings]
"""A check of a use. Operands are OperandTypes, without values."""
InferDims = Callable[["OperationCall"], "Dims | list[Dims]"]
"""The dimensions of the output; a list of them for several outputs."""
Compute = Callable[["OperationCall"], "Array | Sequence[Array]"]

KINDS: dict[str, Operand] = {
    "F": Operand.TENSOR_FLOAT32,
    "H": Operand.TENSOR_FLOAT16,
    "Q": Operand.TENSOR_QUANT8_ASYMM,
    "S": Operand.TENSOR_QUANT8_ASYMM_SIGNED,
    "I": Operand.TENSOR_INT32,
    "B": Operand.TENSOR_BOOL8,
    "P": Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL,
    "S8": Operand.TENSOR_QUANT8_SYMM,
    "Q16": Operand.TENSOR_QUANT16_ASYMM,
    "S16": Operand.TENSOR_QUANT16_SYMM,
    "i": Operand.INT32,
    "b": Operand.BOOL,
    "f32": Operand.FLOAT32,
    "f16": Operand.FLOAT16,
    "model": Operand.MODEL,
}

DERIVED: dict[str, dict[str, str]] = {
    "f": {"F": "f32", "H": "f16", "Q": "f32", "S": "f32", "I": "f32", "B": "f32"},
    "W": {"F": "F", "H": "H", "Q": "Q|P@3", "S": "S|P"},
    "bias": {"F": "F", "H": "H", "Q": "I", "S": "I"},
    "roi": {"F": "F", "H": "H", "Q": "Q16", "S": "Q16"},
    "anchors": {"F": "F", "H": "H", "Q": "S16", "S": "S16"},
    "value": {"F": "f32", "H": "f16", "Q": "i", "S": "i", "I": "i"},
}

LETTERS = {kind: letter for letter, kind in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    kinds: str
    default: Any = None
    may_omit: bool = False
    variadic: bool = False

    def allowed(self, main: Operand | None, types: dict[Operand, FeatureLevel]) -> dict[Operand, FeatureLevel] | None:
        """The permitted operand types, each with its level; None for any type."""
        if self.kinds == "any":
            return None
        if self.kinds == "T":
            return types if main is None else {main: types[main]}
        if self.kinds not in DERIVED:
            return _alternatives(self.kinds.split("|"))
        mains = types if main is None else (main,)
        return _alternatives([kind for one in mains for kind in DERIVED[self.kinds][LETTERS[one]].split("|")])


@dataclass(frozen=True, slots=True)
class OperandForm:
    """Required slots, then groups of optional trailing slots."""

    text: str
    required: tuple[Slot, ...]
    groups: tuple[tuple[FeatureLevel, tuple[Slot, ...]], ...]

    def slots(self, count: int) -> tuple[list[Slot], FeatureLevel] | None:
        """The slots of `count` operands, and the level that they need; None if the form does not permit this number of operands."""
        if any(slot.variadic for slot in self.required):
            return _spread(self.required, count)
        slots, level = list(self.required), FeatureLevel.LEVEL_1
        for needs, group in self.groups:
            if len(slots) >= count:
                break
            slots += group
            level = max(level, needs)
        return (slots, level) if len(slots) == count else None

    @property
    def absent(self) -> dict[str, Any]:
        """Names and defaults of all optional operands."""
        return {slot.name: slot.default for _, group in self.groups for slot in group}

    def named(self, slots: Sequence[Slot], operands: Sequence[Any]) -> dict[str, Any]:
        """The operands by the names of their slots, with lists for variadic slots and defaults for absent ones."""
        found = self.absent | {slot.name: [] for slot in self.required if slot.variadic}
        for slot, operand in zip(slots, operands):
            if slot.variadic:
                found[slot.name].append(operand)
            else:
                found[slot.name] = operand
        return found


def _spread(required: tuple[Slot, ...], count: int) -> tuple[list[Slot], FeatureLevel] | None:
    at = next(i for i, slot in enumerate(required) if slot.variadic)
    repeat = count - len(required) + 1
    slots = [*required[:at], *[required[at]] * repeat, *required[at + 1 :]]
    return (slots, FeatureLevel.LEVEL_1) if repeat >= 0 else None


def _alternatives(texts: Sequence[str]) -> dict[Operand, FeatureLevel]:
    pairs = [text.partition("@") for text in texts]
    return {KINDS[kind]: FeatureLevel.number(int(level or 1)) for kind, _, level in pairs}


def _slot(text: str) -> Slot:
    name, _, rest = text.partition(":")
    kinds, _, default = rest.partition("=")
    value = None if not default else float(default) if "." in default else int(default)
    bare = kinds.rstrip("?*")
    return Slot(name, bare, value, may_omit="?" in kinds[len(bare) :], variadic="*" in kinds[len(bare) :])


def parse_form(text: str) -> OperandForm:
    head, *rest = text.split("[")
    groups = []
    for group in rest:
        *slots, level = group.strip().removesuffix("]").split()
        groups.append((FeatureLevel.number(int(level.removeprefix("@"))), tuple(_slot(one) for one in slots)))
    return OperandForm(text, tuple(_slot(one) for one in head.split()), tuple(groups))


@dataclass(frozen=True, slots=True)
class OperationUse:
    form: OperandForm
    slots: list[Slot]
    out_form: OperandForm
    out_slots: list[Slot]
    main: Operand | None
    level: FeatureLevel

    def trailing(self) -> Iterator[list[str]]:
        """The names of each group of trailing operands in use, the last group first."""
        count = len(self.form.required)
        groups = []
        for _, group in self.form.groups:
            count += len(group)
            if count <= len(self.slots):
                groups.append([slot.name for slot in group])
        return reversed(groups)


class OperationCall:
    """One operation with its operands by the names of their slots: `c.x`, `c.stride_w`, `c.out`.

    Tensors are `Tensor`s, scalars Python numbers, variadic slots lists, omitted operands None, and absent trailing
    operands their defaults. While a model is being built, only the types are known: every operand, scalars included, is
    an OperandType. Outputs are OperandTypes, with the declared dimensions in `infer` and the final ones in `compute`.
    `work` computes in rows with `recorded`. A translation has the numbers of the model's operands instead of tensors.
    """

    __slots__ = ("args", "main", "operation", "outputs", "use", "work")

    def __init__(
        self, row: OperationRow, use: OperationUse, inputs: Sequence[Any], outputs: Sequence[Any], work: Work = AT_ONCE
    ) -> None:
        self.work = work
        self.operation = row.operation
        self.main = use.main
        self.args = use.form.named(use.slots, inputs)
        self.use = use
        self.set_outputs(outputs)

    def set_outputs(self, outputs: Sequence[Any]) -> None:
        self.outputs = list(outputs)
        self.args |= self.use.out_form.named(self.use.out_slots, outputs)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.args[name]
        except KeyError:
            raise AttributeError(f"{self.operation.name} has no operand '{name}' in this form") from None

    def get(self, name: str) -> Any:
        """The operand; None if this form does not have the slot."""
        return self.args.get(name)

    def anew(self, function: Callable[[OperationCall], Array]) -> Array:
        """function(self), with a call that computes at once. A recording calls the function again in each run."""
        plain = OperationCall.__new__(OperationCall)
        for name in self.__slots__:
            setattr(plain, name, getattr(self, name))
        plain.work = AT_ONCE
        return self.work.call(function, plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """One operation. `nchw` names the image tensors: if c.nchw is true, the CPU device transposes them to NHWC and the
    outputs back, so `infer` and `compute` see only NHWC. Without `native_half`, float16 tensors are passed as float32,
    and results are rounded. `checks` run when the operation is added to a model, those of `quantization` when the CPU
    device executes it. `recorded` names operands whose elements may change between runs of a recording: `compute` reads
    them only through the call's `work`.
    """

    operation: Operation
    level: FeatureLevel
    types: dict[Operand, FeatureLevel]
    forms: tuple[OperandForm, ...]
    outputs: tuple[OperandForm, ...]
    infer: InferDims | None
    compute: Compute | None
    checks: tuple[OperationCheck, ...] = ()
    quantization: tuple[OperationCheck, ...] = ()
    zero_sized: bool = False
    nchw: tuple[str, ...] = ()
    native_half: bool = False
    recorded: tuple[str, ...] = ()

    def validate(self, inputs: Sequence[OperandType], outputs: Sequence[OperandType]) -> OperationUse:
        """The form that the operands match, with the feature level that it needs. Raises BAD_DATA if they match none."""
        use = self._match(inputs, outputs)
        call, level = OperationCall(self, use, inputs, outputs), use.level
        for check in self.checks:
            for found in check(call):
                if not isinstance(found, FeatureLevel):
                    raise bad_data(found, operation=self.operation)
                level = max(level, found)
        return replace(use, level=level)

    def quantization_objections(
        self, use: OperationUse, inputs: Sequence[OperandType], outputs: Sequence[OperandType]
    ) -> Iterator[str]:
        """Scales and zero points that the documentation of the operation forbids."""
        if self.quantization:
            call = OperationCall(self, use, inputs, outputs)
            yield from (str(found) for check in self.quantization for found in check(call))

    def bind(
        self, use: OperationUse, inputs: Sequence[Tensor | None], outputs: Sequence[OperandType], work: Work = AT_ONCE
    ) -> OperationCall:
        """A call with values. Raises OP_FAILED if a required operand has no value."""
        for index, (slot, operand) in enumerate(zip(use.slots, inputs)):
            if operand is None and not slot.may_omit:
                raise op_failed(f"{slot.name} is omitted", operation=self.operation, operand=index)
        values = [one if one is None or one.type.is_tensor else one.array.reshape(-1)[0].item() for one in inputs]
        return OperationCall(self, use, values, outputs, work)

    def _match(self, inputs: Sequence[OperandType], outputs: Sequence[OperandType]) -> OperationUse:
        """The first form that the operand types match."""
        reason = ""
        for form, out_form in product(self.forms, self.outputs):
            found, made = form.slots(len(inputs)), out_form.slots(len(outputs))
            if found is None:
                continue
            if made is None:
                reason = f"has {len(outputs)} outputs, which is none of its forms"
                continue
            (slots, level), (out_slots, out_level) = found, made
            both = [*slots, *out_slots], [*inputs, *outputs]
            main = next((one.type for slot, one in zip(*both) if slot.kinds == "T" and one.type in self.types), None)
            misfit, needs = self._fit(*both, main, len(inputs))
            if misfit is None:
                level = max(self.level, level, out_level, needs)
                return OperationUse(form, slots, out_form, out_slots, main, level)
            reason = misfit
        reason = reason or f"has {' or '.join(self._counts())} inputs, not {len(inputs)}"
        raise bad_data(reason, operation=self.operation)

    def _fit(
        self, slots: Sequence[Slot], operands: Sequence[OperandType], main: Operand | None, inputs: int
    ) -> tuple[str | None, FeatureLevel]:
        """The reason why the operands do not match the slots, or None; and the level that their types need."""
        level = FeatureLevel.LEVEL_1
        for index, (slot, operand) in enumerate(zip(slots, operands)):
            allowed = slot.allowed(main, self.types)
            if allowed is None:
                continue
            if operand.type not in allowed:
                side = f"input {index}" if index < inputs else f"output {index - inputs}"
                names = ", ".join(kind.name for kind in allowed)
                return f"{side} ({slot.name}) is {operand.type.name}, not {names}", level
            level = max(level, allowed[operand.type])
        return None, level

    def _counts(self) -> list[str]:
        """The numbers of inputs that the forms permit."""
        found: list[str] = []
        for form in self.forms:
            if any(slot.variadic for slot in form.required):
                found.append(f"{len(form.required) - 1} or more")
            else:
                found += map(str, accumulate(map(len, (form.required, *(group for _, group in form.groups)))))
        return list(dict.fromkeys(found))


ROWS: dict[Operation, OperationRow] = {}


def operation(
    name: str,
    *inputs: str,
    outputs: str | tuple[str, ...] = "out:T",
    level: int = 1,
    types: str = "",
    infer: InferDims | None,
    **facts: Any,
) -> Callable[[Compute | None], Compute | None]:
    """Decorator that adds an operation, with the decorated arithmetic, to the table. `infer` is None if only the
    arithmetic determines the dimensions: those of the arrays that it returns. `facts` are other fields of the row.
    """
    since = FeatureLevel.number(level)

    def enter(compute: Compute | None) -> Compute | None:
        code = Operation[name]
        assert code not in ROWS, name
        allowed = _alternatives(types.split())
        ROWS[code] = OperationRow(
            operation=code,
            level=since,
            types={kind: max(since, needs) for kind, needs in allowed.items()},
            forms=tuple(parse_form(text) for text in inputs),
            outputs=tuple(parse_form(text) for text in ((outputs,) if isinstance(outputs, str) else outputs)),
            infer=infer,
            compute=compute,
            **facts,
        )
        return compute

    return enter
