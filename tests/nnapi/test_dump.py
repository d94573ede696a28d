"""Models as text and as documents."""

from __future__ import annotations

import json

import numpy as np
from nnapi_models import Builder, chain, choosing, compiled, device, tensor

from ortconv import nnapi
from ortconv.nnapi import Operand, Operation
from ortconv.nnapi.dump import document, text


def test_text() -> None:
    b = Builder()
    kind = tensor(4)
    x, w = b.operand(kind), b.constant(np.ones(4), kind)
    y = b.operation(Operation.ADD, [x, w, b.int32(1)], kind)
    z = b.operation(Operation.ADD, [y, b.constant(np.zeros(36), tensor(9, 4)), b.int32(0)], tensor(9, 4))
    assert text(b.finish([x], [z], relaxed=True)).splitlines() == [
        "model: 7 operands, 2 operations, level 27, relaxed",
        "  %0 input TENSOR_FLOAT32[4]",
        "  %1 copy TENSOR_FLOAT32[4] = [1.0, 1.0, 1.0, 1.0]",
        "  %2 copy INT32 = 1",
        "  %4 reference TENSOR_FLOAT32[9, 4] = 144 bytes",
        "  %5 copy INT32 = 0",
        "  %6 output TENSOR_FLOAT32[9, 4]",
        "  %3 TENSOR_FLOAT32[4] = ADD(%0, %1, %2)",
        "  %6 TENSOR_FLOAT32[9, 4] = ADD(%3, %4, %5)",
    ]


def test_text_of_control_flow() -> None:
    lines = text(choosing(tensor(2))).splitlines()
    assert lines[0] == "model: 5 operands, 1 operations, level 30"
    assert [line for line in lines if "model:" in line][1:] == ["    model: 3 operands, 1 operations, level 27"] * 2
    assert lines[-1] == "  %4 TENSOR_FLOAT32[2] = IF(%0, %2, %3, %1)"


def test_documents_are_json() -> None:
    kind = tensor(2, type=Operand.TENSOR_QUANT8_ASYMM, scale=0.5, zero_point=3)
    b = Builder()
    x = b.operand(kind)
    found = document(b.finish([x], [b.operation(Operation.RELU, [x], kind)]))
    assert found == json.loads(json.dumps(found))
    assert found["operands"][0] == {
        "index": 0, "type": "TENSOR_QUANT8_ASYMM", "dimensions": [2], "lifetime": "INPUT", "scale": 0.5, "zero_point": 3,
    }  # fmt: skip
    assert found["operations"] == [{"type": "RELU", "inputs": [0], "outputs": [1]}]
    assert document(chain(Operation.RELU))["feature_level"] == 27
    assert document(choosing(tensor(2)))["operands"][2]["model"]["operations"][0]["type"] == "ADD"


def test_names_and_devices() -> None:
    with nnapi.registered(device("adder", "ADD")):
        plan = compiled(chain(Operation.ADD, Operation.RELU)).plan
    lines = text(plan.model, {0: "x", 3: "y"}, plan.places).splitlines()
    assert lines[1] == "  %0 input TENSOR_FLOAT32[4]  # x"
    assert [line.partition(" = ")[2] for line in lines[-2:]] == [
        "ADD(%0, %0, %1) on adder",
        "RELU(%2) on nnapi-reference  # y",
    ]
    found = document(plan.model, {0: "x"}, plan.places)
    assert [one["device"] for one in found["operations"]] == ["adder", "nnapi-reference"]
    assert [one.get("name") for one in found["operands"]] == ["x", None, None, None]


def test_an_operation_that_is_spread_over_devices_has_no_place() -> None:
    with nnapi.registered(device("adder", "ADD")):
        plan = compiled(choosing(tensor(4))).plan
    assert plan.places == [None]
    assert "device" not in document(plan.model, places=plan.places)["operations"][0]


def test_devices_of_operations_that_were_added_in_another_order() -> None:
    b = Builder()
    x, y, z = (b.operand(tensor(4)) for _ in range(3))
    b.model.add_operation(Operation.RELU, [y], [z])
    b.model.add_operation(Operation.LOGISTIC, [x], [y])
    model = b.finish([x], [z])
    with nnapi.registered(device("npu", "RELU")):
        plan = compiled(model).plan
    assert [one and one.name for one in plan.places] == ["nnapi-reference", "npu"]
    assert [one["device"] for one in document(model, {}, plan.places)["operations"]] == ["nnapi-reference", "npu"]
