"""Decoding of image files. It needs Pillow, which is optional."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

import numpy as np

from ortconv.errors import BackendError
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.tensor import Array

_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


@kernel("ImageDecoder")
def image_decoder(stream: Array, *, pixel_format: str = "RGB") -> Array:
    """Bytes of an image file to (height, width, channels) uint8; (0, 0, 0) if they cannot be decoded."""
    try:
        pillow: Any = import_module("PIL.Image")
    except ImportError:
        raise BackendError(
            "ImageDecoder decodes with Pillow, which is not installed", backend="numpy", hint="pip install Pillow"
        ) from None
    if pixel_format not in _MODES:
        raise BackendError(f"ImageDecoder has no pixel format '{pixel_format}'", backend="numpy")
    try:
        with pillow.open(io.BytesIO(stream.tobytes())) as image:
            pixels = np.array(image.convert(_MODES[pixel_format]))
    except (OSError, SyntaxError, ValueError):
        return np.zeros((0, 0, 0), np.uint8)
    if pixel_format == "Grayscale":
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if pixel_format == "BGR" else pixels
