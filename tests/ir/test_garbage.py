import gc

from ortconv.ir.garbage import without_collections


class Cycle:
    def __init__(self):
        self.itself = self


def made(count):
    with without_collections():
        return [Cycle() for _ in range(count)]


def alive():
    return sum(isinstance(o, Cycle) for o in gc.get_objects())


def test_what_blocks_leave_as_garbage_goes():
    for _ in range(10):
        made(50_000)
    assert alive() <= 150_000


def test_what_is_held_stays():
    held = [made(50_000) for _ in range(4)]
    assert alive() >= 200_000
    del held


def test_collection_is_on_or_off_as_before():
    made(1)
    assert gc.isenabled()
    gc.disable()
    try:
        made(1)
        assert not gc.isenabled()
    finally:
        gc.enable()
