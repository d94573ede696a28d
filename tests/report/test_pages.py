"""Pages as text: sections, links, the date, and the steps between two graphs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from partition_graphs import make

from ortconv import __version__
from ortconv.cli import main
from ortconv.ir.graph import Node
from ortconv.report.page import about, page, section_html, text
from ortconv.report.picture import drawn
from ortconv.report.sections import Link, Markup, Section
from ortconv.report.story import RewriteStep, step_data, story_page


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        (3, "3"),
        (Markup("<b>x</b>"), "<b>x</b>"),
        (
            Link("Erf: operator", "Erf operator:"),
            '<button class="link" data-find="Erf operator:">Erf: operator</button>',
        ),
        (Link("<x>", '"'), '<button class="link" data-find="&quot;">&lt;x&gt;</button>'),
        (("one", "", "<two>"), "<div>one</div><div>&lt;two&gt;</div>"),
        ("a\x00\ud800b", "a��b"),
    ],
)
def test_values_as_html(value: object, expected: str) -> None:
    assert text(value) == expected


def test_a_section_holds_lines_a_figure_and_a_table() -> None:
    found = section_html(Section("Sizes", ["x", "y"], ("name", ">bytes"), [("<a>", 3)], Markup("<svg></svg>")))
    assert "<h2>Sizes</h2><ul><li>x</li><li>y</li></ul><svg></svg>" in found
    assert '<th scope="col" class="n"><button>bytes</button></th>' in found
    assert '<td>&lt;a&gt;</td><td class="n">3</td>' in found
    assert section_html(Section("Nothing")) == ""


def test_a_table_of_thousands_is_cut() -> None:
    found = section_html(Section("Many", (), ("n",), [(i,) for i in range(5000)]))
    assert found.count("<tr>") == 201
    assert "the first 200 of 5000 rows" in found


def test_the_last_section_has_options_versions_and_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    found = section_html(about({"--level": "basic", "--compare-levels": ""}))
    assert "options: --level basic, --compare-levels" in found
    assert f"ortconv {__version__}, with onnx " in found
    assert "written on 2023-11-14 at 22:13 UTC" in found


@pytest.mark.parametrize("epoch", ["", "no number"])
def test_without_a_fixed_date_it_is_today(monkeypatch: pytest.MonkeyPatch, epoch: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    assert re.search(r"written on 20\d\d-\d\d-\d\d at \d\d:\d\d UTC", section_html(about({})))


def test_a_page_without_a_picture_is_a_document() -> None:
    found = page("m", "all of it", [Section("A", ["b"])], kind="report")
    assert '<body class="document">' in found
    assert "sheet" not in found.partition("<body")[2].partition("<script>")[0]


@pytest.mark.parametrize(
    "command",
    [
        ("partition", "{model}", "--compare-levels", "-q"),
        ("inspect", "{model}", "--json"),
        ("diff", "{model}", "{other}", "-q"),
    ],
)
def test_the_same_command_writes_the_same_bytes(
    command: tuple[str, ...],
    samples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    places = {"model": samples / "mnist.onnx", "other": samples / "qdq_cnn.onnx"}
    pages = [tmp_path / "a.html", tmp_path / "b.html"]
    for target in pages:
        assert main([*(part.format(**places) for part in command), "--html", str(target)]) == 0
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_the_page_of_a_conversion(samples: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    command = ["convert", str(samples / "mnist.onnx"), "-o", str(tmp_path / "m.ort"), "--use-nnapi", "-q"]
    assert main([*command, "--html", str(target)]) == 0
    found = target.read_text("utf-8")
    for part in ("Rewrites, step by step", "ConstantFolding", "Partitions", "Numbers", "Size", "Time", "--use-nnapi"):
        assert part in found
    assert str(tmp_path) not in found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{folder}",), "--html shows one model"),
        (("{folder}/mnist.onnx", "--optimization-style", "Fixed", "Runtime"), "--html shows one conversion"),
    ],
)
def test_the_page_of_a_conversion_shows_one_model(
    arguments: tuple[str, ...], said: str, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [part.format(folder=samples) for part in arguments]
    assert main(["convert", *filled, "--output-dir", str(tmp_path), "--html", str(tmp_path / "p.html")]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- steps


def chain(ops: str) -> list[Node]:
    """Nodes named by their operators."""
    value = "x"
    body: list[str] = []
    for op in ops.split():
        body.append(f"v{len(body)} = {op} ({value})")
        value = f"v{len(body) - 1}"
    graph = make("float[2] x", " ".join(body), value)
    for node in graph:
        node.name = node.op.lower()
    return list(graph)


@pytest.mark.parametrize(
    ("before", "after", "steps", "found"),
    [
        (
            "Abs Neg Exp Log",
            "Sin Log",
            [(["Abs 'abs'", "Neg 'neg'"], ["Cos 'cos'"]), (["Cos 'cos'", "Exp 'exp'"], ["Sin 'sin'"])],
            [([0, 1], [], []), ([2], [0], [0])],
        ),
        (  # a node that is made again belongs to the last step
            "Abs Neg",
            "Abs",
            [(["Abs 'abs'"], ["Abs 'abs'"]), (["Abs 'abs'", "Neg 'neg'"], ["Abs 'abs'"])],
            [([0], [], []), ([1], [0], [0])],
        ),
    ],
)
def test_steps_lead_from_nodes_to_nodes(before: str, after: str, steps: list[Any], found: list[Any]) -> None:
    rewrites = [RewriteStep("Rule", "", removed, made) for removed, made in steps]
    data = step_data(chain(before), chain(after), rewrites)
    assert [(step["from"], step["to"], step["after"]) for step in data] == found


def test_changed_nodes_are_marked_on_both_sides() -> None:
    before, after = chain("Abs Neg"), chain("Abs Exp")
    scenes = drawn(before[0].graph), drawn(after[0].graph)
    found = story_page("m", "", scenes, [], kind="difference", changed=(["Neg 'neg'"], ["Exp 'exp'"]))
    assert '"changed":[[1],[1]]' in found
    assert "Rewrites, step by step" not in found
