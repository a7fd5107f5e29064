// Makes elements, and formats numbers, times and sizes. Text is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      node.addEventListener(name.slice(2), value);
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

// Sets the text of a node only if the text differs, so that nothing flickers and selections stay.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, name, isSet) {
  if (node.classList.contains(name) !== isSet) node.classList.toggle(name, isSet);
}

export function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

// An unknown number is shown as a dash, not as a zero.
export const UNKNOWN = "–";

export function count(number) {
  return number === undefined || number === null ? UNKNOWN : whole.format(number);
}

export function counted(number, what) {
  return `${count(number)} ${what}${number === 1 ? "" : "s"}`;
}

// Turns the server's report of an action into a sentence.
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");
}

export function rate(number) {
  if (number === undefined || number === null) return UNKNOWN;
  if (number === 0) return "0";
  return number < 9.95 ? number.toFixed(1) : number < 10000 ? whole.format(Math.round(number)) : compact.format(number);
}

export function short(number) {
  return number < 1000 ? String(Math.round(number * 10) / 10) : compact.format(number);
}

// Formats seconds: 0.0042 as 4.2 ms, and 3700 as 1 h 1 min.
export function time(seconds) {
  if (seconds === undefined || seconds === null) return UNKNOWN;
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${Math.max(1, Math.round(seconds * 1e6))} µs`;
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${whole.format(Math.floor(seconds / 86400))} d`;
}

export function size(bytes) {
  if (bytes === undefined || bytes === null) return UNKNOWN;
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  return `${(bytes / 1e6).toFixed(1)} MB`;
}
