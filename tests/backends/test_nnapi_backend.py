"""The backend "nnapi": what it claims, flags, devices, caching, bursts, and how it fails."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from quantized_models import quantized

from ortconv import nnapi
from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions, NnapiProgram, flags_of
from ortconv.backends.nnapi.claims import refusals, region_of
from ortconv.errors import BackendError, UsageError
from ortconv.ir.graph import Value
from ortconv.models import load
from ortconv.nnapi.errors import OutputTooSmallError
from ortconv.nnapi.simulated import SimulatedDevice
from ortconv.partition.units import units
from ortconv.runtime.placement import make_region
from ortconv.runtime.session import Session
from tests import unoptimized

RNG = np.random.default_rng(3)
X = {"x": RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)}


def saved(folder: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], outputs: str = "y") -> Path:
    """A model of one float input x, 1x3x8x8."""
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])]
    made = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs.split()]
    tensors = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, made, tensors)
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Two convolutions, between them an operator that NNAPI has not."""
    weights = {n: RNG.standard_normal((3, 3, 3, 3)).astype(np.float32) for n in ("w", "v")}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("HardSigmoid", ["b"], ["c"], "middle"),
        helper.make_node("Conv", ["c", "v"], ["y"], "last"),
    ]
    return saved(tmp_path, nodes, weights)


def programs(session: Session) -> list[NnapiProgram]:
    return [p for p, _ in session._main.programs if isinstance(p, NnapiProgram)]


def codes(session: Session) -> list[str]:
    return [o.code.name for p in programs(session) for o in p.lowered.model.operations]


def test_nodes_that_are_left_run_on_the_next_backend(split: Path) -> None:
    for backends in (["nnapi"], ["nnapi", "onnxruntime"]):
        session = Session(split, backends)
        other = backends[-1] if len(backends) > 1 else "numpy"
        assert [name for name, _ in session.regions] == ["nnapi", other, "nnapi"]
        assert [(p.backend, p.claim) for p in session.plan] == [("nnapi", 0), ("nnapi", 0), (other, None), ("nnapi", 1)]
        assert "HardSigmoid" in session.plan[2].refused["nnapi"]
        np.testing.assert_allclose(session.run(None, X)[0], unoptimized.run(split, X)[0], rtol=1e-5, atol=1e-5)
        assert [p.executions for p in programs(session)] == [1, 1]


def test_a_group_is_left_where_a_backend_before_took_a_node(split: Path) -> None:
    session = Session(split, ["numpy", "nnapi"])
    assert [name for name, _ in session.regions] == ["numpy"]


def test_a_partition_that_is_not_connected_is_one_model(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("HardSigmoid", ["x"], ["b"]),
        helper.make_node("Abs", ["x"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["d"]),
    ]
    path = saved(tmp_path, nodes, {}, "a d")
    session = Session(path, ["nnapi"])
    groups = [[n.op for n in region.nodes] for name, region in session.regions if name == "nnapi"]
    assert groups == [["Neg", "Abs", "Add"]]
    for got, want in zip(session.run(None, X), unoptimized.run(path, X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_images_are_transposed_once_at_each_border(split: Path) -> None:
    assert codes(Session(split, ["nnapi"])) == ["TRANSPOSE", "CONV_2D", "TRANSPOSE"] * 2
    assert codes(Session(split, [Nnapi(NnapiOptions(nchw=True))])) == ["CONV_2D", "CONV_2D"]


def test_layouts_pass_through_what_does_not_care(tmp_path: Path) -> None:
    weights = {
        "w": RNG.standard_normal((3, 3, 1, 1)).astype(np.float32),
        "k": RNG.standard_normal((3, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["c"]),
        helper.make_node("Add", ["c", "k"], ["d"]),
        helper.make_node("Concat", ["d", "a"], ["e"], axis=1),
        helper.make_node("ReduceMean", ["e"], ["f"], axes=[2, 3]),
        helper.make_node("Flatten", ["f"], ["y"]),
    ]
    path = saved(tmp_path, nodes, weights)
    session = Session(path, ["nnapi"])
    assert codes(session).count("TRANSPOSE") == 2
    np.testing.assert_allclose(session.run(None, X)[0], unoptimized.run(path, X)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        [("Neg", "x", "a"), ("Identity", "a", "b"), ("Identity", "x", "c")],
        [("Identity", "x", "a"), ("Abs", "x", "b"), ("Relu", "b", "c")],
    ],
    ids=["aliases", "read-by-others"],
)
def test_outputs_that_are_inputs_or_one_another(nodes: list[tuple[str, str, str]], tmp_path: Path) -> None:
    path = saved(tmp_path, [helper.make_node(op, [a], [b]) for op, a, b in nodes], {}, "a b c")
    session = Session(path, ["nnapi"])
    assert [name for name, _ in session.regions] == ["nnapi"]
    for got, want in zip(session.run(None, X), unoptimized.run(path, X), strict=True):
        np.testing.assert_array_equal(got, want)


def test_an_activation_that_others_read_stays_an_operation(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Add", ["x", "n"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Sub", ["a", "r"], ["y"]),
    ]
    path = saved(tmp_path, nodes, {})
    assert "RELU" in codes(Session(path, ["nnapi"]))


def test_initializers_share_one_memory(split: Path) -> None:
    model = programs(Session(split, ["nnapi"]))[0].lowered.model
    large = [o.value for o in model.operands if o.value is not None and o.value.nbytes > 128]
    assert large
    assert all(not value.flags.owndata for value in large)


def test_flags() -> None:
    assert flags_of("fp16, USE_NCHW,cpu-only") == {"fp16": True, "nchw": True, "cpu_only": True}
    assert flags_of("") == {}
    with pytest.raises(UsageError, match="no NNAPI flag 'fast'"):
        flags_of("fast")
    with pytest.raises(UsageError, match="exclude"):
        NnapiOptions(cpu_disabled=True, cpu_only=True)


def test_fp16_is_relaxed_and_computed_in_float16(split: Path) -> None:
    want = unoptimized.run(split, X)[0]
    session = Session(split, [Nnapi(NnapiOptions(fp16=True))])
    assert all(p.lowered.model.relaxed for p in programs(session))
    error = np.abs(session.run(None, X)[0] - want).max() / np.abs(want).max()
    assert 1e-5 < error < 1e-2
    on_cpu = Session(split, [Nnapi(NnapiOptions(fp16=True, cpu_only=True))])
    np.testing.assert_allclose(on_cpu.run(None, X)[0], want, rtol=1e-5, atol=1e-5)


def test_level_27_is_never_relaxed(tmp_path: Path) -> None:
    path = saved(tmp_path, [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])], {})
    session = Session(path, [Nnapi(NnapiOptions(fp16=True, feature_level=27))])
    assert [p.lowered.model.relaxed for p in programs(session)] == [False]


def test_devices_of_the_flags(split: Path) -> None:
    def devices(options: NnapiOptions) -> set[str]:
        session = Session(split, [Nnapi(options)])
        return {d.name for p in programs(session) for d in p.compilation.plan.devices}

    assert devices(NnapiOptions()) == {"sim-any"}
    assert devices(NnapiOptions(cpu_only=True)) == {"nnapi-reference"}
    assert devices(NnapiOptions(devices=("gpu-fp16",))) == {"sim-gpu"}
    assert devices(NnapiOptions(devices=("sample-float-slow",))) == {"nnapi-reference"}
    assert devices(NnapiOptions(devices=("sample-float-slow",), cpu_disabled=True)) == {"nnapi-sample_float_slow"}
    with nnapi.registered(nnapi.load_device("sample-float-fast")):
        assert devices(NnapiOptions()) == {"nnapi-sample_float_fast"}
    assert nnapi.get_device_count() == 1


def test_without_the_cpu_every_operation_needs_a_device(split: Path) -> None:
    options = NnapiOptions(devices=("npu-int8",), cpu_disabled=True)
    with pytest.raises(BackendError, match="TRANSPOSE runs on none of the devices sim-npu"):
        Session(split, [Nnapi(options)])


def test_the_effective_level_is_that_of_the_best_device() -> None:
    old = SimulatedDevice({"name": "old", "feature_level": 3})
    assert Nnapi(NnapiOptions(devices=(old,), cpu_disabled=True)).level == 29
    assert Nnapi(NnapiOptions(devices=(old,))).level == 31
    assert Nnapi(NnapiOptions(devices=(old,), feature_level=28, cpu_disabled=True)).level == 28


def test_faults_of_devices(split: Path) -> None:
    """A partition falls back to the CPU, unless that is disabled."""
    for faults in ({"compile": "OP_FAILED"}, {"execute": "OP_FAILED"}):
        profile = {
            "name": "broken",
            "faults": faults,
            "performance": {"default": {"exec_time": 0.1, "power_usage": 0.1}},
        }
        session = Session(split, [Nnapi(NnapiOptions(devices=(SimulatedDevice(profile),)))])
        np.testing.assert_allclose(session.run(None, X)[0], unoptimized.run(split, X)[0], rtol=1e-5, atol=1e-5)
        with pytest.raises(BackendError, match="broken"):
            Session(split, [Nnapi(NnapiOptions(devices=(SimulatedDevice(profile),), cpu_disabled=True))]).run(None, X)


def test_cache(split: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = NnapiOptions(devices=("gpu-fp16",), cache=tmp_path / "cache")
    want = Session(split, [Nnapi(options)]).run(None, X)[0]
    assert len(list((tmp_path / "cache").iterdir())) == 2
    prepared: list[str] = []
    monkeypatch.setattr(SimulatedDevice, "prepare", lambda self, model, options: prepared.append(self.name))
    np.testing.assert_array_equal(Session(split, [Nnapi(options)]).run(None, X)[0], want)
    assert not prepared


def test_burst_and_threads(split: Path) -> None:
    want = unoptimized.run(split, X)[0]
    session = Session(split, [Nnapi(NnapiOptions(burst=True))])
    wrong: list[float] = []

    def work() -> None:
        for _ in range(20):
            error = float(np.abs(session.run(None, X)[0] - want).max())
            wrong.extend([error] if error > 1e-5 else [])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [p.executions for p in programs(session)] == [80, 80]


@pytest.mark.parametrize("burst", [False, True])
def test_a_closed_session_runs_no_more(split: Path, burst: bool) -> None:
    session = Session(split, [Nnapi(NnapiOptions(burst=burst))])
    session.run(None, X)
    session.close()
    with pytest.raises(UsageError, match="session is closed"):
        session.run(None, X)


def test_a_unit_that_disagrees_about_a_quantization_is_left(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "t", "z"], ["d"]),
        helper.make_node("Tanh", ["d"], ["y"]),
    ]
    weights = {"s": np.float32(0.1), "t": np.float32(0.2), "z": np.uint8(128)}
    path = saved(tmp_path, nodes, {k: np.asarray(v) for k, v in weights.items()})
    session = Session(path, ["nnapi"])
    assert [(p.backend, p.claim) for p in session.plan] == [("nnapi", 0), ("numpy", None), ("nnapi", 1)]
    assert "NNAPI knows one of each for a tensor" in session.plan[1].refused["nnapi"]
    np.testing.assert_allclose(session.run(None, X)[0], unoptimized.run(path, X)[0], atol=1e-5)


def test_what_a_level_lacks_is_left(tmp_path: Path) -> None:
    """LeakyRelu is taken at level 28, but made of operations of level 29."""
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("LeakyRelu", ["a"], ["y"])]
    session = Session(saved(tmp_path, nodes, {}), [Nnapi(NnapiOptions(feature_level=28))])
    assert [p.backend for p in session.plan] == ["nnapi", "numpy"]
    assert "feature level" in session.plan[1].refused["nnapi"]


def cube(folder: Path, *nodes: onnx.NodeProto, weights: dict[str, np.ndarray] | None = None) -> Path:
    """Nodes on a float input x of five axes."""
    path = saved(folder, list(nodes), weights or {})
    model = onnx.load(path)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 2, 2, 3]))
    onnx.save(model, path)
    return path


def test_operators_that_the_runtime_refuses_are_left(tmp_path: Path) -> None:
    """Each alone, with what depends on it in a later partition, and with the reason."""
    path = cube(
        tmp_path,
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("Reshape", ["t", "shape"], ["r"]),
        helper.make_node("Exp", ["r"], ["e"]),
        helper.make_node("Neg", ["e"], ["n"]),
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Reshape", ["s", "shape"], ["u"]),
        helper.make_node("Add", ["n", "u"], ["y"]),
        weights={"shape": np.array([4, 6])},
    )
    session = Session(path, ["nnapi"])
    left = {p.node.op: p.refused["nnapi"] for p in session.plan if p.backend == "numpy"}
    assert "Tanh" in left
    assert all("rank 5" in reason for op, reason in left.items() if op in ("Tanh", "Sigmoid"))
    assert next(p for p in session.plan if p.node.op == "Add").backend == "nnapi"
    x = {"x": RNG.standard_normal((1, 2, 2, 2, 3)).astype(np.float32)}
    np.testing.assert_allclose(session.run(None, x)[0], unoptimized.run(path, x)[0], rtol=1e-5, atol=1e-6)


def test_refused_operators_are_found_at_once(tmp_path: Path) -> None:
    names = ["x", *(f"v{i}" for i in range(40)), "y"]
    path = cube(tmp_path, *(helper.make_node("Tanh", [a], [b]) for a, b in pairwise(names)))
    graph = load(path).graph
    reasons = refusals(region_of(graph, units(graph)), 31, False)
    assert list(reasons) == list(graph)
    assert all("TANH: x has rank 5" in reason for reason in reasons.values())


def test_units_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortconv.partition import partitioner

    asked = []
    monkeypatch.setattr(partitioner, "units", lambda nodes: asked.append(found := units(nodes)) or found)
    session = Session(quantized(tmp_path, per_channel=False), ["nnapi"])
    regions = {p.claim: p.units for p in session.plan if p.claim is not None}
    assert len(asked) == 1
    assert any(unit.is_group for members in regions.values() for unit in members)
    assert all(unit in asked[0] for members in regions.values() for unit in members)


def test_a_region_without_units_is_refused(split: Path) -> None:
    graph = load(split).graph
    with pytest.raises(BackendError, match="no claim groups"):
        Nnapi().compile(make_region(graph, list(graph)))


SCALED = {
    "linear": ((1.0, 1.0, 3.0, 1.3), {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}, "numpy"),
    "half pixel": ((1.0, 1.0, 2.0, 1.3), {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}, "numpy"),
    "corners": ((1.0, 1.0, 2.0, 1.3), {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, "nnapi"),
    "whole": ((1.0, 1.0, 1.5, 1.25), {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}, "nnapi"),
}


@pytest.mark.parametrize("name", SCALED)
def test_resizing_by_fractional_lengths_is_left(name: str, tmp_path: Path) -> None:
    """NNAPI knows lengths, not scales: 8 to 10 is a scale of 1.25, whatever the node says."""
    scales, attributes, backend = SCALED[name]
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    path = saved(tmp_path, [node], {"scales": np.array(scales, np.float32)})
    session = Session(path, ["nnapi"])
    assert [p.backend for p in session.plan] == [backend]
    np.testing.assert_allclose(session.run(None, X)[0], unoptimized.run(path, X)[0], rtol=1e-5, atol=1e-5)


def test_dynamic_dimensions_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, [helper.make_node("Tanh", ["x"], ["y"])], {})
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(model, path)
    session = Session(path, ["nnapi"])
    assert session.plan[0].backend == "numpy"
    assert "'x' has shape [N,3,8,8]" in session.plan[0].refused["nnapi"]


def test_outputs_of_unknown_shape_are_copied_out(split: Path) -> None:
    """They get more room where they need it."""
    model = load(split)
    output: Value = model.graph.outputs[0]
    output.type = type(output.type)(output.dtype)  # type: ignore[call-arg, arg-type, misc]
    session = Session(model, ["nnapi"])
    np.testing.assert_allclose(session.run(None, X)[0], unoptimized.run(split, X)[0], rtol=1e-5, atol=1e-5)


def empty_slice(axis: int, *nodes: onnx.NodeProto, folder: Path) -> Path:
    """Nodes behind a slice `e` of x that has no elements."""
    weights = {"from": np.array([1]), "axes": np.array([axis]), "w": np.ones((2, 3, 3, 3), np.float32)}
    return saved(folder, [helper.make_node("Slice", ["x", "from", "from", "axes"], ["e"]), *nodes], weights)


NODE = helper.make_node
EMPTY = {
    "alone": (2, [NODE("Relu", ["e"], ["y"])]),
    "joined": (2, [NODE("Relu", ["e"], ["a"]), NODE("Concat", ["a", "x", "e"], ["y"], axis=2)]),
    "added": (0, [NODE("Sigmoid", ["e"], ["a"]), NODE("Mul", ["a", "e"], ["y"])]),
    "convolved": (0, [NODE("Conv", ["e", "w"], ["a"], pads=[1, 1, 1, 1]), NODE("MaxPool", ["a"], ["y"], kernel_shape=[2, 2])]),
    "turned": (3, [NODE("Transpose", ["e"], ["a"], perm=[3, 0, 2, 1]), NODE("Tanh", ["a"], ["y"])]),
    "joined images": (
        0, [NODE("Conv", ["e", "w"], ["a"]), NODE("Conv", ["x", "w"], ["b"]), NODE("Concat", ["a", "b"], ["y"], axis=0)]
    ),
}  # fmt: skip
"""The axis that is sliced, and nodes behind it."""


@pytest.mark.parametrize("nchw", [False, True], ids=["nhwc", "nchw"])
@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors_inside_of_a_partition(name: str, nchw: bool, tmp_path: Path) -> None:
    axis, nodes = EMPTY[name]
    path = empty_slice(axis, *nodes, folder=tmp_path)
    session = Session(path, [Nnapi(NnapiOptions(nchw=nchw))])
    assert [name for name, _ in session.regions] == ["nnapi"]
    (want,), (got,) = unoptimized.run(path, X), session.run(None, X)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("level", "node", "left", "reason"),
    [
        (31, NODE("Neg", ["e"], ["y"]), 1, "the operations of Neg support no such tensor"),
        (31, NODE("ReduceMean", ["e"], ["y"], axes=[1]), 1, "the operations of ReduceMean support no such tensor"),
        (28, NODE("Relu", ["e"], ["y"]), 0, "the runtime has such tensors from feature level 29"),
    ],
)
def test_nodes_that_empty_tensors_make_fail_are_left(
    level: int, node: onnx.NodeProto, left: int, reason: str, tmp_path: Path
) -> None:
    path = empty_slice(2, node, folder=tmp_path)
    session = Session(path, [Nnapi(NnapiOptions(feature_level=level))])
    assert [p.backend for p in session.plan] == ["nnapi"] * left + ["numpy"] * (2 - left)
    assert f"'e' has shape [1,3,0,8]: {reason}" in session.plan[1].refused["nnapi"]
    assert session.run(None, X)[0].size == unoptimized.run(path, X)[0].size


def test_nnapi_is_not_fed_empty_tensors(tmp_path: Path) -> None:
    path = saved(tmp_path, [NODE("Relu", ["x"], ["a"]), NODE("Concat", ["a", "x"], ["y"], axis=0)], {})
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 0
    onnx.save(model, path)
    session = Session(path, ["nnapi"])
    assert "'x' has shape [1,3,0,8]: the runtime cannot be fed such a tensor" in session.plan[0].refused["nnapi"]
    assert session.run(None, {"x": np.zeros((1, 3, 0, 8), np.float32)})[0].shape == (2, 3, 0, 8)


@pytest.mark.parametrize("size", [(1 << 31) + 1, (1 << 62) + 1])
def test_numbers_beyond_32_bits_are_left_to_the_fallback(size: int, tmp_path: Path) -> None:
    path = saved(tmp_path, [helper.make_node("LRN", ["x"], ["y"], size=size)], {})
    session = Session(path, ["nnapi", "numpy"])
    assert {name for name, _ in session.regions} == ({"nnapi"} if size < 1 << 32 else {"numpy"})


class Insatiable(nnapi.Device):
    """Claims that no output has enough room."""

    name, version, type, level = "insatiable", "1", nnapi.DeviceType.ACCELERATOR, nnapi.FeatureLevel.LEVEL_8
    capabilities = nnapi.Capabilities.uniform(nnapi.Performance(0.1, 0.1))

    def supported_operations(self, model: nnapi.Model) -> list[bool]:
        return [True] * len(model.operations)

    def takes(self, code: nnapi.Operation, kind: nnapi.Operand) -> bool:
        return True

    def prepare(self, model: nnapi.Model, options: nnapi.PrepareOptions) -> nnapi.PreparedModel:
        return AsksForMore(model)


class AsksForMore(nnapi.PreparedModel):
    def __init__(self, model: nnapi.Model) -> None:
        self.shapes = [(kind.dims, False) for kind in model.output_types]

    def execute(self, *given: object) -> tuple[list[nnapi.Tensor], nnapi.Timing]:
        raise OutputTooSmallError(self.shapes)


def test_a_device_that_is_never_content(tmp_path: Path) -> None:
    path = saved(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], {})
    session = Session(path, [Nnapi(NnapiOptions(devices=(Insatiable(),)))])
    with session, pytest.raises(BackendError, match="asks for the room that it has"):
        session.run(None, X)
