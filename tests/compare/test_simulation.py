"""Times on simulated devices."""

from __future__ import annotations

import pytest

from ortconv.compare.simulation import simulated_seconds
from ortconv.nnapi.simulated import Metered


@pytest.mark.parametrize(
    ("executions", "want"),
    [
        ([Metered(seconds=8.0, computing=8.0, on_hardware=8.0, overhead=0.0)], 1.0),  # as fast as this CPU
        ([Metered(seconds=8.0, computing=8.0, on_hardware=2.0, overhead=0.0)], 0.25),
        (
            [Metered(seconds=9.0, computing=8.0, on_hardware=2.0, overhead=3.0)],
            3.25,
        ),  # with a delay, which is not scaled
        ([Metered(seconds=4.0, computing=4.0, on_hardware=1.0, overhead=0.5)], 1.125),  # half of it on NNAPI's CPU
    ],
)
def test_computing_is_scaled_to_the_baseline(executions: list[Metered], want: float) -> None:
    seconds = 9.0 if executions[0].seconds == 9.0 else 8.0
    assert simulated_seconds(seconds, 1.0, executions) == pytest.approx(want)
