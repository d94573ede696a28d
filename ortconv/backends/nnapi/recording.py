"""A backend that gives access to the models that it runs."""

from __future__ import annotations

from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions, NnapiProgram
from ortconv.runtime.backend import Program, Region


class RecordingBackend(Nnapi):
    """Keeps the partitions that it compiled, in the order in which they run."""

    def __init__(self, options: NnapiOptions | None = None) -> None:
        super().__init__(options)
        self.compiled: list[tuple[Region, NnapiProgram]] = []

    def compile(self, region: Region) -> Program:
        program = super().compile(region)
        assert isinstance(program, NnapiProgram)
        self.compiled.append((region, program))
        return program
