"""Damaged inputs other than models: arrays, images, profiles, configs, documents. Each command refuses them, or works."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ortconv import cli
from ortconv.optimizer import recipe
from tests.fuzz.campaign import Outcome
from tests.fuzz.damaged import damage_bytes

PIXELS = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)

COSTS = """
name = "Phone"
feature_level = 29
refused_ops = ["Resize"]
[cpu]
bytes_per_second = 5e9
[copies]
seconds_per_partition = 0.3e-3
"""

DEVICE = """
name = "sim"
type = "GPU"
feature_level = 4
fp16 = true
[accept]
types = ["TENSOR_FLOAT32", "TENSOR_FLOAT16"]
refuse = ["LSTM"]
[performance]
default = { exec_time = 0.4, power_usage = 0.6 }
[costs]
launch_us = 300.0
"""

PROJECT = """
output-dir = "out"
[options]
target-ort = "1.17"
validate = false
[targets.android]
use-nnapi = true
[models.net]
source = "net.onnx"
targets = ["android"]
[gates]
fail-on = ["size>+5%"]
"""

CONFIG = """!globally_allowed_types;float
ai.onnx;7,14;Add{"inputs": {"0": ["float", "int32_t"]}},Relu,OneHot
"""


class Input(NamedTuple):
    """A file without damage, and the commands that read it."""

    name: str
    data: bytes
    commands: tuple[str, ...]


def _saved(write: Callable[[io.BytesIO], None]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


INPUTS = (
    Input(
        "f.npz",
        _saved(lambda file: np.savez(file, x=PIXELS)),
        ("run net.onnx --inputs f.npz", "convert net.onnx -o n.ort --validate-with f.npz"),
    ),
    Input("y.npz", _saved(lambda file: np.savez(file, y=PIXELS)), ("run net.onnx --check y.npz",)),
    Input("f.npy", _saved(lambda file: np.save(file, PIXELS)), ("run net.onnx --input x=f.npy",)),
    Input("f.pb", numpy_helper.from_array(PIXELS, "x").SerializeToString(), ("run net.onnx --input x=f.pb",)),
    Input("f.ppm", b"P6 2 2 255\n" + bytes(12), ("run net.onnx --input x=f.ppm",)),
    Input(
        "f.bmp",
        b"BM" + struct.pack("<IIIIiiHHIIiiII", 70, 0, 54, 40, 2, 2, 1, 24, 0, 16, 1, 1, 0, 0) + bytes(16),
        ("run net.onnx --input x=f.bmp",),
    ),
    Input("costs.toml", COSTS.encode(), ("partition net.onnx --device costs.toml",)),
    Input(
        "f.toml",
        DEVICE.encode(),
        ("devices show f.toml", "run net.onnx --backend nnapi --device f.toml", "nnapi dump net.onnx --device f.toml"),
    ),
    Input("f.config", CONFIG.encode(), ("ops merge f.config -o o.config",)),
    Input("ortconv.toml", PROJECT.encode(), ("build",)),
    Input(
        "f.txt",
        recipe.text(recipe.make("basic")).encode(),
        ("convert net.onnx -o n.ort --pipeline f.txt --no-validate",),
    ),
)


def examine(seed: int) -> Outcome:
    """A fault is exit code 1, which stands for a bug, or an exception."""
    rng = Random(seed)
    chosen = rng.choice(INPUTS)
    command = rng.choice(chosen.commands)
    code, shown = run(chosen, command, damage_bytes(_with_number(chosen.data, rng), rng, moves=0.3))
    return Outcome("bug", f"{command}: {shown[-300:]}") if code == 1 else Outcome(f"exit {code}")


def run(chosen: Input, command: str, data: bytes) -> tuple[int, str]:
    """The exit code and output of a command in a folder with a model and this file."""
    before, shown = os.getcwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("net.onnx").write_bytes(_net())
            Path(chosen.name).write_bytes(data)
            with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
                return cli.main(command.split()), shown.getvalue()
        except Exception as error:
            return 1, f"{type(error).__name__}: {error}"
        finally:
            os.chdir(before)


def _net() -> bytes:
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, PIXELS.shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


def _with_number(data: bytes, rng: Random) -> bytes:
    """Replace a digit by another number, in two files of five."""
    places = [i for i, byte in enumerate(data) if byte in b"0123456789"]
    if not places or rng.random() < 0.6:
        return data
    at = rng.choice(places)
    return data[:at] + rng.choice((b"-1", b"1e400", b"9" * 20, b"9" * 5000, b"0x", b"nan", b"inf")) + data[at + 1 :]
