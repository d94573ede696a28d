"""Arrays in and out of .npz files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortconv.errors import FormatError, UnsafeInputError, UsageError
from ortconv.files import replacing


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file by name. FormatError if it is none, UnsafeInputError for pickled objects."""
    import numpy as np

    if not zipfile.is_zipfile(path):
        raise FormatError("is no .npz archive", file=path, hint="write one with numpy.savez(path, name=array)")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except ValueError as error:
        if "pickle" in str(error):
            raise UnsafeInputError("holds pickled objects, which can run code when they are read", file=path) from error
        raise FormatError(f"is no .npz archive: {error}", file=path) from error
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise FormatError(f"is no .npz archive: {error}", file=path) from error


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays as .npz; strings as fixed-width text."""
    import numpy as np

    lists = [name for name, a in arrays.items() if a is None or isinstance(a, list | dict)]
    if lists:
        raise UsageError(f"'{lists[0]}' is no tensor, and .npz files hold nothing else", file=path)
    plain = {name: (a.astype(str) if np.asarray(a).dtype.kind == "O" else np.asarray(a)) for name, a in arrays.items()}
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez(file, **plain)  # type: ignore[arg-type]
