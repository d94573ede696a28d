"""Bursts: executions of one compilation in rapid succession."""

from __future__ import annotations

import threading

from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.errors import bad_data, bad_state, required
from ortconv.nnapi.execution import Execution
from ortconv.nnapi.handle import Handle
from ortconv.nnapi.timing import timed


class Burst(Handle):
    """One execution at a time, each of this compilation. Closed, it takes no more; one under way is completed."""

    @timed("PP")
    def __init__(self, compilation: Compilation) -> None:
        required("the compilation", compilation)
        self.compilation = compilation
        self._busy = threading.Lock()
        self._closed = False
        _ = compilation.plan  # BAD_STATE while it is not finished

    @timed("PE")
    def compute(self, execution: Execution) -> None:
        """BAD_DATA for an execution of another compilation, BAD_STATE while the burst runs another one."""
        required("the execution", execution)
        if execution.compilation is not self.compilation:
            raise bad_data("the execution belongs to another compilation")
        if self._closed:
            raise bad_state("the burst is closed")
        if not self._busy.acquire(blocking=False):
            raise bad_state("the burst is running another execution")
        try:
            execution.compute()
        finally:
            self._busy.release()

    def _free(self) -> None:
        self._closed = True
