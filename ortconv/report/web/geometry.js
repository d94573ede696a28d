"use strict";

/* A picture has parts, layouts, nodes, values and reasons.
 *
 * Part 0 is the whole graph. A part has a label, which is its kind and lines of text, and one of: the number of a node, the number of a value, or, as a
 * group, `count` parts from `first` on. A node with subgraphs is a group, too. A group has a layout, the values of its nets, and `in` and `out`: where the lines of its
 * ports meet its border, as shares of the width. Boxes of a layout are ports in, parts, ports out. A route of a layout is
 * [net, source, target, where it leaves, where it arrives, points]. */

const GUTTER = 26, PAD = 14, MARGIN = 36;

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

/* The part that a box of a group shows; undefined for a port. */
function partOf(group, box) {
  const at = box - group.in.length;
  return at >= 0 && at < group.count ? group.first + at : undefined;
}

/* The inside of a group with some of its groups open: width, height, boxes, lines; `known` holds those of before. */
function arranged(picture, id, open, known) {
  if (known.has(id)) return known.get(id);
  const group = picture.parts[id], layout = picture.layouts[group.layout];
  const sizes = new Map();
  layout.boxes.forEach((_, i) => {
    const part = partOf(group, i);
    if (part !== undefined && open.has(part)) sizes.set(i, framed(picture, part, open, known));
  });
  const opened = [...sizes].map(([i, [w, h]]) => ({ box: layout.boxes[i], w, h }));
  const fx = stretch(opened.map(({ box, w }) => ({ lo: box[0], hi: box[0] + box[2], size: w })));
  const fy = stretch(opened.map(({ box, h }) => ({ lo: box[1], hi: box[1] + box[3], size: h })));
  const boxes = layout.boxes.map(([x, y, width, height], i) => {
    const [w, h] = sizes.get(i) ?? [width, height];
    return { x: (fx(x) + fx(x + width) - w) / 2, y: (fy(y) + fy(y + height) - h) / 2, w, h };
  });
  const lines = layout.routes.map(([, source, target, leaves, arrives, flat]) => {
    const from = boxes[source], to = boxes[target];
    const points = [];
    for (let i = 0; i < flat.length; i += 2) points.push([fx(flat[i]), fy(flat[i + 1])]);
    points[0][0] = from.x + from.w * leaves;
    points[points.length - 1][0] = to.x + to.w * arrives;
    return [[points[0][0], from.y + from.h], ...points, [points[points.length - 1][0], to.y]];
  });
  const w = boxes.reduce((most, b) => Math.max(most, b.x + b.w), fx(layout.w));
  const h = boxes.reduce((most, b) => Math.max(most, b.y + b.h), fy(layout.h));
  known.set(id, { w, h, boxes, lines });
  return known.get(id);
}

/* Width and height of an open group. */
function framed(picture, id, open, known) {
  const { w, h } = arranged(picture, id, open, known);
  return [w + GUTTER + PAD, Math.max(h + 2 * MARGIN, picture.parts[id].least)];
}

/* All boxes of the picture, in the order of the outline: items {id, x, y, w, h, depth, end}, where `end` is the index behind what is inside.
 * An open group has `lines` {points, value, copy, head} and `ports` {x, y, value}. */
function placed(picture, open, known) {
  const items = [];
  const inside = (id, left, top, width, height, depth) => {
    const group = picture.parts[id], layout = picture.layouts[group.layout];
    const { boxes, lines } = arranged(picture, id, open, known);
    const shifted = (points) => points.map(([x, y]) => [x + left, y + top]);
    const taken = (i) => { const part = partOf(group, i); return part !== undefined && picture.parts[part].kind === "accelerator"; };
    const found = { lines: [], ports: [] };
    layout.routes.forEach(([net, source, target], i) => {
      const into = partOf(group, target);
      found.lines.push({
        points: shifted(lines[i]), value: group.values[net], head: into !== undefined && !open.has(into),
        copy: !group.taken && (taken(source) || taken(target)),
      });
    });
    const stub = (points, value) => found.lines.push({ points, value, head: false, copy: group.partition !== undefined });
    const carried = new Map(layout.routes.flatMap(([net, source, target]) => [[source, group.values[net]], [target, group.values[net]]]));
    boxes.forEach((b, i) => {
      if (partOf(group, i) !== undefined) return;
      const x = b.x + left + b.w / 2, y = b.y + top + b.h / 2, out = i - group.in.length - group.count;
      found.ports.push({ x, y, r: b.w / 2, copy: group.partition !== undefined });
      const [frameLeft, frameTop] = [left - GUTTER, top - (height - arranged(picture, id, open, known).h) / 2];
      const value = carried.get(i) ?? -1;
      if (out < 0) stub([[frameLeft + group.in[i] * width, frameTop], [x, y]], value);
      else stub([[x, y], [frameLeft + group.out[out] * width, frameTop + height]], value);
    });
    for (let i = 0; i < group.count; i++) {
      const part = group.first + i, b = boxes[group.in.length + i];
      const item = { id: part, x: b.x + left, y: b.y + top, w: b.w, h: b.h, depth, end: 0 };
      items.push(item);
      if (open.has(part)) {
        const inner = arranged(picture, part, open, known);
        Object.assign(item, inside(part, item.x + GUTTER, item.y + (b.h - inner.h) / 2, b.w, b.h, depth + 1));
      }
      item.end = items.length;
    }
    return found;
  };
  const { w, h } = arranged(picture, 0, open, known);
  const { lines } = inside(0, 0, 0, w, h, 1);
  const right = lines.reduce((most, l) => l.points.reduce((m, p) => Math.max(m, p[0]), most), w);
  return { items, lines, width: right, height: h };
}

/* A curve through points, vertical at each of them. Points that repeat are left out: an arrowhead follows the last piece. */
function path(points) {
  let [x, y] = points[0];
  let d = `M${x.toFixed(1)} ${y.toFixed(1)}`;
  for (const [u, v] of points.slice(1)) {
    if (Math.abs(u - x) < 0.05 && Math.abs(v - y) < 0.05) continue;
    const half = ((y + v) / 2).toFixed(1), end = `${u.toFixed(1)} ${v.toFixed(1)}`;
    d += Math.abs(u - x) < 0.05 ? `L${end}` : `C${x.toFixed(1)} ${half} ${u.toFixed(1)} ${half} ${end}`;
    [x, y] = [u, v];
  }
  return d;
}

if (typeof module !== "undefined") module.exports = { stretch, placed, path };
