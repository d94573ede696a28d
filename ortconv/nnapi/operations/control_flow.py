"""IF, WHILE and OEM_OPERATION. The executor runs the models of IF and WHILE, and `ortconv.nnapi.validation` checks
them. An OEM_OPERATION is known only to the driver of its vendor.
"""

from __future__ import annotations

from ortconv.nnapi.operations.table import operation

operation(
    "IF", "condition:B then_model:model else_model:model inputs:any*", outputs="outputs:any*", level=4, infer=None,
    zero_sized=True,
)(None)  # fmt: skip
operation(
    "WHILE", "condition_model:model body_model:model inputs:any*", outputs="outputs:any*", level=4, infer=None,
    zero_sized=True,
)(None)  # fmt: skip
operation("OEM_OPERATION", "inputs:any*", outputs="outputs:any*", infer=None, zero_sized=True)(None)
