"""ortconv: ONNX models to NNAPI-aware ORT format, run on a PC and proven right.

The public names, modules among them, are imported when first used, so that `import ortconv` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from ortconv import compare, errors, nnapi, partition, process
    from ortconv.batch import Failure, convert_all
    from ortconv.checking.check import check
    from ortconv.differences.diff import diff
    from ortconv.errors import (
        BackendError,
        FormatError,
        GraphError,
        MismatchError,
        ModelError,
        OrtconvError,
        UnsafeInputError,
        UnsupportedError,
        UsageError,
    )
    from ortconv.exporting.export import export
    from ortconv.inspection.inspect import inspect
    from ortconv.models import load
    from ortconv.ortformat.check import check as verify
    from ortconv.pipeline import Options, Result, convert, optimize
    from ortconv.pipeline.analysis import analyze
    from ortconv.pipeline.export_tflite import export as export_tflite
    from ortconv.pipeline.manifest import verify_manifest
    from ortconv.project.build import build
    from ortconv.project.init import init
    from ortconv.reduction.bundle import bundle
    from ortconv.reduction.reduce import reduce
    from ortconv.runtime.session import Session
    from ortconv.tuning.tune import tune

__version__ = "0.2.0"

_ERRORS = ("BackendError", "FormatError", "GraphError", "MismatchError", "ModelError", "OrtconvError", "UnsafeInputError",
           "UnsupportedError", "UsageError")  # fmt: skip
_MODULES = ("compare", "errors", "nnapi", "partition", "process")
_PUBLIC = {
    **dict.fromkeys(_ERRORS, "ortconv.errors"),
    "Failure": "ortconv.batch",
    "Options": "ortconv.pipeline",
    "Result": "ortconv.pipeline",
    "Session": "ortconv.runtime.session",
    "analyze": "ortconv.pipeline.analysis",
    "bundle": "ortconv.reduction.bundle",
    "build": "ortconv.project.build",
    "check": "ortconv.checking.check",
    "convert": "ortconv.pipeline",
    "convert_all": "ortconv.batch",
    "diff": "ortconv.differences.diff",
    "export": "ortconv.exporting.export",
    "inspect": "ortconv.inspection.inspect",
    "export_tflite": "ortconv.pipeline.export_tflite",
    "init": "ortconv.project.init",
    "load": "ortconv.models",
    "optimize": "ortconv.pipeline",
    "reduce": "ortconv.reduction.reduce",
    "tune": "ortconv.tuning.tune",
    "verify": "ortconv.ortformat.check",
    "verify_manifest": "ortconv.pipeline.manifest",
}
_INNER = {"export_tflite": "export", "verify": "check"}

__all__ = [
    "BackendError", "Failure", "FormatError", "GraphError", "MismatchError", "ModelError", "Options", "OrtconvError", "Result",
    "Session", "UnsafeInputError", "UnsupportedError", "UsageError", "__version__", "analyze", "build", "bundle", "check",
    "compare", "convert", "convert_all", "diff", "errors", "export", "export_tflite", "init", "inspect", "load", "nnapi",
    "optimize", "partition", "process", "reduce", "tune", "verify", "verify_manifest",
]  # fmt: skip


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"ortconv.{name}")
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), _INNER.get(name, name))
    raise AttributeError(f"module 'ortconv' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
