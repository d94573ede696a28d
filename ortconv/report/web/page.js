"use strict";

/* The number at the beginning of a text, with its unit; null for other texts. */
const UNITS = { B: 1, k: 1e3, kB: 1e3, M: 1e6, MB: 1e6, G: 1e9, GB: 1e9, s: 1e3, ms: 1, us: 1e-3 };
function quantity(text) {
  const match = /^[≤<~+]?\s*(-?[\d.]+(?:e[+-]?\d+)?)\s*([a-zA-Z]*)/.exec(text);
  return match ? Number(match[1]) * (UNITS[match[2]] ?? 1) : null;
}

/* Texts in the order of people: numbers by value, before all others. */
function compared(a, b) {
  const x = quantity(a), y = quantity(b);
  if (x !== null && y !== null) return x - y;
  if (x !== null || y !== null) return x === null ? 1 : -1;
  return a.localeCompare(b);
}

function sortBy(header) {
  const column = header.cellIndex, body = header.closest("table").tBodies[0];
  const first = header.classList.contains("n") ? "descending" : "ascending";
  const other = first === "descending" ? "ascending" : "descending";
  const order = header.getAttribute("aria-sort") === first ? other : first;
  for (const each of header.parentNode.cells) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const key = (row) => row.cells[column]?.textContent ?? "";
  body.append(...[...body.rows].sort((a, b) => sign * compared(key(a), key(b))));
}

/* Opens or closes the sheet of a narrow screen; beside a picture it is always open. */
function openSheet(open) {
  const sheet = document.getElementById("sheet");
  sheet?.classList.toggle("open", open);
  document.getElementById("handle")?.setAttribute("aria-expanded", String(open));
}

function startPage() {
  document.querySelectorAll("th button").forEach((b) => b.addEventListener("click", () => sortBy(b.parentNode)));
  const handle = document.getElementById("handle");
  handle?.addEventListener("click", () => openSheet(handle.getAttribute("aria-expanded") !== "true"));
  window.addEventListener("keydown", (event) => { if (event.key === "Escape") openSheet(false); });
}

if (typeof document !== "undefined") startPage();
