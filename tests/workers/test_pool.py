"""Workers of a batch: what kills one fails its call alone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import calls
import pytest

from ortconv.errors import CrashError, InternalError, LimitError, OrtconvError, UsageError
from ortconv.watch import ProcessLimits
from ortconv.workers.pool import ForkServer, LocalPool, ServerDiedError, Spawner, Starter, Worker
from tests.batches import slow_except


class SpawningPool(LocalPool):
    """A pool as on systems where processes are not forked."""

    starter = Spawner


@pytest.fixture(params=[LocalPool, pytest.param(SpawningPool, marks=pytest.mark.slow)])
def pool(request: pytest.FixtureRequest) -> Iterator[LocalPool]:
    pool: LocalPool = request.param(2, ProcessLimits(60, 1 << 30))
    yield pool
    pool.shutdown(cancel_futures=True)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_calls_share_the_workers(pool: LocalPool) -> None:
    results = [future.result(60) for future in [pool.submit(calls.identity, i) for i in range(20)]]
    assert [value for value, _ in results] == list(range(20))
    assert len({process for _, process in results} - {os.getpid()}) <= 2


def test_channels_may_be_of_another_class(pool: LocalPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a pipe is a PipeConnection."""
    monkeypatch.setattr("ortconv.workers.pool.Connection", type("PipeConnection", (), {}))
    assert pool.submit(calls.identity, 3).result(60)[0] == 3


@pytest.mark.parametrize("kind", slow_except([LocalPool], (LocalPool, SpawningPool)))
def test_each_call_has_a_fresh_worker(kind: type[LocalPool]) -> None:
    pool = kind(2, ProcessLimits(60, None), fresh=True)
    results = [future.result(60) for future in [pool.submit(calls.identity, i) for i in range(4)]]
    pool.shutdown()
    assert len({process for _, process in results}) == 4


posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

MEMORY = "more memory needed than 1 GiB, the memory limit, in stage allocate"

FAULTS = [
    pytest.param(calls.segfault, (), CrashError, "the process died of SIGSEGV, in stage crash", marks=posix),
    pytest.param(calls.kill, (), CrashError, "the process died of SIGKILL", marks=[posix, pytest.mark.slow]),
    pytest.param(calls.leave, (), CrashError, "the process ended with exit code 3", marks=pytest.mark.slow),
    pytest.param(calls.allocate, (4 << 40,), LimitError, MEMORY, marks=pytest.mark.slow),
    (calls.allocate, (2 << 30,), LimitError, MEMORY),
    (calls.refuse, (), UsageError, "no"),
    pytest.param(calls.unforeseen, (), InternalError, "ZeroDivisionError: oops", marks=pytest.mark.slow),
    (calls.unpicklable, (), InternalError, "the result cannot be sent"),
    (lambda: None, (), InternalError, "the task cannot be sent"),
]


@pytest.mark.parametrize(("function", "arguments", "kind", "message"), FAULTS)
def test_what_fails_fails_alone(
    function: Callable[..., Any], arguments: tuple[Any, ...], kind: type[OrtconvError], message: str, pool: LocalPool
) -> None:
    before, bad, after = (
        pool.submit(*call) for call in ((calls.identity, 1), (function, *arguments), (calls.identity, 2))
    )
    assert (before.result(60)[0], after.result(60)[0]) == (1, 2)
    error = bad.exception(60)
    assert type(error) is kind
    assert isinstance(error, OrtconvError)
    assert message in error.message


def test_an_error_keeps_its_place_and_hint(pool: LocalPool) -> None:
    error = pool.submit(calls.refuse).exception(60)
    assert isinstance(error, UsageError)
    assert (error.file, error.hint, str(error)) == ("a.onnx", "yes", "a.onnx: no")


def test_a_call_without_end() -> None:
    with LocalPool(1, ProcessLimits(0.3)) as pool:
        slow, quick = pool.submit(calls.sleep, 100), pool.submit(calls.identity, 1)
        assert quick.result(60)[0] == 1
        error = slow.exception(60)
    assert isinstance(error, LimitError)
    assert error.message == "not done after 0.3 s, the time limit, in stage sleep"
    assert error.hint == "--timeout SECONDS gives it more time"


@posix
def test_a_risky_call_is_refused_when_it_has_killed_a_worker(pool: LocalPool) -> None:
    assert pool.submit(calls.survive).result(60).endswith("it dies of SIGABRT, onnxruntime opening a.onnx")


@pytest.mark.slow
def test_a_worker_that_has_grown_is_replaced() -> None:
    with LocalPool(1, ProcessLimits(None, 1 << 30)) as pool:
        first = pool.submit(calls.keep, 10 << 20).result(60)
        second = pool.submit(calls.keep, 200 << 20).result(60)
        third = pool.submit(calls.keep, 1).result(60)
    assert first == second != third


def test_a_worker_killed_between_calls_fails_none(pool: LocalPool) -> None:
    _, process = pool.submit(calls.identity, 1).result(60)
    os.kill(process, signal.SIGTERM)
    assert pool.submit(calls.identity, 2).result(60)[0] == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="there is no server of workers")
def test_the_loss_of_all_workers_loses_no_call() -> None:
    """The server of the workers is killed in the middle of a call."""
    pool = LocalPool(2)
    slow = pool.submit(calls.sleep, 1)
    wait_for(lambda: any(activity.stage == "sleep" for _, activity, _ in pool.busy()))
    process = next(worker.id for worker in pool._workers)
    server = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGKILL)
    assert slow.result(60) is None
    wait_for(lambda: not is_alive(process))
    pool.shutdown()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no server of workers")
def test_a_server_that_dies_before_it_reads_a_request_is_found_dead() -> None:
    server = ForkServer(())
    os.kill(server._process.pid, signal.SIGSTOP)
    threading.Timer(0.05, server._process.kill).start()
    with pytest.raises(ServerDiedError):
        server.start()
    server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no server of workers")
def test_a_result_outlives_the_server() -> None:
    """The server dies after the last call of a worker, and before it reports the end of that worker."""

    class Dying(ForkServer):
        def exit_code(self, worker: Worker) -> int:
            raise ServerDiedError

    class DyingPool(LocalPool):
        starter = Dying

    with DyingPool(1, fresh=True) as pool:
        assert pool.submit(calls.identity, 3).result(20)[0] == 3


@pytest.mark.slow
@posix
def test_a_server_that_cannot_start_fails_all_calls() -> None:
    """Also those that are submitted later: a batch reports each model, by its name."""
    pool = LocalPool(1, warm=["os:abort"])
    for name in ("a", "b"):
        error = pool.submit(calls.identity, 1).exception(60)
        assert isinstance(error, CrashError)
        assert str(error.at(file=name)) == f"{name}: the workers ended before this was done"
    pool.shutdown()


def test_what_the_workers_do_is_known(pool: LocalPool) -> None:
    future = pool.submit(calls.sleep, 100)
    wait_for(lambda: [activity.stage for _, activity, _ in pool.busy()] == ["sleep"])
    assert pool.busy()[0][0] is future


def test_nothing_is_left_of_a_pool_that_is_ended(pool: LocalPool) -> None:
    sleeping, waiting = [pool.submit(calls.sleep, 100) for _ in range(2)], pool.submit(calls.identity, 1)
    wait_for(lambda: len(pool.busy()) == 2)
    processes = [worker.id for worker in pool._workers]
    pool.shutdown(cancel_futures=True)
    assert not any(map(is_alive, processes))
    assert waiting.cancelled()
    assert all(isinstance(future.exception(1), CrashError) for future in sleeping)
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(calls.identity, 1)


@pytest.mark.parametrize(
    ("error", "kind"), [(OSError("no more processes"), CrashError), (KeyError("k"), InternalError)]
)
def test_all_calls_fail_if_no_worker_can_be_started(error: Exception, kind: type[OrtconvError]) -> None:
    class Broken(LocalPool):
        @staticmethod
        def starter(warm: Sequence[str]) -> Starter:
            raise error

    pool = Broken(1)
    for _ in range(2):
        with pytest.raises(kind, match=str(error)):
            pool.submit(calls.identity, 1).result(10)
    pool.shutdown()


def test_a_fault_of_the_managing_thread_fails_the_call_that_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortconv.workers.pool.Death", lambda *_: 1 / 0)
    with LocalPool(1) as pool, pytest.raises(InternalError, match="cannot be managed"):
        pool.submit(os._exit, 9).result(60)
