"""Constants: packing, views and comparisons."""

from __future__ import annotations

import math

import ml_dtypes  # noqa: F401  the names of numpy dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper

from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import DType
from tests.batches import batched

DENSE = [d for d in DType if d not in (DType.UNDEFINED, DType.STRING)]
SUB_BYTE = [d for d in DENSE if d.bits < 8]


def all_codes(dtype: DType, size: int) -> np.ndarray:
    """Elements that between them have many bit patterns."""
    raw = np.random.default_rng(int(dtype)).integers(0, 256, size * 16, np.uint8)
    if dtype is DType.BOOL:
        return (raw[:size] & 1).astype(bool)
    if dtype.bits < 8:
        packed = memoryview(raw.tobytes())[: (size * dtype.bits + 7) // 8]
        return Tensor(dtype, (size,), packed).numpy()
    return raw.view(dtype.numpy)[:size]


@batched
@pytest.mark.parametrize("dtype", DENSE, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 5), (4, 0, 2), (7, 3, 1)], ids=str)
def test_elements_come_back_bit_for_bit(dtype: DType, shape: tuple[int, ...]) -> None:
    array = all_codes(dtype, math.prod(shape)).reshape(shape)
    tensor = Tensor.of(array, dtype)
    assert (tensor.dtype, tensor.shape, tensor.size, tensor.rank) == (dtype, shape, math.prod(shape), len(shape))
    assert tensor.nbytes == (math.prod(shape) * dtype.bits + 7) // 8
    again = Tensor(dtype, shape, memoryview(bytes(tensor.data)))
    assert again.numpy().dtype == dtype.numpy
    assert again.numpy().tobytes() == np.ascontiguousarray(array).tobytes()
    assert again.same(tensor)


@batched
@pytest.mark.parametrize("dtype", DENSE, ids=lambda d: d.name)
def test_layout_is_the_one_of_onnx(dtype: DType) -> None:
    array = all_codes(dtype, 5)
    message = numpy_helper.from_array(array, "t")
    assert message.data_type == dtype
    assert bytes(Tensor.of(array, dtype).data) == message.raw_data


@pytest.mark.parametrize("dtype", SUB_BYTE, ids=lambda d: d.name)
def test_values_of_packed_types(dtype: DType) -> None:
    message = helper.make_tensor("t", int(dtype), [3], np.array([1, 0, 1], np.float32).astype(dtype.numpy))
    message = numpy_helper.from_array(numpy_helper.to_array(message))
    tensor = Tensor(dtype, (3,), memoryview(message.raw_data))
    assert tensor.numpy().astype(np.float32).tolist() == [1, 0, 1]


def test_int4_and_int2_are_signed() -> None:
    assert Tensor(DType.INT4, (4,), memoryview(b"\x8f\x71")).numpy().astype(int).tolist() == [-1, -8, 1, 7]
    assert Tensor(DType.INT2, (4,), memoryview(b"\xe4")).numpy().astype(int).tolist() == [0, 1, -2, -1]
    assert Tensor(DType.UINT2, (3,), memoryview(b"\xe4")).numpy().astype(int).tolist() == [0, 1, 2]


def test_arrays_are_read_only_and_unaligned_views_work() -> None:
    data = memoryview(b"?" + np.arange(4, dtype=np.float32).tobytes())
    tensor = Tensor(DType.FLOAT, (2, 2), data[1:])
    np.testing.assert_array_equal(tensor.numpy(), [[0, 1], [2, 3]])
    assert np.shares_memory(tensor.numpy(), np.frombuffer(data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        tensor.numpy()[0, 0] = 5
    source = np.zeros(3)
    with pytest.raises(ValueError, match="read-only"):
        Tensor.of(source).numpy()[0] = 5
    assert source.flags.writeable


@pytest.mark.parametrize("array", [np.arange(12).reshape(3, 4).T, np.arange(9)[::-2], np.arange(4, dtype=">i4")])
def test_any_memory_layout_is_taken(array: np.ndarray) -> None:
    tensor = Tensor.of(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert bytes(tensor.data) == np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()


def test_strings() -> None:
    tensor = Tensor.of(np.array([["a", "ü"], ["", "\udcff"]]))
    assert tensor.dtype is DType.STRING
    assert tensor.data == (b"a", "ü".encode(), b"", b"\xff")
    assert tensor.nbytes == 4
    assert tensor.numpy().tolist() == [["a", "ü"], ["", "\udcff"]]
    assert Tensor.of([b"\xff"]).numpy().tolist() == ["\udcff"]


def test_same_looks_at_bits() -> None:
    nan = Tensor.of(np.array([np.nan, 0.0], np.float32))
    assert nan.same(Tensor.of(np.array([np.nan, 0.0], np.float32)))
    assert not nan.same(Tensor.of(np.array([np.nan, -0.0], np.float32)))
    assert not nan.same(Tensor.of(nan.numpy().reshape(2, 1)))
    assert not Tensor.of(np.int32(0)).same(Tensor.of(np.float32(0)))


def test_item() -> None:
    assert Tensor.of(np.float32(2.5)).item() == 2.5
    assert Tensor.of(np.array([[7]])).item() == 7
    with pytest.raises(ValueError, match="size"):
        Tensor.of([1, 2]).item()


def test_unknown_numpy_types_are_refused() -> None:
    with pytest.raises(KeyError):
        Tensor.of(np.zeros(2, "datetime64[s]"))


SPARSE_INDICES = [([1, 5], [[0, 1], [1, 2]]), ([], np.zeros((0, 2)))]


@pytest.mark.parametrize(("linear", "coordinates"), SPARSE_INDICES, ids=["two", "none"])
@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.INT64, DType.STRING, DType.BFLOAT16], ids=lambda d: d.name)
def test_sparse(linear: list[int], coordinates: list[list[int]], dtype: DType) -> None:
    values = ["1", "2"][: len(linear)] if dtype is DType.STRING else [1, 2][: len(linear)]
    zero = "" if dtype is DType.STRING else 0
    expected = np.full((2, 3), zero, dtype.numpy)
    expected.ravel()[np.array(linear, int)] = values
    for indices in (linear, coordinates):
        index = Tensor.of(np.array(indices, np.int64))
        dense = SparseTensor(Tensor.of(np.array(values, dtype.numpy), dtype), index, (2, 3)).dense()
        assert dense.dtype is dtype
        np.testing.assert_array_equal(dense.numpy(), expected)
