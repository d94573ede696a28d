"""Values of options, for the library and for the command line, whose help must not import numpy."""

from __future__ import annotations

import reprlib

from ortconv.errors import UsageError

LEVELS = ("disable", "basic", "extended", "layout", "all")
"""Optimization levels. Each level adds passes to the one before."""

STYLES = ("Fixed", "Runtime")
"""Fixed: all fusions are made. Runtime: fusions above the basic level are saved for onnxruntime to make when it loads the model."""

PLATFORMS = ("arm", "amd64")

TARGETS = ("nnapi", "coreml")
"""Execution providers that a model can be partitioned for, in the order in which ONNX Runtime asks them."""

ANALYSIS_LEVELS = ("disable", "basic", "extended", "aware")
"""How a model is prepared before it is partitioned: by a level, or as a conversion for the target does it."""

FEATURE_LEVELS = (27, 28, 29, 30, 31, 1000006, 1000007, 1000008)
"""The numbers of NNAPI's feature levels 1 to 8: Android's API levels up to 31. ONNX Runtime's rules are the same from 31 on."""

FEATURE_LEVEL = 31
"""The default feature level."""

REFERENCE_DEVICE = "nnapi-reference"
"""The name of the CPU among the devices of NNAPI."""

FEATURE_LEVELS_TEXT = "1 to 8, or a number of NNAPI: 27 to 31, 1000006 to 1000008"


DIGITS = 18
"""Decimal digits of the largest numbers that are read. Python reads none of thousands of digits."""


def natural(text: str) -> int | None:
    """The number that decimal digits make; None for another text and for too many digits."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS else None


def named_size(text: str) -> tuple[str, int] | None:
    """The name and the number of NAME=N; None for another text."""
    name, _, number = text.rpartition("=")
    size = natural(number)
    return None if not name or size is None else (name, size)


def comma_separated(text: str) -> tuple[str, ...]:
    """The names of a comma separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def feature_level_of(text: str) -> int:
    """The number of a feature level that a text names. UsageError for anything else."""
    number = natural(text)
    return feature_level(text if number is None else number)


def feature_level(level: object) -> int:
    """The number of a feature level, from 1 to 8 or the number itself. UsageError for anything else."""
    known = {**dict(enumerate(FEATURE_LEVELS, 1)), **{number: number for number in FEATURE_LEVELS}}
    if type(level) is not int or level not in known:
        raise UsageError(f"NNAPI has no feature level {reprlib.repr(level)}", hint=f"choose {FEATURE_LEVELS_TEXT}")
    return known[level]


COREML_FORMATS = ("NeuralNetwork", "MLProgram")

COREML_VERSION = 7
"""The version of CoreML of iOS 17 and macOS 14."""

TARGET_ORT = "1.17"
"""The default target release of ONNX Runtime; see docs/decisions/0011-target-release.md."""

ERROR_BUDGET = 0.01
"""The default limit on the error of float16, relative to the largest element of each output."""

BUILD_PLATFORMS = ("android", "ios", "linux", "macos", "windows")
"""Platforms of a reduced build of ONNX Runtime."""

ENGINES = ("numpy", "onnxruntime", "both")
"""Backends on which validation runs source and result."""

GOALS = ("latency", "size", "memory", "accelerator", "balanced")
"""Goals that the candidates of a tuning are ranked by."""

SNIPPETS = ("kotlin", "swift", "cpp", "python")
"""Languages of the code that opens a file in an app."""
