"""Inputs of a run: --inputs and --input."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import natural
from ortconv.cli.options import FILE_OR_FOLDER, NATURAL
from ortconv.errors import FormatError, UsageError, located

if TYPE_CHECKING:
    import numpy as np

    from ortconv.arrays import ArrayCheck
    from ortconv.inputs.feeds import Draw
    from ortconv.ir.graph import Graph, Value

OPTIONS = (
    click.option(
        "--inputs",
        multiple=True,
        type=FILE_OR_FOLDER,
        metavar="FILE",
        help="Inputs by name as .npz, a test_data_set folder of onnx, or the file of a model's only input. "
        "Without it, inputs are generated.",
    ),
    click.option(
        "--input",
        "texts",
        multiple=True,
        metavar="SPEC",
        help="One input: NAME=FILE (.npy, .pb or an image; NAME=FILE:LOW..HIGH scales the pixels), or the form of a generated one: "
        "NAME:SHAPE, NAME:LOW..HIGH, NAME:SHAPE:LOW..HIGH, with a shape such as 1x3x224x224. May be repeated.",
    ),
    click.option("--seed", type=NATURAL, default=0, help="Seed of generated inputs."),
)

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"
_RANGE = rf"(?P<low>{_NUMBER})(?:\.\.(?P<high>{_NUMBER}))?"
_SHAPE = r"scalar|\d{1,18}(?:[x,]\d{1,18})*"
_SHAPED = rf"(?P<shape>{_SHAPE})(?::{_RANGE})?"
_RANGED = rf"(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})"
_SCALED = rf"(?P<path>.+):(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})"


class Inputs:
    """Arrays that the user gives, and the user's settings for generated ones."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.draws: dict[str, Draw] = {}


def read_inputs(graph: Graph, paths: Sequence[Path], texts: Sequence[str]) -> Inputs:
    """Parse --inputs and --input. UsageError if they do not fit the model."""
    found = Inputs()
    for path in paths:
        found.arrays |= _file(path, graph)
    for text in texts:
        value, rest = _addressed(text, graph)
        if rest.startswith("="):
            found.arrays[value.name] = _assigned(rest[1:], value)
        else:
            found.draws[value.name] = _draw(rest[1:], value)
    return found


def read_expected(path: Path, outputs: Sequence[Value]) -> dict[str, Any]:
    """Outputs by name, from an .npz file, a test_data_set folder, or a file with the model's only output."""
    if path.is_dir():
        return _data_set(path, "output", outputs)
    if path.suffix.lower() == ".npz":
        found = _named_arrays(path, outputs)
        if not found:
            raise UsageError(
                "it holds no outputs to check", file=path, hint="write them with numpy.savez(path, name=array)"
            )
        return found
    if len(outputs) != 1:
        raise UsageError(f"the model has {len(outputs)} outputs", file=path, hint="give them by name, as .npz")
    return {outputs[0].name: read_array(path, outputs[0])}


def _named_arrays(path: Path, values: Sequence[Value], check: ArrayCheck | None = None) -> dict[str, Any]:
    """The arrays of an .npz file for these inputs or outputs."""
    from ortconv.arrays import read_npz
    from ortconv.ir.types import restored

    types = {v.name: v.dtype for v in values}
    return {name: restored(array, types.get(name)) for name, array in read_npz(path, check).items()}


def read_array(path: Path, value: Value, check: ArrayCheck | None = None) -> Any:
    """The array of a .npy or .pb file. For .npy, `check` gets type and shape before the data is read."""
    suffix = path.suffix.lower()
    if suffix == ".pb":
        from ortconv.onnxio.tensors import read_value

        return read_value(path, value.type)
    if suffix != ".npy":
        hint = "give .npy, .pb, or an image such as .png, .jpg, .bmp or .ppm"
        raise UsageError(f"cannot read arrays from '{path.suffix}' files", file=path, hint=hint)
    from ortconv.arrays import read_npy
    from ortconv.ir.types import restored

    return restored(read_npy(path, value.name, check), value.dtype)


def _checking(values: Sequence[Value]) -> ArrayCheck:
    """A function that checks the type and shape of arrays for these inputs before their data is read."""
    from ortconv.ir.types import restored_type
    from ortconv.runtime.session import check_type

    known = {v.name: v for v in values}

    def check(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        if name not in known:
            from ortconv.inputs.feeds import stated

            raise UsageError(f"there is no input '{name}'", hint=stated(values))
        check_type(known[name], restored_type(dtype, known[name].dtype), shape)

    return check


def _file(path: Path, graph: Graph) -> dict[str, Any]:
    required = [v for v in graph.inputs if v.const is None]
    if path.is_dir():
        return _data_set(path, "input", graph.inputs)
    if path.suffix.lower() == ".npz":
        return _named_arrays(path, graph.inputs, _checking(graph.inputs))
    if path.suffix.lower() not in (".npy", ".pb") and not _is_image(path):
        raise FormatError("not an .npz archive", file=path, hint="write one with numpy.savez(path, name=array)")
    if len(required) != 1:
        names = ", ".join(v.name for v in required)
        raise UsageError(f"the model has {len(required)} inputs: {names}", hint=f"write --input NAME={path}")
    return {required[0].name: _read(path, required[0])}


def _data_set(folder: Path, kind: str, values: Sequence[Value]) -> dict[str, Any]:
    """The files input_0.pb, input_1.pb, ... of a folder, for values in this order."""
    found = {}
    for path in sorted(folder.glob(f"{kind}_*.pb")):
        number = natural(path.stem.removeprefix(f"{kind}_"))
        if number is None or number >= len(values):
            raise UsageError(f"the model has {len(values)} {kind}s, so none for {path.name}", file=folder)
        value = values[number]
        found[value.name] = read_array(path, value)
    if not found:
        raise UsageError(
            f"there is no {kind}_0.pb in this folder", file=folder, hint="give a test_data_set folder of onnx"
        )
    return found


def _addressed(text: str, graph: Graph) -> tuple[Value, str]:
    """Split a text into the input's name and the rest, which begins with = or :. Names may contain both characters."""
    for value in sorted(graph.inputs, key=lambda v: -len(v.name)):
        rest = text.removeprefix(value.name)
        if text.startswith(value.name) and rest[:1] in (":", "=", ""):
            return value, rest
    names = ", ".join(v.name for v in graph.inputs)
    raise UsageError(f"--input {text}: there is no such input", hint=f"the model's inputs: {names}")


def _assigned(text: str, value: Value) -> Any:
    path, low, high = Path(text), None, None
    match = None if _is_there(path) else re.fullmatch(_SCALED, text, re.IGNORECASE)
    if match is not None:
        path, low, high = Path(match["path"]), _finite(match["low"], value), _finite(match["high"], value)
    if not _is_there(path):
        raise UsageError(f"--input {value.name}: there is no file {str(path)[:200]}")
    if low is not None and not _is_image(path):
        raise UsageError(f"--input {value.name}: only images are scaled to a range", file=path)
    return _read(path, value, low, high)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # not a valid name for the system
        return False


def _read(path: Path, value: Value, low: float | None = None, high: float | None = None) -> Any:
    if not _is_image(path):
        return read_array(path, value, _checking([value]))
    from ortconv.cli.images import as_input, read_image
    from ortconv.ir.types import TensorType

    if not isinstance(value.type, TensorType):
        raise UsageError(f"input '{value.name}' is not a tensor, so it cannot be an image", file=path)
    with located(path):
        return as_input(read_image(path), value.type, low, high)


def _is_image(path: Path) -> bool:
    from ortconv.cli.images import SUFFIXES

    return path.suffix.lower() in SUFFIXES


def _draw(text: str, value: Value) -> Draw:
    from ortconv.inputs.feeds import Draw

    if not text:
        return Draw()
    match = re.fullmatch(_RANGED, text, re.IGNORECASE) or re.fullmatch(_SHAPED, text, re.IGNORECASE)
    if match is None:
        hint = "write NAME:SHAPE:LOW..HIGH, such as x:1x3x224x224:0..1, or one number for a constant input"
        raise UsageError(f"--input {value.name}: '{text}' is not a shape or range", hint=hint)
    parts = match.groupdict()
    dims = None if parts.get("shape") is None else _dims(parts["shape"].lower(), value)
    if parts["low"] is None:
        return Draw(dims)
    low = _finite(parts["low"], value)
    high = low if parts["high"] is None else _finite(parts["high"], value)
    _check_range(low, high, value)
    return Draw(dims, low, high)


def _check_range(low: float, high: float, value: Value) -> None:
    if low > high:
        raise UsageError(f"--input {value.name}: {low:g} is above {high:g}")
    is_integer = value.dtype is not None and not value.dtype.is_float
    if is_integer and not -(2**63) <= low <= high < 2**63:
        raise UsageError(f"--input {value.name}: {low:g}..{high:g} are not 64-bit integers")


LARGEST = 1e300


def _finite(text: str, value: Value) -> float:
    number = float(text)
    if abs(number) > LARGEST:
        raise UsageError(f"--input {value.name}: {text[:40]} is too large")
    return number


def _dims(text: str, value: Value) -> tuple[int, ...]:
    """A shape. UsageError for one that the input does not accept, or that does not fit in memory."""
    from ortconv.arrays import check_room
    from ortconv.ir.types import TensorType
    from ortconv.runtime.session import check_type

    type = value.type
    if not isinstance(type, TensorType):
        raise UsageError(f"--input {value.name}: a {type} has no shape")
    shape = () if text == "scalar" else tuple(map(int, re.split("[x,]", text)))
    check_type(value, type.dtype.numpy, shape)
    check_room(math.prod(shape) * max(8, type.dtype.numpy.itemsize), f"--input {value.name}: this shape")
    return shape
