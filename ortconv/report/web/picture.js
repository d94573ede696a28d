"use strict";

const SVG = "http://www.w3.org/2000/svg";
const SMALL = 14;      /* an open group of fewer pixels is drawn closed */
const LEGIBLE = 4.5;   /* letters of fewer pixels are left out */
const LEAST_ZOOM = 0.72, MOST_ZOOM = 1.15;

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/* One graph on a page: what is open, what is chosen, and the part of it that the window shows. Only that part is in the document. */
class Picture {
  constructor(frame, data, index) {
    Object.assign(this, { frame, data, index, open: new Set(data.open), known: new Map(), drawn: new Map(), painted: new Map() });
    this.svg = frame.querySelector("svg");
    this.map = new MiniMap(this, frame.querySelector("canvas"));
    this.layers = Object.fromEntries(["areas", "lines", "boxes"].map((name) => [name, this.svg.appendChild(shape("g", { role: "none" }))]));
    this.current = data.parts[0].first;
    this.chosen = null;
    this.link();
    this.place();
    this.narrow();
    this.fit(false);
    new ResizeObserver(() => { this.view.h = this.view.w * this.ratio(); this.show(); }).observe(this.svg);
    this.listen();
  }

  /* Parents of parts, parts of nodes, makers and readers of values. */
  link() {
    const { parts, nodes } = this.data;
    this.parent = new Array(parts.length);
    this.partOfNode = new Array(nodes.length);
    this.maker = new Map();
    this.readers = new Map();
    parts.forEach((part, id) => {
      for (let i = 0; i < (part.count ?? 0); i++) this.parent[part.first + i] = id;
      if (part.node !== undefined) this.partOfNode[part.node] = id;
    });
    nodes.forEach(([, , , inputs, outputs], node) => {
      for (const value of outputs) if (value >= 0) this.maker.set(value, node);
      for (const value of new Set(inputs)) {
        if (!this.readers.has(value)) this.readers.set(value, []);
        this.readers.get(value).push(node);
      }
    });
  }

  /* A reason: rule, message, advice. */
  reason(number) {
    const [rule, message, advice] = this.data.reasons[number], { words } = this.data;
    return [words[rule], message, words[advice]];
  }

  /* For each node the text that the search looks through, made when it is first needed. */
  searched() {
    this.texts ??= this.data.nodes.map(([op, name, , , outputs, , , , partition, why]) => {
      const rules = why.map((r) => `${this.reason(r)[0]}:`), made = outputs.map((v) => (v < 0 ? "" : this.data.values[v][0]));
      return [op, name, ...made, ...rules, partition === null ? "" : `partition:${partition};`].join(" ").toLowerCase();
    });
    return this.texts;
  }

  /* The nodes within a part. */
  nodesIn(id) {
    const part = this.data.parts[id];
    if (part.node !== undefined) return [part.node];
    const found = [];
    for (let i = 0; i < (part.count ?? 0); i++) found.push(...this.nodesIn(part.first + i));
    return found;
  }

  /* The time of a part on the CPU, in microseconds. */
  cost(id) {
    this.costs ??= new Map();
    if (!this.costs.has(id)) {
      const part = this.data.parts[id];
      let sum = part.node === undefined ? 0 : this.data.nodes[part.node][6];
      for (let i = 0; part.node === undefined && i < (part.count ?? 0); i++) sum += this.cost(part.first + i);
      this.costs.set(id, sum);
    }
    return this.costs.get(id);
  }

  /* The family of the operator of a box; nothing where colors show the accelerator. */
  family(id) {
    const { target, operators, nodes, parts } = this.data, { node } = parts[id];
    return target || node === undefined ? "" : operators[nodes[node][0]][3];
  }

  /* The time of a part as a share of that of the slowest part of its group. */
  costShare(id) {
    const group = this.data.parts[this.parent[id]];
    this.most ??= new Map();
    if (!this.most.has(this.parent[id])) {
      let most = 0;
      for (let i = 0; i < group.count; i++) most = Math.max(most, this.cost(group.first + i));
      this.most.set(this.parent[id], most);
    }
    return this.cost(id) / Math.max(this.most.get(this.parent[id]), 1e-9);
  }

  /* ------------------------------------------------------------------ geometry */

  place() {
    this.placed = placed(this.data, this.open, this.known);
    this.at = new Map(this.placed.items.map((item, i) => [item.id, i]));
    for (const drawn of this.drawn.values()) drawn.remove();
    this.drawn.clear();
    this.map.redraw();
  }

  /* Closes nodes with subgraphs where the picture would be too wide to be legible. */
  narrow() {
    const owners = [...this.open].filter((id) => this.data.parts[id].node !== undefined);
    if (!owners.length || this.svg.clientWidth / (this.placed.width + 48) >= LEAST_ZOOM) return;
    owners.forEach((id) => this.open.delete(id));
    this.known.clear();
    this.place();
  }

  ratio() { return this.svg.clientHeight / Math.max(this.svg.clientWidth, 1); }
  zoomOf(view = this.view) { return this.svg.clientWidth / view.w; }

  /* Shows all of the picture, or as much of its top as is legible. */
  fit(all) {
    const { width, height, items } = this.placed;
    const [w, h] = [this.svg.clientWidth, this.svg.clientHeight];
    const whole = Math.min(w / (width + 48), h / (height + 48), MOST_ZOOM);
    const zoom = all || whole >= LEAST_ZOOM ? whole : Math.min(Math.max(w / (width + 48), LEAST_ZOOM), 1);
    const middle = width + 48 <= w / zoom || !items.length ? width / 2 : items[0].x + items[0].w / 2;
    const top = all || whole >= LEAST_ZOOM ? height / 2 - h / zoom / 2 : -24;
    const centered = middle - w / zoom / 2, right = width + 24 - w / zoom;
    this.view = { x: right > -24 ? Math.min(Math.max(centered, -24), right) : centered, y: top, w: w / zoom, h: h / zoom };
    this.show();
  }

  zoom(by, x = this.view.x + this.view.w / 2, y = this.view.y + this.view.h / 2) {
    const w = Math.min(Math.max(this.view.w * by, 60), Math.max(4 * this.placed.width, 4 * this.placed.height / this.ratio(), 2000));
    const scale = w / this.view.w;
    this.view = { x: x - (x - this.view.x) * scale, y: y - (y - this.view.y) * scale, w, h: this.view.h * scale };
    this.show();
  }

  pan(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.show();
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    return [this.view.x + ((event.clientX - box.left) / box.width) * this.view.w, this.view.y + ((event.clientY - box.top) / box.height) * this.view.h];
  }

  /* ------------------------------------------------------------------ drawing */

  show() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    const { x, y, w, h } = this.view, zoom = this.zoomOf(), kept = new Set();
    if (!w || !h) return;
    this.svg.setAttribute("viewBox", `${x} ${y} ${w} ${h}`);
    this.svg.classList.toggle("far", 10 * zoom < LEGIBLE);
    const keep = (key, make) => {
      kept.add(key);
      if (!this.drawn.has(key)) this.drawn.set(key, make());
      return this.drawn.get(key);
    };
    const lines = (owner, found) => found.forEach((line, i) => {
      const [x0, y0] = line.points[0], [x1, y1] = line.points[line.points.length - 1];
      const xs = line.points.map((p) => p[0]);
      if (Math.max(y0, y1) < y || y0 > y + h || Math.max(...xs) < x || Math.min(...xs) > x + w) return;
      keep(`l${owner}.${i}`, () => this.lineShape(line));
    });
    lines(0, this.placed.lines);
    const { items } = this.placed;
    for (let i = 0; i < items.length;) {
      const item = items[i], shows = item.x < x + w && item.x + item.w > x && item.y < y + h && item.y + item.h > y;
      const isOpen = item.end > i + 1, small = Math.min(item.w, item.h) * zoom < SMALL;
      if (shows && isOpen && !small) {
        const area = keep(`a${item.id}`, () => this.areaShape(item));
        this.center(area, item);
        lines(item.id, item.lines);
        item.ports.forEach((port, at) => keep(`p${item.id}.${at}`, () => this.portShape(port)));
        i++;
        continue;
      }
      if (shows) keep(`b${item.id}`, () => this.boxShape(item));
      i = item.end;
    }
    for (const [key, drawn] of this.drawn) if (!kept.has(key)) { drawn.remove(); this.drawn.delete(key); }
    this.order();
    this.map.show();
  }

  /* Elements in the order of the outline, one of them a stop of the Tab key. */
  order() {
    const drawn = (id) => this.drawn.get(`a${id}`) ?? this.drawn.get(`b${id}`);
    let stop = this.current;
    while (stop && !drawn(stop)) stop = this.parent[stop];
    for (const [key, each] of this.drawn) if (key[0] === "a" || key[0] === "b") each.setAttribute("tabindex", "-1");
    const first = drawn(stop) ?? this.svg.querySelector("[role=treeitem]");
    first?.setAttribute("tabindex", "0");
    for (const line of this.layers.lines.children) line.classList.toggle("on", this.isOn(Number(line.dataset.value)));
  }

  isOn(value) {
    if (this.chosen === null || value < 0) return false;
    const part = this.data.parts[this.chosen];
    if (part.value !== undefined) return part.value === value;
    if (part.node === undefined) return false;
    const [, , , inputs, outputs] = this.data.nodes[part.node];
    return inputs.includes(value) || outputs.includes(value);
  }

  item(id, item) {
    const part = this.data.parts[id], parent = this.data.parts[this.parent[id]];
    const side = { accelerator: `on ${this.data.target}`, cpu: "on the CPU", mixed: "partly accelerated", input: "input", output: "output" }[part.kind];
    const attributes = {
      class: `part ${part.kind} ${this.family(id)}`.trim(), "data-part": id, role: "treeitem", tabindex: -1, "aria-level": item.depth,
      "aria-setsize": parent.count, "aria-posinset": id - parent.first + 1, "aria-selected": id === this.chosen,
      "aria-label": part.lines.join(" ") + (side ? `, ${side}` : ""),
    };
    if (part.layout !== undefined) attributes["aria-expanded"] = this.open.has(id);
    const made = shape("g", attributes);
    made.classList.toggle("chosen", id === this.chosen);
    if (!this.open.has(id)) this.dress(made, id);
    return made;
  }

  boxShape({ id, x, y, w, h, depth }) {
    const part = this.data.parts[id], made = this.item(id, { depth });
    const round = { accelerator: 9, input: h / 2, output: h / 2, mixed: 4 }[part.kind] ?? 1;
    if (part.layout !== undefined) made.append(shape("rect", { class: "under", x: x + 4, y: y + 4, width: w, height: h, rx: round }));
    made.append(shape("rect", { class: "box", x, y, width: w, height: h, rx: round }));
    const top = y + h / 2 - (part.lines.length - 1) * 7 + 4;
    const cost = this.costShare(id);
    if (cost > 0.005) made.append(shape("rect", { class: "cost", x: x + 2, y: y + h - 4, width: (w - 4) * cost, height: 3 }));
    part.lines.forEach((line, i) => made.append(shape("text", { class: i ? "small" : "op", x: x + w / 2, y: top + 14 * i - (i ? 0 : 1) }, line), " "));
    return this.layers.boxes.appendChild(made);
  }

  areaShape({ id, x, y, w, h, depth }) {
    const made = this.item(id, { depth });
    made.classList.add("area");
    made.append(shape("rect", { class: "box", x, y, width: w, height: h, rx: 10 }));
    made.append(shape("text", { class: "label" }, this.data.parts[id].lines[0] ?? ""));
    const { areas } = this.layers;
    const after = [...areas.children].find((other) => Number(other.getAttribute("aria-level")) > depth);
    return areas.insertBefore(made, after ?? null);
  }

  /* Keeps the label of an open group in the middle of its visible part. */
  center(area, { id, x, y, h }) {
    const half = this.data.parts[id].least / 2 - 20;
    const low = Math.max(y, this.view.y), high = Math.min(y + h, this.view.y + this.view.h);
    const middle = Math.min(Math.max((low + high) / 2, y + half), y + h - half);
    area.lastChild.setAttribute("transform", `translate(${x + 17} ${middle}) rotate(-90)`);
  }

  lineShape({ points, value, copy, head }) {
    const made = shape("path", { class: copy ? "line copy" : "line", d: path(points), "data-value": value });
    if (head) made.setAttribute("marker-end", `url(#${copy ? "copy-head" : "head"}${this.index})`);
    if (value >= 0) {
      const [name, type] = this.data.values[value];
      made.append(shape("title", {}, `${name}: ${type}`));
    }
    return this.layers.lines.appendChild(made);
  }

  portShape({ x, y, r, copy }) {
    return this.layers.lines.appendChild(shape("circle", { class: copy ? "port copy" : "port", cx: x, cy: y, r }));
  }

  /* ------------------------------------------------------------------ actions */

  /* Opens or closes a group; its middle, or the height `y`, stays where it is on the screen. */
  toggle(id, y) {
    if (this.data.parts[id].layout === undefined) return;
    const before = this.placed.items[this.at.get(id)];
    const share = y === undefined ? 0 : (y - before.y) / before.h;
    const anchor = [before.x + before.w / 2, before.y + before.h * share];
    if (!this.open.delete(id)) this.open.add(id);
    this.forget(id);
    this.place();
    const after = this.placed.items[this.at.get(id)];
    this.pan(after.x + after.w / 2 - anchor[0], after.y + after.h * share - anchor[1]);
  }

  forget(id) {
    for (let at = id; at !== undefined; at = this.parent[at]) this.known.delete(at);
  }

  all(open) {
    this.open = new Set(open ? this.data.parts.flatMap((p, id) => (id && p.layout !== undefined ? [id] : [])) : []);
    this.known.clear();
    this.place();
    this.fit(false);
  }

  /* Chooses a part, and tells the sheet about it. */
  choose(id) {
    for (const other of pictures) if (other !== this) other.unchoose();
    this.unchoose();
    this.chosen = this.current = id;
    for (const key of ["a", "b"]) {
      this.drawn.get(key + id)?.classList.add("chosen");
      this.drawn.get(key + id)?.setAttribute("aria-selected", "true");
    }
    this.order();
    tell(details(this, id));
  }

  unchoose() {
    for (const key of ["a", "b"]) {
      this.drawn.get(key + this.chosen)?.classList.remove("chosen");
      this.drawn.get(key + this.chosen)?.setAttribute("aria-selected", "false");
    }
    this.chosen = null;
    for (const line of this.layers.lines.children) line.classList.remove("on");
  }

  /* Opens what is around a part, and moves it into the view. */
  reveal(id, centered = false) {
    let changed = false;
    for (let at = this.parent[id]; at; at = this.parent[at]) if (!this.open.has(at)) { this.open.add(at); this.forget(at); changed = true; }
    if (changed) this.place();
    const { x, y, w, h } = this.placed.items[this.at.get(id)], view = this.view, edge = 40 / this.zoomOf();
    const tall = h > view.h - 2 * edge, wide = w > view.w - 2 * edge;
    if (centered || this.zoomOf() < LEAST_ZOOM / 1.5) {
      const zoom = Math.max(this.zoomOf(), LEAST_ZOOM);
      Object.assign(view, { w: this.svg.clientWidth / zoom, h: this.svg.clientHeight / zoom });
      Object.assign(view, { x: x + w / 2 - view.w / 2, y: h > view.h ? y - 40 : y + h / 2 - view.h / 2 });
    } else {
      if (x < view.x + edge || wide) view.x = x - edge; else if (x + w > view.x + view.w - edge) view.x = x + w + edge - view.w;
      if (y < view.y + edge || tall) view.y = y - edge; else if (y + h > view.y + view.h - edge) view.y = y + h + edge - view.h;
    }
    this.draw();
  }

  /* Moves the keyboard's focus to a part. */
  focus(id) {
    this.current = id;
    this.reveal(id);
    (this.drawn.get(`a${id}`) ?? this.drawn.get(`b${id}`))?.focus({ preventScroll: true });
  }

  /* Shows a part in the middle, chosen. */
  go(id) {
    this.current = id;
    this.reveal(id, true);
    this.choose(id);
    this.uncover(id);
  }

  /* Gives nodes, and the closed groups around them, a class, and takes it from all others. */
  paint(name, nodes, around = true) {
    const parts = new Set();
    for (const node of nodes)
      for (let at = this.partOfNode[node]; at && !parts.has(at); at = around ? this.parent[at] : 0) parts.add(at);
    this.painted.set(name, parts);
    for (const each of this.svg.querySelectorAll("[data-part]")) this.dress(each, Number(each.dataset.part));
  }

  dress(drawn, id) {
    for (const [name, parts] of this.painted) drawn.classList.toggle(name, parts.has(id) && !drawn.classList.contains("area"));
  }

  /* ------------------------------------------------------------------ events */

  listen() {
    const fingers = new Map();
    let moved = false, apart = 0;
    const spread = () => { const [a, b] = [...fingers.values()]; return Math.hypot(a[0] - b[0], a[1] - b[1]); };
    this.svg.addEventListener("pointerdown", (e) => {
      fingers.set(e.pointerId, [e.clientX, e.clientY]);
      if (fingers.size === 1) moved = false;
      if (fingers.size === 2) apart = spread();
    });
    this.svg.addEventListener("pointermove", (e) => {
      const before = fingers.get(e.pointerId);
      if (!before) return;
      const [dx, dy] = [e.clientX - before[0], e.clientY - before[1]];
      if (!moved && Math.hypot(dx, dy) < 4) return;
      if (!moved) this.svg.setPointerCapture(e.pointerId);
      moved = true;
      fingers.set(e.pointerId, [e.clientX, e.clientY]);
      if (fingers.size === 2) { const now = spread(); this.zoom(apart / Math.max(now, 1), ...this.point(e)); apart = now; }
      this.pan(-dx / this.zoomOf() / fingers.size, -dy / this.zoomOf() / fingers.size);
    });
    for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, (e) => fingers.delete(e.pointerId));
    this.svg.addEventListener("wheel", (e) => {
      e.preventDefault();
      if (e.ctrlKey || e.metaKey) this.zoom(Math.exp(e.deltaY * 0.004), ...this.point(e));
      else this.pan((e.shiftKey ? e.deltaY : e.deltaX) / this.zoomOf(), (e.shiftKey ? 0 : e.deltaY) / this.zoomOf());
    }, { passive: false });
    this.svg.addEventListener("click", (e) => {
      const part = e.target.closest("[data-part]");
      if (moved || !part) return;
      const id = Number(part.dataset.part);
      this.toggle(id, this.point(e)[1]);
      this.choose(id);
      openSheet(this.data.parts[id].layout === undefined);
      this.uncover(id);
    });
    this.svg.addEventListener("focusin", (e) => { if (e.target.dataset?.part) this.current = Number(e.target.dataset.part); });
    this.svg.addEventListener("keydown", (e) => this.key(e));
    const actions = { in: () => this.zoom(0.75), out: () => this.zoom(1 / 0.75), fit: () => this.fit(true), open: () => this.all(true), close: () => this.all(false) };
    for (const button of this.frame.querySelectorAll("[data-do]")) button.addEventListener("click", actions[button.dataset.do]);
  }

  key(event) {
    const { items } = this.placed, at = this.at.get(this.current) ?? 0, id = items[at]?.id, part = this.data.parts[id];
    const group = part?.layout !== undefined, open = this.open.has(id);
    const step = {
      ArrowDown: () => at + 1 < items.length && this.focus(items[at + 1].id),
      ArrowUp: () => at > 0 && this.focus(items[at - 1].id),
      Home: () => this.focus(items[0].id),
      End: () => this.focus(items[items.length - 1].id),
      ArrowRight: () => group && (open ? this.focus(part.first) : (this.toggle(id), this.focus(id))),
      ArrowLeft: () => (group && open ? (this.toggle(id), this.focus(id)) : this.parent[id] && this.focus(this.parent[id])),
      Enter: () => this.enter(id), " ": () => this.enter(id),
      "+": () => this.zoom(0.75), "-": () => this.zoom(1 / 0.75), 0: () => this.fit(true),
    }[event.key];
    if (id === undefined || !step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    step();
  }

  enter(id) {
    this.choose(id);
    openSheet(true);
    this.uncover(id);
  }

  /* Moves a part above the sheet that covers a narrow screen. */
  uncover(id) {
    const sheet = document.getElementById("sheet");
    if (!sheet.classList.contains("open") || getComputedStyle(sheet).position !== "fixed") return;
    const free = innerHeight - sheet.offsetHeight - this.svg.getBoundingClientRect().top, { y, h } = this.placed.items[this.at.get(id)];
    if (free > 40) this.pan(0, y + h / 2 - free / 2 / this.zoomOf() - this.view.y);
  }
}
