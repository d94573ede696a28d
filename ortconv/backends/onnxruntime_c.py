"""onnxruntime's C API: sessions without Python's overhead per run, and with constants that stay in the bytes of a file.

In Python, onnxruntime frees its copy of the bytes before the session is ready, so direct initializers would read freed memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ortconv.backends.onnxruntime_cpu import ending_in_time, native, runtime
from ortconv.errors import BackendError
from ortconv.files import drop_pages, mapped
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.process import repeatedly

API_VERSION = 17
"""All functions below exist in this version of the C API, and at the same position in all later ones."""

P, N, Z, S = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p

FUNCTIONS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "CreateEnv": (3, (N, S, P)),
    "CreateSession": (7, (P, S, P, P)),
    "CreateSessionFromArray": (8, (P, P, Z, P, P)),
    "Run": (9, (P, P, P, P, Z, P, Z, P)),
    "CreateSessionOptions": (10, (P,)),
    "SetSessionLogSeverityLevel": (22, (P, N)),
    "SetSessionGraphOptimizationLevel": (23, (P, N)),
    "SetIntraOpNumThreads": (24, (P, N)),
    "SessionGetOutputCount": (31, (P, P)),
    "SessionGetOutputName": (37, (P, Z, P, P)),
    "CreateRunOptions": (39, (P,)),
    "RunOptionsSetTerminate": (46, (P,)),
    "CreateTensorWithDataAsOrtValue": (49, (P, P, Z, P, Z, N, P)),
    "GetTensorMutableData": (51, (P, P)),
    "GetTensorElementType": (60, (P, P)),
    "GetDimensionsCount": (61, (P, P)),
    "GetDimensions": (62, (P, P, Z)),
    "GetTensorTypeAndShape": (65, (P, P)),
    "CreateCpuMemoryInfo": (69, (N, N, P)),
    "AllocatorFree": (76, (P, P)),
    "GetAllocatorWithDefaultOptions": (78, (P,)),
    "AddSessionConfigEntry": (130, (P, S, S)),
}
"""Functions that return a status: their positions in the structure OrtApi, and the types of their arguments."""

GET_ERROR_MESSAGE = 2
RELEASE = {
    "Status": 93, "Session": 95, "Value": 96, "RunOptions": 97, "TensorTypeAndShapeInfo": 99, "SessionOptions": 100,
}  # fmt: skip

SILENT = 4
"""The log level of fatal errors."""


def is_available() -> bool:
    """True if the package contains the C library as well as Python's, as onnxruntime 1.32 does on Linux."""
    return _library() is not None


@cache
def _library() -> Path | None:
    folder = Path(runtime().__file__).parent / "capi"
    found = sorted((*folder.glob("libonnxruntime.so*"), *folder.glob("libonnxruntime.*dylib")))
    return found[0] if found else None


def takes(feeds: Mapping[str, Any]) -> bool:
    """True if all inputs are arrays of numbers or booleans."""
    return all(isinstance(a, np.ndarray) and a.dtype.kind not in "OUS" for a in feeds.values())


class _Api:
    """The C functions, and objects that all sessions share."""

    def __init__(self, library: Path) -> None:
        class Base(ctypes.Structure):
            _fields_ = (("GetApi", ctypes.CFUNCTYPE(P, ctypes.c_uint32)), ("GetVersionString", P))

        base = ctypes.CDLL(str(library)).OrtGetApiBase
        base.restype = ctypes.POINTER(Base)
        table = ctypes.cast(base().contents.GetApi(API_VERSION), ctypes.POINTER(P))
        self._functions = {name: ctypes.CFUNCTYPE(P, *types)(table[at]) for name, (at, types) in FUNCTIONS.items()}
        self._releases = {kind: ctypes.CFUNCTYPE(None, P)(table[at]) for kind, at in RELEASE.items()}
        self._message = ctypes.CFUNCTYPE(S, P)(table[GET_ERROR_MESSAGE])
        self.env = self.make("CreateEnv", SILENT, b"ortconv")
        self.memory = self.make("CreateCpuMemoryInfo", 0, 0)
        self.allocator = self.make("GetAllocatorWithDefaultOptions")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises RuntimeError with onnxruntime's message if it fails."""
        status = self._functions[name](*arguments)
        if status:
            message = self._message(status).decode(errors="replace")
            self.release("Status", status)
            raise RuntimeError(message)

    def make(self, name: str, *arguments: Any) -> Any:
        """Call a function with an additional last argument, through which it returns a pointer; return the pointer."""
        made = P()
        self.call(name, *arguments, ctypes.byref(made))
        return made

    def release(self, kind: str, pointer: Any) -> None:
        """Release an object created by `make`."""
        self._releases[kind](pointer)


@cache
def api() -> _Api:
    library = _library()
    assert library is not None
    return _Api(library)


class NativeSession:
    """A file opened on the CPU. With `direct`, its constants stay in the pages of the mapped file.

    `level` is one of the C API, None for the default. Raises BackendError with onnxruntime's message if it does not load or run the
    file.
    """

    def __init__(
        self, file: Path, feeds: Mapping[str, np.ndarray[Any, Any]], *, threads: int, entries: Mapping[str, str],
        level: int | None, direct: bool,
    ) -> None:  # fmt: skip
        self._api = api()
        with native(f"opening {file.name}, {threads} threads, {dict(entries)}"):
            options = self._options(threads, entries, level)
            try:
                if direct:
                    with open(file, "rb") as opened:
                        self._pages = mapped(opened.fileno())
                    place, size = np.frombuffer(self._pages, np.uint8).ctypes.data, self._pages.nbytes
                    self._session = self._api.make("CreateSessionFromArray", self._api.env, place, size, options)
                else:
                    self._session = self._api.make("CreateSession", self._api.env, str(file).encode(), options)
            finally:
                self._api.release("SessionOptions", options)
            self._bind(feeds)

    def _options(self, threads: int, entries: Mapping[str, str], level: int | None) -> Any:
        options = self._api.make("CreateSessionOptions")
        self._api.call("SetSessionLogSeverityLevel", options, SILENT)
        self._api.call("SetIntraOpNumThreads", options, threads)
        if level is not None:
            self._api.call("SetSessionGraphOptimizationLevel", options, level)
        for key, value in entries.items():
            self._api.call("AddSessionConfigEntry", options, key.encode(), value.encode())
        return options

    def _bind(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Create the arguments that all runs use; the inputs refer to the arrays without copies."""
        count = ctypes.c_size_t()
        self._api.call("SessionGetOutputCount", self._session, ctypes.byref(count))
        names = [
            self._api.make("SessionGetOutputName", self._session, k, self._api.allocator) for k in range(count.value)
        ]
        self._arrays = [np.ascontiguousarray(a) for a in feeds.values()]
        self._values = (P * len(feeds))(*(self._tensor(a).value for a in self._arrays))
        self._inputs = (S * len(feeds))(*(name.encode("utf-8", "surrogateescape") for name in feeds))
        self._outputs = (P * count.value)(*(name.value for name in names))
        self._results = (P * count.value)()

    def _tensor(self, array: np.ndarray[Any, Any]) -> Any:
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        kind = int(DType.of(array.dtype))
        arguments = array.ctypes.data, array.nbytes, shape, array.ndim, kind
        return self._api.make("CreateTensorWithDataAsOrtValue", self._api.memory, *arguments)

    def run(self) -> None:
        """Run once, and release the outputs."""
        with self._results_of_a_run():
            pass

    def outputs(self) -> list[Array]:
        """Run once. The outputs, which must be tensors of numbers or truth values. TimeLimitError after the time of `within`."""
        with _run_options(self._api) as options, self._results_of_a_run(options) as results:
            return [self._array(P(value)) for value in results]

    @contextmanager
    def _results_of_a_run(self, options: Any = None) -> Iterator[Any]:
        inputs, outputs = len(self._values), len(self._outputs)
        self._api.call(
            "Run", self._session, options, self._inputs, self._values, inputs, self._outputs, outputs, self._results
        )
        try:
            yield self._results
        finally:
            for k in range(outputs):
                self._api.release("Value", self._results[k])
                self._results[k] = None

    def drop_pages(self) -> None:
        """Drop the pages of the mapped file from the process's memory."""
        drop_pages(self._pages)

    def _array(self, value: Any) -> Array:
        """A copy of a tensor."""
        api, kind, rank = self._api, ctypes.c_int(), ctypes.c_size_t()
        info = api.make("GetTensorTypeAndShape", value)
        try:
            api.call("GetTensorElementType", info, ctypes.byref(kind))
            api.call("GetDimensionsCount", info, ctypes.byref(rank))
            shape = (ctypes.c_int64 * rank.value)()
            api.call("GetDimensions", info, shape, rank.value)
        finally:
            api.release("TensorTypeAndShapeInfo", info)
        dtype = DType(kind.value).numpy
        size = math.prod(shape) * dtype.itemsize
        data = ctypes.string_at(api.make("GetTensorMutableData", value), size) if size else b""
        return np.frombuffer(data, dtype).reshape(tuple(shape))

    def __del__(self) -> None:
        for value in getattr(self, "_values", ()):
            self._api.release("Value", value)
        for name in getattr(self, "_outputs", ()):
            self._api.call("AllocatorFree", self._api.allocator, name)
        if hasattr(self, "_session"):
            self._api.release("Session", self._session)


@contextmanager
def _run_options(api: _Api) -> Iterator[Any]:
    """Options of a run that ends at the deadline, where there is one."""
    options = api.make("CreateRunOptions")
    try:
        with ending_in_time(partial(api.call, "RunOptionsSetTerminate", options)):
            yield options
    except RuntimeError as error:
        raise BackendError(str(error), backend="onnxruntime") from error
    finally:
        api.release("RunOptions", options)


class DirectFile:
    """An .ort file opened with the session options of an app. Its constants stay in the mapped file, in its layout.

    So neither sessions nor runs need memory for them. BackendError with onnxruntime's message if it does not load or run the file.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, file: Path, entries: Mapping[str, str]) -> None:
        self._file, self._entries = file, entries
        self._session({})

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """All outputs, in the order of the file."""
        if not takes(feeds):
            raise BackendError("inputs must be arrays of numbers", backend="onnxruntime")
        session = self._session(feeds)
        with native(f"running {self._file.name}"), repeatedly(session.drop_pages):
            return list(session.outputs())

    def _session(self, feeds: Mapping[str, Any]) -> NativeSession:
        return NativeSession(self._file, feeds, threads=1, entries=self._entries, level=None, direct=True)
