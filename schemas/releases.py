"""Write releases.json and kernels.txt of ortconv/ir: the first release of onnxruntime that has each kernel, attribute, input and
saved action.

    python schemas/releases.py FOLDER

Downloads the first wheel of each minor release into FOLDER, unless it is there, and asks each what it has. Releases that do not
list their kernels are asked to load files of one node, one for each type of each kernel of the first that does.

`releases` are names, which everything else refers to by position. `opsets` are operator sets by domain and version. kernels.txt has
a line for each operator of the CPU execution provider: domain:operator, and the first and last since_version, the types by type
string, and the first and last release of each kernel. `types` are the lists of types that these refer to. `attributes` and
`inputs` are those that came after the operator itself, by domain:operator:version. `forms` are the models in release_forms/, each
one use of an operator. `actions` are the names of saved fusions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from onnx import parser

from ortconv.errors import OrtconvError
from ortconv.ir.graph import Attribute, Graph, Ints, Strings
from ortconv.ir.kernels import TENSORS
from ortconv.ir.model import Model
from ortconv.ir.schema import OPEN, Schema, schema
from ortconv.ir.types import TensorType
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context, PassSettings
from ortconv.ortformat.writer import save
from ortconv.pipeline import optimize

HERE = Path(__file__).parent
TARGET = HERE.parent / "ortconv" / "ir" / "releases.json"
KERNELS = TARGET.with_name("kernels.txt")
WHEELS = {
    **dict.fromkeys(("1.13.1", "1.14.0"), "3.10"),
    **{f"1.{minor}.{1 if minor == 24 else 0}": "3.11" for minor in range(15, 33)},
}
"""The wheels, and the Python that each is for."""
NUMPY = "1.26.4"
"""Works with all of them."""
DTYPES = {text: dtype for dtype, text in TENSORS.items()}
CHECKED = {"": "Abs", "ai.onnx.ml": "Scaler"}
"""Domains with several operator sets, and an operator of each that seldom changes."""

LIST = """
import json
from onnxruntime.capi import _pybind_state as ort
if not hasattr(ort, "get_all_operator_schema"):
    print("null")
else:
    kernels = [[f"{k.domain}:{k.op_name}", *k.version_range, {n: sorted(t) for n, t in sorted(k.type_constraints.items())}]
               for k in ort.get_all_opkernel_def() if k.provider == "CPUExecutionProvider"]
    schemas = [[f"{s.domain}:{s.name}:{s.since_version}", sorted(s.attributes), len(s.inputs)]
               for s in ort.get_all_operator_schema()]
    print(json.dumps({"kernels": kernels, "schemas": schemas}))
"""

LOAD = """
import json, sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
for path in sys.stdin.read().split():
    got = []
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        if "run" in sys.argv:
            random = numpy.random.default_rng(0)
            feeds = {i.name: random.normal(size=i.shape).astype(numpy.float32) for i in session.get_inputs()}
            got = [y.ravel().tolist() for y in session.run(None, feeds)]
        said = None
    except Exception as error:
        said = str(error)
    print(json.dumps([path, said, got]), flush=True)
"""

TOLERANCE = 1e-4


class Kernel(NamedTuple):
    op: str
    first: int
    last: int
    types: tuple[tuple[str, tuple[str, ...]], ...]


# ---------------------------------------------------------------------- the wheels


def python(folder: Path, release: str, program: str, *arguments: str, text: str = "") -> str:
    """What a program prints in the Python of a release's wheel, with only that release and numpy to import."""
    version = WHEELS[release]
    wheel, numpy = folder / "wheels" / release, folder / f"numpy-{version}"
    for target, package in ((wheel, f"onnxruntime=={release}"), (numpy, f"numpy=={NUMPY}")):
        if not target.exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
            platforms = [f"--platform=manylinux{p}_x86_64" for p in ("2014", "_2_17", "_2_27", "_2_28")]
            subprocess.run([*pip, f"--python-version={version}", *platforms, f"--target={target}", package], check=True)
    environment = {"PYTHONPATH": f"{wheel}:{numpy}", "ORT_DISABLE_TELEMETRY": "1"}
    command = [interpreter(version), "-S", "-c", program, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, env=environment, check=False).stdout


def interpreter(version: str) -> str:
    """A Python of this version: one that pyenv has, or the one of that name on the path."""
    own = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    return str(own[-1]) if own else f"python{version}"


class Answer(NamedTuple):
    refusal: str | None
    """What a release says where it does not load or run a file."""
    outputs: Sequence[Sequence[float]] = ()


def answers(folder: Path, release: str, paths: Iterable[Path], *arguments: str) -> dict[str, Answer]:
    """What a release makes of each file; with "run" it also runs it, on the same numbers. One that ends the process is refused."""
    left, found = [str(path) for path in paths], dict[str, Answer]()
    while left:
        lines = python(folder, release, LOAD, *arguments, text="\n".join(left)).splitlines()
        found.update((path, Answer(*rest)) for path, *rest in map(json.loads, lines))
        left = left[len(lines) :]
        if left:
            found[left.pop(0)] = Answer("the process ended")
    return found


def first_loading(folder: Path, models: Mapping[str, Path], *arguments: str) -> dict[str, int]:
    """For each model the first release that loads it, as do all later ones, and computes what they do; else their number."""
    found = dict.fromkeys(models, len(WHEELS))
    newest: dict[str, Answer] = {}
    for position, release in reversed(list(enumerate(WHEELS))):
        left = {key: path for key, path in models.items() if found[key] == position + 1}
        said = answers(folder, release, left.values(), *arguments)
        newest = newest or said
        for key, path in left.items():
            got, wanted = said[str(path)], newest[str(path)]
            if got.refusal is None and all(map(_is_close, got.outputs, wanted.outputs)):
                found[key] = position
    return found


def _is_close(got: Sequence[float], wanted: Sequence[float]) -> bool:
    return len(got) == len(wanted) and np.allclose(got, wanted, atol=TOLERANCE)


# ---------------------------------------------------------------------- what they list


def kernels(folder: Path, listed: list[Any]) -> dict[Kernel, list[int]]:
    """Every kernel with the first and the last release that has it."""
    found: dict[Kernel, list[int]] = {}
    for position, one in enumerate(listed):
        if one is None:
            continue
        for op, first, last, types in one["kernels"]:
            kernel = Kernel(op, first, last, tuple((n, tuple(t)) for n, t in types.items()))
            found.setdefault(kernel, [position, position])[1] = position
    oldest = next(position for position, one in enumerate(listed) if one is not None)
    for position in reversed(range(oldest)):
        known = [k for k, (first, _) in found.items() if first == position + 1]
        for kernel, kept in _probed(folder, list(WHEELS)[position], known).items():
            last = found[kernel][1] if kept == kernel else position
            found.setdefault(kept, [position, last])[0] = position
    return found


def _probed(folder: Path, release: str, known: list[Kernel]) -> dict[Kernel, Kernel]:
    """Which of these kernels a release has, and with which of their types; all those that no file of one node can show."""
    with TemporaryDirectory() as where:
        files: dict[tuple[int, str, str], Path | None] = {}
        for number, kernel in enumerate(known):
            for name, allowed in kernel.types or (("", ("",)),):
                for type in allowed:
                    path = Path(where, f"{len(files)}.ort")
                    written = _one_node(kernel, {name: type}, path)
                    files[number, name, type] = path if written else None
        said = answers(folder, release, [path for path in files.values() if path is not None])
    has = {key for key, path in files.items() if path is None or not _lacks(said[str(path)].refusal)}
    found = {}
    for number, kernel in enumerate(known):
        types = tuple((n, tuple(t for t in allowed if (number, n, t) in has)) for n, allowed in kernel.types)
        if all(allowed for _, allowed in types) and (types or (number, "", "") in has):
            found[kernel] = kernel._replace(types=types)
    return found


LACKING = (
    "Could not find an impl", "No Op registered", "No opset import", "No schema", "is not a registered", "Failed to find",
    "Unrecognized attribute",
)  # fmt: skip


def _lacks(said: str | None) -> bool:
    """True if a release says that it does not know an operator, a version of it, a type or an attribute that we write; not if it
    wants other attributes."""
    return said is not None and any(text in said for text in LACKING)


EXAMPLES: dict[str, Attribute] = {"INT": 1, "FLOAT": 1.0, "STRING": "", "INTS": Ints((1, 1)), "STRINGS": Strings(("",))}
"""Values of required attributes: without these, a release does not look for a kernel."""


def _one_node(kernel: Kernel, chosen: Mapping[str, str], path: Path) -> bool:
    """Write a file with one node for a kernel, of a chosen type where it has a choice; False if there is no schema."""
    domain, op = kernel.op.rsplit(":", 1)
    found = schema(domain, op, kernel.first)
    if found is None or found.since != kernel.first:
        return False
    first = {name: allowed[0] for name, allowed in kernel.types} | dict(chosen)
    graph = Graph("probe")
    graph.opsets.update({"": 13, domain: max(kernel.first, 1)})
    try:
        inputs = [
            graph.add_input(f.name, _type(found, f.type, f.name, first)) for f in found.inputs if f.kind != "optional"
        ]
        outputs = [_type(found, f.type, f.name, first) for f in found.outputs if f.kind != "optional"]
        attrs = {name: EXAMPLES[kind] for name in found.required if (kind := found.attributes[name]) in EXAMPLES}
        if "to" in attrs:
            attrs["to"] = int(outputs[0].dtype)
        node = graph.add_node(op, inputs, len(outputs), attrs, domain=domain, types=outputs)
        graph.set_outputs([v for v in node.outputs if v is not None])
        save(Model(graph), path)
    except (KeyError, OrtconvError):
        return False
    return True


def _type(found: Schema, declared: str, name: str, chosen: Mapping[str, str]) -> TensorType:
    text = chosen.get(
        declared, chosen.get(name, declared if declared not in found.type_parameters else "tensor(float)")
    )
    return TensorType(DTYPES[text])


def later(listed: list[Any], column: int) -> dict[str, dict[str, int]]:
    """Attributes, or numbers of inputs, of an operator that came after the operator, and the release."""
    seen: dict[str, dict[str, int]] = {}
    found: dict[str, dict[str, int]] = {}
    for position, one in enumerate(listed):
        for op, *columns in one["schemas"] if one is not None else ():
            content = columns[column]
            names = content if isinstance(content, list) else [str(n) for n in range(1, content + 1)]
            known = seen.setdefault(op, dict.fromkeys(names, 0))
            for name in names:
                if name not in known:
                    known[name] = found.setdefault(op, {})[name] = position
    return found


# ---------------------------------------------------------------------- what only files tell


def opsets(folder: Path) -> dict[str, dict[int, int]]:
    """The first release with each operator set."""
    found: dict[str, dict[int, int]] = {}
    with TemporaryDirectory() as where:
        for domain, op in CHECKED.items():
            paths = {}
            for version in range(1, 40):
                since = schema(domain, op, version)
                path = Path(where, f"{op}{version}.ort")
                if since is not None and _one_node(Kernel(f"{domain}:{op}", since.since, OPEN, ()), {}, path):
                    graph = Graph("probe")
                    graph.opsets.update({"": 13} | {domain: version})
                    x = graph.add_input("x", TensorType(DTYPES["tensor(float)"]))
                    graph.set_outputs([graph.add_node(op, [x], 1, domain=domain, types=[x.type]).out])
                    save(Model(graph), path)
                    paths[str(version)] = path
            loading = first_loading(folder, paths)
            found[domain] = {int(v): first for v, first in loading.items() if 0 < first < len(WHEELS)}
    return found


def forms(folder: Path) -> dict[str, int]:
    """The first release that runs each model of release_forms/."""
    with TemporaryDirectory() as where:
        paths = {}
        for source in sorted((HERE / "release_forms").glob("*.txt")):
            paths[source.stem] = Path(where, f"{source.stem}.ort")
            save(from_proto(parser.parse_model(source.read_text())), paths[source.stem])
        return first_loading(folder, paths, "run")


def actions(folder: Path) -> dict[str, int]:
    """The first release that loads some model of the tests' in which an action is saved."""
    sys.path += [str(HERE.parent / "tests" / name) for name in ("ortformat", "optimizer")]
    import runtime_nets as nets

    with TemporaryDirectory() as where:
        paths: dict[str, Path] = {}
        saved: dict[str, set[str]] = {}
        for name, net in {**nets.QUANTIZED, **nets.UNREPLAYABLE}.items():
            for kind in ("uint8", "int8"):
                model = from_proto(net(kind).proto())
                optimize(model, context=Context(PassSettings(optimization_style="Runtime")))
                key = f"{name}_{kind}"
                paths[key], saved[key] = Path(where, f"{key}.ort"), {fusion.action for fusion in model.saved}
                save(model, paths[key])
        first = first_loading(folder, paths)
    return {a: min(first[key] for key in paths if a in saved[key]) for a in sorted(set().union(*saved.values()))}


def main(folder: Path) -> None:
    listed = [json.loads(python(folder, release, LIST)) for release in WHEELS]
    types: dict[tuple[str, ...], int] = {}
    table: dict[str, list[Any]] = {}
    for kernel, (first, last) in sorted(kernels(folder, listed).items()):
        row = [kernel.first, kernel.last]
        constraints = {name: types.setdefault(allowed, len(types)) for name, allowed in kernel.types}
        table.setdefault(kernel.op, []).append([*row, constraints, first, last])
    document = {
        "releases": [".".join(release.split(".")[:2]) for release in WHEELS],
        "opsets": opsets(folder), "attributes": later(listed, 0), "inputs": later(listed, 1),
        "forms": forms(folder), "actions": actions(folder),
        "types": [" ".join(allowed) for allowed in types],
    }  # fmt: skip
    encode = partial(json.dumps, separators=(",", ":"))
    TARGET.write_text(encode(document) + "\n")
    KERNELS.write_text("".join(f"{op} {encode(rows)}\n" for op, rows in table.items()))
    print(f"{KERNELS.name}: {len(table)} operators, {KERNELS.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
