"""Serialization of a TfliteModel."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from ortconv.errors import UnsupportedError
from ortconv.ir.tensor import Array
from ortconv.ortformat.emit import MASK, Emitter, Payloads, Segment
from ortconv.tflite.layout import IDENTIFIER, LARGEST_FILE, NEWER_CODE, OPERATORS, OPTIONS, TABLES, VERSION
from ortconv.tflite.model import Operator, Option, QuantizationParameters, Tensor, TfliteModel

SIGNATURE = "serving_default"
"""The default name of a signature."""
INLINE_BYTES = 127
ALIGNMENT = 4  # words


def serialize(model: TfliteModel, description: str = "") -> list[Segment]:
    """The bytes of a .tflite file as segments in order; large constants are the memory of their arrays.

    The same model gives the same bytes. UnsupportedError for more than 2 GiB.
    """
    return _ModelWriter(model).segments(description)


class _ModelWriter:
    def __init__(self, model: TfliteModel) -> None:
        self.model = model
        self.out = Emitter(TABLES, IDENTIFIER)
        self.payloads = Payloads()
        self.buffers: list[int] = [self.table("Buffer")]  # the first is for tensors without data
        self.codes: dict[tuple[str, int], int] = {}
        self._numbers: dict[bytes, int] = {}  # of buffers by digest

    def segments(self, description: str) -> list[Segment]:
        out, model = self.out, self.model
        tensors = [self.tensor(one) for one in model.tensors]
        operators = [self.operator(one) for one in model.operators]
        graph = self.table(
            "SubGraph", tensors=out.references(tensors), inputs=self.ints([at for _, at in model.inputs]),
            outputs=self.ints([at for _, at in model.outputs]), operators=out.references(operators),
            name=out.string(model.name),
        )  # fmt: skip
        signature = self.table(
            "SignatureDef", inputs=self.named(model.inputs), outputs=self.named(model.outputs),
            signature_key=out.string(SIGNATURE), subgraph_index=0,
        )  # fmt: skip
        root = self.table(
            "Model", version=VERSION, operator_codes=out.references([self.code(*key) for key in self.codes]),
            subgraphs=out.references([graph]), description=out.string(description), buffers=out.references(self.buffers),
            signature_defs=out.references([signature]),
        )  # fmt: skip
        head = out.finish(root)
        if (total := head.nbytes + self.payloads.nbytes) > LARGEST_FILE:
            message = f"the .tflite file would have {total} bytes, and the format has at most {LARGEST_FILE}"
            raise UnsupportedError(message, hint="export the partitions, not the whole, or quantize the weights")
        return [head, *self.payloads.segments]

    def table(self, kind: str, /, **fields: int) -> int:
        return self.out.table(self.out.shape(kind, *fields), *fields.values())

    def ints(self, values: Sequence[int]) -> int:
        return self.out.scalars("i", list(values))

    def named(self, ends: Sequence[tuple[str, int]]) -> int:
        pairs = [self.table("TensorMap", name=self.out.string(name), tensor_index=at) for name, at in ends]
        return self.out.references(pairs)

    def code(self, name: str, version: int) -> int:
        number = OPERATORS[name][0]
        oldest = min(number, NEWER_CODE)
        return self.table("OperatorCode", deprecated_builtin_code=oldest, version=version, builtin_code=number)

    def tensor(self, tensor: Tensor) -> int:
        fields = {
            "shape": self.ints([dim or 1 for dim in tensor.shape] if tensor.data is None else tensor.shape),
            "type": int(tensor.type),
            "buffer": 0 if tensor.data is None else self.buffer(tensor.data),
            "name": self.out.string(tensor.name),
            "has_rank": 1,
        }
        if tensor.data is None and 0 in tensor.shape:
            fields["shape_signature"] = self.ints([dim or -1 for dim in tensor.shape])
        if tensor.quantization is not None:
            fields["quantization"] = self.quantization(tensor.quantization)
        return self.table("Tensor", **fields)

    def quantization(self, q: QuantizationParameters) -> int:
        out = self.out
        return self.table(
            "QuantizationParameters", scale=out.scalars("f", q.scales), zero_point=out.scalars("q", q.zero_points),
            quantized_dimension=q.dimension,
        )  # fmt: skip

    def buffer(self, array: Array) -> int:
        """The number of the buffer with these elements. Constants with the same bytes share one."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = sha256(data.data).digest()
        if digest not in self._numbers:
            small = data.nbytes <= INLINE_BYTES
            at = self.out.vector(data.tobytes(), data.nbytes, ALIGNMENT) if small else self.payloads.add(data.data)
            self._numbers[digest] = len(self.buffers)
            self.buffers.append(self.table("Buffer", data=at))
        return self._numbers[digest]

    def operator(self, operator: Operator) -> int:
        kind = OPERATORS[operator.code][1]
        fields = {
            "opcode_index": self.codes.setdefault((operator.code, operator.version), len(self.codes)),
            "inputs": self.ints(operator.inputs),
            "outputs": self.ints(operator.outputs),
        }
        if kind:
            stated = {name: self.option(value) for name, value in operator.options.items()}
            fields |= {"builtin_options_type": OPTIONS[kind], "builtin_options": self.table(kind, **stated)}
        return self.table("Operator", **fields)

    def option(self, value: Option) -> int:
        if isinstance(value, float):
            return int.from_bytes(struct.pack("<f", value), "little")
        return int(value) & MASK if isinstance(value, int) else self.ints(value)
