"""Compares models: the outputs and inner values of several models on the same inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortconv.compare.comparison import Comparison as Comparison
    from ortconv.compare.comparison import Subject as Subject
    from ortconv.compare.comparison import compare as compare
    from ortconv.compare.comparison import subject as subject

__all__ = ["Comparison", "Subject", "compare", "subject"]


def __getattr__(name: str) -> object:
    """The public names, imported on first use: other modules of this package are used by modules that run models."""
    if name in __all__:
        from ortconv.compare import comparison

        return getattr(comparison, name)
    raise AttributeError(f"module 'ortconv.compare' has no attribute '{name}'")
