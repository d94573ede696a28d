"""ortconv: ONNX models to NNAPI-aware ORT format, run on a PC and proven right.

The public names, modules among them, are imported when first used, so that `import ortconv` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from ortconv import compare as compare
    from ortconv import errors as errors
    from ortconv import nnapi as nnapi
    from ortconv import partition as partition
    from ortconv import process as process
    from ortconv.batch import Failure as Failure
    from ortconv.batch import convert_all as convert_all
    from ortconv.checking.check import check as check
    from ortconv.differences.diff import diff as diff
    from ortconv.errors import BackendError as BackendError
    from ortconv.errors import FormatError as FormatError
    from ortconv.errors import GraphError as GraphError
    from ortconv.errors import MismatchError as MismatchError
    from ortconv.errors import ModelError as ModelError
    from ortconv.errors import OrtconvError as OrtconvError
    from ortconv.errors import UnsafeInputError as UnsafeInputError
    from ortconv.errors import UnsupportedError as UnsupportedError
    from ortconv.errors import UsageError as UsageError
    from ortconv.exporting.export import export as export
    from ortconv.inspection.inspect import inspect as inspect
    from ortconv.models import load as load
    from ortconv.ortformat.check import check as verify
    from ortconv.pipeline import Options as Options
    from ortconv.pipeline import Result as Result
    from ortconv.pipeline import convert as convert
    from ortconv.pipeline import optimize as optimize
    from ortconv.pipeline.analysis import analyze as analyze
    from ortconv.pipeline.export_tflite import export as export_tflite
    from ortconv.pipeline.manifest import verify_manifest as verify_manifest
    from ortconv.project.build import build as build
    from ortconv.project.init import init as init
    from ortconv.reduction.bundle import bundle as bundle
    from ortconv.reduction.reduce import reduce as reduce
    from ortconv.runtime.session import Session as Session
    from ortconv.tuning.tune import tune as tune

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
