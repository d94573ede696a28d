"""The table of translations: a row for each NNAPI operation that LiteRT has as well.

A row is a decorated function that emits LiteRT's operators for one use of the operation. Operations without a row are refused. So
are uses for which the function raises `RefusedOperationError`, since LiteRT lacks such an operator or computes other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ortconv.nnapi import Operand, Operation
from ortconv.nnapi.operations.table import KINDS
from ortconv.tflite.translation import Translation


class Use:
    """One operation of a model, its operands by the names of the slots: numbers of operands for tensors, values for scalars, lists
    for variadic slots, None for omitted operands.
    """

    def __init__(self, code: Operation, main: Operand | None, args: dict[str, Any], outputs: tuple[int, ...]) -> None:
        self.code, self.main, self.args, self.outputs = code, main, args, outputs

    @property
    def out(self) -> int:
        return self.outputs[0]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.args[name]
        except KeyError:
            raise AttributeError(f"{self.code.name} has no operand '{name}' in this form") from None

    def get(self, name: str) -> Any:
        """The operand, or None if this form of the operation has no such slot."""
        return self.args.get(name)


Translator = Callable[[Translation, Use], None]


@dataclass(frozen=True, slots=True)
class TranslationRow:
    """`types` are the main types that LiteRT computes. If `either_sign`, int8 gives the same result as uint8, with all elements and
    zero points 128 less.
    """

    translate: Translator
    types: frozenset[Operand]
    either_sign: bool


TRANSLATIONS: dict[Operation, TranslationRow] = {}


def translated(*names: str, types: str, either_sign: bool = False) -> Callable[[Translator], Translator]:
    """A decorator that adds a function to the table, for some operations."""

    def enter(translate: Translator) -> Translator:
        for name in names:
            TRANSLATIONS[Operation[name]] = TranslationRow(
                translate, frozenset(KINDS[letter] for letter in types.split()), either_sign
            )
        return translate

    return enter
