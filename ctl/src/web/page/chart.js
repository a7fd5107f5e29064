// Small charts of the last three minutes: one line for each series, redrawn with every sample.

import { el, setText, short, svg, time } from "./dom.js";

const SPAN = 180000;
const HEIGHT = 84;
const TOP = 14;
const BOTTOM = 15;
// Two samples further apart than this, in milliseconds, are not joined by a line.
const GAP = 12000;

// Rounds up to a round number, so that the scale changes rarely.
function ceiling(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  const step = [1, 1.5, 2, 3, 5, 7.5, 10].find((factor) => factor * power >= most);
  return step * power;
}

function path(points) {
  let text = "";
  let before = null;
  for (const point of points) {
    if (point.y === null) {
      before = null;
      continue;
    }
    const isJoined = before !== null && point.at - before < GAP;
    text += `${isJoined ? "L" : "M"}${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
    // A point without neighbours is drawn as a dot.
    if (!isJoined) text += "h0.1";
    before = point.at;
  }
  return text;
}

export class Chart {
  // Each series has its key in the history, a name, a class for the colour, and a formatter.
  constructor(title, series, axis = short) {
    this.series = series;
    this.axis = axis;
    this.pointed = null;
    this.values = series.map(() => el("b"));
    const names = series.map((one, at) => el("span", { class: `legend ${one.style}` }, this.values[at], one.name));
    this.when = el("span", { class: "when" });
    this.picture = svg("svg", { class: "chart", height: HEIGHT, role: "img", "aria-label": `${title}, the last three minutes` });
    this.node = el("figure", { class: "card" },
      el("figcaption", {}, el("span", { class: "title" }, title), this.when, el("div", { class: "legends" }, ...names)),
      this.picture);
    this.picture.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.redraw()).observe(this.picture);
  }

  point(x) {
    this.pointed = x;
    this.redraw();
  }

  redraw() {
    if (this.past) this.draw(this.past, this.now);
  }

  // The current numbers are passed separately, because the history may lack them.
  draw(past, now) {
    this.past = past;
    this.now = now;
    const width = Math.max(120, this.picture.clientWidth);
    const end = past.at.at(-1) ?? Date.now();
    const x = (at) => width - 2 - ((end - at) / SPAN) * (width - 4);
    const known = this.series.flatMap((one) => past[one.key].filter((value) => value !== null));
    const most = ceiling(Math.max(0, ...known));
    const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
    const base = HEIGHT - BOTTOM;
    const parts = [
      svg("line", { class: "grid", x1: 0, x2: width, y1: base, y2: base }),
      svg("line", { class: "grid", x1: 0, x2: width, y1: TOP, y2: TOP }),
      svg("text", { class: "axis", x: 2, y: TOP - 3 }, known.length ? this.axis(most) : ""),
      svg("text", { class: "axis", x: 2, y: HEIGHT - 2 }, "3 min ago"),
      svg("text", { class: "axis end", x: width - 2, y: HEIGHT - 2 }, "now"),
    ];
    // The first series is drawn last, so that it covers the other lines.
    for (const one of [...this.series].reverse()) {
      const points = past.at.map((at, i) => ({ at, x: x(at), y: past[one.key][i] === null ? null : y(past[one.key][i]) }));
      parts.push(svg("path", { class: `line ${one.style}`, d: path(points) }));
    }
    const at = this.nearest(past, x);
    if (at !== null) {
      const place = x(past.at[at]);
      parts.push(svg("line", { class: "pointer", x1: place, x2: place, y1: TOP, y2: base }));
    }
    setText(this.when, at === null ? "" : `${time(Math.round((end - past.at[at]) / 1000))} ago`);
    this.series.forEach((one, i) => {
      setText(this.values[i], one.write(at === null ? now[one.key] : past[one.key][at]));
      const number = now[one.key];
      this.values[i].parentNode.classList.toggle("odd", one.isOdd === true && number > 0);
    });
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.picture.replaceChildren(...parts);
  }

  nearest(past, x) {
    if (this.pointed === null || past.at.length === 0) return null;
    let best = 0;
    past.at.forEach((at, i) => {
      if (Math.abs(x(at) - this.pointed) < Math.abs(x(past.at[best]) - this.pointed)) best = i;
    });
    return best;
  }
}

// Draws a line without a scale, for a row of a table.
export function spark(node, values) {
  const width = 96;
  const height = 20;
  const most = Math.max(1, ...values);
  const step = width / 59;
  const begin = width - (values.length - 1) * step;
  const points = values.map((value, i) => `${(begin + i * step).toFixed(1)} ${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`);
  const d = points.length > 1 ? `M${points.join("L")}` : "";
  if (!node.firstChild) {
    node.append(svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, svg("path", { class: "line ready" })));
  }
  node.firstChild.firstChild.setAttribute("d", d);
}
