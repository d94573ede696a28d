"""The whole conversion, from model files to files in ORT format."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortconv.pipeline.config import config_name, ort_name, required_by
    from ortconv.pipeline.conversion import convert
    from ortconv.pipeline.options import Options
    from ortconv.pipeline.result import Result
    from ortconv.pipeline.settings import Settings
    from ortconv.pipeline.stages import Observer, Offload, Optimized, optimize, optimize_traced

_HOMES = {
    "config": ("config_name", "ort_name", "required_by"),
    "conversion": ("convert",),
    "options": ("Options",),
    "result": ("Result",),
    "settings": ("Settings",),
    "stages": ("Observer", "Offload", "Optimized", "optimize", "optimize_traced"),
}
"""The modules of the public names."""

__all__ = [
    "Observer", "Offload", "Optimized", "Options", "Result", "Settings", "config_name",
    "convert", "optimize", "optimize_traced", "ort_name", "required_by",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """The public names, imported on first use: an analysis needs only some of the modules."""
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
