"""Costs against figures worked out by hand, device profiles, and which partitions the limits keep."""

from __future__ import annotations

from pathlib import Path

import pytest
from partition_graphs import SCALE, f32, make, mnist, node, taken_ops, u8

from ortconv.errors import UsageError
from ortconv.onnxio.load import from_proto
from ortconv.partition import Target, partition
from ortconv.partition.cost import cost, estimate, multiply_adds, seconds, touched
from ortconv.partition.limits import Limits, limit
from ortconv.partition.profile import Copies, DeviceProfile, Speed, read_device
from tests.arrays import i64

MULTIPLY_ADDS = [
    ("float[1,3,8,8] x", "y = Conv (x, w)", {"w": f32(16, 3, 3, 3)}, 16 * 6 * 6 * 3 * 9),
    ("float[1,4,8,8] x", "y = Conv <group = 4> (x, w)", {"w": f32(4, 1, 3, 3)}, 4 * 6 * 6 * 9),
    ("float[1,3,8,8] x", "y = ConvTranspose (x, w)", {"w": f32(3, 5, 2, 2)}, 3 * 8 * 8 * 5 * 4),
    ("float[2,7] x", "y = MatMul (x, w)", {"w": f32(7, 5)}, 2 * 7 * 5),
    ("float[3,2,7] x", "y = MatMul (x, w)", {"w": f32(7, 5)}, 3 * 2 * 7 * 5),
    ("float[7,2] x", "y = Gemm <transA = 1> (x, w)", {"w": f32(7, 5)}, 2 * 7 * 5),
    ("float[2,7] x", "y = Gemm <transB = 1> (x, w)", {"w": f32(5, 7)}, 2 * 7 * 5),
    ("uint8[2,7] x", "y = QLinearMatMul (x, s, z, w, s, z, s, z)", {"w": u8(7, 5)}, 2 * 7 * 5),
    ("uint8[1,3,8,8] x", "y = QLinearConv (x, s, z, w, s, z, s, z)", {"w": u8(16, 3, 3, 3)}, 16 * 6 * 6 * 3 * 9),
    ("float[5,2,3] x", "y, h = GRU <hidden_size = 4> (x, w, r)", {"w": f32(1, 12, 3), "r": f32(1, 12, 4)}, 5 * 2 * 12 * 7),
    ("float[N,7] x", "y = MatMul (x, w)", {"w": f32(7, 5)}, 7 * 5),
    ("float[2,7] x", "y = Tanh (x)", {}, 0),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "nodes", "constants", "expected"), MULTIPLY_ADDS)
def test_multiply_adds(inputs, nodes, constants, expected):
    (only,) = make(inputs, nodes, **constants)
    assert multiply_adds(only) == expected


def test_multiply_adds_of_subgraphs_count_once():
    graph = make(
        "bool c, float[2,7] x, float[7,5] w",
        """y = If (c) <then_branch = g1 () => (float[2,5] e) { e = MatMul (x, w) },
                    else_branch = g2 () => (float[2,5] f) { f = MatMul (x, w) }>""",
    )  # fmt: skip
    assert multiply_adds(node(graph, "If")) == 2 * 70


def test_bytes_touched():
    assert touched(node(make("float[1,4] x", "y = Add (x, k)", k=f32(1, 4)), "Add")) == 3 * 16
    assert touched(node(make("float[1,4] x", "y = Mul (x, x)"), "Mul")) == 2 * 16
    assert touched(node(make("float[1,4] x", "y = Reshape (x, shape)", shape=i64(4)), "Reshape")) == 0


def test_qdq_groups_count_as_one_8_bit_operator():
    nodes = """a = QuantizeLinear (x, s, z)  b = DequantizeLinear (a, s, z)  c = Relu (b)  d = QuantizeLinear (c, s, z)
        y = DequantizeLinear (d, s, z)"""
    graph = make("float[1,100] x", nodes)
    parameters = 4 + 1
    assert [touched(n) for n in graph] == [400 + 100 + parameters, 0, 100 + 100, 0, 100 + 400 + parameters]


SPEED = Speed(1e6, 4e6, 1e6)


def test_a_node_takes_the_longer_of_its_two_times():
    product = node(make("float[10,10] x", "y = MatMul (x, w)", w=f32(10, 10)), "MatMul")
    assert seconds(product, SPEED) == 1200e-6
    assert seconds(product, Speed(1e5, 1e5, 1e9)) == 1e-2
    quantized = make("uint8[10,10] x", "y = QLinearMatMul (x, s, z, w, s, z, s, z)", w=u8(10, 10))
    assert seconds(node(quantized, "QLinearMatMul"), Speed(1e5, 1e6, 1e9)) == 1e-3
    group = make("uint8[10,10] x", "a = DequantizeLinear (x, s, z)  y = MatMul (a, w)", w=f32(10, 10), s=SCALE)
    assert seconds(node(group, "MatMul"), Speed(1e5, 1e6, 1e9)) == 1e-3


DEVICE = DeviceProfile("toy", cpu=Speed(1e6, 1e6, 1e9), accelerator=Speed(1e7, 1e7, 1e9), copies=Copies(1e-3, 1e6))


def test_cost_of_a_partition():
    graph = make("float[10,10] x", "y = MatMul (x, w)", w=f32(10, 20))
    (only,) = partition(graph).partitions
    found = cost(only, DEVICE)
    assert (found.bytes_in, found.bytes_out, found.multiply_adds) == (400, 800, 2000)
    assert found.cpu_seconds == pytest.approx(2e-3)
    assert found.accelerator_seconds == pytest.approx(2e-4)
    assert found.copy_seconds == pytest.approx(1e-3 + 1.2e-3)
    assert found.gain == pytest.approx(-4e-4)
    assert not found.is_worthwhile


def test_the_whole_model():
    graph = make("float[10,10] x", "a = MatMul (x, w)  b = Erf (a)  y = MatMul (b, w)", w=f32(10, 10))
    result = partition(graph)
    total = estimate(result, DEVICE)
    assert len(total.partitions) == 2
    assert total.multiply_adds == total.multiply_adds_taken == 2000
    assert total.seconds == pytest.approx(total.cpu_seconds - sum(c.gain for c in total.partitions))
    assert total.best_seconds == total.cpu_seconds
    fast = DeviceProfile(cpu=DEVICE.cpu, accelerator=DEVICE.accelerator, copies=Copies(0, 1e12))
    assert estimate(result, fast).best_seconds == estimate(result, fast).seconds < total.cpu_seconds


# ---------------------------------------------------------------------- limits

THREE = (
    "a = Relu (x)  b = Erf (a)  c = MatMul (b, w)  d = Tanh (c)  e = Erf (d)  f = Tanh (e)  g = Neg (f)  y = Exp (g)"
)


def three() -> tuple:
    graph = make("float[64,64] x", THREE, w=f32(64, 64))
    return graph, partition(graph)


def test_no_limits_change_nothing():
    _, result = three()
    assert limit(result, Limits()) is result
    assert limit(result, Limits(max_partitions=3)) == result


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"min_nodes": 2}, [["MatMul", "Tanh"], ["Tanh", "Neg", "Exp"]]),
        ({"min_nodes": 3}, [["Tanh", "Neg", "Exp"]]),
        ({"max_partitions": 0}, []),
        ({"max_partitions": 1}, [["MatMul", "Tanh"]]),
        ({"max_partitions": 2, "min_nodes": 2}, [["MatMul", "Tanh"], ["Tanh", "Neg", "Exp"]]),
        ({"only_worthwhile": True}, [["MatMul", "Tanh"]]),
        ({"only_worthwhile": True, "min_nodes": 3}, []),
    ],
)
def test_limits(limits, kept):
    graph, result = three()
    device = DeviceProfile("toy", cpu=Speed(1e6, 1e6, 1e9), accelerator=Speed(1e9, 1e9, 1e9), copies=Copies(1e-3, 1e9))
    found = limit(result, Limits(**limits, device=device))
    assert taken_ops(found) == kept
    assert [v.taken for v in found.verdicts.values()].count(True) == found.taken
    for index, part in enumerate(found.partitions):
        assert {found.verdicts[n].partition for n in part.nodes} == {index}
    for n, verdict in found.verdicts.items():
        assert verdict.taken or verdict.objections
        assert (result.verdicts[n].taken and not verdict.taken) is any(
            o.rule in ("min-nodes", "max-partitions", "not-worthwhile") for o in verdict.objections
        )
    assert list(found.verdicts) == list(graph)


def test_the_best_partitions_are_kept_and_not_the_largest():
    _, result = three()
    (kept,) = limit(result, Limits(max_partitions=1)).partitions
    assert len(kept.nodes) < max(len(p.nodes) for p in result.partitions)


def test_messages():
    _, result = three()
    found = limit(result, Limits(min_nodes=2))
    (reason,) = found.verdicts[next(iter(found.verdicts))].objections
    assert reason.message == "the partition would have 1 node: the least is 2"


@pytest.mark.parametrize("limits", [{"min_nodes": 0}, {"max_partitions": -1}])
def test_bad_limits(limits):
    with pytest.raises(UsageError):
        Limits(**limits)


# ---------------------------------------------------------------------- profiles


def write(folder: Path, text: str) -> Path:
    path = folder / "phone.toml"
    path.write_text(text)
    return path


def test_read_device(tmp_path):
    device = read_device(
        write(
            tmp_path,
            """
            name = "Phone"
            vendor = "Maker"
            feature_level = 29
            refused_ops = ["Resize", "MaxPool"]
            [accelerator]
            multiply_adds_per_second = 5e11
            [copies]
            seconds_per_partition = 0
            """,
        )
    )
    assert (device.name, device.vendor, device.feature_level) == ("Phone", "Maker", 29)
    assert device.accelerator.multiply_adds_per_second == 5e11
    assert device.accelerator.bytes_per_second == DeviceProfile().accelerator.bytes_per_second
    assert (device.copies.seconds_per_partition, device.cpu) == (0, DeviceProfile().cpu)
    assert device.narrow(Target()) == Target(feature_level=29, refused_ops=("Resize", "MaxPool"))
    assert device.narrow(Target(feature_level=28)).feature_level == 28


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae = 'x'", "unknown key nmae"),
        ("[cpu]\nspeed = 3", "unknown key cpu.speed"),
        ("cpu = 3", "cpu is 3: it must be a table"),
        ("feature_level = 26", "NNAPI has no feature level 26"),
        ("feature_level = true", "NNAPI has no feature level True"),
        ("refused_ops = 'Resize'", "refused_ops is 'Resize': it must be a list of operators"),
        ("name = 3", "name is 3: it must be a text"),
        ("[copies]\nbytes_per_second = 0", "copies.bytes_per_second is 0: it must be a number above 0"),
        ("[copies]\nseconds_per_partition = -1", "copies.seconds_per_partition is -1: it must be a number from 0"),
        ("[cpu]\nbytes_per_second = inf", "cpu.bytes_per_second is inf"),
        ("[cpu]\nbytes_per_second = nan", "cpu.bytes_per_second is nan"),
        ("x = ", "not a TOML file"),
    ],
)
def test_bad_profiles(tmp_path, text, message):
    with pytest.raises(UsageError) as caught:
        read_device(write(tmp_path, text))
    assert message in caught.value.message
    assert caught.value.file == str(tmp_path / "phone.toml")


def test_refused_operators_of_a_device():
    graph = from_proto(mnist("basic")).graph
    result = partition(graph, DeviceProfile(refused_ops=("MaxPool",)).narrow(Target()))
    assert taken_ops(result) == [["Conv", "Relu"], ["Conv", "Relu"], ["Reshape", "Gemm"]]
    (reason,) = result.verdicts[node(graph, "MaxPool")].objections
    assert (reason.rule, reason.message) == ("device", "the driver of the device does not run MaxPool")
