"""Estimates times on simulated devices, relative to a CPU backend.

A simulated device computes with NNAPI's reference kernels, which are slower than those of a CPU backend. So the nodes of each
partition also run on the numpy backend, and the times of the reference kernels are scaled to its time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ortconv.backends.nnapi.backend import NnapiOptions, NnapiProgram, RecordingBackend
from ortconv.backends.numpy_cpu import Numpy
from ortconv.nnapi import Device
from ortconv.nnapi.simulated import Metered, metered
from ortconv.runtime.backend import Program, Region

WARM_UP = 2
"""Runs of the numpy backend that are not measured: the first one plans, the second one records."""


class TimedPartitions(RecordingBackend):
    """The NNAPI backend, with timed partitions."""

    def __init__(self, options: NnapiOptions) -> None:
        super().__init__(options)
        self._timed: list[_TimedPartition] = []

    def compile(self, region: Region) -> Program:
        program = super().compile(region)
        assert isinstance(program, NnapiProgram)
        self._timed.append(_TimedPartition(program, region, self.accelerators))
        return self._timed[-1]

    def simulated(self, seconds: float) -> float | None:
        """The estimated time with simulated devices of the last run, which took `seconds` here; None if it used no simulated
        device.
        """
        if not any(partition.executions for partition in self._timed):
            return None
        return seconds + sum(partition.simulated_seconds() - partition.seconds for partition in self._timed)


class _TimedPartition:
    """A partition with its last run: seconds on this machine, and its executions on simulated devices."""

    def __init__(self, program: NnapiProgram, region: Region, devices: Iterable[Device]) -> None:
        self._program, self._devices = program, tuple(devices)
        self._baseline = Numpy().compile(region)
        self._inputs: list[Any] | None = None
        self.seconds = 0.0
        self.executions: list[Metered] = []

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if self._inputs is None:
            self._inputs = [np.array(one) for one in inputs]
            for _ in range(WARM_UP):
                self._baseline.run(self._inputs)
        with metered(self._devices) as self.executions:
            start = time.perf_counter()
            results = self._program.run(inputs)
            self.seconds = time.perf_counter() - start
        return results

    def simulated_seconds(self) -> float:
        """The estimated time of the last run, see the function `simulated_seconds`."""
        if not self.executions or self._inputs is None:
            return self.seconds
        start = time.perf_counter()
        self._baseline.run(self._inputs)
        return simulated_seconds(self.seconds, time.perf_counter() - start, self.executions)

    def close(self) -> None:
        self._program.close()


def simulated_seconds(seconds: float, baseline: float, executions: Sequence[Metered]) -> float:
    """The estimated time of a partition with these executions on devices.

    The partition took `seconds` here with the reference kernels, and its nodes take `baseline` seconds on the numpy backend. All
    computing time, including that on devices, is scaled by the ratio; launches, copies and delays are added.
    """
    beside = seconds - sum(one.seconds for one in executions)
    scale = baseline / (beside + sum(one.computing for one in executions))
    return scale * (beside + sum(one.on_hardware for one in executions)) + sum(one.overhead for one in executions)
