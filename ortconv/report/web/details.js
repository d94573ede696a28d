"use strict";

/* An element with attributes and children; texts are texts. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name === "onclick") made.addEventListener("click", value); else made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function amount(number, units) {
  let at = 0;
  while (Math.abs(number) >= 1000 && at < units.length - 1) { number /= 1000; at++; }
  return `${Number(number.toPrecision(3))} ${units[at]}`.trim();
}
const time = (microseconds) => amount(microseconds, ["µs", "ms", "s"]);
const count = (number) => amount(number, ["", "k", "M", "G", "T"]);

function listOf(rows) {
  return rows.length ? [element("dl", {}, ...rows.flatMap(([name, ...text]) => [element("dt", {}, name), element("dd", {}, ...text)]))] : [];
}
const titled = (title, parts) => (parts.length ? [element("h3", {}, title), ...parts] : []);

/* What the sheet shows of a part of a picture. */
function details(picture, id) {
  const part = picture.data.parts[id];
  if (part.node !== undefined) return ofNode(picture, id, part);
  return part.value !== undefined ? ofValue(picture, part) : ofGroup(picture, id, part);
}

function side(picture, kind) {
  const words = { accelerator: `runs on ${picture.data.target}`, cpu: "left to the CPU", mixed: `partly on ${picture.data.target}` };
  return words[kind] ? [element("p", { class: "side" }, element("span", { class: `key ${kind}` }), words[kind])] : [];
}

function ofNode(picture, id, part) {
  const [op, name, attributes, inputs, outputs, macs, cpu, accelerator, partition, reasons] = picture.data.nodes[part.node];
  const [version, ins, outs] = picture.data.operators[op];
  const where = partition === null ? side(picture, part.kind) : [element("p", { class: "side" },
    element("span", { class: "key accelerator" }), `runs on ${picture.data.target}, partition ${partition}`)];
  const why = reasons.map((r) => picture.reason(r)).map(([rule, message, advice]) => element("li", {},
    element("b", {}, rule), `: ${message}`, ...(advice ? [element("p", { class: "advice" }, `Advice: ${advice}`)] : []),
    link(`all nodes with this rule`, () => search(`${rule}:`))));
  const cost = [["multiply-adds", count(macs)], ["on the CPU", time(cpu)]];
  if (picture.data.target) cost.push([`on ${picture.data.target}`, time(accelerator)]);
  return [
    element("h2", {}, op), element("p", { class: "note" }, `${version}, ${name || "without a name"}`), ...where, ...opener(picture, id, part),
    ...titled("Why it stays on the CPU", why.length ? [element("ul", {}, ...why)] : []),
    ...titled("Inputs", listOf(inputs.map((v, i) => tensor(picture, v, formal(ins, i), makerOf)))),
    ...titled("Outputs", listOf(outputs.map((v, i) => tensor(picture, v, formal(outs, i), readersOf)))),
    ...titled("Attributes", listOf(attributes)),
    ...titled("Estimated cost", listOf(cost)),
  ];
}

function ofValue(picture, part) {
  const links = part.kind === "input" ? readersOf(picture, part.value) : makerOf(picture, part.value);
  const [name, type] = picture.data.values[part.value];
  return [element("h2", {}, name), element("p", { class: "note" }, `${part.kind} of the model`), element("p", {}, type), ...links];
}

function ofGroup(picture, id, part) {
  const counts = new Map();
  for (const node of picture.nodesIn(id)) counts.set(picture.data.nodes[node][0], (counts.get(picture.data.nodes[node][0]) ?? 0) + 1);
  const rows = [...counts].sort((a, b) => b[1] - a[1]).map(([op, n]) => [op, String(n)]);
  const cpu = picture.nodesIn(id).reduce((sum, n) => sum + picture.data.nodes[n][6], 0);
  return [
    element("h2", {}, part.lines[0]), ...side(picture, part.kind),
    ...part.lines.slice(2).map((line) => element("p", { class: "note" }, line)),
    ...opener(picture, id, part),
    ...titled(`${part.nodes} nodes, ${time(cpu)} on the CPU`, listOf(rows)),
  ];
}

/* A button that opens or closes a group, or a node with subgraphs. */
function opener(picture, id, part) {
  if (part.layout === undefined) return [];
  const what = part.node === undefined ? "this group" : "the subgraphs";
  const act = () => { picture.toggle(id); picture.choose(id); };
  return [element("p", {}, element("button", { onclick: act }, `${picture.open.has(id) ? "Close" : "Open"} ${what}`))];
}

/* The formal name of a value; all further ones have the last name. */
const formal = (names, slot) => names[Math.min(slot, names.length - 1)] || `${slot}`;

/* A row about a tensor: name, type, elements of a constant, and links to its other ends. */
function tensor(picture, value, slot, ends) {
  if (value < 0) return [slot, element("span", { class: "note" }, "left out")];
  const [name, type, held, range] = picture.data.values[value];
  const shown = held === undefined ? ends(picture, value) : [element("code", {}, held), ...(range ? [element("div", { class: "note" }, range)] : [])];
  return [slot, element("b", {}, name), " ", element("span", { class: "note" }, `${type} `), ...shown];
}

const link = (text, action) => element("button", { class: "link", onclick: action }, text);

function makerOf(picture, value) {
  const node = picture.maker.get(value);
  return node === undefined ? [] : ["from ", toNode(picture, node)];
}

function readersOf(picture, value) {
  const readers = picture.readers.get(value) ?? [];
  const more = readers.length > 12 ? [` and ${readers.length - 12} more`] : [];
  return readers.length ? ["to ", ...readers.slice(0, 12).flatMap((n, i) => (i ? [", ", toNode(picture, n)] : [toNode(picture, n)])), ...more] : [];
}

function toNode(picture, node) {
  const [op, name] = picture.data.nodes[node];
  return link(name ? `${op} ${name}` : op, () => picture.go(picture.partOfNode[node]));
}
