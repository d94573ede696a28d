"""The page that every verb's --html writes: one file, no network, one look.

A page has a title, sections, and optionally a picture. With a picture, the sections stand beside it; on a narrow screen they are a
sheet at the bottom. Without one, they follow each other. All styles and scripts stand in the file, and its policy allows nothing
else: two hashes name them.
"""

from __future__ import annotations

import json
import os
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from ortconv import __version__
from ortconv.choices import natural
from ortconv.report.sections import NOTHING, Link, Markup, Section
from ortconv.wording import installed

WEB = Path(__file__).with_name("web")
CLOSED = "base-uri 'none'; form-action 'none'"
WIDE = 5
"""A table with more columns shows its rows as cards on a narrow screen."""
MOST_ROWS = 200
"""Number of rows that a table shows. Thousands would take a browser longer than the rest of the page."""
LIBRARIES = ("onnx", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Stage:
    """A picture, or another part of a page that fills the screen: its HTML, files of WEB, and data for the scripts."""

    markup: Markup
    styles: Sequence[str] = ()
    scripts: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    toolbar: Markup = NOTHING
    """HTML after the headline."""
    legend: Markup = NOTHING
    """The meaning of colors: behind the toolbar or, on a narrow screen, in the sheet."""


def page(title: str, headline: str, sections: Iterable[Section], *, kind: str, stage: Stage | None = None) -> str:
    """The whole page. `kind` is the kind of its content, such as "partitions"."""
    stage = stage or Stage(NOTHING)
    style = _files("page.css", *stage.styles)
    script = _files("page.js", *stage.scripts)
    body = "\n".join(map(section_html, sections))
    name, where = text(title), "pictured" if stage.markup else "document"
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; {CLOSED}"
    data = f'<script type="application/json" id="data">{embedded(stage.data)}</script>\n' if stage.data else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark"><meta name="generator" content="ortconv {__version__}">
<title>{name}: {text(kind)}</title><style>{style}</style></head>
<body class="{where}">
<header><h1>{name}</h1><p class="headline">{text(headline)}</p>{stage.toolbar}{stage.legend}</header>
{_main(stage, body)}
{data}<script>{script}</script></body></html>
"""


def _main(stage: Stage, body: str) -> str:
    if not stage.markup:
        return f"<main>{body}</main>"
    return f"""<main>{stage.markup}</main>
<aside id="sheet" aria-label="details and numbers">
<button id="handle" aria-expanded="false" aria-controls="sheet">Details and numbers</button>
<div id="details" role="status"></div>
{stage.legend}{body}</aside>"""


def section_html(section: Section) -> str:
    """A section: its title, lines, figure and table; empty if it has none of these."""
    if not (section.lines or section.rows or section.figure):
        return ""
    table = table_html(section.header, section.rows, section.title) if section.rows else ""
    return f"<section><h2>{text(section.title)}</h2>{_lines(section.lines)}{section.figure}{table}</section>"


def _lines(lines: Sequence[str]) -> str:
    if len(lines) == 1:
        return f'<p class="note">{text(lines[0])}</p>'
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>" if lines else ""


def _head(name: str, right: str) -> str:
    return f'<th scope="col"{right}><button>{text(name)}</button></th>' if name else "<td></td>"


def table_html(header: Sequence[str], rows: Sequence[Sequence[object]], label: str) -> str:
    """A table that is sorted by a click on a column's name. On a narrow screen, wide tables show cards."""
    names = [name.removeprefix(">") for name in header]
    right = [' class="n"' if name.startswith(">") else "" for name in header]
    is_wide = len(header) >= WIDE
    cells = [f'<td{r} data-label="{text(n)}">' if is_wide else f"<td{r}>" for n, r in zip(names, right, strict=True)]
    head = "".join(map(_head, names, right))
    lines = ("".join(f"{td}{text(c)}</td>" for c, td in zip(row, cells, strict=True)) for row in rows[:MOST_ROWS])
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    left = f'<p class="note">the first {MOST_ROWS} of {len(rows)} rows</p>' if len(rows) > MOST_ROWS else ""
    frame = f'<div class="frame" role="region" tabindex="0" aria-label="{text(label)}">'
    kind = ' class="wide"' if is_wide else ""
    return f"{frame}<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{left}"


def about(options: Mapping[str, object]) -> Section:
    """The origin of a page: options, versions, and the date, which SOURCE_DATE_EPOCH fixes."""
    versions = ", ".join(map(" ".join, installed(LIBRARIES).items()))
    chosen = [f"{name} {value}".rstrip() for name, value in options.items()]
    lines = [f"ortconv {__version__}, with {versions}", _date()]
    return Section("About this page", [*(["options: " + ", ".join(chosen)] if chosen else []), *lines])


def _date() -> str:
    fixed = natural(os.environ.get("SOURCE_DATE_EPOCH", ""))
    moment = time.gmtime(fixed if fixed is not None and fixed < 1 << 40 else None)
    return time.strftime("written on %Y-%m-%d at %H:%M UTC", moment)


def text(value: object) -> str:
    """A value as HTML: text is escaped, its control characters replaced. A Link is a button, a tuple several lines."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, tuple):
        return "".join(f"<div>{text(part)}</div>" for part in value if part)
    shown = escape(clean(str(value)))
    if isinstance(value, Link):
        return f'<button class="link" data-find="{escape(clean(value.words))}">{shown}</button>'
    return shown


def clean(text: str) -> str:
    """The text without characters that XML cannot hold: names come from model files."""
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else "�" for c in text)


def embedded(data: Mapping[str, Any]) -> str:
    """JSON for a script element, escaped so that nothing in it ends the element."""
    written = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _files(*names: str) -> str:
    return "\n".join((WEB / name).read_text(encoding="utf-8") for name in names)


def _digest(content: str) -> str:
    return f"sha256-{b64encode(sha256(content.encode()).digest()).decode()}"
