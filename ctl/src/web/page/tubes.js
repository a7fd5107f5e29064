// The tubes of a server in a table: the most interesting rows, and only as many as can be looked at.

import { spark } from "./chart.js";
import { byId, count, el, rate, setClass, setText, show, time, UNKNOWN } from "./dom.js";

const STEP = 100;
const MOST = 300;

const COLUMNS = [
  { key: "name", title: "Tube", style: "name" },
  { key: "ready", title: "Ready" },
  { key: "reserved", title: "Reserved" },
  { key: "delayed", title: "Delayed" },
  { key: "buried", title: "Buried" },
  { key: "waiting", title: "Workers waiting", style: "minor" },
  { key: "puts", title: "Put/s", style: "minor" },
  { key: "deletes", title: "Deleted/s", style: "minor" },
  { key: "half", title: "Wait", style: "minor", isFixed: true },
  { key: "spark", title: "Ready, last minute", style: "spark", isFixed: true },
];

// What the server is asked for.
export const wish = { filter: "", sort: "ready", reverse: false, rows: STEP };

const rows = new Map();
let heads;
let changed;

export function begin(onChange) {
  changed = onChange;
  heads = COLUMNS.map((column) => {
    const press = () => {
      wish.reverse = wish.sort === column.key ? !wish.reverse : false;
      wish.sort = column.key;
      headings();
      changed();
    };
    const title = column.isFixed ? el("span", {}, column.title) : el("button", { type: "button", onclick: press }, column.title);
    return el("th", { scope: "col", class: column.style }, title);
  });
  byId("columns").append(...heads);
  headings();
  byId("filter").addEventListener("input", (event) => {
    wish.filter = event.target.value.trim();
    wish.rows = STEP;
    changed();
  });
  byId("more-tubes").addEventListener("click", () => {
    wish.rows = Math.min(MOST, wish.rows + STEP);
    changed();
  });
}

function headings() {
  heads.forEach((head, at) => {
    const isSorted = COLUMNS[at].key === wish.sort;
    // Names begin with a; numbers with the largest.
    const isUp = (wish.sort === "name") !== wish.reverse;
    if (isSorted) head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
}

export function address(server, tube) {
  return `#/${server}/${encodeURIComponent(tube)}`;
}

function make(name) {
  const link = el("a", {}, name);
  const paused = el("span", { class: "chip paused", hidden: true });
  const cells = COLUMNS.map((column) => el("td", { class: column.style ?? column.key }));
  cells[0].append(link, paused);
  return { node: el("tr", {}, ...cells), link, paused, cells };
}

function wait(row) {
  if (row.half === undefined) return row.next === undefined ? UNKNOWN : `next ${time(row.next)}`;
  return row.half === "longest" ? "hours" : `≤ ${time(row.half)}`;
}

function update(row, data, server) {
  const href = address(server, data.name);
  if (row.link.getAttribute("href") !== href) row.link.setAttribute("href", href);
  show(row.paused, data.paused !== undefined);
  if (data.paused !== undefined) setText(row.paused, `paused ${time(data.paused)}`);
  setClass(row.node, "is-paused", data.paused !== undefined);
  for (const at of [1, 2, 3, 4, 5]) {
    const number = data[COLUMNS[at].key];
    setText(row.cells[at], count(number));
    setClass(row.cells[at], "zero", number === 0);
  }
  setClass(row.cells[4], "odd", data.buried > 0);
  setText(row.cells[6], rate(data.puts));
  setText(row.cells[7], rate(data.deletes));
  setClass(row.cells[6], "zero", !data.puts);
  setClass(row.cells[7], "zero", !data.deletes);
  setText(row.cells[8], wait(data));
  row.cells[8].title = data.half === undefined ? ""
    : `Of the jobs reserved in the last minute, half had waited at most ${data.half === "longest" ? "hours" : time(data.half)}, and 95 of 100 at most ${data.most === "longest" ? "hours" : time(data.most)}.`;
  if (data.spark) spark(row.cells[9], data.spark);
}

// Rows stay where they are while someone points at them or has the focus there.
function isHeld(body) {
  return body.matches(":hover") || body.contains(document.activeElement);
}

let orderedBy = "";

export function draw(tubes, server) {
  const body = byId("rows");
  const order = JSON.stringify([server, wish]);
  const isNew = order !== orderedBy;
  orderedBy = order;
  const names = new Set(tubes.rows.map((data) => data.name));
  for (const [name, row] of rows) {
    if (!names.has(name)) {
      row.node.remove();
      rows.delete(name);
    }
  }
  const keeps = !isNew && isHeld(body);
  tubes.rows.forEach((data, at) => {
    let row = rows.get(data.name);
    if (!row) {
      row = make(data.name);
      rows.set(data.name, row);
      if (keeps) body.append(row.node);
    }
    update(row, data, server);
    if (!keeps && body.children[at] !== row.node) body.insertBefore(row.node, body.children[at] ?? null);
  });
  const shown = tubes.rows.length;
  const text = tubes.matched === tubes.all ? count(tubes.all) : `${count(tubes.matched)} of ${count(tubes.all)}`;
  setText(byId("tubes-count"), shown < tubes.matched ? `${text}, the first ${count(shown)} shown` : text);
  show(byId("more-tubes"), shown < tubes.matched && shown < MOST);
}

export function forget() {
  for (const row of rows.values()) row.node.remove();
  rows.clear();
}

// Gives the focus back to the row that was left.
export function focus(name) {
  rows.get(name)?.link.focus();
}
