"use strict";

/* The pictures of a page, and the search through their nodes. */

let pictures = [], matches = [], match = -1;

/* Puts elements into the sheet. */
function tell(parts) {
  const place = document.getElementById("details");
  place.replaceChildren(...parts);
  place.parentNode.scrollTop = 0;
}

/* Marks the nodes whose texts have all the words. */
function look() {
  const words = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  matches = [];
  for (const picture of pictures) {
    const found = words.length ? picture.searched().flatMap((text, node) => (words.every((w) => text.includes(w)) ? [node] : [])) : [];
    picture.paint("match", found);
    matches.push(...found.map((node) => [picture, picture.partOfNode[node]]));
  }
  match = -1;
  document.getElementById("found").textContent = words.length ? `${matches.length} nodes` : "";
}

function next(step) {
  if (!matches.length) return;
  match = (match + step + matches.length) % matches.length;
  document.getElementById("found").textContent = `${match + 1} of ${matches.length}`;
  const [picture, part] = matches[match];
  picture.go(part);
}

/* Searches for words, and shows the first node. */
function search(words) {
  document.getElementById("search").value = words;
  look();
  next(1);
}

function startPictures() {
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const each of data.pictures)
    for (const part of each.parts) [part.kind, part.lines] = each.labels[part.label];
  pictures = data.pictures.map((each, i) => new Picture(document.querySelector(`[data-picture="${i}"]`), each, i));
  const input = document.getElementById("search");
  input.addEventListener("input", look);
  input.addEventListener("keydown", (e) => { if (e.key === "Enter") next(e.shiftKey ? -1 : 1); });
  document.querySelectorAll("[data-find]").forEach((each) => each.addEventListener("click", () => search(each.dataset.find)));
  window.addEventListener("keydown", (e) => {
    if (e.key === "/" && !(e.target instanceof HTMLInputElement)) { e.preventDefault(); input.focus(); input.select(); }
    if (e.key === "Escape") {
      const from = pictures.find((p) => p.chosen !== null) ?? pictures[0];
      tell([]);
      if (from.at.has(from.current)) from.focus(from.current);
      from.unchoose();
      if (input.value) { input.value = ""; look(); }
    }
  });
  if (typeof startSteps !== "undefined") startSteps(data);
}

startPictures();
