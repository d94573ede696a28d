"""Compilation caching: tokens, file names, and the form in which the simulated devices store a model."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortconv.nnapi.codes import Operand, Operation, Preference, Priority
from ortconv.nnapi.device import Device
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.extension import Attributes
from ortconv.nnapi.model import Model
from ortconv.nnapi.operand import Lifetime, OperandType
from ortconv.nnapi.tracing import vlog

TOKEN_LENGTH = 32
MODEL_FILE, DATA_FILE = "1", "2"


@dataclass(frozen=True, slots=True)
class CacheFiles:
    model: tuple[Path, ...]
    data: tuple[Path, ...]

    @classmethod
    def of(cls, directory: str, token: bytes, device: Device) -> CacheFiles:
        """The files for a token, named by the directory, two letters for each byte of the token, the kind and a number."""
        letters = "".join(chr(65 + (byte & 15)) + chr(65 + (byte >> 4)) for byte in token)
        models, data = device.cache_files
        return cls(
            tuple(Path(f"{directory}{letters}{MODEL_FILE}{number}") for number in range(models)),
            tuple(Path(f"{directory}{letters}{DATA_FILE}{number}") for number in range(data)),
        )

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.model + self.data

    def create(self) -> bool:
        """Create the files, readable by their owner alone. False if that is not possible."""
        try:
            for path in self.paths:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            vlog.error("TypeManager", "cannot open cache file: {}", error)
            return False
        return True


def derived_token(
    token: bytes,
    device: Device,
    preference: Preference,
    priority: Priority,
    operations: Iterable[tuple[int, int]] = (),
    attributes: Attributes | None = None,
) -> bytes:
    """The token of one prepared model. It is derived from the client's token, the operations of the step as (source
    model, index), the device and its version, and the settings.
    """
    digest = hashlib.sha256(token)
    for source, index in operations:
        digest.update(struct.pack("<Ii", source, index))
    digest.update(device.name.encode() + device.version.encode() + struct.pack("<ii", preference, priority))
    for (name, code), data in sorted((attributes or {}).items()):
        digest.update(f"{name} {code} {len(data)} ".encode() + data)
    return digest.digest()


def save(model: Model, files: CacheFiles, owner: str) -> None:
    """Write a prepared model, its structure and large constants, to the files, with a digest of everything."""
    blobs: list[bytes] = []
    head = json.dumps({"owner": owner, "model": _document(model, blobs)}).encode()
    body = struct.pack("<Q", len(head)) + head + b"".join(struct.pack("<Q", len(blob)) + blob for blob in blobs)
    files.paths[0].write_bytes(hashlib.sha256(body).digest() + body)
    for path in files.paths[1:]:
        path.write_bytes(hashlib.sha256(body).digest())


def load(files: CacheFiles, owner: str) -> Model:
    """The model that `save` wrote. Raises OP_FAILED if a file is missing, is damaged or belongs to another owner."""
    try:
        content = files.paths[0].read_bytes()
        digest, body = content[:32], content[32:]
        if hashlib.sha256(body).digest() != digest or any(path.read_bytes() != digest for path in files.paths[1:]):
            raise op_failed("the cache is empty, damaged or not of one piece")
        size = struct.unpack_from("<Q", body)[0]
        head = json.loads(body[8 : 8 + size])
        if head["owner"] != owner:
            raise op_failed(f"the cache is {head['owner']}'s")
        return _model(head["model"], list(_blobs(body[8 + size :])))
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise op_failed(f"the cache cannot be read: {error}") from error


def _blobs(data: bytes) -> Iterable[bytes]:
    at = 0
    while at < len(data):
        size = struct.unpack_from("<Q", data, at)[0]
        yield data[at + 8 : at + 8 + size]
        at += 8 + size


def _document(model: Model, blobs: list[bytes]) -> dict[str, Any]:
    operands = []
    for operand in model.operands:
        kind, quant = operand.kind, operand.kind.channel_quant
        entry: dict[str, Any] = {
            "type": kind.type.name,
            "dims": kind.dims,
            "scale": kind.scale,
            "zero_point": kind.zero_point,
            "channel_quant": None if quant is None else [quant.dim, quant.scales],
            "lifetime": operand.lifetime.name,
        }
        if operand.value is not None:
            entry["blob"] = len(blobs)
            blobs.append(operand.value.tobytes())
        if operand.model is not None:
            entry["model"] = _document(operand.model, blobs)
        operands.append(entry)
    return {
        "operands": operands,
        "operations": [[one.code.name, one.inputs, one.outputs] for one in model.operations],
        "inputs": model.inputs,
        "outputs": model.outputs,
        "relaxed": model.relaxed,
    }


def _model(document: dict[str, Any], blobs: Sequence[bytes]) -> Model:
    model = Model()
    for entry in document["operands"]:
        kind = OperandType(Operand[entry["type"]], entry["dims"], entry["scale"], entry["zero_point"])
        index = model.add_operand(kind)
        if entry["channel_quant"] is not None:
            model.set_operand_symm_per_channel_quant_params(index, *entry["channel_quant"])
        if "blob" in entry:
            model.set_operand_value(index, np.frombuffer(blobs[entry["blob"]], np.uint8))
        elif "model" in entry:
            model.set_operand_value_from_model(index, _model(entry["model"], blobs))
        elif Lifetime[entry["lifetime"]] is Lifetime.NO_VALUE:
            model.set_operand_value(index, None)
    for name, inputs, outputs in document["operations"]:
        model.add_operation(Operation[name], inputs, outputs)
    model.identify_inputs_and_outputs(document["inputs"], document["outputs"])
    model.relax_computation_float32_to_float16(document["relaxed"])
    model.finish()
    return model
