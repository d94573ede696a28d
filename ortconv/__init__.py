"""ortconv: ONNX models to NNAPI-aware ORT format, run on a PC and proven right.

The public names are imported when first used, so that `import ortconv` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortconv.models import load as load
    from ortconv.pipeline import convert as convert
    from ortconv.pipeline import optimize as optimize
    from ortconv.session import Session as Session

__version__ = "0.1.0"

_PUBLIC = {
    "Session": "ortconv.session",
    "convert": "ortconv.pipeline",
    "load": "ortconv.models",
    "optimize": "ortconv.pipeline",
}

__all__ = ["Session", "__version__", "convert", "load", "optimize"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'ortconv' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
