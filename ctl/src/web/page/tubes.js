// The tubes of a server in a table, those that need attention first, in pages if there are many.

import { spark } from "./chart.js";
import { byId, count, counted, el, rate, setClass, setText, show, time, UNKNOWN } from "./dom.js";
import { address } from "./route.js";

const STEP = 100;

// Reasons why tubes need attention, as a part of a sentence and as a chip of a row.
const TROUBLES = {
  buried: { of: (many) => `${count(many)} with buried jobs`, chip: () => null },
  paused: { of: (many) => `${count(many)} paused`, chip: (tube) => `paused ${time(tube.paused)}` },
  late: { of: (many) => `${count(many)} whose next job has waited 5 minutes or longer`, chip: (tube) => `waits ${time(tube.next)}` },
  unattended: { of: (many) => `${count(many)} with ready jobs and no workers`, chip: () => "no workers" },
};

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

// The parameters of the request.
export const wish = { filter: "", sort: "trouble", reverse: false, rows: STEP, from: 0 };

const rows = new Map();
let heads;
let changed;

export function begin(onChange) {
  changed = onChange;
  heads = COLUMNS.map((column) => {
    const press = () => {
      wish.reverse = wish.sort === column.key ? !wish.reverse : false;
      sortBy(column.key);
    };
    const title = column.isFixed ? el("span", {}, column.title) : el("button", { type: "button", onclick: press }, column.title);
    return el("th", { scope: "col", class: column.style }, title);
  });
  byId("columns").append(...heads);
  headings();
  byId("filter").addEventListener("input", (event) => {
    wish.filter = event.target.value.trim();
    wish.from = 0;
    changed();
  });
  byId("tubes-before").addEventListener("click", () => turn(-STEP));
  byId("tubes-after").addEventListener("click", () => turn(STEP));
  byId("need-first").addEventListener("click", () => {
    wish.reverse = false;
    sortBy("trouble");
  });
}

function sortBy(key) {
  wish.sort = key;
  wish.from = 0;
  headings();
  changed();
}

function turn(step) {
  wish.from = Math.max(0, wish.from + step);
  byId("tubes-title").scrollIntoView();
  changed();
}

function headings() {
  heads.forEach((head, at) => {
    const isSorted = COLUMNS[at].key === wish.sort;
    // Names are sorted from a to z, and numbers from the largest to the smallest.
    const isUp = (wish.sort === "name") !== wish.reverse;
    if (isSorted) head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
}

function make(name) {
  const link = el("a", {}, name);
  const chips = Object.keys(TROUBLES).map((kind) => el("span", { class: `chip ${kind}`, hidden: true }));
  const cells = COLUMNS.map((column) => el("td", { class: column.style ?? column.key, "data-name": column.title.toLowerCase() }));
  cells[0].append(link, ...chips);
  return { node: el("tr", {}, ...cells), link, chips, cells };
}

function wait(row) {
  if (row.half === undefined) return row.next === undefined ? UNKNOWN : `next ${time(row.next)}`;
  return row.half === "longest" ? "hours" : `≤ ${time(row.half)}`;
}

function update(row, data, server) {
  const href = address({ server, tube: data.name });
  if (row.link.getAttribute("href") !== href) row.link.setAttribute("href", href);
  Object.entries(TROUBLES).forEach(([kind, { chip }], at) => {
    const text = data.trouble.includes(kind) ? chip(data) : null;
    show(row.chips[at], text !== null);
    if (text !== null) setText(row.chips[at], text);
  });
  setClass(row.node, "needs-look", data.trouble.length > 0);
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

// Returns whether the pointer or the focus is on a row. Then the rows keep their order.
function isHeld(body) {
  return body.matches(":hover") || body.contains(document.activeElement);
}

let orderedBy = "";

function need(tubes) {
  const kinds = Object.entries(TROUBLES).filter(([kind]) => tubes.troubles[kind] > 0);
  setText(byId("need-count"), tubes.need === 0 ? "No tube needs attention." : `${counted(tubes.need, "tube")} need${tubes.need === 1 ? "s" : ""} attention:`);
  setText(byId("need-why"), tubes.need === 0 ? "" : `${kinds.map(([kind, { of }]) => of(tubes.troubles[kind])).join(", ")}.`);
  show(byId("need-first"), tubes.need > 0 && (wish.sort !== "trouble" || wish.reverse || wish.from > 0));
  setClass(byId("need"), "odd", tubes.need > 0);
}

export function draw(tubes, server) {
  need(tubes);
  // Fewer tubes may match now, so that this page of the table would be empty.
  if (wish.from > 0 && wish.from >= tubes.matched) {
    wish.from = Math.max(0, Math.ceil(tubes.matched / STEP) - 1) * STEP;
    changed();
    return;
  }
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
  const [first, last] = [tubes.from + 1, tubes.from + tubes.rows.length];
  const text = tubes.matched === tubes.all ? count(tubes.all) : `${count(tubes.matched)} of ${count(tubes.all)}`;
  const hasPages = tubes.matched > STEP;
  setText(byId("tubes-count"), hasPages ? `${count(first)} to ${count(last)} of ${text}` : text);
  show(byId("tubes-pages"), hasPages);
  byId("tubes-before").disabled = tubes.from === 0;
  byId("tubes-after").disabled = last >= tubes.matched;
}

export function forget() {
  wish.from = 0;
  for (const row of rows.values()) row.node.remove();
  rows.clear();
}

// Moves the focus to the row of the tube that the user has just closed.
export function focus(name) {
  rows.get(name)?.link.focus();
}
