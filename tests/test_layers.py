"""The import rules of the packages, read from the source; and what `import ortconv` may load."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.counting import imported

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ortconv"

LAYERS: list[set[str]] = [
    {"errors", "windows"},
    {"choices", "process", "public", "wording"},
    {"files", "onnxlib", "protobuf"},
    {"onnxproto"},
    {"documents", "gates"},
    {"watch"},
    {"supervisor", "workers"},
    {"ir"},
    {"arrays", "runtime"},
    {"onnxio", "ortformat", "optimizer", "partition", "executor"},
    {"models"},
    {"nnapi"},
    {"tflite"},
    {"backends"},
    {"session"},
    {"stream"},
    {"inputs"},
    {"compare"},
    {"validation"},
    {"pipeline"},
    {"batch", "differences", "exporting", "inspection"},
    {"reduction", "tuning"},
    {"checking"},
    {"project"},
    {"report"},
    {"cli"},
    {"__main__"},
]
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}

PARTS = {"runtime/session": "session"}
"""Modules that stand in another layer than the rest of their package."""

SUBPACKAGES = ("replay", "algorithms", "kernels", "fusion", "")
"""The sub-packages of `executor/`, from the lowest to the modules outside of them. Each imports from itself and below."""

NOT_FROM = {("kernels", "replay"): "a kernel is its operator's definition, and knows nothing of memory or recording"}
"""Sub-packages below one that it does not import from, all the same."""

KERNELS_ONLY = {"optimizer": "folding needs the operators, not what makes runs fast"}
"""Packages that import from no sub-package of the executor but `kernels`."""

SIBLINGS = {
    ("optimizer", "executor"): "constant folding runs the operators' kernels",
    ("optimizer", "onnxio"): "shapes of rewritten nodes are inferred with onnx",
    ("ortformat", "onnxio"): "operators without a kernel are replaced by onnx's function bodies",
}

ONLY_IN = {  # library: the modules that may import it
    "click": ("cli/", "cli.py"),
    "rich": ("cli/", "cli.py"),
    "onnxruntime": ("backends/onnxruntime",),
    "distributed": ("batch/cluster",),
    "fsspec": ("batch/locations",),
    "ai_edge_litert": ("backends/litert/runtime.py",),
}
TOP_LEVEL_ONLY_IN = {"onnx": ("onnxio/",)}
NEVER = ("onnxruntime.tools", "torch")
NOT_AT_START = ("numpy", "onnx", "rich", "onnxruntime", "flatbuffers", "google.protobuf")


@dataclass(frozen=True)
class Import:
    path: str  # of the importing file, below ortconv/
    line: int
    module: str
    lazy: bool  # inside a function

    @property
    def unit(self) -> str:
        return unit_of(self.path)

    def __str__(self) -> str:
        return f"ortconv/{self.path}:{self.line} imports {self.module}"


def unit_of(path: str) -> str:
    """`ir/graph.py` -> ir, `errors.py` -> errors, `__init__.py` -> the package itself."""
    whole = path.removesuffix(".py")
    first = whole.split("/")[0]
    return "ortconv" if first == "__init__" else PARTS.get(whole, first)


def target_unit(module: str) -> str | None:
    """The unit of ortconv that a module name lies in; None for other libraries and for the package itself."""
    parts = module.split(".")
    if parts[0] != "ortconv" or len(parts) < 2:
        return None
    return PARTS.get("/".join(parts[1:3]), parts[1])


def subpackage_of(module: str) -> str | None:
    """The sub-package of the executor that a module lies in; None for modules of other packages."""
    parts = module.split(".")
    if parts[:2] != ["ortconv", "executor"]:
        return None
    return parts[2] if len(parts) > 2 and parts[2] in SUBPACKAGES else ""


def absolute(node: ast.ImportFrom, path: str) -> str:
    if node.level == 0:
        return node.module or ""
    package = ["ortconv", *path.split("/")[:-1]]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def modules(node: ast.stmt, path: str) -> list[str]:
    """`from a import b` names both a and a.b, since b may be a module; so does `import a.b`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = absolute(node, path)
        return [f"{base}.{alias.name}" if alias.name != "*" else base for alias in node.names]
    return []


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def walk(node: ast.AST, path: str, lazy: bool) -> Iterator[Import]:
    """Imports that are executed; those for type checkers only are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if is_type_checking(child):
            for other in child.orelse:  # type: ignore[attr-defined]
                yield from walk(ast.Module([other], []), path, lazy)
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            for module in modules(child, path):
                yield Import(path, child.lineno, module, lazy)
        inner = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from walk(child, path, inner)


def imports_of(source: str, path: str) -> list[Import]:
    return list(walk(ast.parse(source), path, lazy=False))


def misplaced(found: Import) -> str | None:
    """Why an import breaks the order of the layers, or None."""
    target = target_unit(found.module)
    if target is None or found.unit in ("ortconv", target) or (found.unit, target) in SIBLINGS:
        return None
    if target not in RANK:  # `from ortconv import name`: the public API, which is made of the layers below the cli
        allowed = target == "__version__" or RANK[found.unit] >= RANK["cli"]
        return None if allowed else f"{found}: the public API is a layer above {found.unit}"
    if RANK[target] < RANK[found.unit]:
        return None
    relation = "a sibling" if RANK[target] == RANK[found.unit] else "a layer above"
    return f"{found}: {target} is {relation} of {found.unit}"


def misplaced_in_executor(found: Import) -> str | None:
    """Why an import breaks the order of the executor's sub-packages, or None."""
    target = subpackage_of(found.module)
    if target is None:
        return None
    if found.unit in KERNELS_ONLY:
        return None if target == "kernels" else f"{found}: {found.unit} may import executor/kernels alone"
    own = subpackage_of(".".join(["ortconv", *found.path.removesuffix(".py").split("/")]))
    if own is None:
        return None
    if reason := NOT_FROM.get((own, target)):
        return f"{found}: {reason}"
    if SUBPACKAGES.index(target) <= SUBPACKAGES.index(own):
        return None
    return f"{found}: {target or 'executor'} is a sub-package above {own}"


def forbidden(found: Import) -> str | None:
    """Why an import of another library is not allowed where it stands, or None."""

    def within(names: tuple[str, ...] | list[str]) -> str | None:
        return next((name for name in names if f"{found.module}.".startswith(f"{name}.")), None)

    if never := within(NEVER):
        return f"{found}: {never} is never imported"
    if (library := within([*ONLY_IN])) and not found.path.startswith(ONLY_IN[library]):
        return f"{found}: only {' and '.join(ONLY_IN[library])} may"
    if (
        (library := within([*TOP_LEVEL_ONLY_IN]))
        and not found.lazy
        and not found.path.startswith(TOP_LEVEL_ONLY_IN[library])
    ):
        return f"{found}: outside {' and '.join(TOP_LEVEL_ONLY_IN[library])} only inside functions"
    return None


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    files = sorted(PACKAGE.rglob("*.py"))
    found = [one for file in files for one in imports_of(file.read_text("utf-8"), file.relative_to(PACKAGE).as_posix())]
    assert any(target_unit(one.module) == "errors" for one in found)
    return found


def test_every_module_is_in_a_layer() -> None:
    units = {unit_of(file.relative_to(PACKAGE).as_posix()) for file in PACKAGE.rglob("*.py")} - {"ortconv"}
    assert sorted(units - set(RANK)) == []


def test_imports_go_downwards(imports: list[Import]) -> None:
    assert [reason for one in imports if (reason := misplaced(one))] == []


def test_imports_between_subpackages_go_downwards(imports: list[Import]) -> None:
    assert {subpackage_of(one.module) for one in imports} == {None, *SUBPACKAGES}
    assert [reason for one in imports if (reason := misplaced_in_executor(one))] == []


def test_libraries_are_imported_where_they_belong(imports: list[Import]) -> None:
    assert [reason for one in imports if (reason := forbidden(one))] == []


@pytest.mark.parametrize(
    ("path", "source", "refused"),
    [
        ("ir/graph.py", "from ortconv.errors import GraphError", None),
        ("ir/graph.py", "from ortconv.onnxio import load", "a layer above"),
        ("ir/graph.py", "def f():\n    import ortconv.executor.plan", "a layer above"),
        ("ir/graph.py", "from ..cli import main", "a layer above"),
        ("ir/graph.py", "from . import tensor", None),
        ("ir/graph.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ortconv.cli", None),
        ("optimizer/basic/fold.py", "from ortconv.executor.kernels import evaluate", None),
        ("executor/plan.py", "from ortconv.runtime.backend import TimedStep", None),
        ("executor/plan.py", "from ortconv.runtime.session import Session", "a layer above"),
        ("runtime/session.py", "from ortconv.models import load", None),
        ("runtime/placement.py", "from ortconv.executor import plan", "a layer above"),
        ("executor/plan.py", "from ortconv.optimizer import engine", "a sibling"),
        ("partition/nnapi/conv.py", "from ortconv import ortformat", "a sibling"),
        ("pipeline/stages.py", "from ortconv.backends import numpy_cpu", None),
        ("ir/graph.py", "from ortconv import Session", "a layer above"),
        ("cli/run.py", "from ortconv import Session", None),
        ("report/page.py", "from ortconv import __version__", None),
    ],
)  # fmt: skip
def test_the_order_rule(path: str, source: str, refused: str | None) -> None:
    reasons = [reason for one in imports_of(source, path) if (reason := misplaced(one))]
    assert [refused in reason for reason in reasons] == [True] if refused else reasons == []


@pytest.mark.parametrize(
    ("path", "source", "refused"),
    [
        ("executor/kernels/conv.py", "from ortconv.executor.algorithms import conv", None),
        ("executor/kernels/conv.py", "from ortconv.executor.kernels.registry import kernel", None),
        ("executor/kernels/conv.py", "from ortconv.executor.fusion.table import fuse", "a sub-package above"),
        ("executor/kernels/conv.py", "from ortconv.executor.replay.work import Work", "a kernel is its operator's definition"),
        ("executor/algorithms/conv.py", "from ortconv.executor.replay.work import Work", None),
        ("executor/kernels/loop.py", "def f():\n    from ortconv.executor.plan import Plan", "a sub-package above"),
        ("executor/replay/work.py", "from ortconv.executor.kernels.registry import kernel", "a sub-package above"),
        ("executor/plan.py", "from ortconv.executor.fusion import table", None),
        ("backends/numpy_cpu.py", "from ortconv.executor.plan import Plan", None),
        ("optimizer/basic/fold.py", "from ortconv.executor.kernels import evaluate", None),
        ("optimizer/basic/fold.py", "def f():\n    from ortconv.executor.plan import Plan", "kernels alone"),
    ],
)  # fmt: skip
def test_the_subpackage_rule(path: str, source: str, refused: str | None) -> None:
    reasons = [reason for one in imports_of(source, path) if (reason := misplaced_in_executor(one))]
    assert [refused in reason for reason in reasons] == [True] if refused else reasons == []


@pytest.mark.parametrize(
    ("path", "source", "refused"),
    [
        ("cli/run.py", "import click\nfrom rich.table import Table", None),
        ("report/page.py", "import click", "may"),
        ("backends/onnxruntime_cpu.py", "import onnxruntime as ort", None),
        ("backends/numpy_cpu.py", "def f():\n    import onnxruntime", "may"),
        ("backends/onnxruntime_cpu.py", "from onnxruntime import tools", "never"),
        ("onnxio/load.py", "import onnx", None),
        ("optimizer/engine.py", "from onnx import helper", "only inside functions"),
        ("optimizer/engine.py", "class A:\n    import onnx", "only inside functions"),
        ("optimizer/engine.py", "def f():\n    from onnx import helper", None),
        ("optimizer/engine.py", "import onnx_like", None),
    ],
)  # fmt: skip
def test_the_library_rule(path: str, source: str, refused: str | None) -> None:
    reasons = [reason for one in imports_of(source, path) if (reason := forbidden(one))]
    assert [refused in reason for reason in reasons] == [True] if refused else reasons == []


@pytest.mark.parametrize("statement", ["import ortconv", "import ortconv.errors"])
def test_import_is_light(statement: str) -> None:
    loaded = imported("-c", statement)
    assert statement.removeprefix("import ") in loaded
    assert sorted(name for name in NOT_AT_START if name in loaded) == []


def test_the_import_probe_sees_numpy() -> None:
    assert "numpy" in imported("-c", "import numpy")
