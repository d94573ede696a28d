"""`numpy:reference`: plain kernels, node by node. Keeping a value never changes another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortconv.compare.feeds import first_run
from ortconv.compare.tolerance import difference
from ortconv.errors import UsageError
from ortconv.runtime.session import Session


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


def test_the_accelerated_backend_computes_the_same(sample: Path) -> None:
    accelerated = Session(sample)
    feeds, got = first_run(accelerated)
    for want, first, again in zip(
        Session(sample, ["numpy:reference"]).run(None, feeds), got, accelerated.run(None, feeds), strict=True
    ):
        assert difference(want, first).within(0.02)  # quantized samples may differ by a step at ties
        assert difference(want, again).within(0.02)


def test_unknown_settings_are_refused(sample: Path) -> None:
    with pytest.raises(UsageError, match="no setting 'refrence'"):
        Session(sample, ["numpy:refrence"])
