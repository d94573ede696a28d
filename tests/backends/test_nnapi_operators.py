"""Every operator that the partitioner takes, lowered and run as an NNAPI model, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from nnapi_cases import Case, all_cases, case, floats

from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions, NnapiProgram
from ortconv.backends.nnapi.lower import FUSING, LOWERINGS
from ortconv.nnapi import Operation
from ortconv.partition.nnapi.rules import ROWS
from ortconv.runtime.session import Session
from tests import unoptimized
from tests.batches import sampled

CASES = all_cases()


def saved(one: Case, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(one.model(), path)
    return path


def program(session: Session) -> NnapiProgram:
    """The only program of a session, which must be an NNAPI model of all nodes."""
    assert [name for name, _ in session.regions] == ["nnapi"]
    assert len(session.regions[0][1].nodes) == len(session.model.graph)
    ((found, _),) = session._main.programs
    assert isinstance(found, NnapiProgram)
    return found


def held(one: Case, want: list[np.ndarray], got: list[np.ndarray]) -> None:
    """Floats within rounding, quantized results within one step."""
    for a, b in zip(want, got, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-6)
        else:
            assert np.abs(a.astype(int) - b.astype(int)).max() <= (1 if a.dtype == np.uint8 else 0)


def test_every_operator_that_is_taken_is_lowered() -> None:
    assert LOWERINGS.keys() == ROWS.keys()


def test_every_operator_has_a_case() -> None:
    assert {one.op for one in CASES} == ROWS.keys()
    assert {one.op for one in CASES if "-qdq-" in one.name} == {op for op, row in ROWS.items() if row.qdq is not None}


@sampled(4)
@pytest.mark.parametrize("nchw", [False, True], ids=["nhwc", "nchw"])
@pytest.mark.parametrize("one", CASES, ids=[one.name for one in CASES])
def test_operator(one: Case, nchw: bool, tmp_path: Path) -> None:
    if nchw and one.level < 29:
        pytest.skip("NCHW takes level 29")
    path = saved(one, tmp_path)
    session = Session(path, [Nnapi(NnapiOptions(nchw=nchw, feature_level=one.level))])
    ran = program(session)
    held(one, unoptimized.run(path, one.feeds), session.run(None, one.feeds))
    assert ran.executions == 1


ACTIVATED = {
    "Conv": case("Conv", (1, 4, 6, 6), floats(6, 4, 3, 3)),
    "Gemm": case("Gemm", (3, 5), floats(5, 4), floats(4)),
    "MatMul": case("MatMul", (3, 5), floats(5, 4)),
    "AveragePool": case("AveragePool", (1, 4, 6, 6), kernel_shape=[2, 2]),
    "MaxPool": case("MaxPool", (1, 4, 6, 6), kernel_shape=[2, 2]),
    "GlobalAveragePool": case("GlobalAveragePool", (1, 4, 6, 6)),
    "GlobalMaxPool": case("GlobalMaxPool", (1, 4, 6, 6)),
    "BatchNormalization": case("BatchNormalization", (2, 4, 5), floats(4), floats(4), floats(4), np.abs(floats(4))),
    **{op: case(op, (2, 3, 4), ("feed", floats(2, 3, 4) + 3)) for op in ("Add", "Sub", "Mul", "Div")},
}  # fmt: skip


def test_every_operator_that_fuses_has_a_case() -> None:
    assert ACTIVATED.keys() == FUSING


@sampled(4)
@pytest.mark.parametrize("bounds", [None, (0, 6), (-1, 1)], ids=["relu", "relu6", "relu1"])
@pytest.mark.parametrize("op", sorted(FUSING))
def test_fused_activation(op: str, bounds: tuple[int, int] | None, tmp_path: Path) -> None:
    one = ACTIVATED[op]
    model = one.model()
    model.graph.node[0].output[0] = "before"
    if bounds is None:
        model.graph.node.append(onnx.helper.make_node("Relu", ["before"], ["y"]))
    else:
        for name, bound in zip(("low", "high"), bounds):
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(bound), name))
        model.graph.node.append(onnx.helper.make_node("Clip", ["before", "low", "high"], ["y"]))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    session = Session(path, ["nnapi"])
    codes = {o.code for o in program(session).lowered.model.operations}
    assert not codes & {Operation.RELU, Operation.RELU1, Operation.RELU6}
    held(one, unoptimized.run(path, one.feeds), session.run(None, one.feeds))
