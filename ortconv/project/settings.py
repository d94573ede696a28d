"""Options of a project file as fields of Options. Keys have the names of `ortconv convert`'s flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortconv.errors import OrtconvError, UsageError
from ortconv.pipeline.options import OPTIONS, Options

KEYS = {option.flag: option for option in OPTIONS.values() if option.flag is not None and option.in_project}
"""The option of each key."""

Table = Mapping[str, Any]


def options_of_table(table: Table, folder: Path) -> Options:
    """The options of a table. Its keys are those of KEYS, its files relative to the folder. UsageError for a wrong value."""
    given: dict[str, Any] = {}
    for key, value in table.items():
        option = KEYS[key]
        try:
            given[option.name] = option.kind.open(value, folder)
        except OrtconvError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{key} is {value!r}: {error}") from None
    return Options.of(given | {"write_config": False, "manifest": True})
