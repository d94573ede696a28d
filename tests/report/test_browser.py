"""The pages in headless Chromium: on phones and large screens, light and dark, from MNIST to 27,000 nodes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser, browser
from partition_graphs import make

from ortconv.cli import main
from ortconv.ir.model import Model
from ortconv.onnxio.proto import model_proto

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")]

SCREENS = [
    (390, False),
    pytest.param(390, True, marks=pytest.mark.slow),
    pytest.param(1440, False, marks=pytest.mark.slow),
    (1440, True),
]
"""Widths, each light and dark. The fast tests see each width and each theme once."""
AXE_SCREENS = [pytest.param(390, False, marks=pytest.mark.slow), *SCREENS[1:]]
"""The same, of which the fast tests see one: axe-core takes half a second for a page."""
LAYERS = 2700

COMMANDS = {
    "partition": ("partition", "{mnist}", "--compare-levels", "-q"),
    "partition-transformer": ("partition", "{bert}", "-q"),
    "partition-27000": ("partition", "{large}", "--level", "disable", "-q"),
    "inspect": ("inspect", "{qdq}", "--lint", "quantization", "--json"),
    "convert": ("convert", "{bert}", "-o", "{folder}/bert.ort", "--use-nnapi", "-q"),
    "diff": ("diff", "{mnist}", "{qdq}", "-q"),
    "inspect-subgraphs": ("inspect", "{loop}", "--json"),
    "benchmark": ("nnapi", "benchmark", "{mnist}", "--repeat", "1", "--json"),
}
GRAPHS = [name for name in COMMANDS if name != "benchmark"]


def layered() -> Model:
    """27,000 nodes: layers of ten, with names as exporters give them."""
    body, value = [], "x"
    for i in range(LAYERS):
        chain = ("Relu", "Tanh", "Erf", "Abs", "Neg", "Sigmoid", "Softsign", "Floor", "Ceil")
        for k, op in enumerate(chain):
            body.append(f"l{i}_{k} = {op} ({value})")
            value = f"l{i}_{k}"
        body.append(f"l{i}_9 = Add ({value}, l{i}_0)")
        value = f"l{i}_9"
    graph = make("float[1,16] x", " ".join(body), value)
    for at, node in enumerate(graph):
        node.name = f"/net/layer.{at // 10}/{node.op}"
    return Model(graph, ir_version=8)


class Pages:
    """A page of each kind, written when a test first asks for it."""

    def __init__(self, folder: Path, samples: Path) -> None:
        self.folder, self.written = folder, dict[str, Path]()
        names = {"mnist": "mnist", "bert": "bert_tiny", "qdq": "qdq_cnn", "loop": "loop_accumulate"}
        self.places = {"folder": folder, "large": folder / "large.onnx"}
        self.places |= {key: samples / f"{name}.onnx" for key, name in names.items()}

    def __getitem__(self, name: str) -> Path:
        if name not in self.written:
            if "{large}" in COMMANDS[name]:
                self.places["large"].write_bytes(model_proto(layered()).SerializeToString())
            self.written[name] = self.folder / f"{name}.html"
            command = [part.format(**self.places) for part in COMMANDS[name]]
            assert main([*command, "--html", str(self.written[name])]) == 0
        return self.written[name]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, samples: Path) -> Pages:
    return Pages(tmp_path_factory.mktemp("pages"), samples)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


OVERLAPS = """(() => {
  const texts = [...document.querySelectorAll("svg[role=tree] text")].filter((t) => getComputedStyle(t).display !== "none");
  const boxes = texts.map((t) => [t.textContent, t.getBoundingClientRect(), t.ownerSVGElement]).filter(([, b]) => b.width);
  const shared = (p, q, low, high) => Math.min(p[high], q[high]) - Math.max(p[low], q[low]);
  const pairs = boxes.flatMap(([a, p, svg], i) => boxes.slice(i + 1).filter((b) => b[2] === svg).map(([b, q]) => [a, p, b, q]));
  const meet = ([, p, , q]) => shared(p, q, "left", "right") > 1 && shared(p, q, "top", "bottom") > 3;
  return pairs.filter(meet).map(([a, , b]) => a + " / " + b);
})()"""
SPILLS = """[...document.querySelectorAll("svg[role=tree] .part:not(.area)")].filter((part) => {
  const box = part.querySelector(".box").getBoundingClientRect();
  const texts = [...part.querySelectorAll("text")].map((t) => t.getBoundingClientRect());
  return texts.some((b) => b.width && (b.left < box.left || b.right > box.right));
}).map((part) => part.textContent)"""
CUT = """[...document.querySelectorAll("table")]
  .filter((t) => t.scrollWidth > t.parentNode.clientWidth + 1).map((t) => t.textContent.slice(0, 80))"""


def marked(names: Iterable[str]) -> list[Any]:
    """The names as parameters; those of 27,000 nodes are slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] * name.endswith("27000")) for name in names]


@pytest.mark.parametrize(("width", "dark"), SCREENS)
@pytest.mark.parametrize("name", marked(COMMANDS))
def test_a_page_opens_without_a_flaw(chromium: Browser, pages: Pages, name: str, width: int, dark: bool) -> None:
    chromium.open(pages[name], width, dark=dark)
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(19, 21, 26)" if dark else "rgb(255, 255, 255)"
    )
    for look in (OVERLAPS, SPILLS, CUT):
        assert chromium.evaluate(look) == []
    assert chromium.problems == []
    assert chromium.requests == [pages[name].as_uri()]


@pytest.mark.parametrize("name", marked(GRAPHS))
def test_texts_do_not_overlap_in_the_whole_picture_or_with_all_groups_open(
    chromium: Browser, pages: Pages, name: str
) -> None:
    chromium.open(pages[name], 1440)
    for action in ("all(true)", "fit(true)", "all(false)", "fit(true)"):
        chromium.evaluate(f"pictures.forEach((p) => {{ p.{action}; p.draw(); }})")
        assert chromium.evaluate(OVERLAPS) == []
        assert chromium.evaluate(SPILLS) == []
    assert chromium.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1440])
def test_27000_nodes_open_in_under_a_second(pages: Pages, width: int) -> None:
    with browser() as chromium:
        chromium.call("Performance.enable")
        chromium.open(pages["partition-27000"], width)
        metrics = {m["name"]: m["value"] for m in chromium.call("Performance.getMetrics")["metrics"]}
        assert 0 < metrics["ThreadTime"] < 1  # CPU time: other work on this machine does not count
        assert chromium.evaluate("pictures[0].data.nodes.length") == 10 * LAYERS
        labels = chromium.evaluate("[...document.querySelectorAll('[role=treeitem] text')].map((t) => t.textContent)")
        assert any(label.endswith("× net layer") for label in labels)


WALKED = """(() => {
  const seen = new Set(), picture = pictures[0];
  picture.all(true);
  picture.focus(picture.placed.items[0].id);
  for (let i = 0; i < picture.placed.items.length; i++) {
    const at = document.activeElement;
    if (!at.matches("[role=treeitem]") || !at.getAttribute("aria-label")) return `stuck at ${i}`;
    seen.add(picture.data.parts[at.dataset.part].node);
    at.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
  }
  seen.delete(undefined);
  return seen.size;
})()"""


@pytest.mark.parametrize("name", [name for name in GRAPHS if name != "partition-27000"])
@pytest.mark.parametrize("width", [390, 1440])
def test_arrow_keys_reach_every_node(chromium: Browser, pages: Pages, name: str, width: int) -> None:
    chromium.open(pages[name], width)
    assert chromium.evaluate(WALKED) == chromium.evaluate("pictures[0].data.nodes.length") > 0


STEPPED = """((windows, steps) => {
  const picture = pictures[0];
  picture.all(true);
  const order = picture.placed.items.map((item) => item.id);
  const nodes = new Set(order.map((id) => picture.data.parts[id].node).filter((node) => node !== undefined));
  const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const here = () => Number(document.activeElement.dataset.part);
  const stuck = [];
  for (let i = 0; i < windows; i++) {
    const start = Math.floor((i * (order.length - steps)) / (windows - 1));
    picture.focus(order[start]);
    for (let at = start; at < Math.min(start + steps, order.length - 1); at++) {
      press("ArrowDown");
      if (here() !== order[at + 1]) stuck.push(at);
      if (at % 25) continue;
      press("ArrowUp");
      if (here() !== order[at]) stuck.push(at);
      press("ArrowDown");
    }
  }
  press("End");
  const last = here() === order.at(-1);
  press("Home");
  return [nodes.size, stuck, last, here() === order[0]];
})(9, 250)"""


@pytest.mark.slow
def test_arrow_keys_go_through_all_27000_nodes(chromium: Browser, pages: Pages) -> None:
    """The keys follow one order that has every node; they are pressed in nine stretches of it, both ends included."""
    chromium.open(pages["partition-27000"], 1440)
    assert chromium.evaluate(STEPPED) == [10 * LAYERS, [], True, True]


@pytest.mark.slow
def test_arrow_keys_open_groups_down_to_a_node_of_27000(chromium: Browser, pages: Pages) -> None:
    chromium.open(pages["partition-27000"], 1440)
    repeat = "pictures[0].data.parts.findIndex((p) => p.lines[0].includes('×'))"
    chromium.evaluate(f"pictures[0].focus({repeat})")
    for _ in range(12):
        chromium.press("ArrowRight")
    assert chromium.evaluate("pictures[0].data.parts[document.activeElement.dataset.part].node") is not None
    assert int(chromium.evaluate("document.activeElement.getAttribute('aria-level')")) >= 4


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core, a development tool that looks for faults of accessibility."""
    npm = shutil.which("npm")
    if npm is not None:
        for flags in ((), ("-g",)):
            root = subprocess.run([npm, "root", *flags], capture_output=True, text=True).stdout.strip()
            place = Path(root) / "axe-core/axe.min.js"
            if place.exists():
                return place.read_text("utf-8")
    pytest.skip("needs axe-core: npm install -g axe-core")


AXE = "axe.run().then((found) => found.violations.map((v) => `${v.impact} ${v.id}: ${v.nodes[0].html.slice(0, 200)}`))"


@pytest.mark.parametrize(("width", "dark"), AXE_SCREENS)
@pytest.mark.parametrize("name", marked(COMMANDS))
def test_axe_finds_nothing(chromium: Browser, pages: Pages, axe: str, name: str, width: int, dark: bool) -> None:
    chromium.open(pages[name], width, dark=dark)
    if name != "benchmark":
        chromium.evaluate("pictures[0].focus(1); pictures[0].enter(1)")
    chromium.evaluate(axe + "; 0")
    assert chromium.evaluate(AXE) == []


def focused(chromium: Browser) -> Any:
    return chromium.evaluate("document.activeElement.id || document.activeElement.getAttribute('role')")


@pytest.mark.parametrize("width", [390, 1440])
def test_the_keyboard(chromium: Browser, pages: Pages, width: int) -> None:
    chromium.open(pages["partition"], width)
    chromium.press("/")
    assert focused(chromium) == "search"
    for letter in "conv":
        chromium.press(letter)
    chromium.press("Enter")
    assert chromium.evaluate("document.getElementById('found').textContent") == "1 of 2"
    assert "Conv" in chromium.evaluate("document.getElementById('details').textContent")
    chromium.press("Escape")
    assert chromium.evaluate("document.getElementById('details').textContent") == ""
    assert focused(chromium) == "treeitem"
    chromium.press("Enter")
    assert "Attributes" in chromium.evaluate("document.getElementById('details').textContent")
    assert chromium.evaluate("document.getElementById('sheet').classList.contains('open')")
    assert chromium.evaluate("document.getElementById('sheet').getBoundingClientRect().bottom") <= 900
    if width == 390:
        chromium.settle()
        edges = "['.chosen', '#sheet'].map((s) => document.querySelector(s).getBoundingClientRect())"
        assert chromium.evaluate(f"(([chosen, sheet]) => chosen.bottom < sheet.top)({edges})")
    chromium.press("Escape")
    assert not chromium.evaluate("document.getElementById('sheet').classList.contains('open')")
    assert focused(chromium) == "treeitem"


def test_on_a_phone_the_picture_comes_first(chromium: Browser, pages: Pages) -> None:
    chromium.open(pages["partition"], 390)
    box = "document.querySelector('svg[role=tree]').getBoundingClientRect()"
    assert chromium.evaluate(f"{box}.width") == 390
    assert chromium.evaluate(f"{box}.height") > 450
    assert chromium.evaluate("document.getElementById('handle').getBoundingClientRect().bottom") <= 900


def test_reasons_lead_to_their_nodes(chromium: Browser, pages: Pages) -> None:
    chromium.open(pages["partition-transformer"], 1440)
    text = chromium.evaluate(
        "(() => { const b = document.querySelector('[data-find]'); b.click(); return b.dataset.find; })()"
    )
    op, rule = text.split()
    chosen = chromium.evaluate("document.getElementById('details').textContent")
    assert chosen.startswith(op)
    assert rule in chosen
    assert chromium.evaluate("document.querySelectorAll('.chosen').length") == 1


def test_tables_sort(chromium: Browser, pages: Pages) -> None:
    chromium.open(pages["benchmark"], 1440)
    column = "[...document.querySelectorAll('tbody tr')].map((r) => parseFloat(r.cells[3].textContent))"
    chromium.evaluate("document.querySelectorAll('th button')[3].click()")
    down = chromium.evaluate(column)
    assert down == sorted(down, reverse=True)
    chromium.evaluate("document.querySelectorAll('th button')[3].click()")
    assert chromium.evaluate(column) == sorted(down)
    assert chromium.evaluate("document.querySelectorAll('th')[3].getAttribute('aria-sort')") == "ascending"


def test_the_rewrites_can_be_walked_through(chromium: Browser, pages: Pages) -> None:
    chromium.open(pages["convert"], 1440)
    count = chromium.evaluate("Number(document.getElementById('step').max)")
    assert count > 5
    marked = 0
    for at in range(1, count + 1):
        chromium.evaluate("document.getElementById('step-next').click()")
        assert chromium.evaluate("document.getElementById('step-text').textContent").startswith(f"{at} of {count}: ")
        marked += chromium.evaluate("document.querySelectorAll('.now').length") > 0
    assert marked > 0
    chromium.evaluate("document.getElementById('step-first').click()")
    assert chromium.evaluate("document.querySelectorAll('.now').length") == 0
    assert chromium.problems == []


def test_lines_end_in_arrowheads_that_follow_them(chromium: Browser, pages: Pages) -> None:
    chromium.open(pages["partition"], 1440)
    last = """[...document.querySelectorAll(".line[marker-end]")].map((line) => {
      const n = line.getTotalLength(), a = line.getPointAtLength(n - 0.5), b = line.getPointAtLength(n);
      return Math.abs(b.x - a.x) < 0.1 && b.y > a.y;
    })"""
    found = chromium.evaluate(last)
    assert len(found) > 5
    assert all(found)


@pytest.mark.parametrize("width", [390, 1440])
def test_there_is_a_legend(chromium: Browser, pages: Pages, width: int) -> None:
    chromium.open(pages["partition"], width)
    if width == 390:
        chromium.evaluate("document.getElementById('handle').click()")
    shown = chromium.evaluate(
        "[...document.querySelectorAll('.legend')].filter((e) => e.checkVisibility()).map((e) => e.textContent)"
    )
    assert len(shown) == 1
    assert "left to the CPU" in shown[0]


def test_details_name_inputs_as_the_operator_does(chromium: Browser, pages: Pages) -> None:
    chromium.open(pages["inspect"], 1440)
    chromium.evaluate("search('QuantizeLinear')")
    rows = chromium.evaluate("[...document.querySelectorAll('#details dt')].map((e) => e.textContent)")
    assert rows[:3] == ["x", "y_scale", "y_zero_point"]
    assert chromium.evaluate("document.querySelector('#details code').textContent").startswith("{")


@pytest.mark.parametrize(("name", "colored"), [("inspect", True), ("partition", False)])
def test_operators_have_colors_where_no_accelerator_has(
    chromium: Browser, pages: Pages, name: str, colored: bool
) -> None:
    chromium.open(pages[name], 1440)
    chromium.evaluate("pictures[0].all(true); pictures[0].fit(true); pictures[0].draw()")
    assert (chromium.evaluate("document.querySelectorAll('.part.product').length") > 0) == colored
    assert (chromium.evaluate("document.querySelectorAll('.legend .product').length") > 0) == colored


@pytest.mark.parametrize("name", ["inspect", "partition-transformer"])
def test_the_map_hides_nothing_of_a_single_picture(chromium: Browser, pages: Pages, name: str) -> None:
    chromium.open(pages[name], 1440)
    edges = "['svg[role=tree]', '.map', '.tools'].map((s) => document.querySelector(s).getBoundingClientRect())"
    assert chromium.evaluate(f"(([svg, ...others]) => others.every((o) => !o.width || o.left >= svg.right))({edges})")


@pytest.mark.parametrize("width", [390, 1440])
def test_subgraphs_are_closed_at_first_where_they_are_too_wide(chromium: Browser, pages: Pages, width: int) -> None:
    chromium.open(pages["inspect-subgraphs"], width)
    owner = "pictures[0].data.parts.findIndex((p) => p.node !== undefined && p.layout !== undefined)"
    is_open, zoom = chromium.evaluate(f"[pictures[0].open.has({owner}), pictures[0].zoomOf()]")
    assert is_open or width == 390
    assert zoom >= 0.7
    chromium.evaluate(f"pictures[0].focus({owner})")
    chromium.press("ArrowLeft" if is_open else "ArrowRight")
    assert chromium.evaluate(f"pictures[0].open.has({owner})") != is_open


def test_a_chosen_operator_has_the_border_of_chosen_boxes(chromium: Browser, pages: Pages) -> None:
    chromium.open(pages["inspect"], 1440)
    chromium.evaluate("search('Conv')")
    color = "getComputedStyle(document.querySelector('.chosen .box')).stroke"
    assert chromium.evaluate(f"[document.querySelector('.chosen').classList.contains('product'), {color}]") == [
        True,
        "rgb(23, 25, 30)",
    ]
