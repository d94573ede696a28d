"""The pictures: everything is in them once, texts fit, groups are what the partitions say, and the page holds no surprises."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
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
from ortconv.report.html import page
from ortconv.report.scene import (
    ACCELERATOR,
    CPU,
    FONT,
    INPUT,
    OUTPUT,
    PORT,
    SMALL,
    Scene,
    scene,
    short,
    stages,
    text_width,
)  # fmt: skip
from tests.conftest import ROOT
from tests.counting import calls

SVG = "{http://www.w3.org/2000/svg}"


def drawn(partitioning: Partitioning) -> Scene:
    return scene(partitioning, estimate(partitioning))


def of(graph: Graph, **target: object) -> Scene:
    return drawn(partition(graph, Target(**target)))  # type: ignore[arg-type]


def branching() -> Graph:
    """Two partitions, a CPU part between them, one beside them."""
    return make(
        "float[1,8] x, float[1,8] v",
        """a = Relu (x)  b = Tanh (a)  c = Erf (b)  d = Erf (c)  e = Relu (d)  f = Add (e, a)  g = Erf (v)  h = Softsign (g)
           i = Add (f, k)""",
        "i h d",
        k=f32(1, 8),
    )


def test_groups():
    found = of(branching())
    kinds = [(g.box.kind, [n.op for n in g.nodes]) for g in found.groups]
    assert sorted(kinds) == sorted(
        [
            (INPUT, []), (INPUT, []), (OUTPUT, []), (OUTPUT, []), (OUTPUT, []),
            (ACCELERATOR, ["Relu", "Tanh"]), (CPU, ["Erf", "Erf"]), (CPU, ["Erf", "Softsign"]),
            (ACCELERATOR, ["Relu", "Add", "Add"]),
        ]
    )  # fmt: skip


def test_ports_are_the_tensors_that_cross_the_border():
    found = of(branching())
    for group in found.groups:
        if group.box.kind == ACCELERATOR and group.inner is not None:
            index = found.partitioning.verdicts[group.nodes[0]].partition
            part = found.partitioning.partitions[index]
            assert len(group.inner.ports_in) == sum(v.constant is None for v in part.inputs)
            assert len(group.inner.ports_out) == len(part.outputs)


def inner_consistent(found: Scene) -> None:
    check(found.closed, list(found.nets))
    check(found.opened, list(found.nets))
    for net in found.nets:
        assert all(net.source < t for t in net.targets)
    for group in found.groups:
        if group.inner is not None:
            width, height = group.opened_size
            inner = group.inner
            assert inner.layout.width < width
            assert inner.layout.height < height
            boxes = [
                (x, y, x + w, y + h) for (x, y), (w, h) in zip(inner.layout.corners, inner.layout.sizes, strict=True)
            ]
            for a, b in pairwise(sorted(boxes, key=lambda b: (b[1], b[0]))):
                assert a[2] <= b[0] or a[3] <= b[1] or a[1] != b[1]


def texts_fit(found: Scene) -> None:
    boxes = [g.box for g in found.groups] + [b for g in found.groups if g.inner for b in g.inner.boxes]
    for box in boxes:
        if box.kind == PORT:
            continue
        width, height = box.size
        assert all(text_width(line, SMALL if i else FONT) <= width - 20 for i, line in enumerate(box.lines))
        assert 16 + 14 * (len(box.lines) - 1) + 4 <= height
    for group in found.groups:
        if group.inner is not None:
            assert text_width(group.label, FONT) < group.opened_size[1]


def nodes_in(text: str) -> Counter[str]:
    root = ElementTree.fromstring(text)
    titles = [n.find(f"{SVG}title") for n in root.iter(f"{SVG}g") if n.get("data-node") is not None]
    return Counter((t.text or "").split("\n")[0] for t in titles if t is not None)


def every_node_once(found: Scene) -> None:
    expected = Counter(n.label for n in found.partitioning.verdicts)
    assert nodes_in(svg.drawing(found)) == expected


SCENES = {
    "mnist": lambda: of(from_proto(mnist("basic")).graph),
    "mnist-raw": lambda: of(from_proto(mnist("raw")).graph),
    "mnist-stop": lambda: of(from_proto(mnist("extended")).graph, stop_ops=("Reshape",)),
    "branching": lambda: of(branching()),
    "one": lambda: of(make("float[2] x", "y = Relu (x)")),
    "nothing-taken": lambda: of(make("float[N] x", "a = Relu (x)  y = Tanh (a)")),
    "constants-only": lambda: of(make("float[2] x", "y = Add (k, k2)", "y", k=f32(2), k2=f32(2))),
}


@pytest.mark.parametrize("name", SCENES)
def test_small_scenes(name):
    found = SCENES[name]()
    inner_consistent(found)
    texts_fit(found)
    every_node_once(found)


def test_samples(sample):
    found = drawn(analyze(sample, Target()).partitioning)
    inner_consistent(found)
    texts_fit(found)
    every_node_once(found)
    parsed = Checked()
    parsed.feed(page(found, title=sample.name))
    parsed.close()
    assert parsed.open == []


def test_a_dark_picture_differs_in_its_colors_alone():
    found = of(branching())
    light, dark = (svg.drawing(found, dark=dark) for dark in (False, True))
    assert dark.replace(svg.DARK, "") == light
    used = {name for names in re.findall(r'class="([^"]+)"', light) for name in names.split()}
    painted = set(re.findall(r"\.([a-z-]+)", svg.STYLE))
    assert used & painted - {"op", "box", "line", "head"} <= set(re.findall(r"\.([a-z-]+)", svg.DARK))


def test_graph_without_nodes():
    graph = Graph()
    graph.opsets[""] = 13
    found = of(graph)
    assert found.groups == ()
    ElementTree.fromstring(svg.drawing(found))


def test_stages_order_and_contract_the_graph():
    graph = branching()
    parts = stages(partition(graph))
    place = {n: i for i, part in enumerate(parts) for n in part}
    for node in graph:
        for value in node.inputs:
            if value is not None and value.producer is not None:
                assert place[value.producer] <= place[node]


def test_reasons_are_on_the_nodes():
    text = svg.drawing(of(branching()))
    assert "operator: NNAPI has no operation for Erf" in text


def test_text_width_is_an_upper_bound():
    # Widths in em of DejaVu Sans Bold, one of the widest fonts in use, by 1000: i j l r t f I 1 2 A M W m w a e o n space
    widths = dict(zip("ijlrtfI12AMWmwaeon ", (343, 343, 343, 493, 478, 435, 372, 696, 696, 774, 995, 1103, 1042, 924, 675, 678,
                                              687, 712, 348), strict=True))  # fmt: skip
    for text in ("Conv", "MatMul", "Transpose", "film", "Illinois", "ReduceMean", "mater 12"):
        exact = sum(widths.get(c, 720) for c in text) * 12 / 1000
        assert text_width(text, 12) > 0.93 * exact


def test_long_names_are_shortened_in_the_middle():
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
        self.references: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.references += [v for k, v in attrs if k in ("src", "href", "xlink:href") or k.startswith("on")]
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_names_cannot_break_out():
    found = of(hostile())
    picture = svg.drawing(found)
    root = ElementTree.fromstring(picture)
    assert not [e for e in root.iter() if e.tag == f"{SVG}img"]
    text = page(found, title=HOSTILE)
    parsed = Checked()
    parsed.feed(text)
    parsed.close()
    assert parsed.open == []
    assert parsed.tags["img"] == 0
    assert parsed.tags["script"] == 2
    assert text.encode("utf-8")


def test_the_page_loads_nothing():
    text = page(of(branching()), title="m.onnx")
    parsed = Checked()
    parsed.feed(text)
    assert parsed.references == []
    assert "default-src 'none'" in text
    addresses = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "url(#head)" in text
    assert "@import" not in text


def geometry(text: str) -> dict:
    return json.loads(re.search(r'id="scene">(.*?)</script>', text, re.DOTALL)[1])


PROBE = """
const { place, stretch } = require(process.argv[1]);
const scene = JSON.parse(require("fs").readFileSync(0, "utf8"));
const can = scene.groups.map((g, i) => (g.W ? i : -1)).filter((i) => i >= 0);
const states = [[], can, ...can.map((i) => [i]), can.filter((i) => i % 2)];
console.log(JSON.stringify(states.map((open) => ({ open, ...place(scene, new Set(open)) }))));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script")
@pytest.mark.parametrize("name", ["mnist", "branching", "bert_tiny"])
def test_opened_groups_push_the_others_aside(name, samples):
    found = drawn(analyze(samples / f"{name}.onnx", Target()).partitioning) if name == "bert_tiny" else SCENES[name]()
    scene = geometry(page(found, title=name))
    script = ROOT / "ortconv/report/explore.js"
    done = subprocess.run(
        ["node", "-e", PROBE, str(script)], input=json.dumps(scene), capture_output=True, text=True, check=True
    )
    states = json.loads(done.stdout)
    assert len(states) >= 3
    for state in states:
        boxes = state["boxes"]
        for i, a in enumerate(boxes):
            group = scene["groups"][i]
            assert [a["w"], a["h"]] == ([group["W"], group["H"]] if i in state["open"] else [group["w"], group["h"]])
            for b in boxes[:i]:
                apart = (
                    a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
                    or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
                )  # fmt: skip
                assert apart
        for route, line in zip(scene["routes"], state["lines"], strict=True):
            source, target = boxes[route["source"]], boxes[route["target"]]
            assert line[0] == pytest.approx([source["x"] + source["w"] * route["leaves"], source["y"] + source["h"]])
            assert line[-1] == pytest.approx([target["x"] + target["w"] * route["arrives"], target["y"]])
            assert all(b[1] >= a[1] - 1e-6 for a, b in pairwise(line))
            for i, box in enumerate(boxes):
                if i in (route["source"], route["target"]):
                    continue
                for (x, y), (u, v) in pairwise(line):
                    meets = (
                        min(x, u) < box["x"] + box["w"] - 0.2 and max(x, u) > box["x"] + 0.2
                        and y < box["y"] + box["h"] - 0.2 and v > box["y"] + 0.2
                    )  # fmt: skip
                    assert not meets


def test_cost_is_linear():
    def cost(blocks: int) -> int:
        body, value = "", "x"
        for i in range(blocks):
            body += f" a{i} = Relu ({value}) b{i} = Erf (a{i}) c{i} = Add (a{i}, b{i})"
            value = f"c{i}"
        result = partition(make("float[1,4] x", body, value))
        return calls(lambda: svg.drawing(scene(result)))

    assert cost(120) < 4 * 1.4 * cost(30)


def test_the_script_is_shipped():
    assert (Path(svg.__file__).parent / "explore.js").exists()
