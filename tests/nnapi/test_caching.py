"""Compilation caching: which files, when they serve and when they do not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from nnapi_models import Builder, chain, choosing, compiled, run, tensor

from ortconv import nnapi
from ortconv.nnapi import Operation, Preference, Priority
from ortconv.nnapi.caching import CacheFiles, derived_token
from ortconv.nnapi.device import PreparedModel, PrepareOptions
from ortconv.nnapi.simulated import SimulatedDevice

TOKEN = bytes(range(32))
X = np.arange(4, dtype=np.float32)


class Counting(SimulatedDevice):
    prepared = 0
    from_cache = 0

    def prepare(self, model: nnapi.Model, options: PrepareOptions) -> PreparedModel:
        self.prepared += 1
        return super().prepare(model, options)

    def prepare_from_cache(self, cache: CacheFiles, options: PrepareOptions) -> PreparedModel:
        found = super().prepare_from_cache(cache, options)
        self.from_cache += 1
        return found


@pytest.fixture
def device() -> Iterator[Counting]:
    one = Counting({"name": "npu", "cache": {"model_files": 1, "data_files": 1}, "accept": {"refuse": ["RELU"]},
                    "performance": {"default": {"exec_time": 0.5, "power_usage": 0.5}}})  # fmt: skip
    with nnapi.registered(one):
        yield one


def cached(model: nnapi.Model, directory: Path, preference: int = 1, token: bytes = TOKEN) -> nnapi.Compilation:
    compilation = nnapi.Compilation(model)
    compilation.set_preference(preference)
    compilation.set_caching(directory, token)
    compilation.finish()
    return compilation


def test_a_second_compilation_comes_from_the_cache(device: Counting, tmp_path: Path) -> None:
    for _ in range(3):
        assert run(cached(chain(Operation.ADD), tmp_path), X).tolist() == (2 * X).tolist()
    assert (device.prepared, device.from_cache) == (1, 2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [len(name) for name in names] == [66, 66]
    assert [name[64:] for name in names] == ["10", "20"]
    assert os.name != "posix" or all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


def test_control_flow_is_cached(device: Counting, tmp_path: Path) -> None:
    for _ in range(2):
        compilation = cached(choosing(tensor(4)), tmp_path)
        assert run(compilation, np.array([False]), X, dims=(4,)).tolist() == [0, 1, 4, 9]
    assert (device.prepared, device.from_cache) == (1, 1)


def test_omitted_operands_are_cached(device: Counting, tmp_path: Path) -> None:
    for _ in range(2):
        b = Builder()
        x, axes = b.operand(tensor(4, 1)), b.operand(tensor(0, type=nnapi.Operand.TENSOR_INT32))
        b.model.set_operand_value(axes, None)
        model = b.finish([x], [b.operation(Operation.SQUEEZE, [x, axes], tensor(4))])
        assert run(cached(model, tmp_path), X.reshape(4, 1), dims=(4,)).tolist() == X.tolist()
    assert (device.prepared, device.from_cache) == (1, 1)


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "mixed"])
def test_damaged_files_are_made_anew(device: Counting, tmp_path: Path, damage: str) -> None:
    cached(chain(Operation.ADD), tmp_path)
    path, data = sorted(tmp_path.iterdir())
    content = bytearray(path.read_bytes())
    if damage == "changed":
        content[-1] ^= 1
    path.write_bytes({"cut": content[:-5], "changed": content, "empty": b"", "mixed": content}[damage])
    if damage == "mixed":
        data.write_bytes(bytes(32))
    assert run(cached(chain(Operation.ADD), tmp_path), X).tolist() == (2 * X).tolist()
    assert (device.prepared, device.from_cache) == (2, 0)
    cached(chain(Operation.ADD), tmp_path)
    assert (device.prepared, device.from_cache) == (2, 1)


def test_what_makes_a_difference(device: Counting, tmp_path: Path) -> None:
    cached(chain(Operation.ADD), tmp_path)
    cached(chain(Operation.ADD), tmp_path, Preference.LOW_POWER)
    cached(chain(Operation.ADD), tmp_path, token=bytes(32))
    assert device.from_cache == 0


def test_every_step_has_files_of_its_own(device: Counting, tmp_path: Path) -> None:
    for _ in range(2):
        compilation = cached(chain(Operation.ADD, Operation.RELU, Operation.MUL), tmp_path)
        assert run(compilation, X).tolist() == ((2 * X) ** 2).tolist()
    assert len(list(tmp_path.iterdir())) == 4
    assert (device.prepared, device.from_cache) == (2, 2)


def test_the_cpu_caches_nothing(tmp_path: Path) -> None:
    cached(chain(Operation.ADD), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there(device: Counting, tmp_path: Path) -> None:
    assert run(cached(chain(Operation.ADD), tmp_path / "none"), X).tolist() == (2 * X).tolist()
    assert device.prepared == 1


def test_tokens() -> None:
    one = SimulatedDevice({"name": "npu", "version": "1"})
    settings = Preference.FAST_SINGLE_ANSWER, Priority.MEDIUM
    token = derived_token(TOKEN, one, *settings)
    assert len(token) == 32
    others = {
        derived_token(TOKEN, SimulatedDevice({"name": "npu", "version": "2"}), *settings),
        derived_token(TOKEN, one, Preference.LOW_POWER, Priority.MEDIUM),
        derived_token(TOKEN, one, Preference.FAST_SINGLE_ANSWER, Priority.HIGH),
        derived_token(TOKEN, one, *settings, [(0, 0)]),
        derived_token(TOKEN, one, *settings, [(0, 1)]),
    }
    assert len(others | {token}) == 6


def test_names_of_files() -> None:
    files = CacheFiles.of(
        "/data/cache/", b"\x00\x1f" + bytes(30), SimulatedDevice({"name": "n", "cache": {"model_files": 2}})
    )
    assert [path.as_posix() for path in files.paths] == [f"/data/cache/AAPB{'AA' * 30}1{number}" for number in (0, 1)]


def test_without_caching_nothing_is_kept(device: Counting) -> None:
    compiled(chain(Operation.ADD))
    compiled(chain(Operation.ADD))
    assert (device.prepared, device.from_cache) == (2, 0)
