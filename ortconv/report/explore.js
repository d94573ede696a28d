"use strict";

/* A piecewise linear, growing map of one axis that gives every interval {lo, hi, size} at least its size. */
function stretch(intervals) {
  const cuts = [...new Set(intervals.flatMap((i) => [i.lo, i.hi]))].sort((a, b) => a - b);
  const at = [];
  let sum = cuts.length ? cuts[0] : 0;
  cuts.forEach((cut, k) => {
    at.push(sum);
    const next = cuts[k + 1];
    if (next === undefined) return;
    let rate = 1;
    for (const i of intervals)
      if (i.lo <= cut && next <= i.hi) rate = Math.max(rate, i.size / (i.hi - i.lo));
    sum += rate * (next - cut);
  });
  return (t) => {
    if (!cuts.length || t <= cuts[0]) return t;
    let low = 0, high = cuts.length - 1;
    if (t >= cuts[high]) return at[high] + t - cuts[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (cuts[middle] <= t) low = middle; else high = middle;
    }
    return at[low] + ((t - cuts[low]) * (at[high] - at[low])) / (cuts[high] - cuts[low]);
  };
}

/* Where the boxes are, and the points of the lines, with these groups open. */
function place(scene, open) {
  const opened = scene.groups.map((g, i) => ({ g, i })).filter(({ i }) => open.has(i)).map(({ g }) => g);
  const fx = stretch(opened.map((g) => ({ lo: g.x, hi: g.x + g.w, size: g.W })));
  const fy = stretch(opened.map((g) => ({ lo: g.y, hi: g.y + g.h, size: g.H })));
  const boxes = scene.groups.map((g, i) => {
    const [w, h] = open.has(i) ? [g.W, g.H] : [g.w, g.h];
    return { x: (fx(g.x) + fx(g.x + g.w) - w) / 2, y: (fy(g.y) + fy(g.y + g.h) - h) / 2, w, h };
  });
  const lines = scene.routes.map((r) => {
    const from = boxes[r.source], to = boxes[r.target];
    const start = from.x + from.w * r.leaves, end = to.x + to.w * r.arrives;
    const points = r.points.map(([x, y]) => [fx(x), fy(y)]);
    points[0][0] = start;
    points[points.length - 1][0] = end;
    return [[start, from.y + from.h], ...points, [end, to.y]];
  });
  const right = Math.max(...boxes.map((b) => b.x + b.w), ...lines.flat().map((p) => p[0]), 1);
  const bottom = Math.max(...boxes.map((b) => b.y + b.h), 1);
  return { boxes, lines, width: right, height: bottom };
}

function path(points) {
  let [x, y] = points[0];
  let d = `M${x} ${y}`;
  for (const [u, v] of points.slice(1)) {
    const half = (y + v) / 2;
    d += Math.abs(u - x) < 0.05 ? `L${u} ${v}` : `C${x} ${half} ${u} ${half} ${u} ${v}`;
    [x, y] = [u, v];
  }
  return d;
}

function start() {
  const scene = JSON.parse(document.getElementById("scene").textContent);
  const svg = document.querySelector("#picture");
  const groups = [...svg.querySelectorAll("[data-g]")];
  const lines = [...svg.querySelectorAll("[data-r]")];
  const details = document.getElementById("details");
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const open = new Set(scene.open);
  let view = null, placed = null, chosen = null, matches = [], match = -1;

  const show = () => svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
  const ratio = () => svg.clientHeight / Math.max(svg.clientWidth, 1);

  function draw() {
    placed = place(scene, open);
    groups.forEach((g, i) => {
      g.setAttribute("transform", `translate(${placed.boxes[i].x} ${placed.boxes[i].y})`);
      g.classList.toggle("open", open.has(i));
    });
    lines.forEach((line, i) => line.setAttribute("d", path(placed.lines[i])));
  }

  function fit(all) {
    const w = Math.max(placed.width + 60, all ? (placed.height + 60) / ratio() : Math.min(svg.clientWidth, 900));
    view = { x: placed.width / 2 - w / 2, y: -30, w, h: w * ratio() };
    show();
  }

  /* Opens or closes a group; its middle stays where it is on the screen. */
  function toggle(i, y) {
    if (!scene.groups[i].W) return;
    const before = placed.boxes[i];
    const share = y === undefined ? 0.5 : (y - before.y) / before.h;
    const anchor = [before.x + before.w / 2, before.y + before.h * share];
    if (!open.delete(i)) open.add(i);
    draw();
    const after = placed.boxes[i];
    view.x += after.x + after.w / 2 - anchor[0];
    view.y += after.y + after.h * share - anchor[1];
    show();
  }

  function choose(element) {
    if (chosen) chosen.classList.remove("chosen");
    chosen = element;
    if (!element) return;
    element.classList.add("chosen");
    details.textContent = element.querySelector("title").textContent;
  }

  function at(event) {
    const box = svg.getBoundingClientRect();
    return [view.x + ((event.clientX - box.left) / box.width) * view.w, view.y + ((event.clientY - box.top) / box.height) * view.h];
  }

  function zoom(by, x, y) {
    const w = Math.min(Math.max(view.w * by, 60), 400000);
    const scale = w / view.w;
    view = { x: x - (x - view.x) * scale, y: y - (y - view.y) * scale, w, h: view.h * scale };
    show();
  }

  function go(element) {
    const i = Number(element.closest("[data-g]").dataset.g);
    if (element.closest(".inside") && !open.has(i)) { open.add(i); draw(); }
    const rect = element.querySelector("rect");
    const x = placed.boxes[i].x + Number(rect.getAttribute("x")), y = placed.boxes[i].y + Number(rect.getAttribute("y"));
    const w = Math.min(view.w, 900);
    view = { x: x - w / 2, y: y - (w * ratio()) / 2, w, h: w * ratio() };
    show();
    choose(element);
  }

  function look() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    svg.querySelectorAll(".match").forEach((n) => n.classList.remove("match"));
    matches = !words.length ? [] : [...svg.querySelectorAll(".node[data-node]")].filter((n) => {
      const text = n.querySelector("title").textContent.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    matches.forEach((n) => n.classList.add("match"));
    match = -1;
    found.textContent = words.length ? `${matches.length} nodes` : "";
  }

  function next(step) {
    if (!matches.length) return;
    match = (match + step + matches.length) % matches.length;
    found.textContent = `${match + 1} of ${matches.length}`;
    go(matches[match]);
  }

  let drag = null, moved = false;
  svg.addEventListener("pointerdown", (e) => { drag = [e.clientX, e.clientY]; moved = false; });
  svg.addEventListener("pointermove", (e) => {
    if (!drag) return;
    const dx = e.clientX - drag[0], dy = e.clientY - drag[1];
    if (!moved && Math.hypot(dx, dy) < 4) return;
    if (!moved) svg.setPointerCapture(e.pointerId);
    moved = true;
    view.x -= (dx / svg.clientWidth) * view.w;
    view.y -= (dy / svg.clientHeight) * view.h;
    drag = [e.clientX, e.clientY];
    show();
  });
  window.addEventListener("pointerup", () => { drag = null; });
  svg.addEventListener("wheel", (e) => { e.preventDefault(); zoom(Math.exp(e.deltaY * 0.0015), ...at(e)); }, { passive: false });
  svg.addEventListener("click", (e) => {
    if (moved) return;
    const node = e.target.closest(".node");
    const group = e.target.closest("[data-g]");
    if (node && (node.dataset.node !== undefined || !group)) choose(node);
    else if (group) { choose(group.querySelector(".outside .node")); toggle(Number(group.dataset.g), at(e)[1]); }
  });
  search.addEventListener("input", look);
  search.addEventListener("keydown", (e) => { if (e.key === "Enter") next(e.shiftKey ? -1 : 1); });
  document.querySelectorAll("[data-find]").forEach((row) => row.addEventListener("click", () => {
    search.value = row.dataset.find;
    look();
    next(1);
  }));
  const buttons = {
    open: () => { scene.groups.forEach((g, i) => g.W && open.add(i)); draw(); fit(false); },
    close: () => { open.clear(); draw(); fit(false); },
    fit: () => fit(true),
  };
  for (const [name, action] of Object.entries(buttons)) document.getElementById(name).addEventListener("click", action);
  window.addEventListener("keydown", (e) => {
    if (e.target === search) return;
    const middle = [view.x + view.w / 2, view.y + view.h / 2];
    if (e.key === "+") zoom(0.8, ...middle);
    else if (e.key === "-") zoom(1.25, ...middle);
    else if (e.key === "0") fit(true);
    else if (e.key === "/") { e.preventDefault(); search.focus(); }
  });
  window.addEventListener("resize", () => { view.h = view.w * ratio(); show(); });
  draw();
  fit(false);
}

if (typeof document !== "undefined") start();
if (typeof module !== "undefined") module.exports = { stretch, place, path };
