"""Commands run in a child: crashes, limits and signals."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ortconv import watch
from ortconv.errors import BackendError, CrashError, GraphError, LimitError, OrtconvError
from ortconv.watch import Activity, Death, ProcessLimits
from tests.batch_models import write

SIGALRM = 14
"""The signal's number on Linux and macOS; Windows has no such signal, but collects the tests."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def ortconv(*arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ortconv", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    write(tmp_path / "endless.onnx", "endless")
    return tmp_path / "endless.onnx"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "stage"),
    [("run {}", "run"), ("compare {0}@numpy {0}@numpy:reference", ""), ("convert {} --output-dir out", "validate")],
)
def test_a_time_limit(verb: str, stage: str, endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(endless.parent)
    done = ortconv(*(word.format(endless) for word in verb.split()), "--timeout", "2", "--json")
    assert done.returncode == 3
    assert f"not done after 2 s, the time limit{f', in stage {stage}' if stage else ''}\n" in done.stderr
    assert json.loads(done.stdout)["exit_code"] == 3
    assert list(endless.parent.iterdir()) == [endless]


@pytest.mark.slow
def test_a_memory_limit(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    write(path, "huge")
    done = ortconv("run", path, "--memory", "1GiB")
    assert done.returncode == 3
    assert "more memory needed than 1 GiB, the memory limit, in stage run" in done.stderr
    assert "ConstantOfShape 'c'" in done.stderr


def test_a_time_limit_may_be_longer_than_timers_are() -> None:
    done = ortconv("run", "sample_models/mnist.onnx", "--timeout", "1e20", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_backend_without_memory_is_at_the_limit() -> None:
    error = BackendError("RUNTIME_EXCEPTION : std::bad_alloc", backend="onnxruntime")
    with pytest.raises(BackendError, match="bad_alloc"), watch.limited(ProcessLimits()):
        raise error
    limits = ProcessLimits(None, 512 << 30)
    with (
        pytest.raises(LimitError, match=r"more memory needed than 512 GiB.*: backend .*bad_alloc"),
        watch.limited(limits),
    ):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "numpy"),
        ImportError("libopenblas.so: failed to map segment from shared object"),
        GraphError("shape inference: MemoryError"),
    ],
)
def test_what_lacks_memory_is_at_the_limit(error: Exception) -> None:
    with pytest.raises(type(error)), watch.limited(ProcessLimits()):
        raise error
    with (
        pytest.raises(LimitError, match="more memory needed than 512 GiB"),
        watch.limited(ProcessLimits(None, 512 << 30)),
    ):
        raise error


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "no file"), ImportError("no module")])
def test_other_errors_pass_a_limit(error: Exception) -> None:
    with pytest.raises(type(error)), watch.limited(ProcessLimits(None, 512 << 30)):
        raise error


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_a_signal_ends_the_child(number: int, code: int, endless: Path) -> None:
    default = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job would inherit that it is ignored
    process = subprocess.Popen([sys.executable, "-m", "ortconv", "run", endless], stderr=subprocess.DEVNULL)
    signal.signal(signal.SIGINT, default)
    child = child_of(process.pid)
    time.sleep(0.5)
    process.send_signal(number)
    assert process.wait(30) == code
    assert has_ended(child)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems let the child run on")
def test_the_child_dies_with_its_parent(endless: Path) -> None:
    process = subprocess.Popen([sys.executable, "-m", "ortconv", "run", endless])
    child = child_of(process.pid)
    time.sleep(0.5)
    process.kill()
    process.wait()
    assert has_ended(child)


def child_of(parent: int) -> int:
    path = Path(f"/proc/{parent}/task/{parent}/children")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if children := path.read_text().split():
            return int(children[0])
        time.sleep(0.01)
    raise AssertionError("there is no child")


def has_ended(process: int) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


SCRIPT = """
import os, sys
from ortconv import supervisor, watch
from ortconv.errors import BackendError

def run():
    watch.note_file("a.onnx")
    for call in {calls}:
        try:
            with watch.risky(call):
                os.abort()
        except BackendError as error:
            print(error.message, flush=True)
    {rest}
    return 7

def died(error):
    print(error, flush=True)
    return error.exit_code

sys.exit(supervisor.supervised(run, died))
"""


@pytest.mark.parametrize(
    ("calls", "rest", "code", "output"),
    [
        ([], "", 7, []),
        (
            ["a", "b"],
            "",
            7,
            ["backend onnxruntime: it dies of SIGABRT, a", "backend onnxruntime: it dies of SIGABRT, b"],
        ),
        ([], "watch.note_stage('load'); os.abort()", 3, ["a.onnx: the process died of SIGABRT, in stage load"]),
        ([], "watch.note_stage('load'); os._exit(1)", 3, ["a.onnx: the process ended with exit code 1, in stage load"]),
        (["a", *"bcdef"], "", 3, ["a.onnx: the process died of SIGABRT, e"]),
        ([], "raise KeyError", 1, []),
    ],
)
def test_a_call_that_kills_the_child_is_left_out(calls: list[str], rest: str, code: int, output: list[str]) -> None:
    script = SCRIPT.format(calls=calls, rest=rest)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    lines = done.stdout.splitlines()
    assert lines[len(lines) - len(output) :] == output


EARLY = """
import os, signal, time
fork = os.fork

def signaled():
    os.kill(os.getpid(), signal.SIGTERM)
    return fork()

os.fork = signaled
"""


def test_a_signal_before_the_fork_reaches_the_child() -> None:
    script = EARLY + SCRIPT.format(calls=[], rest="time.sleep(30)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=20)
    assert done.returncode == -signal.SIGTERM


def test_a_risky_call_in_a_process_that_nobody_watches() -> None:
    with pytest.raises(ZeroDivisionError), watch.risky("a"):
        raise ZeroDivisionError


def test_notes_of_a_risky_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Activity] = []
    monkeypatch.setattr(watch, "_notify", seen.append)
    monkeypatch.setattr(watch, "_activity", Activity())
    monkeypatch.setattr(watch, "_fatal", {"c": "SIGSEGV"})
    with watch.risky("a"), watch.risky("a"), watch.risky("b"):
        watch.note_stage("load")
    assert [activity.calls for activity in seen] == [
        ("a",), ("a", "a"), ("a", "a", "b"), ("a", "a", "b"), ("a", "a"), ("a",), (),
    ]  # fmt: skip
    assert Activity.decode(seen[3].encode()) == seen[3]
    with pytest.raises(BackendError, match="it dies of SIGSEGV, c"), watch.risky("c"):
        pass
    assert watch.left_out() == ["the process died of SIGSEGV, c: this was left out"]


def test_a_call_that_outlives_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Activity] = []
    monkeypatch.setattr(watch, "_notify", None)
    watch.begin(seen.append, {})
    with watch.risky("a"):
        watch.begin(seen.append, {})
        late = watch.risky("a")
        late.__enter__()
    assert seen[-1].calls == ("a",)
    late.__exit__(None, None, None)
    assert seen[-1].calls == ()


@pytest.mark.parametrize(
    ("code", "limits", "kind", "message"),
    [
        (-signal.SIGSEGV, ProcessLimits(), CrashError, "the process died of SIGSEGV, in stage s"),
        (-SIGALRM, ProcessLimits(), CrashError, "the process died of SIGALRM, in stage s"),
        (-SIGALRM, ProcessLimits(5), LimitError, "not done after 5 s, the time limit, in stage s"),
        (124, ProcessLimits(0.5), LimitError, "not done after 0.5 s, the time limit, in stage s"),
        (125, ProcessLimits(None, 3 << 30), LimitError, "more memory needed than 3 GiB, the memory limit, in stage s"),
        (125, ProcessLimits(None, 5 << 20), LimitError, "more memory needed than 5 MiB, the memory limit, in stage s"),
        (125, ProcessLimits(None, 1), LimitError, "more memory needed than 1 byte, the memory limit, in stage s"),
        (9, ProcessLimits(1, 1), CrashError, "the process ended with exit code 9, in stage s"),
        (-63, ProcessLimits(), CrashError, "the process died of signal 63, in stage s"),
    ],
)
def test_what_a_death_amounts_to(code: int, limits: ProcessLimits, kind: type[OrtconvError], message: str) -> None:
    error = Death(code, Activity("m.onnx", "s", (), limits)).error()
    assert type(error) is kind
    assert (error.message, error.file, error.exit_code) == (message, "m.onnx", 3)
    assert error.hint
