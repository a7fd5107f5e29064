// One job with its body, as text, as indented JSON, or as hex. A body is untrusted, so the page inserts
// it only as text, never as HTML.

import { jobButtons } from "./acts.js";
import { bodyAddress, get, isReadOnly } from "./api.js";
import { byId, count, el, size, time } from "./dom.js";
import { address } from "./route.js";

// The most characters of a body shown at once, because browsers are slow to lay out more text.
const DRAWN = 64 * 1024;

// Indents JSON without parsing its numbers, which may be too large for JavaScript.
export function indented(text) {
  JSON.parse(text);
  let out = "";
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, 40))}`;
  for (let at = 0; at < text.length; at += 1) {
    const it = text[at];
    if (it === '"') {
      let end = at + 1;
      while (text[end] !== '"') end += text[end] === "\\" ? 2 : 1;
      out += text.slice(at, end + 1);
      at = end;
    } else if (it === "{" || it === "[") {
      const rest = /\S/g;
      rest.lastIndex = at + 1;
      const next = rest.exec(text);
      if (next && (next[0] === "}" || next[0] === "]")) {
        out += it + next[0];
        at = next.index;
      } else {
        depth += 1;
        out += it + line();
      }
    } else if (it === "}" || it === "]") {
      depth -= 1;
      out += line() + it;
    } else if (it === ",") {
      out += it + line();
    } else if (it === ":") {
      out += ": ";
    } else if (!/\s/.test(it)) {
      out += it;
    }
  }
  return out;
}

function isJson(text) {
  if (!/^\s*[[{]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function bytesOf(job) {
  if (job.text !== undefined) return new TextEncoder().encode(job.text);
  return Uint8Array.from(atob(job.base64), (it) => it.charCodeAt(0));
}

export function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const line = [...bytes.subarray(at, at + 16)];
    const codes = line.map((it) => it.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const text = line.map((it) => (it >= 32 && it < 127 ? String.fromCharCode(it) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes}  ${text}`);
  }
  return lines.join("\n");
}

function facts(job) {
  const facts = [
    ["State", job.state], ["Priority", count(job.pri)], ["Age", time(job.age)],
    ["Time left", job["time-left"] === undefined ? null : time(job["time-left"])],
    ["Time to run", job.ttr === undefined ? null : time(job.ttr)], ["Size", size(job.size)],
    ...["reserves", "timeouts", "releases", "buries", "kicks"].map((key) => [key[0].toUpperCase() + key.slice(1), job[key] === undefined ? null : count(job[key])]),
  ];
  return el("dl", { class: "facts" }, ...facts.filter(([, value]) => value !== null)
    .map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", { class: key === "State" ? `chip ${value}` : null }, value))));
}

// Shows the beginning of a body in the chosen form.
function draw(job, way, text, note) {
  let whole;
  if (way === "hex") whole = hex(bytesOf(job).subarray(0, DRAWN / 4));
  else if (way === "json") whole = indented(job.text);
  else whole = job.text;
  const isCut = whole.length > DRAWN;
  text.textContent = isCut ? whole.slice(0, DRAWN) : whole;
  const isShort = isCut || job.shown < job.size || (way === "hex" && job.shown > DRAWN / 4);
  note.textContent = job.size === 0 ? "The body is empty."
    : isShort ? `Only the beginning of ${size(job.size)} is shown. Download the body to see all of it.` : "";
}

async function load(server, id, whole) {
  return get("job", { server, id, whole });
}

export async function openJob(server, id, changed) {
  const dialog = byId("job");
  let job;
  const title = el("h2", { id: "job-title", tabindex: "-1" }, `Job ${id}`);
  const close = el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(el("div", { class: "heading" }, title, close), el("p", { class: "note" }, "Loading"));
  if (!dialog.open) dialog.showModal();
  title.focus();
  try {
    job = await load(server, id, false);
  } catch (error) {
    dialog.lastChild.textContent = error.message;
    return;
  }
  // The user may have opened another job meanwhile.
  if (!title.isConnected) return;
  const text = el("pre", { class: "body", tabindex: "0", "aria-label": "The body" });
  const note = el("p", { class: "note" });
  const ways = el("div", { class: "tabs", role: "group", "aria-label": "How the body is shown" });
  const choose = (way) => {
    for (const button of ways.children) button.setAttribute("aria-pressed", String(button.dataset.way === way));
    draw(job, way, text, note);
  };
  const offer = () => {
    const names = { text: "Text", json: "JSON", hex: "Hex" };
    const known = Object.keys(names).filter((way) => way === "hex" || (job.text !== undefined && (way === "text" || isJson(job.text))));
    ways.replaceChildren(...known.map((way) => el("button", { type: "button", "data-way": way, onclick: () => choose(way) }, names[way])));
    choose(known.includes("json") ? "json" : known[0]);
  };
  // A move gives the job a new id.
  const after = (act) => {
    changed();
    if (!title.isConnected) return;
    if (act === "delete" || act === "move") dialog.close();
    else openJob(server, id, changed);
  };
  const acts = el("div", { class: "acts" },
    el("a", { class: "button", href: bodyAddress(server, id), download: `job-${id}` }, "Download"));
  if (!isReadOnly) acts.append(...jobButtons(server, [job], job.instance, (verb) => verb, after));
  dialog.replaceChildren(
    el("div", { class: "heading" }, title, el("span", { class: "facts" }, "in ", el("a", { href: address({ server, tube: job.tube }) }, job.tube)), close),
    facts(job), el("div", { class: "heading" }, ways, acts), note, text);
  offer();
}
