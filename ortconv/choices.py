"""What options choose from, for the library and for the command line, whose help must not import numpy."""

from __future__ import annotations

LEVELS = ("disable", "basic", "extended", "layout", "all")
"""How far the optimizer goes; each level adds passes to the one before."""

STYLES = ("Fixed", "Runtime")
"""Fixed: all fusions are made. Runtime: fusions above the basic level are saved for onnxruntime to make when it loads the model."""

PLATFORMS = ("arm", "amd64")

TARGETS = ("nnapi", "coreml")
"""Execution providers that a model can be divided for, in the order in which ONNX Runtime asks them."""

STUDIED = ("disable", "basic", "extended", "aware")
"""How a model can be prepared before it is divided: by a level, or as conversion for the target prepares it."""

FEATURE_LEVELS = range(27, 32)
"""Android API levels that NNAPI's rules distinguish; the last includes all later ones."""

COREML_FORMATS = ("NeuralNetwork", "MLProgram")

COREML_VERSION = 7
"""The version of CoreML of iOS 17 and macOS 14."""

TARGET_ORT = "1.17"
"""The default target release of ONNX Runtime; see docs/decisions/0011-target-release.md."""

ERROR_BUDGET = 0.01
"""The default limit on the error of float16, relative to the largest element of each output."""

BUILD_PLATFORMS = ("android", "ios", "linux", "macos", "windows")
"""Where a reduced build of ONNX Runtime can run."""

ENGINES = ("numpy", "onnxruntime", "both")
"""Where validation runs source and result."""

GOALS = ("latency", "size", "memory", "accelerator", "balanced")
"""What candidates of a tuning are ranked by."""

SNIPPETS = ("kotlin", "swift", "cpp", "python")
"""The languages of code that opens a file in an app."""
