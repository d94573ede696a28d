"""Small arrays, named by their type."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.ir.tensor import Array


def f32(values: Any) -> Array:
    """An array of float32 with these values."""
    return np.array(values, np.float32)


def i32(*values: int) -> Array:
    """A vector of int32."""
    return np.array(values, np.int32)


def i64(*values: int) -> Array:
    """A vector of int64."""
    return np.array(values, np.int64)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Random numbers of float32 with mean 0 and deviation 1."""
    return np.asarray(rng.standard_normal(shape), np.float32)
