"""A project file for the models of a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ortconv.checking.check import DEFAULT_GATES
from ortconv.errors import OrtconvError, UsageError
from ortconv.files import write_text
from ortconv.models import find_models
from ortconv.onnxio.load import names_in
from ortconv.project.project import NAME
from ortconv.public import public
from ortconv.wording import counted

HEAD = """\
# Which models this repository ships, how they are converted, and what must hold of them.
# `ortconv build` converts what is out of date and checks the gates. Paths are relative to this file.

output-dir = "ort_models"

# Options of all models, named as those of `ortconv convert`; `ortconv convert -h` explains them.
[options]
optimization-level = "all"
# target-ort = "1.17"              # the oldest onnxruntime that must load the files
# enable-type-reduction = true     # smaller builds of onnxruntime: types in the operator config, too
# stamp = true                     # version, source and options in the metadata of each file

# Without targets, each model is converted once. With them, once for each, into a folder of that name.
# [targets.android]
# use-nnapi = true
# nnapi-feature-level = 29
#
# [targets.ios]
# use-coreml = true

# Each artifact is compared with an accepted one. Write the first baselines, and accept changes, with `ortconv build --update`,
# and commit them. `ortconv check -h` lists the metrics.
{gates}[gates]
{gates}baselines = "baselines"
{gates}fail-on = {conditions}
{gates}# app-config = "oldest_app.config"   # the operator config that the oldest app in use was built with
"""


@public
def init(folder: str | Path = ".", *, gates: bool = True) -> Path:
    """Write a commented project file for the .onnx models below a folder, and return its path. Without `gates`, these are comments.

    UsageError if the file exists, if there is no model, or if the name of one is not valid UTF-8.
    """
    folder = Path(folder)
    path = folder / NAME
    if path.exists():
        raise UsageError("it exists already", file=path, hint="change it, or remove it first")
    models = find_models(folder)
    if not models:
        raise UsageError("there is no .onnx file below this folder", file=folder)
    for model in models:
        if any("\ud800" <= c <= "\udfff" for c in str(model.relative_to(folder))):
            raise UsageError("its name is not valid UTF-8, which TOML demands", file=model, hint="rename it")
    text = HEAD.format(gates="" if gates else "# ", conditions=json.dumps(DEFAULT_GATES))
    write_text(path, "\n".join([text, *(_section(name, model, folder) for name, model in _named(models))]))
    return path


def _named(models: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """A unique name for each model: that of its file, with folders above it where needed."""
    taken: set[str] = set()
    for model in models:
        parts, name = list(model.parent.parts), model.stem
        while name in taken and parts:
            name = f"{parts.pop()}_{name}"
        while name in taken:
            name += "_"
        taken.add(name)
        yield name, model


def _section(name: str, model: Path, folder: Path) -> str:
    lines = [f"[models.{_key(name)}]", f"source = {_text(model.relative_to(folder).as_posix())}"]
    try:
        names = names_in(model)
    except OrtconvError as error:
        return "\n".join([*lines, f"# cannot be read: {' '.join(error.message.split())}", ""])
    if names.dims:
        sizes = ", ".join(_text(f"{dim}={1 if 'batch' in dim.lower() else 'N'}") for dim in sorted(names.dims))
        lines.append(f"# fix-dim = [{sizes}]   # accelerators need static shapes")
    if names.defaults:
        inputs = counted(len(names.defaults), "input")
        lines.append(f"# freeze-initializers = true   # {inputs} with a default value: rewrites need constants")
    return "\n".join([*lines, ""])


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(text: str) -> str:
    """A text in TOML's syntax."""
    escaped = "".join(
        c if c.isprintable() and c not in '"\\' else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"
        for c in text
    )
    return f'"{escaped}"'
