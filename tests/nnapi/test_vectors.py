"""Android's own conformance vectors, where they are at hand: for every operation, a few records of each kind."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from ortconv import nnapi
from tests.batches import slow_except
from tests.conftest import SHARED

CHECK = SHARED / "checks" / "nnapi_vectors.py"
PER_KIND = 2  # records of one operation, one main type and one feature level

pytestmark = pytest.mark.skipif(not CHECK.is_file(), reason="the conformance vectors are not at hand")


@pytest.fixture(scope="module")
def check() -> ModuleType:
    sys.path.insert(0, str(SHARED / "nnapi_vectors"))
    spec = importlib.util.spec_from_file_location("nnapi_vectors_check", CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.pop(0)
    return module


def selected(check: ModuleType) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Records such that every operation is there with each type and level that it is tested with."""
    seen: Counter[tuple[str, ...]] = Counter()
    for path in check.nnvec.files():
        if "mobilenet" in path:
            continue
        spec = check.nnvec.Spec(path)
        for record in spec.records:
            if record["lifetime_variation"] or record.get("timeout_test"):
                continue
            for operation in record["model"]["operations"]:
                first = record["model"]["operands"][operation["inputs"][0]]["type"]
                kind = (operation["type"], first, str(record["feature_level"]), str(record["expect_failure"]))
                seen[kind] += 1
                if seen[kind] <= PER_KIND:
                    yield spec, record
                    break


@pytest.mark.parametrize("mode", slow_except(["burst"], ("sync", "async", "burst", "fenced")))
def test_every_operation(check: ModuleType, mode: str) -> None:
    wrong = []
    ran = 0
    for at, (spec, record) in enumerate(selected(check)):
        if mode == "sync" or at % 8 == 0:
            ran += 1
            why = check.check(nnapi, spec, record, mode, False)
            wrong += [] if why is None else [f"{spec.name} {record['name']}: {why}"]
    assert ran > 50
    assert wrong == []


@pytest.mark.slow
def test_dynamic_outputs(check: ModuleType) -> None:
    wrong = []
    for at, (spec, record) in enumerate(selected(check)):
        scalar = any(not record["model"]["operands"][index]["dims"] for index in record["model"]["outputs"])
        if at % 8 == 0 and not record["expect_failure"] and not scalar:
            why = check.check(nnapi, spec, record, "sync", True)
            wrong += [] if why is None else [f"{spec.name} {record['name']}: {why}"]
    assert wrong == []
