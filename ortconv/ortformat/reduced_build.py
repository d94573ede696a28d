"""The command that builds ONNX Runtime with only the operators of a config. The flags are those of its tools/ci_build/build.py."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ortconv.choices import BUILD_PLATFORMS
from ortconv.documents import Document
from ortconv.errors import UsageError
from ortconv.ir.graph import Graph, Value
from ortconv.ir.kernels import newest_kernels, releases
from ortconv.ir.model import Model
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import plain_domain
from ortconv.ir.tensor import SparseTensor
from ortconv.ir.types import DType, OptionalType, SparseTensorType, TensorType, ValueType
from ortconv.ortformat.opconfig import RequiredOperators, since_of

BASE = ("--config=MinSizeRel", "--parallel", "--skip_tests", "--cmake_extra_defines=onnxruntime_BUILD_UNIT_TESTS=OFF")

PLATFORMS = {
    "android": ("--android", "--android_abi=arm64-v8a", "--android_api={api}", "--build_shared_lib", "--build_java"),
    "ios": ("--ios", "--use_xcode", "--build_apple_framework", "--apple_sysroot=iphoneos", "--osx_arch=arm64",
            "--apple_deploy_target=15.1"),
    "linux": ("--build_shared_lib",),
    "macos": ("--build_shared_lib",),
    "windows": ("--build_shared_lib",),
}  # fmt: skip
"""Build flags for each platform. The deployment target of iOS is that of ONNX Runtime's own package."""

OWN_DOMAINS = ("ai.onnx", "ai.onnx.ml", MICROSOFT, "com.microsoft.nchwc", "com.ms.internal.nhwc")

FLOAT8 = frozenset(t for t in DType if t.name.startswith("FLOAT8"))


@dataclass(frozen=True, slots=True)
class ReducedBuild(Document):
    """A build command, an estimate of its savings, and notes for the user."""

    command: list[str]
    """The command, for the root of a clone of ONNX Runtime."""
    kernels: int
    """Number of CPU kernels that the build keeps: one for each operator and range of versions."""
    all_kernels: int
    """Number of CPU kernels in a full build of the newest known release."""
    release: str
    notes: list[str]


def reduced_build(
    config: str,
    required: RequiredOperators,
    *,
    platform: str,
    use_nnapi: bool = False,
    use_coreml: bool = False,
    android_api: int = 27,
    models: Sequence[Model] = (),
) -> ReducedBuild:
    """The command that builds ONNX Runtime for a platform with the operators of a config. `config` is its path in the command.

    `models` are the models of the app, if known. They show whether saved fusions are to be applied, and which kinds of types no
    value has. Raises UsageError for a provider that the platform does not have.
    """
    _check(platform, use_nnapi, use_coreml)
    script = r".\build.bat" if platform == "windows" or os.name == "nt" else "./build.sh"
    domains = {domain for domain, _, _ in required.versions()}
    extended = use_nnapi or use_coreml or any(model.saved for model in models)
    custom = sorted(domains.difference(OWN_DOMAINS))
    unused = _unused_types(models)
    command = [script, *BASE, *(text.format(api=android_api) for text in PLATFORMS[platform])]
    command += _asked({"--use_nnapi": use_nnapi, "--use_coreml": use_coreml})
    command += ["--minimal_build", *_asked({"extended": extended, "custom_ops": bool(custom)})]
    command += ["--disable_exceptions", f"--include_ops_by_config={config}"]
    has_no_ml = not required.is_everything and "ai.onnx.ml" not in domains
    command += _asked({"--enable_reduced_operator_type_support": required.has_types, "--disable_ml_ops": has_no_ml})
    command += [*_asked({"--disable_types": bool(unused)}), *unused]
    kept, total = _kernels(required)
    return ReducedBuild(
        command, kept, total, releases()[-1], list(_notes(platform, custom, extended, models, required))
    )


def _asked(words: dict[str, bool]) -> list[str]:
    return [word for word, is_asked in words.items() if is_asked]


def _check(platform: str, use_nnapi: bool, use_coreml: bool) -> None:
    if platform not in BUILD_PLATFORMS:
        raise UsageError(f"platform '{platform}' is not one of {', '.join(BUILD_PLATFORMS)}")
    if use_nnapi and platform != "android":
        raise UsageError("NNAPI is there on Android only", hint="--platform android")
    if use_coreml and platform not in ("ios", "macos"):
        raise UsageError("CoreML is there on Apple's platforms only", hint="--platform ios or macos")


def _unused_types(models: Sequence[Model]) -> list[str]:
    """Kinds of types that a build can leave out because no value of the models has them. Constants in sparse form need the code of
    sparse tensors, although their values are dense.
    """
    if not models:
        return []
    values = (v for model in models for graph in model.graph.graphs() for v in _values(graph))
    found = {kind for value in values for kind in _kinds_of(value)}
    return [kind for kind in ("float8", "optional", "sparsetensor") if kind not in found]


def _kinds_of(value: Value) -> Iterator[str]:
    yield from _kinds(value.type)
    if isinstance(value.const, SparseTensor):
        yield "sparsetensor"


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    yield from (value for node in graph for value in node.outputs if value is not None)


def _kinds(type: ValueType | None) -> Iterator[str]:
    if isinstance(type, OptionalType):
        yield "optional"
        yield from _kinds(type.element)
    elif isinstance(type, SparseTensorType):
        yield "sparsetensor"
    elif isinstance(type, TensorType) and type.dtype in FLOAT8:
        yield "float8"


def _kernels(required: RequiredOperators) -> tuple[int, int]:
    """Number of kernels in the reduced build, and in a full build."""
    every = {(name, served) for name, ranges in newest_kernels().items() for served in ranges}
    if required.is_everything:
        return len(every), len(every)
    kept = set()
    for domain, version, op in required.versions():
        own, since = plain_domain(domain), since_of(domain, op, version)
        kept |= {(name, (a, b)) for name, (a, b) in every if name == f"{own}:{op}" and a <= since <= b}
    return len(kept), len(every)


def _notes(
    platform: str, custom: Sequence[str], extended: bool, models: Iterable[Model], required: RequiredOperators
) -> Iterator[str]:
    yield "the build loads .ort files only"
    if platform == "android":
        yield "ANDROID_HOME and ANDROID_NDK_HOME must name the SDK and the NDK"
    if not extended and not models:
        yield "files of Runtime style need an extended build: name the models with --model"
    if not required.has_types:
        yield "a config with types makes the build smaller: ortconv ops from DIR --types"
    if custom:
        yield f"operators of {', '.join(custom)} are yours: register their library in the app"
    yield "the size of the library is known after the build only"
