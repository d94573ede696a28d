"""QuantizeLinear and DequantizeLinear outside of QDQ groups."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.partition.checks import rank
from ortconv.partition.nnapi.checks import float32, quantized_input, quantized_output
from ortconv.partition.nnapi.row import NnapiRow

ROWS = (
    NnapiRow("DequantizeLinear", types=quantized_input, domains=("", MICROSOFT), runtime=rank(0, 4), takes_empty=True),
    NnapiRow(
        "QuantizeLinear", level=29, types=float32, check=quantized_output, domains=("", MICROSOFT), takes_empty=True
    ),
)
