"""Fourier transforms, windows and mel filters. Transforms are computed in the precision of the signal, at least float32."""

from __future__ import annotations

import numpy as np

from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.kernels.registry import Function, kernel, table
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


@kernel("DFT", since=20)
def dft(
    x: Array, dft_length: Array | None = None, axis: Array | None = None, *, inverse: int = 0, onesided: int = 0
) -> Array:
    along = (-2 if axis is None else int(axis.reshape(()))) % x.ndim
    length = None if dft_length is None else int(dft_length.reshape(()))
    if inverse and onesided:
        return np.asarray(np.fft.irfft(_complex(x), length, axis=along)[..., None], x.dtype)
    y: Array = (np.fft.ifft if inverse else np.fft.fft)(_complex(x), length, axis=along)
    if onesided:
        y = y.take(np.arange(y.shape[along] // 2 + 1), axis=along)
    return _pairs(y, x.dtype)


table({"DFT": lambda x, length=None, *, axis=1, inverse=0, onesided=0: (
    dft(x, length, np.array(axis), inverse=inverse, onesided=onesided)
)}, until=19)  # fmt: skip


def _complex(x: Array) -> Array:
    """(..., 1) real or (..., 2) pairs as complex (...)."""
    x = widen(x)
    if x.shape[-1] == 1:
        return np.asarray(x[..., 0])
    y = np.empty(x.shape[:-1], np.result_type(x.dtype, np.complex64))
    y.real, y.imag = x[..., 0], x[..., 1]
    return y


def _pairs(y: Array, dtype: np.dtype[np.generic]) -> Array:
    return np.stack([y.real, y.imag], axis=-1).astype(dtype)


@kernel("STFT")
def stft(
    x: Array, frame_step: Array, window: Array | None = None, frame_length: Array | None = None, *, onesided: int = 1
) -> Array:
    """A signal of rank 2, (batch, length), consists of real numbers, as in onnxruntime."""
    x = x[..., None] if x.ndim == 2 else x
    step, length = int(frame_step.reshape(())), x.shape[1] if window is None else len(window)
    length = length if frame_length is None else int(frame_length.reshape(()))
    frames = np.lib.stride_tricks.sliding_window_view(_complex(x), length, axis=1)[:, ::step]
    y = np.fft.fft(frames if window is None else frames * window, axis=-1)
    return _pairs(y[..., : length // 2 + 1] if onesided else y, x.dtype)


def _cosine_window(*coefficients: float) -> Function:
    def run(size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
        n = int(size.reshape(()))
        phase = 2 * np.pi * np.arange(n) / max(n if periodic else n - 1, 1)
        y = sum((-1) ** k * a * np.cos(k * phase) for k, a in enumerate(coefficients))
        return np.asarray(y).astype(DType(output_datatype).numpy)

    return run


table({
    "HannWindow": _cosine_window(0.5, 0.5), "HammingWindow": _cosine_window(25 / 46, 21 / 46),
    "BlackmanWindow": _cosine_window(0.42, 0.5, 0.08),
})  # fmt: skip


@kernel("MelWeightMatrix")
def mel_weight_matrix(
    bands: Array, length: Array, rate: Array, lowest: Array, highest: Array, *, output_datatype: int = 1
) -> Array:
    """Triangles over the one-sided spectrum, (dft_length // 2 + 1, num_mel_bins); their corners are whole bins."""
    count, size = int(bands.reshape(())), int(length.reshape(()))
    low, high = (2595 * np.log10(1 + float(f.reshape(())) / 700) for f in (lowest, highest))
    mel = low + np.arange(count + 2) * (high - low) / (count + 2)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    corners = np.floor((size + 1) * hertz / float(rate.reshape(()))).astype(np.int64)
    lower, center, upper = corners[:-2], corners[1:-1], corners[2:]
    bins = np.arange(size // 2 + 1)[:, None]
    rising = (bins - lower) / np.maximum(center - lower, 1)
    falling = (upper - bins) / np.maximum(upper - center, 1)
    y = np.where(bins == center, 1, np.minimum(rising, falling).clip(0))
    return y.astype(DType(output_datatype).numpy)
