"""What the benchmarks of latency share: onnxruntime sessions with one thread, and their time in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

Feeds = Mapping[str, np.ndarray]


def session(model: Path | onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session that runs the model as it is."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def seconds(sessions: Sequence[onnxruntime.InferenceSession], feeds: Feeds, rounds: int) -> list[float]:
    """The tenth percentile of the CPU time of each session's runs. A session gets the feeds that it has inputs for.

    The sessions run in turn, and another one begins each round: a session that ran twice in succession would find its weights in
    the cache more often than the others. A run that is not measured comes before each that is, for the same reason.
    """
    times: list[list[float]] = [[] for _ in sessions]
    named = [{i.name: feeds[i.name] for i in each.get_inputs()} for each in sessions]
    entries = list(zip(sessions, named, times, strict=True))
    for i in range(rounds):
        first = i % len(entries)
        for each, fed, own in entries[first:] + entries[:first]:
            each.run(None, fed)
            start = time.thread_time()
            each.run(None, fed)
            own.append(time.thread_time() - start)
    return [statistics.quantiles(own, n=10)[0] for own in times]
