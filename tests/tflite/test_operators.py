"""Each operation in LiteRT, held against the NNAPI runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import numpy as np
import pytest
from litert_cases import CASES, B, Const, F, Given, H, I, Q, S, drawn, t
from nnapi_models import bound

from ortconv import nnapi
from ortconv.ir.tensor import Array
from ortconv.nnapi import Operand, OperandType, Operation
from ortconv.tflite.table import TRANSLATIONS
from ortconv.tflite.translate import refused, translate
from ortconv.tflite.writer import serialize
from tests.batches import batched

ROUNDS_DIFFERENTLY = {
    (Operation.MEAN, Q),
    (Operation.MEAN, S),
    (Operation.AVERAGE_POOL_2D, S),
    (Operation.RESIZE_BILINEAR, Q),
    (Operation.RESIZE_BILINEAR, S),
}
"""Operations whose quantized results may be one step off: LiteRT rounds means in another way.

docs/litert.md lists them.
"""


def built(code: Operation, inputs: Sequence[Given], outputs: Sequence[OperandType]) -> nnapi.Model:
    model, fed = nnapi.Model(), []
    indexes = []
    half = any(isinstance(one, OperandType) and one.type is H for one in inputs)
    for one in inputs:
        if isinstance(one, OperandType):
            indexes.append(model.add_operand(one))
            fed.append(indexes[-1])
            continue
        if isinstance(one, Const):
            kind, value = one.kind, one.array
        else:
            scalar = (
                Operand.BOOL if isinstance(one, bool) else Operand.INT32 if isinstance(one, int) else Operand.FLOAT32
            )
            kind = OperandType(Operand.FLOAT16 if half and scalar is Operand.FLOAT32 else scalar)
            value = np.array(one, kind.type.dtype)
        indexes.append(model.add_operand(kind))
        if isinstance(one, Const) and one.scales is not None:
            model.set_operand_symm_per_channel_quant_params(indexes[-1], *one.scales)
        model.set_operand_value(indexes[-1], value)
    made = [model.add_operand(kind) for kind in outputs]
    model.add_operation(code, indexes, made)
    model.identify_inputs_and_outputs(fed, made)
    model.finish()
    return model


def on_nnapi(model: nnapi.Model, feeds: Sequence[Array], rooms: Sequence[Array]) -> None:
    compilation = nnapi.Compilation(model, [nnapi.get_device("nnapi-reference")])
    compilation.finish()
    with bound(compilation, feeds, rooms) as execution:
        execution.compute()


NO_PLAIN_KERNEL = {(Operation.ABS, I), (Operation.TILE, S)}
NOT_PLAIN = {Operation.DEPTH_TO_SPACE, Operation.ELU, Operation.LOCAL_RESPONSE_NORMALIZATION}
"""LiteRT's plain kernels lack the versions of these; that of the last one leaves out the last neighbor of each element."""

PRODUCTS = {Operation.CONV_2D, Operation.DEPTHWISE_CONV_2D, Operation.GROUPED_CONV_2D, Operation.TRANSPOSE_CONV_2D,
            Operation.FULLY_CONNECTED, Operation.BATCH_MATMUL}  # fmt: skip
OFF = {"": PRODUCTS, "reference": set(), "default": PRODUCTS | {Operation.ADD, Operation.SUB, Operation.MUL}}
"""More operations whose quantized results may be one step off, by the kernels; docs/litert.md says so."""


@batched
@pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed")
@pytest.mark.parametrize("kernels", OFF)
@pytest.mark.parametrize(("name", "code", "inputs", "outputs"), CASES, ids=[c[0] for c in CASES])
def test_litert_computes_what_nnapi_computes(
    name: str, code: Operation, inputs: Sequence[Given], outputs: Sequence[OperandType], kernels: str
) -> None:
    from ortconv.backends.litert.runtime import LiteRtModel

    model = built(code, inputs, outputs)
    made = translate(model, {}, [f"x{i}" for i in model.inputs], [f"y{i}" for i in model.outputs])
    content = b"".join(serialize(made))
    if kernels == "reference" and (code in NOT_PLAIN or (code, outputs[0].type) in NO_PLAIN_KERNEL):
        return
    loaded = LiteRtModel(made, content, kernels)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        feeds = [drawn(kind.with_dims([d or 5 for d in kind.dims]), rng) for kind in model.input_types]
        results = loaded.run([a.astype(bool) if k.type is B else a for a, k in zip(feeds, model.input_types)])
        rooms = [np.empty(one.shape, kind.type.dtype) for one, kind in zip(results, outputs)]
        on_nnapi(model, feeds, rooms)
        for got, want, kind in zip(results, rooms, outputs):
            if kind.type in (F, H):
                np.testing.assert_allclose(got, want, *((2e-3, 2e-3) if kind.type is H else (2e-5, 2e-5)))
            else:
                steps = np.abs(got.astype(int) - want.astype(int)).max()
                assert steps <= ((code, kind.type) in ROUNDS_DIFFERENTLY or code in OFF[kernels])


def test_the_kinds_of_cases() -> None:
    assert {code for _, code, _, _ in CASES} == TRANSLATIONS.keys()
    assert len({name for name, *_ in CASES}) == len(CASES)


REFUSALS: list[tuple[str, Callable[[], nnapi.Model]]] = [
    ("the last", lambda: built(Operation.TOPK_V2, [t(F, 2, 5), 2], [t(F, 2, 2), t(I, 2, 2)])),
    ("alpha 1", lambda: built(Operation.ELU, [t(F, 2, 5), 2.0], [t(F, 2, 5)])),
    ("NHWC", lambda: built(Operation.DEPTH_TO_SPACE, [t(F, 1, 4, 2, 2), 2, True], [t(F, 1, 1, 4, 4)])),
    ("one quantization", lambda: built(Operation.MAXIMUM, [t(Q, 2, scale=0.1), t(Q, 2)], [t(Q, 2)])),
    ("counts the padding", lambda: built(Operation.AVERAGE_POOL_2D, [t(Q, 1, 6, 6, 4), 1, 0, 1, 0, 2, 2, 2, 2, 0],
                                         [t(Q, 1, 3, 3, 4)])),
    ("must be constant", lambda: built(Operation.DIV, [t(I, 2), t(I, 2), 0], [t(I, 2)])),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "make"), REFUSALS, ids=[r for r, _ in REFUSALS])
def test_refusals(reason: str, make: Callable[[], nnapi.Model]) -> None:
    found = refused(make())
    assert [reason in text for _, text in found] == [True]
