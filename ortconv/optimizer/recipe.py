"""Recipes: the passes of the optimizer, their order and their limits; and their form as text.

    # comment
    version 1.0
    level extended
    fold-limit 67108864

    basic:
      UnusedNodeElimination
      Level1Rules:
        EliminateIdentity
        EliminateSlice
    extended:
      ...

Passes and rules run in the order of the lines, and nothing else runs. `Name#2` is the second of that name in its list.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from ortconv import __version__
from ortconv.choices import LEVELS, natural
from ortconv.errors import UsageError, nearest
from ortconv.files import byte_count
from ortconv.optimizer.engine import FOLD_LIMIT, Rule
from ortconv.optimizer.levels import STAGES, inexact, opt_in_passes, passes_of
from ortconv.optimizer.passes import Pass

BASIC = ("basic", "offload")
"""The stages of the basic level."""

NNAPI_REPAIRS = ("QDQToFloat", "ReluToMax", "ClipToMinMax", "UnaryToRank4", "SoftmaxToRows", "GatherToPlainGather")
"""Passes of the offload stage that replace nodes which NNAPI's provider accepts, and which then make its session or run fail."""

COMMENT = r"(?:^|\s)#"


class Recipe(NamedTuple):
    """The passes of each stage, and limits."""

    level: str
    stages: Mapping[str, tuple[Pass, ...]]
    fold_limit: int = FOLD_LIMIT
    stop_after: int | None = None
    repairs: tuple[str, ...] = ()
    """The passes among NNAPI_REPAIRS that run after partitioning, at nodes that need them."""

    @property
    def basic(self) -> tuple[Pass, ...]:
        """The passes of the basic level for any execution provider."""
        return tuple(p for p in self.stages.get("basic", ()) if not (p.for_cpu or p.for_nnapi))

    @property
    def basic_for_cpu(self) -> tuple[Pass, ...]:
        """The basic passes that run after partitioning, on nodes left to the CPU."""
        return tuple(p for p in self.stages.get("basic", ()) if p.for_cpu)

    @property
    def basic_for_nnapi(self) -> tuple[Pass, ...]:
        """The basic passes that replace nodes on which the NNAPI provider ends the process."""
        return tuple(p for p in self.stages.get("basic", ()) if p.for_nnapi)

    @property
    def offload(self) -> tuple[Pass, ...]:
        return self.stages.get("offload", ())

    @property
    def above_basic(self) -> tuple[Pass, ...]:
        return tuple(p for stage in STAGES if stage not in BASIC for p in self.stages.get(stage, ()))


def make(
    level: str = "all",
    *,
    enable: Collection[str] = (),
    disable: Collection[str] = (),
    only: Collection[str] = (),
    fold_limit: int = FOLD_LIMIT,
    stop_after: int | None = None,
    offload: bool = False,
    nnapi: bool = False,
) -> Recipe:
    """The recipe of a level, with opt-in passes enabled, some passes and rules disabled, or only some allowed.

    With `offload`, it includes all passes of that stage that preserve the numbers; with `nnapi`, those that NNAPI's provider needs,
    unless the level is disable.

    Raises UsageError for an unknown name, for an enabled name that is not opt-in, and for one that is not allowed.
    """
    if level not in LEVELS:
        raise UsageError(f"optimization level '{level}' is not one of {', '.join(LEVELS)}")
    stages = stages_of(level)
    repairs: tuple[str, ...] = NNAPI_REPAIRS if nnapi and level != "disable" else ()
    opt_in = {p.name for p in opt_in_passes("basic") if p.for_nnapi} if repairs else set()
    if enable or disable or only or offload:
        from ortconv.optimizer import catalog

        selected = _Selection(catalog.checked(disable), catalog.checked(only))
        opt_in |= _enabled(level, enable) | {name for name in only if catalog.find(name).opt_in}
        if offload:
            opt_in |= set().union(*map(names_of, opt_in_passes("offload"))) - inexact(["offload"])
        stages = {stage: selected.passes(_with_opt_in(stage, passes, opt_in)) for stage, passes in stages.items()}
        repairs = tuple(filter(selected.runs, repairs))
    elif opt_in:
        stages["basic"] = _with_opt_in("basic", stages["basic"], opt_in)
    running = {stage: passes for stage, passes in stages.items() if passes or stage != "offload"}
    return Recipe(level, running, fold_limit, stop_after, repairs)


def _with_opt_in(stage: str, passes: tuple[Pass, ...], names: Collection[str]) -> tuple[Pass, ...]:
    """The passes of a stage, and after them the opt-in passes with these names."""
    return (*passes, *(p for p in opt_in_passes(stage) if not names_of(p).isdisjoint(names)))


class _Selection(NamedTuple):
    """The names of rewrites that do not run, and those that run alone, if any."""

    disabled: Collection[str]
    only: Collection[str]

    def runs(self, name: str) -> bool:
        return name not in self.disabled and (not self.only or name in self.only)

    def passes(self, passes: Iterable[Pass]) -> tuple[Pass, ...]:
        """The passes with the rules that run, without those of which none does."""
        return tuple(filter(None, map(self._selected, passes)))

    def _selected(self, p: Pass) -> Pass | None:
        if all(map(self.runs, names_of(p))):
            return p
        rules = [r for r in p.rules if self.runs(r.name)]
        return p.with_rules(rules) if rules else None


def stages_of(level: str) -> dict[str, tuple[Pass, ...]]:
    """The passes of each stage up to a level, without opt-in passes."""
    rank = LEVELS.index(level)
    return {stage: passes_of(stage) for stage in STAGES if LEVELS.index("basic" if stage in BASIC else stage) <= rank}


def names_of(p: Pass) -> set[str]:
    """The names that select the rewrites of a pass."""
    return {q.name for q in p.rules or (p,)}


def _enabled(level: str, names: Iterable[str]) -> set[str]:
    from ortconv.optimizer import catalog

    for name in names:
        entry = catalog.find(name)
        if not entry.opt_in:
            others = ", ".join(e.name for e in catalog.entries() if e.opt_in)
            raise UsageError(f"pass '{name}' runs without being enabled", hint=f"opt-in passes are {others}")
        if entry.level not in stages_of(level):
            raise UsageError(f"pass '{name}' belongs to level {entry.level}, which level {level} does not run")
    return set(names)


# ---------------------------------------------------------------------- as text


def text(recipe: Recipe) -> str:
    """The recipe as text that `parse` can read."""
    lines = [
        "# What ortconv's optimizer does, in this order. Give it back with: ortconv convert --pipeline FILE",
        f"version {__version__}",
        f"level {recipe.level}",
        f"fold-limit {recipe.fold_limit}",
    ]
    if recipe.stop_after is not None:
        lines.append(f"stop-after {recipe.stop_after}")
    if recipe.repairs:
        lines.append(f"repairs {' '.join(recipe.repairs)}")
    for stage, passes in recipe.stages.items():
        lines += ["", f"{stage}:"]
        lines += [line for p in passes for line in _described(p, _known_passes(stage))]
    return "\n".join(lines) + "\n"


def _described(p: Pass, known: Mapping[str, Pass]) -> Iterator[str]:
    """The lines of a pass: its name, and its rules unless all of them run and have one name."""
    name, whole = next((name, q) for name, q in known.items() if q is p or _is_part(p, q))
    runs = _runs(whole)
    if p is whole and len(runs) < 2:
        yield f"  {name}"
        return
    yield f"  {name}:"
    label_of = {r: label for label, rules in runs.items() for r in rules}
    yield from (f"    {label}" for label in dict.fromkeys(label_of[r] for r in p.rules))


def _is_part(p: Pass, whole: Pass) -> bool:
    return bool(p.rules) and p.name == whole.name and set(p.rules) <= set(whole.rules)


class _Line(NamedTuple):
    """A line of the text form that is not empty: a level, a setting, a pass, or a rule. `opens` is true if it ends in a colon."""

    number: int
    depth: int
    name: str
    opens: bool
    rules: list[_Line]
    """The lines below a pass that opens. A pass that does not runs all of its rules."""


def parse(text: str) -> Recipe:
    """Parse the text form of a recipe. Raises UsageError, with the line number, if it is invalid."""
    found: dict[str, int | str] = {}
    stages: dict[str, list[_Line]] = {}
    stage = ""
    for line in _lines(text):
        number, depth, name, opens, _ = line
        if depth == 0 and opens:
            stage = _known(name, STAGES, number, "level")
            _once(name, stages, number)
            stages[stage] = []
        elif depth == 0:
            key, _, value = name.partition(" ")
            _once(key, found, number)
            found[key] = _setting(key, value.strip(), number)
        elif not stage:
            raise _error(number, f"'{name}' stands in no level", "begin with basic:, extended: or layout:")
        elif depth == 1:
            stages[stage].append(line)
        elif opens or not stages[stage] or not stages[stage][-1].opens:
            raise _error(number, f"rule '{name}' stands in no pass", "a pass with rules ends in a colon")
        else:
            stages[stage][-1].rules.append(line)
    level = str(found.get("level", "all"))
    chosen = {stage: _chosen(stage, passes, level) for stage, passes in stages.items()}
    stop = found.get("stop-after")
    fold_limit, repairs = int(found.get("fold-limit", FOLD_LIMIT)), tuple(str(found.get("repairs", "")).split())
    return Recipe(level, chosen, fold_limit, None if stop is None else int(stop), repairs)


def _lines(text: str) -> Iterator[_Line]:
    for number, line in enumerate(text.splitlines(), 1):
        content = re.split(COMMENT, line)[0].rstrip()
        if content:
            indent = len(content) - len(content.lstrip(" "))
            if "\t" in content or indent not in (0, 2, 4):
                raise _error(number, "lines are indented by 0, 2 or 4 spaces")
            yield _Line(number, indent // 2, content.strip().removesuffix(":"), content.endswith(":"), [])


def _chosen(stage: str, listed: Sequence[_Line], level: str) -> tuple[Pass, ...]:
    if listed and stage not in stages_of(level):
        raise _error(listed[0].number, f"level {level} has no passes of level {stage}", f"write level {stage}, or all")
    known = _known_passes(stage)
    chosen: dict[str, Pass] = {}
    for line in listed:
        p = known[_known(line.name, known, line.number, f"pass of level {stage}")]
        _once(line.name, chosen, line.number)
        chosen[line.name] = _with_rules(p, line) if line.opens else p
    return tuple(chosen.values())


def _with_rules(p: Pass, listed: _Line) -> Pass:
    if not listed.rules or not p.rules:
        hint = "leave out the line, or the colon to run all of it"
        raise _error(listed.number, f"no rule follows '{listed.name}:'", hint)
    runs, rules = _runs(p), []
    for line in listed.rules:
        rules += runs[_known(line.name, runs, line.number, f"rule of {listed.name}")]
    return p if tuple(rules) == p.rules else p.with_rules(rules)


def _known_passes(stage: str) -> dict[str, Pass]:
    passes = (*passes_of(stage), *opt_in_passes(stage))
    return dict(zip(_numbered(p.name for p in passes), passes))


def _runs(p: Pass) -> dict[str, list[Rule]]:
    """The rules of a pass by name; consecutive rules of the same name are kept together."""
    groups = [list(group) for _, group in groupby(p.rules, lambda r: r.name)]
    return dict(zip(_numbered(group[0].name for group in groups), groups))


def _numbered(names: Iterable[str]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


def _setting(key: str, value: str, number: int) -> int | str:
    _known(key, ("version", "level", "fold-limit", "stop-after", "repairs"), number, "setting")
    if key == "level":
        return _known(value, LEVELS, number, "level")
    if key == "repairs":
        return " ".join(_known(name, NNAPI_REPAIRS, number, "repair") for name in value.split())
    if key == "version":
        if value != __version__:
            hint = "delete the line to run it with this version all the same"
            raise _error(number, f"written by ortconv {value}, this is {__version__}", hint)
        return value
    with suppress(ValueError):
        count = byte_count(value) if key == "fold-limit" else natural(value)
        if count is not None:
            return count
    raise _error(number, f"{key} takes a number, got '{value}'")


def _known(name: str, names: Iterable[str], number: int, what: str) -> str:
    names = list(names)
    if name not in names:
        raise _error(number, f"there is no {what} '{name}'", nearest(name, names, likeness=0.85))
    return name


def _once(name: str, seen: Collection[str], number: int) -> None:
    if name in seen:
        raise _error(number, f"'{name}' stands here twice")


def _error(number: int, message: str, hint: str | None = None) -> UsageError:
    return UsageError(f"line {number}: {message}", hint=hint)
