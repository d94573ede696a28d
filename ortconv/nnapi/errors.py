"""The error of the API: a result code and its cause."""

from __future__ import annotations

from functools import partial
from typing import Self

from ortconv.errors import ModelError
from ortconv.nnapi.codes import Operation, ResultCode


class NnapiError(ModelError):
    """A call did not return NO_ERROR. `operation` and `operand` name the cause if there is a single one."""

    def __init__(
        self,
        code: ResultCode,
        message: str,
        *,
        operation: Operation | None = None,
        operand: int | None = None,
        dimensions: tuple[int, ...] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.operation = operation
        self.operand = operand
        self.dimensions = dimensions
        """Dimensions of an output that did not fit its buffer."""

    def __str__(self) -> str:
        where = "" if self.operation is None else f"{self.operation.name}: "
        where += "" if self.operand is None else f"operand {self.operand}: "
        return f"{self.code.name}: {where}{super().__str__()}"

    def bare(self) -> Self:
        """A copy of the error without its traceback, which would keep all objects of the failed run alive."""
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__ |= self.__dict__
        return twin


class OutputTooSmallError(NnapiError):
    """OUTPUT_INSUFFICIENT_SIZE. `shapes` holds, for every output, its dimensions, and True if its buffer is large enough."""

    def __init__(self, shapes: list[tuple[tuple[int, ...], bool]]) -> None:
        super().__init__(ResultCode.OUTPUT_INSUFFICIENT_SIZE, "an output has more bytes than there is room for")
        self.shapes = shapes


bad_data = partial(NnapiError, ResultCode.BAD_DATA)
bad_state = partial(NnapiError, ResultCode.BAD_STATE)
op_failed = partial(NnapiError, ResultCode.OP_FAILED)
unmappable = partial(NnapiError, ResultCode.UNMAPPABLE)
