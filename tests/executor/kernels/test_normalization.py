"""Normalizations against onnxruntime."""

import numpy as np
import pytest

from ortconv.errors import GraphError
from tests.batches import batched
from tests.executor.single_node import assert_same, compare, run_kernel, run_onnxruntime

MS = "com.microsoft"


def values(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def positive(rng, *shape, dtype=np.float32):
    return (rng.random(shape) + 0.1).astype(dtype)


@batched
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (1, 3, 2, 3, 4), (0, 3, 4, 4)])
def test_batch_normalization(rng, shape, opset, dtype):
    inputs = [
        values(rng, *shape, dtype=dtype),
        *(values(rng, 3, dtype=dtype) for _ in range(3)),
        positive(rng, 3, dtype=dtype),
    ]
    compare("BatchNormalization", inputs, {"epsilon": 1e-3}, opset=opset, atol=1e-5)


@pytest.mark.parametrize("opset", [9, 15])
def test_as_many_parameters_as_channels(rng, opset):
    """A single channel does not broadcast against the parameters: onnxruntime refuses it, too."""
    inputs = [rng.random((2, 1, 4), np.float32), *(rng.random(3, np.float32) for _ in range(4))]
    with pytest.raises(GraphError, match=r"a parameter has shape \[3\], the input has 1 channels"):
        run_kernel("BatchNormalization", inputs, opset=opset)
    with pytest.raises(Exception, match=r"dimension != 1|between 3 and 1"):
        run_onnxruntime("BatchNormalization", inputs, opset=opset)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_normalization_in_training(rng, dtype):
    x = values(rng, 2, 3, 4, 5, dtype=dtype)
    inputs = [x, *(values(rng, 3, dtype=dtype) for _ in range(3)), positive(rng, 3, dtype=dtype)]
    compare("BatchNormalization", inputs, {"training_mode": 1, "momentum": 0.7}, opset=15, n_outputs=3)
    compare("BatchNormalization", inputs, {"momentum": 0.7}, opset=9, n_outputs=5)


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (1, 3, 2, 3, 4)])
def test_instance_normalization(rng, shape):
    compare("InstanceNormalization", [values(rng, *shape), values(rng, 3), values(rng, 3)], {"epsilon": 1e-3})


@batched
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("axis", [-1, 0, 1, -2, 3])
def test_layer_normalization(rng, axis, bias, dtype):
    shape = (2, 3, 4, 5)
    inputs = [values(rng, *shape, dtype=dtype) * 3 + 1, values(rng, *shape[axis:], dtype=dtype)]
    if bias:
        inputs.append(values(rng, *shape[axis:], dtype=dtype))
    # The statistics of float64 are float32 by the specification; onnxruntime keeps float64.
    compare("LayerNormalization", inputs, {"axis": axis}, n_outputs=3 if dtype is np.float32 else 1, atol=1e-5)


def test_layer_normalization_without_a_stash_type(rng):
    inputs = [values(rng, 2, 5), values(rng, 5), values(rng, 5)]
    compare("LayerNormalization", inputs, {"stash_type": 0}, atol=1e-5)


@pytest.mark.parametrize(("scale", "axis"), [((5,), 1), ((4, 1), -2), ((3, 1, 5), 1)])
def test_layer_normalization_broadcasts_its_scale(rng, scale, axis):
    compare("LayerNormalization", [values(rng, 2, 3, 4, 5), values(rng, *scale)], {"axis": axis}, atol=1e-5)


@pytest.mark.parametrize("op", ["LayerNormalization", "SimplifiedLayerNormalization", "InstanceNormalization"])
def test_half_precision_is_rounded_once(rng, op):
    x = values(rng, 2, 3, 64, dtype=np.float16)
    n = 3 if op == "InstanceNormalization" else 64
    inputs = [x, values(rng, n, dtype=np.float16)]
    if op == "InstanceNormalization":
        inputs.append(values(rng, n, dtype=np.float16))
    got = run_kernel(op, inputs)[0]
    want = run_kernel(op, [v.astype(np.float32) for v in inputs])[0]
    assert_same(got, want.astype(np.float16), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2, 7), (2, 3, 8), (2, 3, 4, 5)])
def test_rms_normalization(rng, shape):
    inputs = [values(rng, *shape), values(rng, shape[-1])]
    compare("SimplifiedLayerNormalization", inputs, {"epsilon": 1e-3, "axis": -1}, opset=17)
    got = run_kernel("RMSNormalization", inputs, {"epsilon": 1e-3}, opset=23)
    assert_same(got, run_onnxruntime("SimplifiedLayerNormalization", inputs, {"epsilon": 1e-3, "axis": -1}, opset=17))


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_normalization(rng, beta, bias):
    inputs = [values(rng, 2, 3, 8), values(rng, 2, 3, 8), values(rng, 8)]
    inputs += [values(rng, 8) if beta else None, values(rng, 8) if bias else None]
    while inputs[-1] is None:
        inputs.pop()
    compare("SkipLayerNormalization", inputs, {"epsilon": 1e-4}, domain=MS, atol=1e-5)
    assert_same(run_kernel("SkipLayerNormalization", inputs, domain=MS, n_outputs=4)[3], skip_sum(inputs, 4))


@pytest.mark.parametrize("bias", [False, True])
def test_skip_simplified_layer_normalization(rng, bias):
    inputs = [values(rng, 2, 3, 8), values(rng, 2, 3, 8), values(rng, 8)] + [values(rng, 8)] * bias
    compare("SkipSimplifiedLayerNormalization", inputs, {"epsilon": 1e-4}, domain=MS, atol=1e-5)


def skip_sum(inputs, bias_at):
    total = inputs[0] + inputs[1]
    return total + inputs[bias_at] if len(inputs) > bias_at else total


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_embed_layer_normalization(rng, segments, mask):
    ids = rng.integers(0, 10, (2, 5)).astype(np.int32)
    segment_ids = rng.integers(0, 2, (2, 5)).astype(np.int32) if segments else None
    tables = [
        values(rng, 10, 8),
        values(rng, 6, 8),
        values(rng, 2, 8) if segments else None,
        values(rng, 8),
        values(rng, 8),
    ]
    inputs = [ids, segment_ids, *tables]
    if mask:
        inputs.append(np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32))
    compare("EmbedLayerNormalization", inputs, {"epsilon": 1e-6}, domain=MS, n_outputs=2, atol=1e-5)


@pytest.mark.parametrize(
    ("groups", "shape"), [(1, (2, 6, 5)), (2, (2, 6, 4, 3)), (6, (1, 6, 4, 3)), (3, (1, 6, 2, 2, 2))]
)
def test_group_normalization(rng, groups, shape):
    x, epsilon = values(rng, *shape), {"num_groups": groups, "epsilon": 1e-3}
    compare("GroupNormalization", [x, values(rng, groups), values(rng, groups)], epsilon, opset=18, atol=1e-5)
    compare("GroupNormalization", [x, values(rng, 6), values(rng, 6)], epsilon, opset=21, atol=1e-5)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_lp_normalization(rng, p, axis):
    x = values(rng, 3, 4, 5)
    x[:, :, 0] = 0
    x[0], x[:, 0] = 0, 0
    compare("LpNormalization", [x], {"axis": axis, "p": p})


@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (0, 1, 2, 3)])
def test_mean_variance_normalization(rng, axes):
    compare("MeanVarianceNormalization", [values(rng, 2, 3, 4, 5)], {"axes": list(axes)}, opset=13, atol=1e-5)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 4)])
def test_mean_variance_normalization_of_lower_rank(rng, shape):
    """onnxruntime ignores the default axes that the tensor lacks."""
    compare("MeanVarianceNormalization", [values(rng, *shape)], {}, opset=13, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_lrn(rng, size):
    attributes = {"size": size, "alpha": 0.02, "beta": 0.6, "bias": 1.5}
    compare("LRN", [values(rng, 2, 7, 3, 3)], attributes)
