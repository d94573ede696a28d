"""What all tests share."""

from __future__ import annotations

import copy
import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import none

from ortconv import process
from tests import batches
from tests.batches import slow_except

# Tests import onnxruntime themselves.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Commands print as into a file, whatever the terminal wants.
for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Hostile models are tested under the limits that the command sets.
process.take_over()
gc.set_threshold(50_000, 20, 20)  # garbage of many models, unlike that of one command, must go
process._MOST_OBJECTS = 10**9  # these thresholds alone decide when

# A gate gives the same answer twice.
settings.register_profile("gate", derandomize=True, deadline=None, database=None)
settings.register_profile("quick", settings.get_profile("gate"), max_examples=12)
settings.load_profile("gate")


def examples(count: int) -> settings:
    """The number of examples of a property, or an eighth of it with `--hypothesis-profile quick`."""
    return settings(max_examples=max(count * settings().max_examples // 100, 1))


ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_models"
SHARED = Path(os.environ.get("ORTCONV_SHARED", ROOT.parent / "shared"))
"""Further models, and vectors of NNAPI. Without this folder, tests that need it are left out."""
SHARED_MODELS = SHARED / "models"
NAMES = ("mnist", "mobilenet_v2_small", "bert_tiny", "qdq_cnn", "if_branch", "loop_accumulate")
FAST_NAMES = slow_except([name for name in NAMES if name not in ("mobilenet_v2_small", "bert_tiny")], NAMES)
"""The same for `parametrize("sample", FAST_NAMES, indirect=True)`: tests of the larger models are slow."""
SMALL = {"if_branch_ts13", "loop_rnn_ts14", "zoo_squeezenet"}
"""Of the shared models, those that `make check` takes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--differential", type=int, default=0, help="number of random cases of each com.microsoft operator"
    )


def pytest_configure(config: pytest.Config) -> None:
    batches.select_by_name(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    batches.thin_products(items)


def pytest_collection_finish() -> None:
    """Exempt collected tests, which are millions of objects that live until the end, from garbage collections."""
    given(none())(lambda nothing: None)()  # Hypothesis looks for references to numpy's generator, once
    gc.collect()
    gc.freeze()


_SEEDED: dict[str, dict[str, Any]] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The module's generator RNG starts anew: the numbers of a test do not depend on which tests ran before."""
    module: Any = getattr(item, "module", None)
    generator = getattr(module, "RNG", None)
    if isinstance(generator, np.random.Generator):
        first = _SEEDED.setdefault(module.__name__, copy.deepcopy(dict(generator.bit_generator.state)))
        generator.bit_generator.state = first


@pytest.fixture
def young_heap() -> None:
    """What exists is exempt from garbage collections, which a test that collects many times would spend its time on."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of the sample models."""
    return SAMPLES


@pytest.fixture(params=NAMES)
def sample(request: pytest.FixtureRequest) -> Path:
    """Each sample model in turn."""
    return SAMPLES / f"{request.param}.onnx"
