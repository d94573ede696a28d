"""`numpy:reference`: plain kernels, node by node. Keeping a value never changes another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from ortconv.compare.gap import strict_gap
from ortconv.errors import UsageError
from ortconv.inputs.candidates import first_run
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session
from tests.conftest import FAST_NAMES


def test_a_step_is_a_node(sample: Path) -> None:
    session = Session(sample, ["numpy:reference"])
    feeds, _ = first_run(session)
    steps = [event for _ in range(3) for event in session.profile(feeds)]
    assert not any("+" in event.op for event in steps)


def test_outputs_do_not_depend_on_what_is_kept(sample: Path) -> None:
    session = Session(sample, ["numpy:reference"])
    feeds, want = first_run(session)
    inner = [v.name for node in session.model.graph for v in node.outputs if v is not None and not v.is_output]
    got = Session(sample, ["numpy:reference"], keep=inner).run(None, feeds)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_accelerated_outputs_do_not_depend_on_what_is_kept(sample: Path) -> None:
    plain = Session(sample)
    feeds, _ = first_run(plain)
    inner = [v.name for node in plain.model.graph for v in node.outputs if v is not None and not v.is_output]
    reference = Session(sample, ["numpy:reference"], keep=inner)
    want = dict(zip(inner, reference.run(inner, feeds), strict=True))
    for keep in (inner[:1], inner[len(inner) // 2 :][:1], inner[::7], inner):
        kept, fresh = Session(sample, keep=keep), Session(sample)
        names = [v.name for v in kept.model.graph.outputs]
        for _ in range(3):  # a later run is recorded
            for a, b in zip(fresh.run(names, feeds), kept.run([*names, *keep], feeds), strict=False):
                np.testing.assert_array_equal(a, b)
        for name, value in zip(keep, kept.run(keep, feeds), strict=True):
            np.testing.assert_array_equal(value, want[name])


def test_drawn_values_agree_with_the_outputs_that_follow_from_them() -> None:
    text = "g () => (float[8] y) { a = RandomNormal<shape = [8]>() b = Exp(a) y = Neg(b) }"
    model = from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}'))
    a, y = Session(model, keep="a").run(["a", "y"], {})
    np.testing.assert_allclose(y, -np.exp(a), rtol=1e-6)


def test_the_accelerated_backend_computes_the_same(sample: Path) -> None:
    accelerated = Session(sample)
    feeds, got = first_run(accelerated)
    for want, first, again in zip(
        Session(sample, ["numpy:reference"]).run(None, feeds), got, accelerated.run(None, feeds), strict=True
    ):
        assert strict_gap(want, first).within(0.02)  # quantized samples may differ by a step at ties
        assert strict_gap(want, again).within(0.02)


def test_unknown_settings_are_refused(sample: Path) -> None:
    with pytest.raises(UsageError, match="no setting 'refrence'"):
        Session(sample, ["numpy:refrence"])
