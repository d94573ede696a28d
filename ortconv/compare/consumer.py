"""onnxruntime in validation: opens files and formats its messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortconv.errors import BackendError

if TYPE_CHECKING:
    from ortconv.backends.onnxruntime_cpu import ModelFile


def open_file(file: Path, default: bool, custom_op_library: Path | None) -> ModelFile:
    from ortconv.backends.onnxruntime_cpu import ModelFile
    from ortconv.runtime.backend import get_backend

    get_backend("onnxruntime")
    return ModelFile(file, default=default, custom_op_library=custom_op_library)


def runtime_name() -> str:
    try:
        from ortconv.backends.onnxruntime_cpu import version

        return f"onnxruntime {version()}"
    except ImportError:
        return "onnxruntime"


def message_of(error: BackendError, file: Path | None = None) -> str:
    """onnxruntime's message, without the name of a draft file."""
    text = error.message.removeprefix("backend onnxruntime: ")
    return text if file is None else text.replace(str(file), "the file")
