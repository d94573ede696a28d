"""What ortconv changes in the process: everything for the command, nothing that a host could notice for a library."""

import gc
import subprocess
import sys
import threading
from pathlib import Path
from weakref import WeakSet

import pytest

from ortconv import process
from ortconv.process import without_collections


@pytest.fixture(autouse=True)
def small_limit(monkeypatch):
    monkeypatch.setattr(process, "_MOST_OBJECTS", 700)


ALIVE = WeakSet()


class Cycle:
    def __init__(self):
        self.itself = self
        ALIVE.add(self)


def made(count):
    with without_collections():
        return [Cycle() for _ in range(count)]


@pytest.mark.usefixtures("young_heap")
def test_what_blocks_leave_as_garbage_goes():
    for _ in range(10):
        made(500)
    assert len(ALIVE) <= 1500


@pytest.mark.usefixtures("young_heap")
def test_what_is_held_stays():
    held = [made(500) for _ in range(4)]
    assert len(ALIVE) >= sum(map(len, held))


def test_collection_is_on_or_off_as_before():
    made(1)
    assert gc.isenabled()
    gc.disable()
    try:
        made(1)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_objects_that_the_host_has_frozen_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay frozen, and loading a model does not look through all of them."""
    counted = []
    monkeypatch.setattr(process, "_host_freezes", False)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(1) or 5)
    monkeypatch.setattr(gc, "unfreeze", lambda: pytest.fail("the host's objects are no longer frozen"))
    for _ in range(3):
        made(1)
    assert len(counted) == 1


LIBRARY = """
import ctypes, gc, os, resource, sys, threading
import numpy

def changed(*_):
    raise AssertionError("a library changes the process")

state = lambda: (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled(), resource.getrlimit(resource.RLIMIT_AS),
                 {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"})
before = state()
from ortconv import Session, convert, process
process._keep_freed_memory = process._trim = changed
stop = threading.Event()
threading.Thread(target=stop.wait).start()
resource.setrlimit = gc.disable = gc.freeze = changed
try:
    convert(sys.argv[1], sys.argv[2])
    session = Session(sys.argv[2])
    for _ in range(3):
        session.run(None, {v.name: numpy.zeros(v.shape, numpy.float32) for v in session.get_inputs()})
    assert state() == before
finally:
    stop.set()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of resources")
def test_a_library_changes_nothing_that_its_host_would_notice(samples: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIBRARY, str(samples / "mnist.onnx"), str(tmp_path / "mnist.ort")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_limit_of_memory_goes_with_its_block() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    with process.memory_limit(1 << 30):
        assert (resource.getrlimit(resource.RLIMIT_AS) != before) == Path("/proc/self/statm").exists()
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_host_with_threads_has_no_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_taken_over", False)
    monkeypatch.setattr(process, "_limits", lambda allowance: pytest.fail("a limit was set"))
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        with process.memory_limit(1 << 30):
            pass
    finally:
        stop.set()
        other.join()
