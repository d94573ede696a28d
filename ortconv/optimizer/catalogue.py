"""All rewrites by name: what each does and at which level it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ortconv.errors import UsageError
from ortconv.optimizer.engine import RulePass
from ortconv.optimizer.levels import AnyPass, all_passes, basic_passes, extended_passes, layout_passes


class Entry(NamedTuple):
    """A rewrite. `group` is the pass that it runs in; `doc` has one line for each of its forms."""

    name: str
    level: str
    group: str
    doc: tuple[str, ...]


def entries() -> list[Entry]:
    """Every rewrite in the order in which the levels run them."""
    found: dict[str, Entry] = {}
    levels = {"basic": basic_passes, "extended": extended_passes, "layout": layout_passes, "all": all_passes}
    for level, passes in levels.items():
        for p in passes():
            for name, doc in _documented(p):
                known = found.get(name, Entry(name, level, p.name, ()))
                found[name] = known._replace(doc=tuple(dict.fromkeys((*known.doc, doc))))
    return list(found.values())


def _documented(p: AnyPass) -> Iterable[tuple[str, str]]:
    if isinstance(p, RulePass):
        return [(r.name, _first_paragraph(r.doc)) for r in p.rules]
    return [(p.name, _first_paragraph(p.run.__doc__ or ""))]


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())


def find(name: str) -> Entry:
    """The rewrite of a name. UsageError with the nearest match for an unknown one."""
    known = {entry.name: entry for entry in entries()}
    if name in known:
        return known[name]
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1, 0.4)
    raise UsageError(
        f"there is no pass '{name}'", hint=f"did you mean {near[0]}?" if near else "see: ortconv passes list"
    )


def checked(names: Iterable[str]) -> frozenset[str]:
    """The names as a set; UsageError as for `find`."""
    return frozenset(find(name).name for name in names)
