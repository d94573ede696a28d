"""What tests of the NNAPI runtime share. None of them depends on how fast the machine is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from ortconv import nnapi

LOOK = 2e-5


class Clock:
    """Time that passes when somebody sleeps, and a little with each look at it."""

    def __init__(self) -> None:
        self.now = 1e6

    def perf_counter(self) -> float:
        self.now += LOOK
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock in place of the machine's."""
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made.perf_counter)
    monkeypatch.setattr(time, "sleep", made.sleep)
    return made


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What devices that are slow wait for, instead of for a time."""
    event = threading.Event()
    monkeypatch.setattr(time, "sleep", lambda seconds: event.wait(60))
    return event


@pytest.fixture
def no_devices() -> Iterator[None]:
    """There are no devices but the CPU."""
    with nnapi.registered():
        yield
