"""The texts of options in stamps, manifests and journals. Files of earlier releases hold them, so they must not change."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortconv.batch import journal
from ortconv.partition.profile import DeviceProfile
from ortconv.pipeline import Options
from ortconv.pipeline.arguments import arguments, read_arguments
from ortconv.pipeline.kinds import plain

CHANGED: dict[str, Any] = {
    "optimization_level": "extended",
    "optimization_style": "Runtime",
    "target_platform": "arm",
    "use_nnapi": True,
    "nnapi_feature_level": 29,
    "nnapi_partitioning_stop_ops": ["Resize", "Where"],
    "coreml_format": "MLProgram",
    "coreml_version": 8,
    "coreml_static_inputs": True,
    "coreml_on_subgraphs": True,
    "device": DeviceProfile(name="phone", refused_ops=("Softmax",)),
    "max_partitions": 3,
    "min_nodes": 2,
    "only_worthwhile": True,
    "maximize_offload": True,
    "enable_type_reduction": True,
    "save_optimized_onnx_model": True,
    "write_config": False,
    "fix_dims": {"batch": 1, "n=m": 2},
    "freeze_initializers": True,
    "fold_limit": 1000,
    "enable_passes": ["GeluApproximation"],
    "disable_passes": ["A", "B"],
    "only_passes": ["C"],
    "stop_after": 5,
    "float16": True,
    "error_budget": 0.1,
    "keep_float32": ["Conv", "/a/b"],
    "details": True,
    "validate": False,
    "validate_on": "numpy",
    "validate_with": [{"x": np.arange(3, dtype=np.float32)}, {"x": np.array(["a"], object)}],
    "validate_budget": "30s,2GiB",
    "allow_unchecked": True,
    "custom_op_library": "lib.so",
    "target_ort": "1.18",
    "manifest": True,
    "stamp": True,
    "fail_on": ["size>1.1x,nodes>3", "scaled>1e-3"],
}
"""A value of each option that is not its default. Options that exclude these are in OTHERS."""

OTHERS: dict[str, Any] = {"use_coreml": True, "pipeline": "level basic\nstop-after 3\n", "verify_each": True}

NEEDED = {
    "nnapi_partitioning_stop_ops": {"use_nnapi": True},
    "max_partitions": {"use_nnapi": True},
    "min_nodes": {"use_nnapi": True},
    "only_worthwhile": {"use_nnapi": True},
    "maximize_offload": {"use_nnapi": True},
    "error_budget": {"float16": True},
    "keep_float32": {"float16": True},
}
"""Settings without which an option is refused."""

ARGUMENTS = [
    "--optimization-level=extended",
    "--optimization-style=Runtime",
    "--target-platform=arm",
    "--use-nnapi",
    "--nnapi-feature-level=29",
    "--nnapi-partitioning-stop-ops=Resize,Where",
    "--coreml-format=MLProgram",
    "--coreml-version=8",
    "--coreml-only-static-input-shapes",
    "--coreml-enable-on-subgraph",
    "--device=479c98b1cefe351fe7d9b7861eac9b1fcc69b4abf3446aadc5b6f1ccbedc85f5",
    "--max-partitions=3",
    "--min-nodes=2",
    "--only-worthwhile",
    "--maximize-offload",
    "--enable-type-reduction",
    "--save-optimized-onnx-model",
    "--fix-dim=batch=1",
    "--fix-dim=n=m=2",
    "--freeze-initializers",
    "--fold-limit=1000",
    "--enable-pass=GeluApproximation",
    "--disable-pass=A",
    "--disable-pass=B",
    "--only-pass=C",
    "--stop-after=5",
    "--float16",
    "--error-budget=0.1",
    "--keep-float32=Conv",
    "--keep-float32=/a/b",
    "--no-validate",
    "--validate-on=numpy",
    "--validate-with=a6b43c7a3f7b38b64ee63d81b5839f83126eaec56e977c58b5df83851f3ff103",
    "--validate-with=13ead4a4e6c8963c316d814971582b2caf495f7b885d46301f8d941309f7ca4f",
    "--validate-budget=30s,2GiB",
    "--allow-unchecked",
    "--custom-op-library=3bdbb4fe8397cd2b842430b39ccff01a8663c751945ef5e9a09e267fb8b1d359",
    "--target-ort=1.18",
    "--fail-on=size>1.1x,nodes>3",
    "--fail-on=scaled>1e-3",
]

KEYS = {
    "default": "e9c2615b876b5e52d471e47729069347cfde16a4dd5a7ae23d70e4ca98147a41",
    "changed": "922b760153c1d02b8491887f13458ed614ad962495a6320016911981998c0072",
    "others": "b893fa36a6be602081ce6c33ad833ae2ada749604f979af51f00b776ef47b447",
}
"""Fingerprints. A new option changes all of them, since the models in a folder are then converted again."""


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(journal, "versions", lambda: {"ortconv": "1"})
    Path("lib.so").write_bytes(b"\x7fELF")


def test_every_option_is_frozen() -> None:
    assert [f.name for f in fields(Options) if f.name not in OTHERS] == [*CHANGED]


def test_arguments() -> None:
    assert arguments(Options.of(CHANGED)) == ARGUMENTS
    assert arguments(Options.of(OTHERS)) == [
        "--use-coreml",
        "--pipeline=284cb60d8ab44cd8d1471c6482d8e8bdaa118f205a3a8fc74fc595ac302bed5f",
        "--verify-each",
    ]
    assert read_arguments([text for text in ARGUMENTS if not text.startswith(("--device", "--custom"))]) == Options.of(
        {
            name: value
            for name, value in CHANGED.items()
            if name
            not in ("device", "custom_op_library", "validate_with", "details", "write_config", "manifest", "stamp")
        }
    )


def test_keys() -> None:
    given = {"default": {}, "changed": CHANGED, "others": OTHERS}
    assert {name: journal.fingerprint(Options.of(settings)) for name, settings in given.items()} == KEYS


@pytest.mark.parametrize("name", [*CHANGED, *OTHERS])
def test_each_option_alone(name: str) -> None:
    needed = NEEDED.get(name, {})
    before, after = Options.of(needed), Options.of({**needed, name: (CHANGED | OTHERS)[name]})
    is_in_arguments = name not in ("details", "write_config", "manifest", "stamp")
    assert (arguments(before) != arguments(after)) == is_in_arguments
    is_in_key = name not in ("details", "write_config", "validate_budget")
    assert (journal.fingerprint(before) != journal.fingerprint(after)) == is_in_key


def test_a_pipeline_replaces_what_selects_passes() -> None:
    selected = {
        name: CHANGED[name] for name in ("enable_passes", "disable_passes", "only_passes", "fold_limit", "stop_after")
    }
    assert arguments(Options.of(OTHERS | selected)) == arguments(Options.of(OTHERS))


def test_a_text_is_no_flag() -> None:
    options = Options(float16=True, keep_float32=("True", "False"))
    assert arguments(options) == ["--float16", "--keep-float32=True", "--keep-float32=False"]
    assert read_arguments(arguments(options)) == options


def test_arrays_of_other_libraries_have_a_digest() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.arange(3)

    assert plain({"x": Tensor()}) == plain({"x": np.arange(3)}) != plain({"x": np.arange(4)})
    assert plain(np.float64(2)) != plain(2.0) == 2.0
