"""Bursts: executions of one compilation in rapid succession."""

from __future__ import annotations

import threading

from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.errors import bad_data, bad_state
from ortconv.nnapi.execution import Execution
from ortconv.nnapi.handle import Handle, api
from ortconv.nnapi.tracing import vlog


class Burst(Handle):
    """Runs executions of one compilation, one at a time. A closed burst starts no further execution; a running one is completed."""

    @api("PP")
    def __init__(self, compilation: Compilation) -> None:
        self.compilation = compilation
        self._busy = threading.Lock()
        self._closed = False
        _ = compilation.plan  # raises BAD_STATE unless it is finished

    @api("PE")
    def compute(self, execution: Execution) -> None:
        """Run an execution. Raises BAD_DATA if it belongs to another compilation, BAD_STATE while the burst runs another one."""
        if execution.compilation is not self.compilation:
            raise bad_data("the execution belongs to another compilation")
        if self._closed:
            raise bad_state("the burst is closed")
        if not self._busy.acquire(blocking=False):
            raise bad_state("the burst is running another execution")
        try:
            vlog.message(vlog.EXECUTION, "ExecutionBuilder", "ExecutionBuilder::compute (synchronous API, burst)")
            execution.compute()
        finally:
            self._busy.release()

    def _free(self) -> None:
        self._closed = True
