"""Reading ortconv.toml.

    output-dir = "ort_models"       where the files go
    [options]                       of all models, as of `ortconv convert`
    [targets.NAME]                  more options; each model is converted for each target, into a folder of that name
    [models.NAME]                   source = FILE, targets = [NAME...], more options
    [gates]                         options of `ortconv check`, and baselines = FOLDER
    [gates.MODEL]                   those of one model

Later tables take precedence. All paths are relative to the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ortconv.errors import OrtconvError, UsageError, known_names, nearest
from ortconv.files import read_text, read_toml
from ortconv.gates import parse_gates
from ortconv.pipeline.config import suffix
from ortconv.pipeline.options import OPTIONS, Options

T = TypeVar("T")

NAME = "ortconv.toml"
Table = Mapping[str, Any]

TOP = ("output-dir", "options", "targets", "models", "gates")
KEYS = {option.flag: option for option in OPTIONS.values() if option.flag is not None and option.in_project}
"""The option of a conversion that each key sets: keys have the names of `ortconv convert`'s flags."""

OF_MODELS = ("source", "targets")
OF_GATES = ("baselines", "fail-on", "app-config", "measure", "seed")

_HEADER = re.compile(r"\s*\[\[?\s*([^\]#]+?)\s*\]")
_KEY = re.compile(r"""\s*["']?([^"'=\s#]+)["']?\s*=""")


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The check of an artifact against its baseline."""

    baseline: Path
    fail_on: tuple[str, ...] = ()
    app_config: Path | None = None
    measure: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model converted for a target. `output` is relative to the output folder. `target` is empty if there are no targets."""

    model: str
    target: str
    source: Path
    output: str
    options: Options
    gates: GateSettings | None

    @property
    def label(self) -> str:
        return label_of(self.model, self.target)


@dataclass(frozen=True, slots=True)
class Project:
    """The contents of a project file."""

    path: Path
    output_dir: Path
    artifacts: tuple[Artifact, ...]

    def chosen(self, models: Collection[str], targets: Collection[str]) -> list[Artifact]:
        """The artifacts of these models and targets; of all for an empty list. UsageError for an unknown name."""
        self._check_known("model", models, {a.model for a in self.artifacts})
        self._check_known("target", targets, {a.target for a in self.artifacts if a.target})
        found = [a for a in self.artifacts if a.model in models] if models else self.artifacts
        return [a for a in found if a.target in targets] if targets else list(found)

    def _check_known(self, kind: str, names: Collection[str], known: Collection[str]) -> None:
        known = sorted(known)
        for name in names:
            if name not in known:
                raise UsageError(f"there is no {kind} '{name}'", file=self.path, hint=known_names(name, known))


def label_of(model: str, target: str) -> str:
    return f"{model} for {target}" if target else model


def find_project(start: Path) -> Path:
    """The project file of a folder or of one above it; or the path itself, if that is a file."""
    if start.is_file():
        return start
    folder = start
    while not (folder / NAME).is_file():
        if folder.resolve() == folder.resolve().parent:
            raise UsageError(f"there is no {NAME} here or above", file=start, hint="ortconv init writes one")
        folder = folder / ".."
    return folder / NAME


def read_project(path: Path) -> Project:
    """Read a project file. UsageError, with the line if possible, for a table, key or value that is not valid."""
    document = read_toml(path)
    reader = _TableReader(path, document)
    artifacts = tuple(reader.artifacts())
    if not artifacts:
        raise UsageError(
            "there is no model in it", file=path, hint='write [models.NAME] and below it source = "FILE.onnx"'
        )
    return Project(path, path.parent / reader.text("output-dir", document, "ort_models"), artifacts)


class _TableReader:
    def __init__(self, path: Path, document: Table) -> None:
        self.path, self.folder, self.document = path, path.parent, document
        self._only(document, TOP, "")
        self.options = self._table("options", KEYS)
        self.targets = self._tables("targets", KEYS)
        self.models = self._tables("models", (*OF_MODELS, *KEYS))
        self.gates = self._gates()

    def artifacts(self) -> Iterator[Artifact]:
        """Each model for each of its targets."""
        seen: dict[str, str] = {}
        for name, table in self.models.items():
            section = f"models.{name}"
            if "source" not in table:
                raise self._error("a model needs source = FILE", section)
            source = self.folder / self.text("source", table)
            for target in self._targets_of(section, table):
                artifact = self._artifact(name, target, source, table)
                other = seen.setdefault(artifact.output, artifact.label)
                if other != artifact.label:
                    raise self._error(f"{other} and {artifact.label} would both become {artifact.output}", section)
                yield artifact

    def _artifact(self, name: str, target: str, source: Path, table: Table) -> Artifact:
        own = {key: value for key, value in table.items() if key not in OF_MODELS}
        merged = {**self.options, **self.targets.get(target, {}), **own}
        try:
            options = options_of_table(merged, self.folder)
            options.recipe()
        except OrtconvError as error:
            error.message = f"[models.{name}]{f' for target {target}' if target else ''}: {error.message}"
            error.at(file=self.path)
            raise
        ending = f"{suffix(options.optimization_level, options.optimization_style)}.ort"
        folder = f"{target}/" if target else ""
        return Artifact(name, target, source, f"{folder}{name}{ending}", options, self._gates_of(name, target))

    def _targets_of(self, section: str, table: Table) -> Sequence[str]:
        found = table.get("targets", list(self.targets) or [""])
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self._error(f"targets is {found!r}: it must be a list of names", section, "targets")
        for name in found:
            if name and name not in self.targets:
                hint = known_names(name, self.targets)
                raise self._error(f"there is no target '{name}'", section, "targets", hint)
        return found

    # ------------------------------------------------------------------ gates

    def _gates(self) -> Table | None:
        """Read the table of gates. Tables inside it belong to single models."""
        if "gates" not in self.document:
            return None
        table = self._is_table(self.document["gates"], "gates")
        self._only(table, (*OF_GATES, *self.models), "gates")
        for name, inner in table.items():
            if name in self.models:
                self._only(self._is_table(inner, f"gates.{name}"), OF_GATES, f"gates.{name}")
        return table

    def _gates_of(self, model: str, target: str) -> GateSettings | None:
        if self.gates is None:
            return None
        own = self.gates.get(model, {})
        merged = {key: value for key, value in self.gates.items() if key in OF_GATES} | dict(own)
        section = f"gates.{model}" if "fail-on" in own else "gates"
        return GateSettings(
            self.folder / self.text("baselines", merged, "baselines") / target / f"{model}.json",
            self._conditions(merged.get("fail-on", []), section),
            self.folder / self.text("app-config", merged) if "app-config" in merged else None,
            self._kind("measure", merged.get("measure", True), bool, "true or false"),
            self._kind("seed", merged.get("seed", 0), int, "a whole number"),
        )

    def _conditions(self, given: Any, section: str) -> tuple[str, ...]:
        """The conditions of fail-on, given as a text or a list of texts."""
        found = [given] if isinstance(given, str) else given
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self._error(f"fail-on is {given!r}: it must be a list of conditions", section, "fail-on")
        try:
            parse_gates(found, "check")
        except UsageError as error:
            raise self._error(error.message, section, "fail-on", error.hint) from None
        return tuple(found)

    # ------------------------------------------------------------------ values

    def text(self, key: str, table: Table, default: str | None = None) -> str:
        """Check that a value is a text that a path can have."""
        found = self._kind(key, table.get(key, default), str, "a text")
        if "\0" in found:
            raise self._error(f"{key} is {found!r}: no path has such a character", key=key)
        return found

    def _kind(self, key: str, value: object, kind: type[T], wanted: str) -> T:
        if type(value) is not kind:  # a bool is no whole number
            raise self._error(f"{key} is {value!r}: it must be {wanted}", key=key)
        return value

    def _table(self, name: str, known: Collection[str]) -> Table:
        table = self._is_table(self.document.get(name, {}), name)
        self._only(table, known, name)
        return table

    def _tables(self, name: str, known: Collection[str]) -> dict[str, Table]:
        found = {}
        for inner, table in self._is_table(self.document.get(name, {}), name).items():
            section = f"{name}.{inner}"
            if any(c in inner for c in "/\\\0") or inner in (".", ".."):
                raise self._error(f"'{inner}' is not a file name", section)
            found[inner] = self._is_table(table, section)
            self._only(found[inner], known, section)
        return found

    def _is_table(self, value: Any, section: str) -> Table:
        if not isinstance(value, Mapping):
            raise self._error(f"{section} must be a table: write [{section}]", key=section.rpartition(".")[2])
        return value

    def _only(self, table: Table, known: Collection[str], section: str) -> None:
        """UsageError for an unknown key."""
        for key in table:
            if key not in known:
                near = nearest(key.replace("_", "-"), known)
                where = f"[{section}] has" if section else "there is"
                raise self._error(f"{where} no key '{key}'", section, key, near or f"choose from {', '.join(known)}")

    def _error(self, message: str, section: str = "", key: str = "", hint: str | None = None) -> UsageError:
        line = line_of(read_text(self.path), section, key)
        return UsageError(f"{f'line {line}: ' if line else ''}{message}", file=self.path, hint=hint)


def options_of_table(table: Table, folder: Path) -> Options:
    """The options of a table. Its keys are those of KEYS, its files relative to the folder. UsageError for a wrong value."""
    given: dict[str, Any] = {}
    for key, value in table.items():
        option = KEYS[key]
        try:
            given[option.name] = option.kind.open(value, folder)
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{key} is {value!r}: {error}") from None
    return Options.of(given | {"write_config": False, "manifest": True})


def line_of(text: str, section: str, key: str) -> int | None:
    """The line of a key in a section of a TOML file, else that of the section's header; None if there is neither."""
    here, header = "", None
    for number, line in enumerate(text.splitlines(), 1):
        if found := _HEADER.match(line):
            here = found[1].replace('"', "").replace("'", "")
            if here == section:
                header = number
            if f"{here}.".startswith(f"{section}.{key}.".lstrip(".")):
                return number
        elif here == section and key and (found := _KEY.match(line)) and found[1] == key:
            return number
    return header
