"""Loads one-byte edits of a file, each within limits; a process of its own, so that a crash names the edit.

    python edits.py FILE FIRST STEP

prints, per edit, its number before it is tried, then `ok`, `error` or what went wrong.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 1.0
BYTES = 200 << 20


def edits(data: bytes) -> Iterator[bytes]:
    """Each byte as 0x00, 0xFF and with all bits flipped."""
    for i, byte in enumerate(data):
        for edit in (0x00, 0xFF, byte ^ 0xFF):
            yield data[:i] + bytes([edit]) + data[i + 1 :]


def main(file: str, first: int, step: int) -> None:
    from ortconv.errors import OrtconvError
    from ortconv.onnxio.load import load
    from ortconv.process import peak_bytes

    data = Path(file).read_bytes()
    edited = Path(file).with_suffix(".edited.onnx")
    load(file)
    for number, content in enumerate(edits(data)):
        if number < first or (number - first) % step:
            continue
        print(number, end=" ", flush=True)
        edited.write_bytes(content)
        before, start = peak_bytes() or 0, time.process_time()
        try:
            load(edited)
            result = "ok"
        except OrtconvError as error:
            result = "error" if error.exit_code != 1 else f"message: {error!r}"
        except BaseException as error:
            result = f"{type(error).__name__}: {str(error)[:200]!r}"
        seconds = time.process_time() - start
        grown = (peak_bytes() or 0) - before
        if seconds > SECONDS or grown > BYTES:
            result = f"{seconds:.1f} s, {grown} bytes"
        print(result, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
