"""Opens a model file in onnxruntime with the settings of an app: threads, direct initializers, saved fusions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ortconv.backends import onnxruntime_c
from ortconv.backends.onnxruntime_cpu import native, opened, runtime, session_options
from ortconv.errors import BackendError

SAVED = "session.enable_saved_runtime_optimizations"
DIRECT = ("session.use_ort_model_bytes_directly", "session.use_ort_model_bytes_for_initializers")

EXTENDED = 2
"""The optimization level of the C API that fuses nodes for the CPU, but does not use layouts specific to this machine's CPU."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings with which an app opens a file. `direct`: onnxruntime uses the constants in the app's copy of the file
    without copying them.

    `saved`: onnxruntime applies the fusions saved in a file of Runtime style.
    """

    threads: int = 1
    direct: bool = False
    saved: bool = True

    @property
    def entries(self) -> dict[str, str]:
        return {**({SAVED: "1"} if self.saved else {}), **(dict.fromkeys(DIRECT, "1") if self.direct else {})}


def can_be_direct(library: Path | None) -> bool:
    """True if sessions with direct initializers can be measured: by the C library, which runs no custom operators here."""
    return library is None and onnxruntime_c.is_available()


def prepare() -> None:
    """Load everything that sessions need, so that the first session of the process is not measured with it."""
    if onnxruntime_c.is_available():
        onnxruntime_c.api()
    runtime()


class AppSession:
    """A file opened on the CPU with these settings, for runs with these inputs. The C library is used if possible.

    With `is_source`, the file is an .onnx file, and onnxruntime optimizes it at level extended. Raises BackendError with
    onnxruntime's message if it does not load or run the file.
    """

    def __init__(
        self,
        file: Path,
        settings: SessionSettings,
        feeds: Mapping[str, Any],
        library: Path | None = None,
        *,
        is_source: bool = False,
    ) -> None:
        self.run: Callable[[], object]
        self._name = file.name
        if can_be_direct(library) and onnxruntime_c.takes(feeds):
            level = EXTENDED if is_source else None
            self.run = onnxruntime_c.NativeSession(
                file, feeds, threads=settings.threads, entries=settings.entries, level=level, direct=settings.direct
            ).run
            return
        if settings.direct:
            raise BackendError("direct initializers need the C library and inputs of numbers", backend="onnxruntime")
        options = session_options(library, settings.threads, settings.entries)
        if is_source:
            options.graph_optimization_level = runtime().GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        self.run = partial(opened(str(file), options, f"{file.name} with {settings}").run, None, dict(feeds))

    def run_first(self) -> None:
        """Run for the first time; native code may crash."""
        with native(f"running {self._name}"):
            self.run()
