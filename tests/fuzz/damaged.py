"""Damaged models: bytes, fields of messages and whole parts are changed. Each is refused with an error of ortconv, or works."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx

import ortconv
from ortconv.errors import InternalError, OrtconvError
from tests.fuzz import graphs
from tests.fuzz.campaign import Outcome
from tests.fuzz.graphs import ImpossibleError

INTEGERS = (0, 1, -1, 2, 7, 127, 255, -128, 65536, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"))
MOST_ELEMENTS = 1e6
TARGETS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"use_nnapi": True},
    {"use_coreml": True},
    {"optimization_style": "Runtime"},
)


@cache
def _nodes() -> list[Path]:
    return sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").glob("*/*/model.onnx"))


@cache
def _samples() -> list[Path]:
    return sorted((Path(__file__).resolve().parents[2] / "sample_models").glob("*.onnx"))


def _source(rng: Random) -> bytes:
    """A model without damage: a sample, a test of an operator, or a random graph."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice(_samples()).read_bytes()
    if kind < 4 and _nodes():
        return rng.choice(_nodes()).read_bytes()
    while True:
        try:
            data: bytes = graphs.made(rng.randrange(1 << 20))[0].SerializeToString()
        except ImpossibleError:
            continue
        return data


# ---------------------------------------------------------------------- damage


def damage_bytes(data: bytes, rng: Random, moves: float = 0.5) -> bytes:
    """Change some bytes, or cut out or repeat some with a probability of `moves`."""
    out = bytearray(data)
    for _ in range(1 + rng.randrange(3)):
        at, count = rng.randrange(len(out)), 1 + rng.randrange(min(8, len(out)))
        way = 2 * (rng.random() < moves) + rng.randrange(2)
        if way == 0:
            out[at] = rng.choice((0, 1, 2, 3, 4, 8, 127, 128, 255))
        elif way == 1:
            out[at] ^= 1 << rng.randrange(8)
        elif way == 2 and len(out) > 2 * count:
            del out[at : at + count]
        else:
            out[at:at] = out[at : at + count]
    return bytes(out)


def damage_fields(data: bytes, rng: Random) -> bytes:
    """Change some fields of a model's messages: other numbers and names, parts removed, repeated or moved."""
    proto = onnx.ModelProto.FromString(data)
    for _ in range(1 + rng.randrange(3)):
        fields = list(_fields(proto.graph if rng.random() < 0.9 else proto))
        if fields:
            message, field = rng.choice(fields)
            _change(message, field, rng, [v for node in proto.graph.node for v in (*node.input, *node.output)])
    out: bytes = proto.SerializeToString()
    return out


def _fields(message: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """(message, field) of all fields that are set."""
    for field, value in message.ListFields():
        yield message, field
        if field.type == field.TYPE_MESSAGE and depth < 12:
            for one in value if field.is_repeated else (value,):
                yield from _fields(one, depth + 1)


def _change(message: Any, field: Any, rng: Random, names: list[str]) -> None:
    value = getattr(message, field.name)
    if field.is_repeated:
        _change_list(value, field, rng, names)
    elif field.type == field.TYPE_MESSAGE or rng.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _other(field, rng, names))


def _change_list(values: Any, field: Any, rng: Random, names: list[str]) -> None:
    if not len(values):
        return
    at, way = rng.randrange(len(values)), rng.randrange(4)
    if way == 0:
        del values[at]
    elif way == 1:
        values.append(values[at])
    elif way == 2 and len(values) > 1:
        other, kept = rng.randrange(len(values)), list(values)
        kept[at], kept[other] = kept[other], kept[at]
        copies = [_copy(one) for one in kept]
        del values[:]
        values.extend(copies)
    elif field.type != field.TYPE_MESSAGE:
        values[at] = _other(field, rng, names)


def _copy(value: Any) -> Any:
    if not hasattr(value, "CopyFrom"):
        return value
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def _other(field: Any, rng: Random, names: list[str]) -> Any:
    """Another value for a field of a simple type."""
    if field.type == field.TYPE_STRING:
        return rng.choice([*names, "", "x", "Relu", "com.microsoft", "\0", "a" * 300])
    if field.type == field.TYPE_BYTES:
        return rng.randbytes(rng.randrange(16))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type == field.TYPE_ENUM:
        return rng.choice([one.number for one in field.enum_type.values])
    if field.type in (field.TYPE_INT32, field.TYPE_SINT32):
        return rng.choice([n for n in INTEGERS if abs(n) < 1 << 31])
    return rng.choice([n for n in INTEGERS if n >= 0 or field.type != field.TYPE_UINT64])


# ---------------------------------------------------------------------- examinations


def examine_onnx(seed: int) -> Outcome:
    rng = Random(seed)
    data = _source(rng)
    damaged = (damage_bytes if rng.random() < 0.3 else damage_fields)(data, rng)
    target: dict[str, Any] = rng.choice(TARGETS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(damaged)
        return outcome(lambda: ortconv.convert(path, Path(folder) / "model.ort", validate_budget="4s", **target))


def examine_ort(seed: int) -> Outcome:
    rng = Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.ort"
        source = Path(folder) / "model.onnx"
        source.write_bytes(_source(rng))
        try:
            style = rng.choice(["Fixed", "Runtime"])
            ortconv.convert(source, path, validate=False, optimization_style=style)
        except OrtconvError:
            return Outcome("no file")
        path.write_bytes(damage_bytes(path.read_bytes(), rng, moves=0.05))
        found = outcome(lambda: ortconv.verify(path))
        backend = rng.choice(["numpy", "numpy", "nnapi", "onnxruntime"])
        return found if found.fault else outcome(lambda: _run(path, backend))


def _run(path: Path, backend: str) -> None:
    with ortconv.Session(path, backend) as session:
        feeds = {}
        for arg in session.get_inputs():
            shape = [n if isinstance(n, int) else 2 for n in arg.shape or ()]
            if len(shape) > 8 or np.prod([max(float(n), 1.0) for n in shape]) > MOST_ELEMENTS:
                return
            feeds[arg.name] = np.ones(shape, _DTYPES.get(arg.type, np.float32))
        session.run(None, feeds)


_DTYPES: dict[str, Any] = {
    "tensor(float16)": np.float16, "tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8, "tensor(int8)": np.int8, "tensor(bool)": np.bool_,
}  # fmt: skip


def outcome(work: Callable[[], object]) -> Outcome:
    """A fault is an exception that is no error of ortconv, or one of its bugs."""
    try:
        work()
    except InternalError as error:
        return Outcome("bug", str(error))
    except OrtconvError:
        return Outcome("refused")
    except Exception as error:
        return Outcome("raw exception", f"{type(error).__name__}: {error}")
    return Outcome("works")
