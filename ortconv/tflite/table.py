"""The table of translations: a row for each NNAPI operation that LiteRT has as well.

A row is a decorated function that emits LiteRT's operators for one use of the operation, or is added by `emits`. Operations without
a row are refused. So are uses for which the function raises `RefusedOperationError`: LiteRT lacks such an operator, or computes
other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ortconv.nnapi import Operand, Operation
from ortconv.nnapi.operations.table import KINDS, OperationCall
from ortconv.tflite.translation import Translation

Translator = Callable[[Translation, OperationCall], None]
"""Emits the operators for one use of an operation. Tensors are numbers of operands, scalars values."""


@dataclass(frozen=True, slots=True)
class TranslationRow:
    """`types` are the main types of LiteRT. If `either_sign`, int8 gives what uint8 does, elements and zero points less 128."""

    translate: Translator
    types: frozenset[Operand]
    either_sign: bool


TRANSLATIONS: dict[Operation, TranslationRow] = {}


def translated(*names: str, types: str, either_sign: bool = False) -> Callable[[Translator], Translator]:
    """A decorator that adds a function to the table, for some operations."""

    def enter(translate: Translator) -> Translator:
        row = TranslationRow(translate, frozenset(KINDS[letter] for letter in types.split()), either_sign)
        TRANSLATIONS.update((Operation[name], row) for name in names)
        return translate

    return enter


def emits(
    *names: str,
    inputs: str,
    types: str,
    code: str = "",
    either_sign: bool = False,
    same: str = "",
    **options: str | int,
) -> None:
    """Add rows for operations that are one operator of LiteRT: `code`, or that of the same name. `inputs` are the operands that it
    reads, and `same` those that must have one quantization. Options are numbers, or names of operands.
    """

    def translate(t: Translation, u: OperationCall) -> None:
        t.check_same_quantization(*(u.args[name] for name in same.split()))
        given = {key: u.args[one] if isinstance(one, str) else one for key, one in options.items()}
        t.emit(code or u.operation.name, [t.read(u.args[name]) for name in inputs.split()], [t.write(u.out)], **given)

    translated(*names, types=types, either_sign=either_sign)(translate)
