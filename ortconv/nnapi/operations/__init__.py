"""The operations of the API, one module for each family. `row_of` finds the row of an operation."""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from functools import cache
from importlib import import_module

from ortconv.nnapi.codes import FeatureLevel, Operation
from ortconv.nnapi.errors import bad_data
from ortconv.nnapi.operations.table import ROWS, OperationRow


@cache
def rows() -> dict[Operation, OperationRow]:
    """The rows of all operations, in the order of their codes."""
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
        import_module(f"{__name__}.{module}")
    return dict(sorted(ROWS.items()))


@cache
def _extension_row(operation: Operation) -> OperationRow:
    """The row of an operation that only its driver knows. Any operands match it."""
    return replace(rows()[Operation.OEM_OPERATION], operation=operation, level=FeatureLevel.LEVEL_3)


def row_of(operation: Operation) -> OperationRow:
    """The row of an operation. Raises BAD_DATA for a code that is not an operation."""
    if operation.is_extension:
        return _extension_row(operation)
    row = rows().get(operation)
    if row is None:
        raise bad_data(f"{operation!r} is not an operation of this runtime")
    return row
