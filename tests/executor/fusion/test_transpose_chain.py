"""Chains of Reshape and Transpose are one step, which moves elements as the nodes one by one would."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortconv.errors import BackendError
from ortconv.executor.algorithms.sliding_window import channels_first
from ortconv.executor.replay.recorder import Recorder
from ortconv.runtime.session import Session


def model(steps, *, dtype=TensorProto.FLOAT, rank=4, opset=17, between=None):
    """x through Reshape (shape, allowzero) and Transpose (order, None) steps; `between` is also an output."""
    nodes, values, last = [], [], "x"
    for i, (numbers, allow_zero) in enumerate(steps):
        if allow_zero is None:
            nodes.append(helper.make_node("Transpose", [last], [f"v{i}"], **({"perm": numbers} if numbers else {})))
        else:
            values.append(helper.make_tensor(f"s{i}", TensorProto.INT64, [len(numbers)], numbers))
            more = {"allowzero": allow_zero} if allow_zero else {}
            nodes.append(helper.make_node("Reshape", [last, f"s{i}"], [f"v{i}"], **more))
        last = f"v{i}"
    outputs = [helper.make_tensor_value_info(name, dtype, None) for name in filter(None, (last, between))]
    source = helper.make_tensor_value_info("x", dtype, [None] * rank)
    graph = helper.make_graph(nodes, "g", [source], outputs, values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def one_by_one(steps, x):
    for numbers, allow_zero in steps:
        x = x.transpose(numbers or None) if allow_zero is None else x.reshape(resolved(numbers, x.shape, allow_zero))
    return x


def resolved(numbers, shape, allow_zero):
    return [shape[i] if n == 0 and not allow_zero else n for i, n in enumerate(numbers)]


@pytest.fixture
def session_of(tmp_path):
    def session(made):
        onnx.save(made, tmp_path / "m.onnx")
        return Session(tmp_path / "m.onnx")

    return session


def step_count(session):
    return len(session._main.programs[0][0].steps)


def random_chain(rng, size):
    """Steps that divide and join axes at random, among them the shapes with 0 and -1."""
    steps, shape = [], list(size)
    for i in range(int(rng.integers(3, 7))):
        if i % 2:
            order = rng.permutation(len(shape)).tolist()
            steps.append((order, None))
            shape = [shape[axis] for axis in order]
            continue
        left, new = int(np.prod(shape)), []
        while left > 1 and len(new) < 5:
            d = int(rng.choice([n for n in range(1, left + 1) if left % n == 0]))
            new.append(d)
            left //= d
        new.append(left)
        numbers = new.copy()
        if rng.random() < 0.5:
            numbers[int(rng.integers(len(new)))] = -1
        for j, n in enumerate(new):
            if j < len(shape) and shape[j] == n and numbers[j] == n and rng.random() < 0.5:
                numbers[j] = 0
        steps.append((numbers, 0))
        shape = new
    return steps


@pytest.mark.parametrize("seed", range(40))
def test_chains(seed, session_of):
    rng = np.random.default_rng(seed)
    size = rng.choice([1, 2, 3, 4, 6, 8, 12], 4).tolist()
    steps = random_chain(rng, size)
    session = session_of(model(steps))
    for _ in range(3):  # the third run is done by what the second one recorded
        x = rng.standard_normal(size).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], one_by_one(steps, x))


RNG = np.random.default_rng(5)

SHUFFLE = [([0, 4, 6, 5, 5], 0), ([0, 2, 1, 3, 4], None), ([0, -1, 5, 5], 0)]


@pytest.mark.parametrize("dtype", ["FLOAT16", "INT4", "STRING", "BOOL", "COMPLEX128"])
def test_types(dtype, session_of):
    kind = getattr(TensorProto, dtype)
    x = np.arange(600).reshape(1, 24, 5, 5)
    x = (
        (x % 7).astype(str).astype(object)
        if dtype == "STRING"
        else (x % 7).astype(helper.tensor_dtype_to_np_dtype(kind))
    )
    session = session_of(model(SHUFFLE, dtype=kind, opset=21))
    assert step_count(session) == 1
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], one_by_one(SHUFFLE, x))


def test_unfolding_of_channels_last_images_is_one_copy_of_runs(session_of):
    """As in MobileViT, where the images come from a convolution."""
    steps = [([64 * 8, 2, 8, 2], 0), ([0, 2, 1, 3], None), ([1, 64, 64, 4], 0), ([0, 3, 2, 1], None), ([4, 64, 64], 0)]
    function, *_ = session_of(model(steps))._main.programs[0][0].steps[0]
    images = channels_first(np.arange(64 * 256, dtype=np.float32).reshape(1, 16, 16, 64))
    recorder = Recorder()
    np.testing.assert_array_equal(function.record(recorder, images), one_by_one(steps, images))
    ((call, (target, _)),) = recorder.calls()
    assert (call, target.itemsize) == (np.copyto, 64 * 4)


def test_axes_that_are_cut_unevenly(session_of):
    steps = [([9, 4], 0), ([1, 0], None), ([6, 6], 0), ([1, 0], None), ([36], 0)]
    x = np.arange(36, dtype=np.float32).reshape(6, 6)
    session = session_of(model(steps, rank=2))
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], one_by_one(steps, x))


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ((0, 3), [([0, 0, 3], 1), ([], None), ([3, 0, 0], 1)]),
        ((2, 0, 4), [([8, 0], 1), ([1, 0], None), ([0, 2, 4], 1)]),
        ((1, 1), [([-1], 0), ([], None), ([1, 1, 1], 0)]),
        ((), [([1, 1], 0), ([1, 0], None), ([], 0)]),
    ],
)
def test_nothing_and_little(shape, steps, session_of):
    x = np.ones(shape, np.float32)
    session = session_of(model(steps, rank=len(shape)))
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], one_by_one(steps, x))


def test_what_is_read_outside_is_made(session_of):
    x = RNG.standard_normal((1, 24, 5, 5)).astype(np.float32)
    session = session_of(model(SHUFFLE, between="v1"))
    for _ in range(3):
        last, inner = session.run(None, {"x": x})
        np.testing.assert_array_equal(last, one_by_one(SHUFFLE, x))
        np.testing.assert_array_equal(inner, one_by_one(SHUFFLE[:2], x))


def test_a_shape_that_does_not_fit(session_of):
    session = session_of(model([([0, 5, -1, 5, 5], 0), *SHUFFLE[1:]]))
    with pytest.raises(BackendError, match="Reshape"):
        session.run(None, {"x": np.ones((1, 24, 5, 5), np.float32)})
