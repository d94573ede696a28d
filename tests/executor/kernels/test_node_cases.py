"""The node test cases that come with onnx, through sessions."""

import importlib.util

import onnx
import pytest
from node_cases import RANDOM, node_cases, plain
from single_node import assert_same

from ortconv.runtime.session import Session

BFLOAT16_SUM = "the expectation sums softmax weights in bfloat16, rounding every addition; a sum is rounded once here"

WHOLE_LENGTHS = "onnxruntime aligns the corners of the result, the expectation those of a length with a fraction"

EXPECTED_FAILURES = {
    "test_attention_3d_causal_bf16": BFLOAT16_SUM,
    "test_attention_3d_causal_bf16_expanded": BFLOAT16_SUM,
    "test_attention_4d_causal_bf16": BFLOAT16_SUM,
    "test_attention_4d_causal_bf16_expanded": BFLOAT16_SUM,
    "test_attention_4d_causal_padded_kv_bf16": BFLOAT16_SUM,
    "test_attention_4d_causal_padded_kv_bf16_expanded": BFLOAT16_SUM,
    "test_attention_4d_padded_kv_bf16": BFLOAT16_SUM,
    "test_attention_4d_padded_kv_bf16_expanded": BFLOAT16_SUM,
    "test_resize_downsample_scales_cubic_align_corners": WHOLE_LENGTHS,
    "test_resize_downsample_scales_linear_align_corners": WHOLE_LENGTHS,
}

NO_PILLOW = importlib.util.find_spec("PIL") is None


def _parameter(case):
    marks = []
    if case.name in EXPECTED_FAILURES:
        marks.append(pytest.mark.xfail(reason=EXPECTED_FAILURES[case.name], strict=True))
    if case.name.startswith("test_image_decoder"):
        marks.append(pytest.mark.skipif(NO_PILLOW, reason="needs Pillow"))
    return pytest.param(case, id=case.name, marks=marks)


CASES = node_cases()


def _draws_numbers(case):
    nodes = [*case.model.graph.node, *(n for f in case.model.functions for n in f.node)]
    drops = case.name.startswith("test_training_dropout") and "zero_ratio" not in case.name
    return drops or any(n.op_type in RANDOM for n in nodes)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("case") / "case.onnx"


@pytest.mark.parametrize("case", [_parameter(c) for c in CASES])
def test_case(case, path):
    onnx.save(case.model, path)
    session = Session(path)
    names = [i.name for i in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        got = session.run(None, dict(zip(names, map(plain, inputs))))
        assert len(got) == len(outputs)
        for g, w in zip(got, map(plain, outputs)):
            if w is None:
                assert g is None
            elif _draws_numbers(case):
                assert (g.shape, g.dtype) == (w.shape, w.dtype)
            else:
                assert_same(g, w, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-7))


def test_the_table_names_only_cases_that_exist():
    assert len(CASES) > 1000
    assert EXPECTED_FAILURES.keys() <= {c.name for c in CASES}
