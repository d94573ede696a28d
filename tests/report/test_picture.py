"""The pictures: everything is in them once, texts fit, groups are what the partitions say, and the page holds no surprises."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64encode
from collections import Counter
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from partition_graphs import f32, make, mnist
from test_layout import check

from ortconv.ir.graph import Graph
from ortconv.onnxio.load import from_proto
from ortconv.partition import Partitioning, Target, partition
from ortconv.partition.cost import estimate
from ortconv.pipeline.analysis import analyze
from ortconv.report import svg
from ortconv.report.labels import FONT, SMALL, short, text_width
from ortconv.report.outline import ACCELERATOR, CPU, INPUT, MIXED, OUTPUT, PORT, Part, outline, stages
from ortconv.report.page import WEB, page
from ortconv.report.picture import drawn as arranged
from ortconv.report.picture import open_at_first, picture, stage
from ortconv.report.scene import Scene
from tests.batches import slow_except
from tests.conftest import FAST_NAMES
from tests.counting import calls

SVG = "{http://www.w3.org/2000/svg}"


def drawn(graph: Graph, partitioning: Partitioning) -> Scene:
    return arranged(graph, partitioning, estimate(partitioning))


def of(graph: Graph, **target: object) -> Scene:
    return drawn(graph, partition(graph, Target(**target)))  # type: ignore[arg-type]


def page_of(found: Scene, title: str = "m.onnx") -> str:
    return page(title, "a graph", [], kind="partitions", stage=stage(picture(found, title)))


def branching() -> Graph:
    """Two partitions, a CPU part between them, one beside them."""
    return make(
        "float[1,8] x, float[1,8] v",
        """a = Relu (x)  b = Tanh (a)  c = Erf (b)  d = Erf (c)  e = Relu (d)  f = Add (e, a)  g = Erf (v)  h = Softsign (g)
           i = Add (f, k)""",
        "i h d",
        k=f32(1, 8),
    )


def test_partitions_and_the_rest_are_parts_beside_inputs_and_outputs() -> None:
    found = of(branching()).root
    kinds = [(p.box.kind, [n.op for n in p.nodes]) for p in found.parts]
    assert sorted(kinds) == sorted(
        [
            (INPUT, []), (INPUT, []), (OUTPUT, []), (OUTPUT, []), (OUTPUT, []),
            (ACCELERATOR, ["Relu", "Tanh"]), (CPU, ["Erf", "Erf"]), (CPU, ["Erf", "Softsign"]),
            (ACCELERATOR, ["Relu", "Add", "Add"]),
        ]
    )  # fmt: skip


def test_ports_are_the_tensors_that_cross_the_border() -> None:
    found = of(branching())
    groups = [(part, part.partition) for part in found.root.parts if part.partition is not None]
    assert len(groups) == 2
    assert found.partitioning is not None
    for group, index in groups:
        partition = found.partitioning.partitions[index]
        inside = found.insides[group]
        assert len(inside.ports_in) == sum(v.constant is None for v in partition.inputs)
        assert len(inside.ports_out) == len(partition.outputs)
        assert inside.in_partition


def layers(count: int) -> Graph:
    """Layers whose nodes NNAPI accepts but for one, named as exporters do."""
    body, value = "", "x"
    for i in range(count):
        body += f" a{i} = Relu ({value}) b{i} = Erf (a{i}) c{i} = Add (a{i}, b{i}) d{i} = Tanh (c{i})"
        value = f"d{i}"
    graph = make("float[1,4] x", body + f" y = Softsign ({value})", "y")
    for i, node in enumerate(graph):
        node.name = f"/net/layer.{i // 4}/{node.op}" if i < 4 * count else "/head"
    return graph


def test_repeated_blocks_are_one_part() -> None:
    found = of(layers(5)).root
    repeat = next(part for part in found.parts if part.is_repeat)
    assert repeat.box.lines[0] == "4 × net layer"
    assert repeat.box.kind == MIXED
    assert [len(block.nodes) for block in repeat.parts] == [4] * 4
    plain = outline(layers(5)).parts[1]
    assert plain.box.lines[0] == "5 × net layer"
    assert [block.box.lines[0] for block in plain.parts] == [f"net layer {i}" for i in range(5)]


def test_a_long_row_is_cut_into_sections() -> None:
    ops = ("Relu", "Tanh", "Sigmoid", "Abs", "Neg")
    body, value = "", "x"
    for i in range(600):
        body, value = f"{body} v{i} = {ops[hash_of(i) % 5]} ({value})", f"v{i}"
    root = outline(make("float[4] x", body, value))
    assert len(root.parts) <= 240
    assert Counter(p.nodes[0] for p in root.walk() if not p.parts and p.nodes) == Counter(root.nodes)


def test_nodes_of_constants_stand_before_their_first_reader() -> None:
    graph = make(
        "float[2] x",
        "a = Identity (k) b = Identity (k) c = Relu (x) d = Add (c, b) e = Tanh (d) y = Add (e, a)",
        "y",
        k=f32(2),
    )
    order = [part.nodes[0].out.name for part in outline(graph).parts if part.nodes]
    assert order == ["c", "b", "d", "e", "a", "y"]


def hash_of(i: int) -> int:
    """Numbers without a period."""
    return (i * i * 2654435761 % 2**32) >> 13


def test_small_graphs_are_open_at_first_and_repeats_of_large_ones_closed() -> None:
    assert len(open_at_first(of(branching()).root)) == 4
    large = of(layers(40)).root
    assert not any(part.is_repeat for part in open_at_first(large))


def consistent(found: Scene) -> None:
    for part, inside in found.insides.items():
        check(inside.layout, list(inside.nets))
        for net in inside.nets:
            assert all(net.source < t for t in net.targets)
        assert len(inside.boxes) == len(inside.ports_in) + len(part.parts) + len(inside.ports_out)
        boxes = [
            (x, y, x + w, y + h) for (x, y), (w, h) in zip(inside.layout.corners, inside.layout.sizes, strict=True)
        ]
        for a, b in pairwise(sorted(boxes, key=lambda b: (b[1], b[0]))):
            assert a[2] <= b[0] or a[3] <= b[1] or a[1] != b[1]


def texts_fit(found: Scene) -> None:
    for box in (box for inside in found.insides.values() for box in inside.boxes if box.kind != PORT):
        width, height = box.size
        assert all(text_width(line, SMALL if i else FONT) <= width - 20 for i, line in enumerate(box.lines))
        assert 16 + 14 * (len(box.lines) - 1) + 4 <= height


def leaves(part: Part) -> list[Part]:
    return [p for p in part.walk() if p.node is not None and p.node.graph is not None and p.node.graph.owner is None]


def nodes_in(text: str) -> Counter[str]:
    root = ElementTree.fromstring(text)
    titles = [n.find(f"{SVG}title") for n in root.iter(f"{SVG}g") if n.get("data-node") is not None]
    return Counter((t.text or "").split("\n")[0] for t in titles if t is not None)


def every_node_once(found: Scene) -> None:
    assert found.partitioning is not None
    expected = Counter(n.label for n in found.partitioning.verdicts)
    assert nodes_in(svg.drawing(found)) == expected
    assert Counter(p.nodes[0].label for p in leaves(found.root)) == expected


SCENES = {
    "mnist": lambda: of(from_proto(mnist("basic")).graph),
    "mnist-raw": lambda: of(from_proto(mnist("raw")).graph),
    "mnist-stop": lambda: of(from_proto(mnist("extended")).graph, stop_ops=("Reshape",)),
    "branching": lambda: of(branching()),
    "one": lambda: of(make("float[2] x", "y = Relu (x)")),
    "nothing-taken": lambda: of(make("float[N] x", "a = Relu (x)  y = Tanh (a)")),
    "layers": lambda: of(layers(5)),
    "constants-only": lambda: of(make("float[2] x", "y = Add (k, k2)", "y", k=f32(2), k2=f32(2))),
}


@pytest.mark.parametrize("name", SCENES)
def test_small_scenes(name: str) -> None:
    found = SCENES[name]()
    consistent(found)
    texts_fit(found)
    every_node_once(found)


@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_samples(sample: Path) -> None:
    analysis = analyze(sample, Target())
    found = drawn(analysis.model.graph, analysis.partitioning)
    consistent(found)
    texts_fit(found)
    every_node_once(found)
    parsed = Checked()
    parsed.feed(page_of(found, sample.name))
    parsed.close()
    assert parsed.open == []


def test_a_dark_picture_differs_in_its_colors_alone() -> None:
    found = of(branching())
    light, dark = (svg.drawing(found, dark=dark) for dark in (False, True))
    assert dark.replace(svg.DARK, "") == light
    used = {name for names in re.findall(r'class="([^"]+)"', light) for name in names.split()}
    painted = set(re.findall(r"\.([a-z-]+)", svg.STYLE))
    assert used & painted - {"op", "box", "line", "head", "copy-head"} <= set(re.findall(r"\.([a-z-]+)", svg.DARK))


def test_subgraphs_are_inside_their_node(samples: Path) -> None:
    analysis = analyze(samples / "if_branch.onnx", Target())
    found = drawn(analysis.model.graph, analysis.partitioning)
    ((op, bodies),) = ((p.node.op, p.parts) for p in found.root.walk() if p.node is not None and p.parts)
    assert op == "If"
    assert {body.box.lines[0].partition(":")[0] for body in bodies} == {"then_branch", "else_branch"}
    drawn_nodes = [p.node for p in found.root.walk() if p.node is not None]
    assert Counter(drawn_nodes) == Counter(analysis.model.graph.walk())
    consistent(found)
    assert len(picture(found, "m")["nodes"]) == len(drawn_nodes)


def test_graph_without_nodes() -> None:
    graph = Graph()
    graph.opsets[""] = 13
    found = of(graph)
    assert found.root.parts == ()
    ElementTree.fromstring(svg.drawing(found))


def test_stages_order_and_contract_the_graph() -> None:
    graph = branching()
    parts = stages(partition(graph))
    place = {n: i for i, part in enumerate(parts) for n in part}
    for node in graph:
        for value in node.inputs:
            if value is not None and value.producer is not None:
                assert place[value.producer] <= place[node]


def test_reasons_are_on_the_nodes() -> None:
    text = svg.drawing(of(branching()))
    assert "operator: NNAPI has no operation for Erf" in text


def test_text_width_is_an_upper_bound() -> None:
    # Widths in em of DejaVu Sans Bold, one of the widest fonts in use, by 1000: i j l r t f I 1 2 A M W m w a e o n space
    widths = dict(zip("ijlrtfI12AMWmwaeon ", (343, 343, 343, 493, 478, 435, 372, 696, 696, 774, 995, 1103, 1042, 924, 675, 678,
                                              687, 712, 348), strict=True))  # fmt: skip
    for text in ("Conv", "MatMul", "Transpose", "film", "Illinois", "ReduceMean", "mater 12"):
        exact = sum(widths.get(c, 720) for c in text) * 12 / 1000
        assert text_width(text, 12) > 0.93 * exact


def test_long_names_are_shortened_in_the_middle() -> None:
    assert short("abc") == "abc"
    text = short("/model/encoder/layers.0/attention/query/MatMul")
    assert len(text) == 30
    assert text.startswith("/model/")
    assert text.endswith("MatMul")


# ---------------------------------------------------------------------- the page

HOSTILE = "</script></title><img src=x onerror=alert(1)>\"'&<!--\x00\x1b[31m\udcff"


def hostile() -> Graph:
    graph = branching()
    for i, node in enumerate(graph):
        node.name = f"{HOSTILE}{i}"
    for value in [*graph.inputs, *graph.outputs]:
        graph.rename(value, f"{HOSTILE}{value.name}")
    return graph


class Checked(HTMLParser):
    """Collects elements, references and what is left open."""

    VOID = frozenset({"meta", "input", "rect", "circle", "path", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.references: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.references += [v for k, v in attrs if k in ("src", "href", "xlink:href") or k.startswith("on")]
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_names_cannot_break_out() -> None:
    found = of(hostile())
    picture = svg.drawing(found)
    root = ElementTree.fromstring(picture)
    assert not [e for e in root.iter() if e.tag == f"{SVG}img"]
    text = page_of(found, HOSTILE)
    parsed = Checked()
    parsed.feed(text)
    parsed.close()
    assert parsed.open == []
    assert parsed.tags["img"] == 0
    assert parsed.tags["script"] == 2
    assert text.encode("utf-8")


def test_the_page_loads_nothing() -> None:
    text = page_of(of(branching()))
    parsed = Checked()
    parsed.feed(text)
    assert parsed.references == []
    assert "default-src 'none'" in text
    addresses = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "unsafe-inline" not in text
    assert "@import" not in text


def first(pattern: str, text: str) -> str:
    """The group of the first match."""
    found = re.search(pattern, text, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_policy_names_the_style_and_the_script() -> None:
    text = page_of(of(branching()))
    policy = first(r'Content-Security-Policy" content="([^"]*)"', text)
    for tag in ("style", "script"):
        content = first(rf"<{tag}>(.*?)</{tag}>", text)
        assert f"sha256-{b64encode(sha256(content.encode()).digest()).decode()}" in policy
    assert " style=" not in text


def data_of(text: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = json.loads(first(r'id="data">(.*?)</script>', text))["pictures"]
    for part in found["parts"]:
        part["kind"], part["lines"] = found["labels"][part["label"]]
    return found


PROBE = """
const { placed } = require(process.argv[1]);
const picture = JSON.parse(require("fs").readFileSync(0, "utf8"));
const can = picture.parts.map((p, i) => (i && p.layout !== undefined ? i : -1)).filter((i) => i >= 0);
const states = [[], can, ...can.slice(0, 8).map((i) => [i]), can.filter((i) => i % 2)];
console.log(JSON.stringify(states.map((open) => ({ open, ...placed(picture, new Set(open), new Map()) }))));
"""


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    return (
        a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]
    )


def meets(line: dict[str, Any], box: dict[str, Any]) -> bool:
    """Whether a piece of a line may cross a box."""
    return any(
        min(x, u) < box["x"] + box["w"] - 0.2 and max(x, u) > box["x"] + 0.2
        and y < box["y"] + box["h"] - 0.2 and v > box["y"] + 0.2
        for (x, y), (u, v) in pairwise(line["points"])
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script")
@pytest.mark.parametrize("name", slow_except(["branching"], ("mnist", "branching", "layers", "bert_tiny")))
def test_opened_groups_push_the_others_aside(name: str, samples: Path) -> None:
    if name == "bert_tiny":
        analysis = analyze(samples / f"{name}.onnx", Target())
        found = drawn(analysis.model.graph, analysis.partitioning)
    else:
        found = SCENES[name]()
    data = data_of(page_of(found))
    done = subprocess.run(
        ["node", "-e", PROBE, str(WEB / "geometry.js")],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        check=True,
    )
    states = json.loads(done.stdout)
    assert len(states) >= 3
    for state in states:
        items = state["items"]
        for i, item in enumerate(items):
            if item["end"] > i + 1:
                assert item["id"] in state["open"]
                inner = items[i + 1 : item["end"]]
                assert all(item["x"] < b["x"] and b["x"] + b["w"] < item["x"] + item["w"] for b in inner)
                assert all(item["y"] < b["y"] and b["y"] + b["h"] < item["y"] + item["h"] for b in inner)
            assert not any(overlap(item, other) for other in items[item["end"] :])
        for owner in [state, *(item for item in items if "lines" in item)]:
            first = 0 if owner is state else items.index(owner) + 1
            boxes = siblings(items, first, len(items) if owner is state else owner["end"])
            for line in owner["lines"]:
                assert all(b[1] >= a[1] - 1e-6 for a, b in pairwise(line["points"]))
                if line["head"]:
                    assert sum(meets(line, box) for box in boxes) == 0


def siblings(items: list[dict[str, Any]], at: int, end: int) -> list[dict[str, Any]]:
    """The items right inside a group."""
    found = []
    while at < end:
        found.append(items[at])
        at = items[at]["end"]
    return found


@pytest.mark.slow
def test_cost_is_linear() -> None:
    def cost(blocks: int) -> int:
        ops = ("Relu", "Tanh", "Sigmoid")
        body, value = "", "x"
        for i in range(blocks):
            body += f" a{i} = {ops[hash_of(i) % 3]} ({value}) b{i} = Erf (a{i}) c{i} = Add (a{i}, b{i})"
            value = f"c{i}"
        graph = make("float[1,4] x", body, value)
        result = partition(graph)
        return calls(lambda: svg.drawing(drawn(graph, result)))

    assert cost(120) < 4 * 1.4 * cost(30)


def test_the_scripts_are_shipped() -> None:
    assert {file.name for file in WEB.iterdir()} >= {"page.css", "page.js", "picture.css", "picture.js", "geometry.js"}
