import gc
from weakref import WeakSet

import pytest

from ortconv.ir import garbage
from ortconv.ir.garbage import without_collections


@pytest.fixture(autouse=True)
def small_limit(monkeypatch):
    monkeypatch.setattr(garbage, "_MOST", 700)


ALIVE = WeakSet()


class Cycle:
    def __init__(self):
        self.itself = self
        ALIVE.add(self)


def made(count):
    with without_collections():
        return [Cycle() for _ in range(count)]


def test_what_blocks_leave_as_garbage_goes():
    for _ in range(10):
        made(500)
    assert len(ALIVE) <= 1500


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
