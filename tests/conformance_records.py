"""A folder of conformance records, as small as can be."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]


class Arrays:
    """The arrays of a file, by index."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, int, str]] = []

    def add(self, *numbers: float, dtype: str = "<f4") -> int:
        array = np.array(numbers, dtype)
        self.stored.append((dtype, array.size, b64encode(array.tobytes()).decode()))
        return len(self.stored) - 1


def operand(kind: str, lifetime: str, *dims: int, scale: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"type": kind, "dims": dims, "scale": scale, "zeroPoint": 0, "lifetime": lifetime, **more}


def relu(arrays: Arrays, name: str, want: tuple[float, ...], *, kind: str = "TENSOR_FLOAT32", **more: Any) -> Record:
    """RELU of (-1, 0, 2.5)."""
    dtype, scale = ("<f4", 0.0) if kind == "TENSOR_FLOAT32" else ("|u1", 0.5)
    x = (-1.0, 0.0, 2.5) if kind == "TENSOR_FLOAT32" else (0, 0, 5)
    return {
        "name": name,
        "model": {
            "operands": [operand(kind, life, 3, scale=scale) for life in ("SUBGRAPH_INPUT", "SUBGRAPH_OUTPUT")],
            "operations": [{"type": "RELU", "inputs": [0], "outputs": [1]}],
            "inputs": [0],
            "outputs": [1],
        },
        "subgraphs": [],
        "examples": [{"inputs": [arrays.add(*x, dtype=dtype)], "outputs": [arrays.add(*want, dtype=dtype)]}],
        "feature_level": 27,
        "relaxed": False,
        "expect_failure": False,
        **more,
    }


def add_with_constants(arrays: Arrays) -> Record:
    """ADD of an input and a constant in a memory, with a scalar that is copied."""
    return {
        "name": "add",
        "model": {
            "operands": [
                operand("TENSOR_FLOAT32", "SUBGRAPH_INPUT", 2),
                operand("TENSOR_FLOAT32", "CONSTANT_REFERENCE", 2, data=arrays.add(10.0, 20.0)),
                operand("INT32", "CONSTANT_COPY", data=arrays.add(0, dtype="<i4")),
                operand("TENSOR_FLOAT32", "SUBGRAPH_OUTPUT", 2),
            ],
            "operations": [{"type": "ADD", "inputs": [0, 1, 2], "outputs": [3]}],
            "inputs": [0],
            "outputs": [3],
        },
        "subgraphs": [],
        "examples": [{"inputs": [arrays.add(1.0, 2.0)], "outputs": [arrays.add(11.0, 22.0)]}],
        "feature_level": 28,
        "relaxed": False,
        "expect_failure": False,
    }


def write_records(folder: Path, *, wrong: bool = False) -> Path:
    """Write one file of records that a right device passes; with `wrong`, one more that it does not."""
    arrays = Arrays()
    good = (0.0, 0.0, 2.5)
    records = [
        relu(arrays, "relu", good),
        relu(arrays, "relu_again", good, lifetime_variation=True),
        relu(arrays, "relu_quant8", (0, 0, 5), kind="TENSOR_QUANT8_ASYMM"),
        add_with_constants(arrays),
    ]
    refused = relu(arrays, "relu_of_other_dims", good, expect_failure=True)
    refused["model"]["operands"][1]["dims"] = [4]
    records.append(refused)
    if wrong:
        records.append(relu(arrays, "relu_wrong", (0.0, 0.0, 2.6)))
    path = folder / "V1_0" / "small.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps({"arrays": arrays.stored, "records": records}).encode()))
    return folder
