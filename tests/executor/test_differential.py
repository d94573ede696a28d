"""Every operator of com.microsoft that has a kernel, against onnxruntime's kernel on random cases.

A few cases of each by default; `--differential 200` draws that many. onnxruntime multiplies integers exactly here
(session.x64quantprecision), which its default on x86 does not. Integers are equal but for the operators that say why not.
"""

import zlib

import numpy as np
import pytest
from differential import OPERATORS, Draw
from single_node import run_kernel, run_onnxruntime

FEW = 8


def pytest_generate_tests(metafunc):
    if "index" in metafunc.fixturenames:
        metafunc.parametrize("index", range(metafunc.config.getoption("--differential") or FEW))


def assert_within(got, want, tolerance):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind in "iu":
        difference = np.abs(got.astype(np.int64) - want.astype(np.int64))
        assert difference.max(initial=0) <= tolerance.integer
        assert np.count_nonzero(difference) <= tolerance.share * max(difference.size, 50)
    else:
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), tolerance.rtol, tolerance.atol, equal_nan=True
        )


@pytest.mark.parametrize("op", OPERATORS)
def test_as_onnxruntime(op, index):
    draw, tolerance, domain, _ = OPERATORS[op]
    case = draw(Draw([zlib.crc32(op.encode()), index]))
    options = {"domain": domain, "n_outputs": case.n_outputs}
    want = run_onnxruntime(op, case.inputs, case.attributes, **options)
    got = run_kernel(op, case.inputs, case.attributes, **options)
    for g, w in zip(got, want, strict=True):
        assert_within(g, w, tolerance)


def test_integers_may_differ_only_where_a_reason_is_given():
    for operator in OPERATORS.values():
        assert bool(operator.tolerance.integer) == bool(operator.why)
