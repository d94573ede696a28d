"""All rewrites by name: their effects, their levels, and their differences from ONNX Runtime.

The facts are in the docstring of the rule's or pass's function. Its first paragraph describes the rewrite. Further lines may start
with one of these words:

    Counterpart:  the name of ONNX Runtime's transformer or rule, or "none" and the reason; without this line, there is none
    Differs:      differences from the counterpart
    Opt-in:       why it runs only on request; without this line, a rewrite of level `offload` has the usual reason
    Also:         another name under which the function reports its rewrites
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from ortconv.errors import UsageError, nearest
from ortconv.optimizer.engine import Rule
from ortconv.optimizer.levels import STAGES, opt_in_passes, passes_of
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.pattern import C, P, PatternInput
from ortconv.wording import listed

FIELDS = ("Counterpart", "Differs", "Opt-in", "Also")

MOST_MEMBERS = 8
"""Members of a group that an error lists."""


class RewriteEntry(NamedTuple):
    """A rewrite. `group` is the pass that it runs in; `doc` has one line for each form of the rule."""

    name: str
    level: str
    group: str
    opt_in: bool
    doc: tuple[str, ...] = ()
    counterpart: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    why_opt_in: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


@cache
def entries() -> tuple[RewriteEntry, ...]:
    """Every rewrite in the order in which the levels run them. Those that run only on request come last in their level."""
    found: dict[str, RewriteEntry] = {}
    for level in STAGES:
        for opt_in, group in ((False, passes_of(level)), (True, opt_in_passes(level))):
            for p in group:
                for r in p.rules or (p,):
                    known = found.get(r.name) or RewriteEntry(r.name, level, p.name, opt_in)
                    found[r.name] = _merged(known, r)
    return tuple(map(_completed, found.values()))


def _completed(entry: RewriteEntry) -> RewriteEntry:
    """The entry with what holds for the rewrites of its level that state nothing else."""
    if entry.level != "offload":
        return entry._replace(counterpart=entry.counterpart or ("none: beyond ONNX Runtime",))
    counterpart = entry.counterpart or ("none: CPU kernels support the node as it is",)
    usual = "more nodes; useful only if an accelerator supports them but not the operator."
    return entry._replace(counterpart=counterpart, why_opt_in=entry.why_opt_in or (usual,))


def _merged(entry: RewriteEntry, form: Rule | Pass) -> RewriteEntry:
    """Merge the docstring of another form of the rule, or that of a pass without rules, into the entry."""
    what, fields = parts(form.doc)
    return entry._replace(
        doc=_joined(entry.doc, what),
        counterpart=_joined(entry.counterpart, fields["Counterpart"]),
        differs=_joined(entry.differs, fields["Differs"]),
        why_opt_in=_joined(entry.why_opt_in, fields["Opt-in"]),
        also=_joined(entry.also, fields["Also"]),
        patterns=_joined(entry.patterns, *([pattern_text(form.pattern)] if isinstance(form, Rule) else [])),
    )


def _joined(known: tuple[str, ...], *more: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *filter(None, more))))


def parts(doc: str) -> tuple[str, dict[str, str]]:
    """The first paragraph of a docstring, and the first paragraph of the text under each of FIELDS."""
    pieces = re.split(rf"^\s*({'|'.join(FIELDS)}):", doc, flags=re.MULTILINE)
    fields = dict.fromkeys(FIELDS, "")
    for key, content in zip(pieces[1::2], pieces[2::2]):
        fields[key] = _first_paragraph(content)
    return _first_paragraph(pieces[0]), fields


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())


def pattern_text(pattern: PatternInput) -> str:
    """A pattern as one line: `const k` is a constant, `b?` may be absent, `...` means any further inputs."""
    if isinstance(pattern, P):
        inputs = ", ".join(map(pattern_text, pattern.inputs))
        return f"{operators(pattern)}({inputs}{'; in either order' if pattern.commutative else ''})"
    if isinstance(pattern, C):
        return f"const {pattern.name}{'?' if pattern.optional else ''}"
    return "..." if pattern is ... else str(pattern or "-")


def operators(pattern: P) -> str:
    """The operators that a pattern's node may have, as text."""
    names = " | ".join(pattern.ops)
    return f"{pattern.domain}:{names}" if pattern.domain else names


def patterns_of(name: str) -> list[P]:
    """The patterns of all rules with this name."""
    every = (p for level in STAGES for p in (*passes_of(level), *opt_in_passes(level)))
    return [r.pattern for p in every for r in p.rules if r.name == name]


def find(name: str) -> RewriteEntry:
    """The rewrite with this name. Raises UsageError, with the nearest match or the members of a group, for any other name."""
    known = {also: entry for entry in entries() for also in (entry.name, *entry.also)}
    if name in known:
        return known[name]
    members = [entry.name for entry in entries() if entry.group == name]
    if members:
        raise UsageError(f"'{name}' is a group of passes", hint=f"name one of them: {listed(members, MOST_MEMBERS)}")
    hint = nearest(name, known, likeness=0.85) or "see: ortconv passes list"
    raise UsageError(f"there is no pass '{name}'", hint=hint)


def checked(names: Iterable[str]) -> frozenset[str]:
    """The names as a set. Raises UsageError in the same way as `find`."""
    return frozenset(find(name).name for name in names)
