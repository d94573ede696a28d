"""Pictures as arrays. PNM and BMP files are read here, all others with Pillow."""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ortconv.errors import FormatError, UsageError
from ortconv.files import opened, read_bytes
from ortconv.ir.tensor import Array
from ortconv.ir.types import Shape, TensorType
from ortconv.wording import counted

PNM = (".ppm", ".pgm", ".pnm")
BY_PILLOW = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".tif", ".tiff")
SUFFIXES = (*PNM, ".bmp", *BY_PILLOW)
MOST_PIXELS = 1 << 26
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a gray value, by ITU-R BT.601."""


def read_image(path: Path) -> Array:
    """The pixels of an image file, (height, width, 1 or 3) uint8. FormatError if it is damaged."""
    suffix = path.suffix.lower()
    if suffix in PNM or suffix == ".bmp":
        data = read_bytes(path)
        try:
            return _bmp(data) if suffix == ".bmp" else _pnm(data)
        except (ValueError, IndexError, OverflowError) as error:
            raise FormatError(f"not a {suffix[1:]} image: {str(error)[:200]}", file=path) from error
    return _by_pillow(path)


def _check_size(width: int, height: int) -> None:
    if width < 1 or height == 0 or width * abs(height) > MOST_PIXELS:
        raise ValueError(f"it has {width}x{height} pixels; 1 to {MOST_PIXELS} can be read")


def as_input(pixels: Array, type: TensorType, low: float | None, high: float | None) -> Array:
    """Pixels in the shape and element type of an input: channels first or last, a batch of one, gray for one channel.

    If `low` and `high` are given, 0..255 is mapped to that range. UsageError if the sizes do not agree: nothing is resized.
    """
    for shape, channels, first in _layouts(type.shape, pixels.shape[2]):
        made = _with_channels(pixels, channels)
        made = made.transpose(2, 0, 1) if first else made
        made = made.reshape((1,) * (len(shape) - 3) + made.shape) if len(shape) > 2 else made[:, :, 0]
        if _has_shape(made, shape):
            scaled = made if low is None or high is None else made.astype(np.float64) / 255 * (high - low) + low
            return np.ascontiguousarray(scaled.astype(type.dtype.numpy))
    height, width, count = pixels.shape
    raise UsageError(
        f"an image of {width}x{height} pixels and {counted(count, 'channel')} does not fit {type}",
        hint="resize it first; images are not resized here",
    )


def _with_channels(pixels: Array, channels: int) -> Array:
    """The image in gray for 1 channel, and with equal colors for 3 channels of a gray one."""
    if channels == 1 and pixels.shape[2] == 3:
        gray: Array = np.rint(pixels @ np.array(LUMA)).astype(np.uint8)
        return gray[:, :, None]
    return np.repeat(pixels, 3, axis=2) if channels == 3 and pixels.shape[2] == 1 else pixels


def _has_shape(array: Array, shape: Shape) -> bool:
    return array.ndim == len(shape) and all(d == n for d, n in zip(shape, array.shape) if isinstance(d, int))


def _layouts(shape: Shape | None, channels: int) -> list[tuple[Shape, int, bool]]:
    """Ways in which an input of this shape can hold an image: the shape, its channels, and whether they come first."""
    if shape is None:
        return [((1, channels, None, None), channels, True)]
    if len(shape) == 2:
        return [(shape, 1, False)]
    if len(shape) not in (3, 4):
        return []
    found = []
    for axis, first in ((-3, True), (-1, False)):
        if not isinstance(shape[axis], int) or shape[axis] in (1, 3):
            count = shape[axis]
            found.append((shape, count if isinstance(count, int) else channels, first))
    return found


def _pnm(data: bytes) -> Array:
    """Portable gray map or pixmap, as text (P2, P3) or bytes (P5, P6)."""
    header = re.match(rb"P([2356])((?:\s|#[^\n]*\n)+\d+){3}\s", data)
    if header is None:
        raise ValueError("the header is not P2, P3, P5 or P6 with width, height and maximum")
    kind = int(header[1])
    width, height, most = map(int, re.sub(rb"#[^\n]*\n", b" ", header[0]).split()[1:4])
    if not 0 < most < 256:
        raise ValueError(f"the maximum is {most}; only 1 to 255 can be read")
    channels = 3 if kind in (3, 6) else 1
    _check_size(width, height)
    count = width * height * channels
    body = data[header.end() :]
    values = np.frombuffer(body, np.uint8, count) if kind > 3 else np.array(body.split(None, count)[:count], np.int64)
    if values.min() < 0 or values.max() > most:
        raise ValueError(f"a value is outside of 0 to {most}, the maximum in the header")
    pixels = values.reshape(height, width, channels)
    return np.asarray(pixels if most == 255 else np.rint(pixels * (255 / most))).astype(np.uint8)


def _bmp(data: bytes) -> Array:
    """Windows bitmap, uncompressed, with 8 (palette), 24 or 32 bits per pixel."""

    def number(at: int, size: int = 4) -> int:
        if at + size > len(data):
            raise ValueError("the file ends too early")
        return int.from_bytes(data[at : at + size], "little", signed=size == 4)

    if data[:2] != b"BM":
        raise ValueError("it does not begin with BM")
    width, height, bits, packed = number(18), number(22), number(28, 2), number(30)
    if bits not in (8, 24, 32) or packed not in (0, 3) or (packed == 3 and bits != 32):
        raise ValueError(f"{bits} bits and compression {packed} cannot be read")
    _check_size(width, height)
    stride = (width * bits + 31) // 32 * 4
    rows = np.frombuffer(data, np.uint8, abs(height) * stride, number(10)).reshape(abs(height), stride)
    rows = rows[:, : width * bits // 8].reshape(abs(height), width, bits // 8)[:: -1 if height > 0 else 1]
    if bits == 8:
        start = 14 + number(14)
        palette = np.frombuffer(data, np.uint8, 4 * (number(46) or 256), start).reshape(-1, 4)
        rows = palette[rows[:, :, 0]]
    return np.ascontiguousarray(rows[:, :, 2::-1])


def _by_pillow(path: Path) -> Array:
    try:
        pillow: Any = import_module("PIL.Image")
    except ImportError:
        hint = "pip install 'ortconv[image]', or convert the image to .bmp, .ppm or .npy"
        raise UsageError(
            f"{path.suffix} images are read with Pillow, which is not installed", file=path, hint=hint
        ) from None
    try:
        with opened(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            image = pillow.open(file)
            _check_size(*image.size)
            if image.mode in ("I", "F") and image.format != "PNG":
                raise ValueError("its values have 32 bits; 8 or 16 can be read")
            deep = image.mode.startswith("I")  # 16 bits of gray, which convert() would clip at 255
            gray = deep or image.mode in ("1", "L")
            pixels = np.array(image if deep else image.convert("L" if gray else "RGB"))
            if deep:
                pixels = np.rint(pixels / 257).astype(np.uint8)
    except UsageError:
        raise
    except Exception as error:  # of any type, by the format
        raise FormatError(f"not an image, or damaged: {str(error)[:200]}", file=path) from error
    return pixels[:, :, None] if gray else pixels
