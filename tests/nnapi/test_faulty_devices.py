"""No fault of a device changes a bit of what a model gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from nnapi_graphs import random_devices, random_model
from nnapi_models import bound, compiled

from ortconv import nnapi
from ortconv.ir.tensor import Array
from ortconv.nnapi.properties import PartitioningMode, override
from tests.batches import slow_except

MODES = ("sync", "async", "burst", "fenced")


def computed(
    compilation: nnapi.Compilation, feeds: Sequence[Array], dims: Sequence[tuple[int, ...]], mode: str
) -> list[bytes]:
    outputs = [np.zeros(one, np.float32) for one in dims]
    with bound(compilation, feeds, outputs) as execution:
        if mode == "sync":
            execution.compute()
        elif mode == "async":
            execution.start_compute().wait()
        elif mode == "burst":
            nnapi.Burst(compilation).compute(execution)
        else:
            with execution.start_compute_with_dependencies([]) as event:
                event.wait()
        found = [execution.get_output_operand_dimensions(index) for index in range(len(outputs))]
    assert found == list(dims)
    return [one.tobytes() for one in outputs]


def check(seed: int) -> None:
    model, feeds, dims = random_model(seed)
    with override(partition=PartitioningMode.OFF):
        wanted = computed(compiled(model), feeds, dims, "sync")
    fixed = all(kind.is_known for kind in model.output_types)  # fences need outputs of known dimensions
    with nnapi.registered(*random_devices(seed)):
        compilation = compiled(model)
        for mode in MODES[: 4 if fixed else 3]:
            assert computed(compilation, feeds, dims, mode) == wanted, f"seed {seed}, {mode}"


@pytest.mark.parametrize(
    "seeds", slow_except([range(10)], [range(start, start + 10) for start in range(0, 80, 10)]), ids=str
)
def test_no_different_bit(seeds: range) -> None:
    for seed in seeds:
        check(seed)


@pytest.mark.slow
def test_no_different_bit_in_many_graphs() -> None:
    for seed in range(1000, 2500):
        check(seed)
