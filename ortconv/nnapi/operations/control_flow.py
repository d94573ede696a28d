"""IF and WHILE: the models that they refer to are run by the executor, and checked in `ortconv.nnapi.validation`. And
OEM_OPERATION, which means something to its maker's driver alone.
"""

from __future__ import annotations

from ortconv.nnapi.operations.table import operation

operation(
    "IF", "condition:B then_model:model else_model:model inputs:any*", outputs="outputs:any*", level=4, infer=None,
    zero_sized=True,
)(None)  # fmt: skip
operation(
    "WHILE",
    "condition_model:model body_model:model inputs:any*",
    outputs="outputs:any*",
    level=4,
    infer=None,
    zero_sized=True,
)(None)
operation("OEM_OPERATION", "inputs:any*", outputs="outputs:any*", infer=None, zero_sized=True)(None)
