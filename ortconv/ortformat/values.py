"""Writes the tables of an .ort file that describe values: names, types and constants."""

from __future__ import annotations

from ortconv.errors import GraphError, UnsupportedError
from ortconv.ir.graph import Value
from ortconv.ir.symbols import is_stated
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import Dim, DType, MapType, OptionalType, SequenceType, SparseTensorType, TensorType, ValueType
from ortconv.ortformat import derived
from ortconv.ortformat.emit import Emitter, Payloads
from ortconv.ortformat.layout import LARGEST_FILE

INLINE_BYTES = 127
"""Payloads up to this size are stored in the metadata and shared; onnxruntime copies those in any case."""

UNLOADABLE = frozenset({DType.UNDEFINED, DType.COMPLEX64, DType.COMPLEX128})
"""Types that onnxruntime does not have."""

NO_CONSTANTS = UNLOADABLE | {t for t in DType if t > DType.FLOAT8E5M2FNUZ}
"""Types whose constants onnxruntime cannot read."""

FLOAT8 = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ})


class ValueWriter:
    """Writes the tables of values. Large payloads are collected in `payloads`, to be written after the metadata.

    `visits` counts the tables that onnxruntime's verifier visits; methods that write something shared return (index, visits below
    it). Error messages name `where`. `float8` is True once such a type has been written.
    """

    def __init__(self) -> None:
        self.out = Emitter()
        self.visits = 0
        self.float8 = False
        self.where = ""
        self.payloads = Payloads()
        self.types: dict[ValueType, tuple[int, int]] = {}

    # ------------------------------------------------------------------ text

    def text(self, text: str) -> int:
        """Write a name or doc string. onnxruntime reads them as C strings."""
        if "\0" in text:
            raise UnsupportedError(f"the text {text!r} contains a NUL, where onnxruntime would cut it off")
        return self.out.string(text)

    def optional_text(self, text: str) -> int | None:
        return self.text(text) if text else None

    # ------------------------------------------------------------------ values and types

    def value_type(self, value: Value, *, keep_shape: bool) -> tuple[int, int]:
        """(index of the type's table, visits below it); without shapes unless `keep_shape`. UnsupportedError if it is unknown."""
        type = value.type
        if isinstance(type, TensorType):
            type = derived.stored_type(value, type) if keep_shape else TensorType(type.dtype)
        found = self.types.get(type) if type is not None else None
        if found is not None:
            return found
        where = value.producer.label if value.producer is not None else f"value '{value.name}'"
        if type is None:
            raise UnsupportedError(
                f"the type of '{value.name}' is not known, and the ORT format needs it",
                node=where,
                hint="give the library of its operator with --custom-op-library, or add the type to the model (value_info)",
            )
        self.where = where
        made = self.types[type] = self.type_info(type)
        return made

    def type_info(self, type: ValueType) -> tuple[int, int]:
        """(index of the table, visits below it)."""
        out = self.out
        if isinstance(type, TensorType):
            tag = 1
            content, below = self.tensor_type(type)
        elif isinstance(type, SequenceType):
            element, below = self.type_info(type.element)
            tag, content = 2, out.pooled(out.shape("SequenceType", "elem_type"), element)
        elif isinstance(type, MapType):
            element, below = self.type_info(type.value)
            key = self.element_type(type.key)
            tag, content = 3, out.pooled(out.shape("MapType", "key_type", "value_type"), key, element)
        else:
            assert isinstance(type, (OptionalType, SparseTensorType))
            raise UnsupportedError(
                f"the type {type} cannot be written to the ORT format",
                node=self.where,
                hint="only tensors, sequences and maps can; constants in sparse form can too",
            )
        return out.pooled(out.shape("TypeInfo", "value_type", "value"), tag, content), below + 2

    def tensor_type(self, type: TensorType) -> tuple[int, int]:
        """(index of the table, visits below it)."""
        out = self.out
        dtype = self.element_type(type.dtype)
        if type.shape is None:
            return out.pooled(out.shape("TensorTypeAndShape", "elem_type"), dtype), 0
        dims = out.pooled_references(tuple([self.dimension(dim) for dim in type.shape]))
        shape = out.pooled(out.shape("Shape", "dim"), dims)
        return out.pooled(out.shape("TensorTypeAndShape", "elem_type", "shape"), dtype, shape), 1 + 2 * len(type.shape)

    def dimension(self, dim: Dim) -> int:
        """The index of the table of a dimension: a number, a stated symbol, or unknown."""
        out = self.out
        if isinstance(dim, str) and is_stated(dim):
            value = out.pooled(out.shape("DimensionValue", "dim_type", "dim_param"), 2, self.text(dim))
        elif isinstance(dim, int):
            value = out.pooled(out.shape("DimensionValue", "dim_type", "dim_value"), 1, dim)
        else:
            value = out.pooled(out.shape("DimensionValue"))
        return out.pooled(out.shape("Dimension", "value"), value)

    def element_type(self, dtype: DType, of: str = "values", refused: frozenset[DType] = UNLOADABLE) -> int:
        """The number of an element type. UnsupportedError for a refused one; `of` names the kind of content for the message."""
        if dtype in refused:
            raise UnsupportedError(
                f"the ORT format holds no {of} of element type {dtype.name.lower()}",
                node=self.where,
                hint="onnxruntime can run this model only from its .onnx form",
            )
        self.float8 = self.float8 or dtype in FLOAT8
        return int(dtype)

    # ------------------------------------------------------------------ constants

    def tensor(self, tensor: Tensor, name: str | None = None) -> int:
        """Write a constant. GraphError if its data do not fit its shape."""
        out = self.out
        dtype, data = self.element_type(tensor.dtype, "constants", NO_CONSTANTS), tensor.data
        if isinstance(data, tuple):
            count, needed, field = len(data), tensor.size, "string_data"
            content = out.references([out.string(item) for item in data])
        else:
            count, needed, field = data.nbytes, tensor.size * tensor.dtype.bits // 8, "raw_data"
            content = self.payload(data)
        if count != needed:
            raise GraphError(
                f"the constant has {count} elements or bytes where its shape needs {needed}", node=self.where
            )
        dims = out.scalars("q", tensor.shape)
        if name is None:
            return out.table(out.shape("Tensor", "dims", "data_type", field), dims, dtype, content)
        return out.table(out.shape("Tensor", "name", "dims", "data_type", field), self.text(name), dims, dtype, content)

    def sparse_tensor(self, sparse: SparseTensor, name: str) -> int:
        """Write a sparse constant, with indices into the flat tensor."""
        indices = derived.linear_indices(sparse)
        if indices.size != sparse.values.size:
            raise GraphError(f"{indices.size} indices for {sparse.values.size} values", node=self.where)
        self.visits += 3
        return self.out.table(
            self.out.shape("SparseTensor", "values", "indices", "dims"),
            self.tensor(sparse.values, name),
            self.tensor(indices),
            self.out.scalars("q", sparse.shape),
        )

    def payload(self, data: memoryview) -> int:
        """Write a vector of bytes: small ones in the metadata, others after it, with data aligned to 16 bytes."""
        count = data.nbytes
        if count <= INLINE_BYTES:
            return self.out.vector(data.tobytes(), count, 4)
        at = self.payloads.add(data)
        self.check_size(self.payloads.nbytes)
        return at

    def check_size(self, total: int) -> None:
        if total > LARGEST_FILE:
            raise UnsupportedError(
                f"the file would be larger than {LARGEST_FILE} bytes, the most that onnxruntime loads",
                hint="quantize the weights or store them as float16",
            )
