"""Batches on a Dask cluster of real processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import calls
import pytest

import ortconv
from ortconv.batch.cluster import ClusterExecutor
from ortconv.cli import main
from ortconv.errors import CrashError, LimitError, UsageError
from ortconv.watch import ProcessLimits
from tests.batch_models import REASONS, folder_of

try:
    import distributed
except ImportError:
    distributed = None

needs_dask = pytest.mark.skipif(distributed is None, reason="needs Dask: pip install 'ortconv[dask]'")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, env=environment) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.ort")}


@needs_dask
def test_results_are_those_of_this_machine(cluster: Any, tmp_path: Path) -> None:
    troubles = folder_of(tmp_path / "in", 30, ["corrupt", "unsupported", "unreadable"])
    address = cluster.scheduler.address
    far = list(ortconv.convert_all(tmp_path / "in", tmp_path / "far", executor=address, resume=True, validate=False))
    near = list(ortconv.convert_all(tmp_path / "in", tmp_path / "near", jobs=2, validate=False))
    failed = {Path(one.source).name: str(one.error) for one in far if isinstance(one, ortconv.Failure)}
    assert failed == {Path(one.source).name: str(one.error) for one in near if isinstance(one, ortconv.Failure)}
    assert all(REASONS[troubles[name]] in text for name, text in failed.items())
    assert len(failed) == 3
    assert outputs(tmp_path / "far") == outputs(tmp_path / "near")
    again = ortconv.convert_all(tmp_path / "in", tmp_path / "far", executor=address, resume=True, validate=False)
    assert sum(one.unchanged for one in again if isinstance(one, ortconv.Result)) == 27


@needs_dask
def test_limits_and_crashes_on_a_cluster(cluster: Any) -> None:
    executor = ClusterExecutor(cluster, ProcessLimits(2, 1 << 30), ())
    workers = set(cluster.run(os.getpid).values())
    slow, crash, big = (
        executor.submit(*call) for call in ((calls.sleep, 100), (calls.segfault,), (calls.allocate, 1 << 32))
    )
    assert isinstance(slow.exception(60), LimitError)
    assert isinstance(crash.exception(60), CrashError)
    assert isinstance(big.exception(60), LimitError)
    assert executor.submit(calls.survive).result(60).endswith("it dies of SIGABRT, onnxruntime opening a.onnx")
    assert set(cluster.run(os.getpid).values()) == workers


@needs_dask
def test_a_lost_machine_loses_no_model(cluster: Any, tmp_path: Path) -> None:
    """A worker of the cluster is killed in the middle of 300 models."""
    folder_of(tmp_path / "in", 300, [])
    lost, killed = next(iter(cluster.run(os.getpid).values())), []

    def kill() -> None:
        while not (tmp_path / "out").exists() or len(os.listdir(tmp_path / "out")) < 40:
            time.sleep(0.01)
        os.kill(lost, signal.SIGKILL)
        killed.append(len(os.listdir(tmp_path / "out")) < 250)

    killer = threading.Thread(target=kill)
    killer.start()
    address = cluster.scheduler.address
    results = list(
        ortconv.convert_all(tmp_path / "in", tmp_path / "out", executor=address, resume=False, validate=False)
    )
    killer.join()
    assert [one for one in results if isinstance(one, ortconv.Failure)] == []
    assert len(results) == len(outputs(tmp_path / "out")) == 300
    assert killed == [True]


@needs_dask
def test_a_client_of_the_caller(cluster: Any, tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 4, [])
    with cluster.get_executor() as executor:
        assert len(list(ortconv.convert_all(tmp_path / "in", executor=executor, jobs=2, validate=False))) == 4


@needs_dask
@pytest.mark.parametrize("address", ["local:0", "local:x", "local:" + "9" * 5000, "tcp://127.0.0.1:9"])
def test_an_address_that_is_none(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortconv.batch.cluster.CONNECT", 1)
    folder_of(tmp_path / "in", 2, [])
    with pytest.raises(UsageError, match=address):
        ortconv.convert_all(tmp_path / "in", executor=address)


@pytest.mark.skipif(distributed is not None, reason="Dask is installed")
def test_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(tmp_path / "in", 2, [])
    assert main(["convert", str(tmp_path / "in"), "--cluster", "local:2"]) == 2
    assert "--cluster needs Dask\nhint: pip install 'ortconv[dask]'" in capsys.readouterr().err
