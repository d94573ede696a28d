"""Runs of a model: the numpy backend against onnxruntime with all its optimizations, in one process.

python tests/bench/run.py [MODEL ...] [--runs N] [--threads N] [--float16]

Prints medians of CPU time of runs taken in turn, and their ratio. With several threads it is the time on the clock, and
onnxruntime's threads do not spin between runs: they would take the other side's cores. --float16 measures copies of the models in
float16, and leaves out those with quantizers or subgraphs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from _processes import SAMPLES, medians, row, summary
from onnx import AttributeProto, TensorProto, numpy_helper

from ortconv.inputs.candidates import first_run
from ortconv.process import take_over
from ortconv.runtime.session import Session


def theirs(model: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # it warns of constants in float16 that it does not fold
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def compare(model: Path, runs: int, threads: int) -> float:
    """One line of the table; the ratio."""
    ours = Session(model, threads=threads)
    feeds, _ = first_run(ours)
    sessions = (ours, theirs(model, threads))
    for session in sessions * 3:
        session.run(None, feeds)
    clock = time.process_time if threads == 1 else time.perf_counter
    run, their_run = medians([lambda s=s: s.run(None, feeds) for s in sessions], runs, clock)
    row(model.stem, f"{run * 1e3:.2f} ms", f"{their_run * 1e3:.2f} ms", f"x{run / their_run:.2f}")
    return run / their_run


def halved(model: Path, folder: Path) -> Path | None:
    """A copy whose float32 constants, inputs and outputs are float16; None where not all of its operators take that."""
    proto = onnx.load(model)
    nodes, attributes = proto.graph.node, [a for node in proto.graph.node for a in node.attribute]
    if any("Quantize" in n.op_type for n in nodes) or any(a.type == AttributeProto.GRAPH for a in attributes):
        return None
    sizes = {name for n in nodes if n.op_type in ("Resize", "Upsample") for name in n.input[1:] if name}
    for tensor in (*proto.graph.initializer, *(a.t for n in nodes if n.output[0] not in sizes for a in n.attribute)):
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in sizes:
            numbers = np.clip(numpy_helper.to_array(tensor), -65504, 65504).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del proto.graph.value_info[:]
    onnx.save(proto, folder / model.name)
    return folder / model.name


def main() -> None:
    parser = argparse.ArgumentParser(description="The numpy backend against onnxruntime.")
    parser.add_argument("models", nargs="*", type=Path, default=SAMPLES)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--float16", action="store_true")
    options = parser.parse_args()
    take_over()
    row("model", "numpy", "theirs", "")
    with tempfile.TemporaryDirectory() as folder:
        models = [halved(model, Path(folder)) if options.float16 else model for model in options.models]
        ratios = [compare(model, options.runs, options.threads) for model in models if model is not None]
    if ratios:
        summary("a run in float16" if options.float16 else "a run", ratios, 2 if options.float16 else 1.3)


if __name__ == "__main__":
    main()
