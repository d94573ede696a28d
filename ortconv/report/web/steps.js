"use strict";

/* Walks through the rewrites between two pictures. After step k, nodes of the first picture that are gone by then are pale, and so
 * are nodes of the second one that are yet to come. */
class Walk {
  constructor(steps, before, after) {
    Object.assign(this, { steps, before, after, at: 0 });
    this.later = steps.map(() => []);
    steps.forEach((step, i) => step.after.forEach((earlier) => this.later[earlier].push(i)));
    this.slider = document.getElementById("step");
    this.slider.max = steps.length;
    this.slider.addEventListener("input", () => this.to(Number(this.slider.value)));
    const moves = { first: () => 0, back: () => this.at - 1, next: () => this.at + 1, last: () => steps.length };
    for (const [name, target] of Object.entries(moves))
      document.getElementById(`step-${name}`).addEventListener("click", () => this.to(target()));
    for (const each of document.querySelectorAll("[data-rule]"))
      each.addEventListener("click", () => this.toRule(each.dataset.rule));
    this.tell();
  }

  /* The next step of a rule behind the present one, or its first. */
  toRule(rule) {
    const found = this.steps.findIndex((step, i) => i >= this.at && step.rule === rule);
    this.to((found >= 0 ? found : this.steps.findIndex((step) => step.rule === rule)) + 1);
  }

  /* The nodes that a step leads from or to, by way of other steps. */
  reached(start, nodes, neighbors) {
    const found = new Set(), seen = new Set([start]), waiting = [start];
    while (waiting.length) {
      const i = waiting.pop();
      this.steps[i][nodes].forEach((node) => found.add(node));
      for (const other of neighbors(i)) if (!seen.has(other)) { seen.add(other); waiting.push(other); }
    }
    return [...found];
  }

  to(at) {
    this.at = Math.min(Math.max(at, 0), this.steps.length);
    this.slider.value = this.at;
    const now = this.at - 1;
    const from = now < 0 ? [] : this.reached(now, "from", (i) => this.steps[i].after);
    const into = now < 0 ? [] : this.reached(now, "to", (i) => this.later[i]);
    const all = this.at === 0 ? [] : this.steps;
    this.before.paint("pale", all.slice(0, now).flatMap((step) => step.from).filter((n) => !from.includes(n)), false);
    this.after.paint("pale", all.slice(this.at).flatMap((step) => step.to), false);
    this.before.paint("now", from);
    this.after.paint("now", into);
    for (const [picture, nodes] of [[this.before, from], [this.after, into]])
      if (nodes.length) picture.reveal(picture.partOfNode[nodes[0]], true); else picture.show();
    this.tell();
  }

  tell() {
    const place = document.getElementById("step-text"), step = this.steps[this.at - 1];
    if (!step) {
      place.replaceChildren(element("p", { class: "note" }, `${this.steps.length} rewrites. Nodes that a step removes and makes are marked in both pictures.`));
      return;
    }
    const list = (labels, more) => [...labels.map((label) => element("li", {}, label)), ...(more ? [element("li", {}, `and ${more} more`)] : [])];
    const part = (title, labels, more) => titled(title, labels.length ? [element("ul", {}, ...list(labels, more))] : []);
    place.replaceChildren(
      element("p", {}, element("b", {}, `${this.at} of ${this.steps.length}: ${step.rule}`)), element("p", { class: "note" }, `at ${step.root}`),
      ...part("removed", step.removed, step.more[0]), ...part("made", step.made, step.more[1]), ...(step.note ? [element("p", {}, step.note)] : []));
  }
}

function startSteps(data) {
  if (data.changed) pictures.forEach((picture, i) => { picture.paint("changed", data.changed[i]); picture.show(); });
  if (data.steps) new Walk(data.steps, pictures[0], pictures[1]);
}
