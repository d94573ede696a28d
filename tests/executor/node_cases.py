"""The node test cases that come with onnx. Listing them computes expectations for seconds, so the list is stored."""

from __future__ import annotations

import pickle
import warnings
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ortconv import files
from ortconv.errors import OrtconvError
from tests.conftest import ROOT

RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}


@cache
def node_cases() -> list[Any]:
    """All cases with a model and data, by name."""
    stored = ROOT / ".pytest_cache" / f"node-cases-onnx-{onnx.__version__}-numpy-{np.__version__}.pickle"
    with suppress(OSError, EOFError, pickle.UnpicklingError):
        found: list[Any] = pickle.loads(stored.read_bytes())
        return found
    found = _listed()
    with suppress(OrtconvError):  # a read-only folder
        files.write_bytes(stored, pickle.dumps(found))
    return found


def _listed() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = {c.name: c for c in collect_testcases(None) if c.model is not None and c.data_sets}
    return [found[name] for name in sorted(found)]


def plain(x: Any) -> Any:
    """The numpy array, list or optional value of what a case reads or expects."""
    if isinstance(x, onnx.TensorProto):
        return numpy_helper.to_array(x)
    if isinstance(x, onnx.SequenceProto):
        return numpy_helper.to_list(x)
    if isinstance(x, onnx.OptionalProto):
        return numpy_helper.to_optional(x)
    return x
