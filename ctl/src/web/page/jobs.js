// The jobs of a tube, by state or by what is found in their bodies; or of all tubes, by a search.

import { get, isReadOnly } from "./api.js";
import { notice, perform } from "./ask.js";
import { openJob } from "./body.js";
import { byId, count, counted, el, setText, show, size, time } from "./dom.js";

const STEP = 50;
const MOST = 500;
const STATES = ["", "ready", "delayed", "buried", "reserved"];

const place = { server: 0, tube: null };
let wish = { state: "", pattern: "", limit: STEP, longer: false };
let chosen = new Map();
let running = null;
let counts = null;
let changed;

export function begin(onChange) {
  changed = onChange;
  byId("states").append(...STATES.map((state) => el("button", { type: "button", "data-state": state, onclick: () => {
    wish.state = state;
    wish.limit = STEP;
    load();
  } }, state || "All")));
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    wish.pattern = byId("pattern").value;
    wish.limit = STEP;
    load();
  });
  // The cross of the field, or an emptied field, ends the search.
  byId("pattern").addEventListener("input", (event) => {
    if (event.target.value === "" && wish.pattern !== "") {
      wish.pattern = "";
      load();
    }
  });
  byId("more-jobs").addEventListener("click", () => {
    wish.limit = Math.min(MOST, wish.limit + 3 * STEP);
    wish.longer = true;
    load();
  });
}

// Another server or tube is shown.
export function enter(server, tube) {
  place.server = server;
  place.tube = tube;
  wish = { state: "", pattern: "", limit: STEP, longer: false };
  byId("pattern").value = "";
  counts = null;
  setText(byId("jobs-title"), tube === null ? "Find jobs" : "Jobs");
  show(byId("states"), tube !== null);
  load();
}

// The numbers on the buttons of states.
export function tell(tube) {
  counts = tube;
  tabs();
}

function tabs() {
  for (const button of byId("states").children) {
    const state = button.dataset.state;
    button.setAttribute("aria-pressed", String(state === wish.state));
    const all = counts ? counts.ready + counts.delayed + counts.buried + counts.reserved : null;
    const number = counts ? count(state ? counts[state] : all) : "";
    setText(button, `${state || "all"} ${number}`.trim());
    button.classList.toggle("odd", state === "buried" && counts?.buried > 0);
  }
}

function clean() {
  chosen = new Map();
  byId("jobs-rows").replaceChildren();
  show(byId("jobs-table"), false);
  show(byId("more-jobs"), false);
  acts();
}

export async function load() {
  running?.abort();
  tabs();
  const isSearch = wish.pattern !== "";
  if (place.tube === null && !isSearch) {
    clean();
    setText(byId("jobs-facts"), "");
    return;
  }
  const mine = new AbortController();
  running = mine;
  setText(byId("jobs-facts"), isSearch ? "Searching" : "Loading");
  try {
    const found = await get("jobs", {
      server: place.server, tube: place.tube, state: wish.state, pattern: wish.pattern,
      plain: !byId("regex").checked, ignore_case: byId("any-case").checked,
      limit: wish.limit, longer: wish.longer,
    }, mine.signal);
    if (running === mine) draw(found, isSearch);
  } catch (error) {
    if (running !== mine || error.name === "AbortError") return;
    clean();
    setText(byId("jobs-facts"), "");
    notice(error.message, true);
  }
}

function draw(found, isSearch) {
  const kept = new Map(found.jobs.filter((job) => chosen.has(job.id)).map((job) => [job.id, job]));
  chosen = kept;
  const hasTubes = place.tube === null;
  const titles = [isReadOnly ? null : "", "Id", hasTubes ? "Tube" : null, "State", "Priority", "Age", "Left", "Size", "Body"];
  const styles = ["pick", "id", "tube", "state", "minor", "age", "minor", "size", "preview"];
  const heads = titles.map((title, at) => (title === null ? null : el("th", { scope: "col", class: styles[at] }, at === 0 ? pickAll(found.jobs) : title)));
  byId("jobs-columns").replaceChildren(...heads.filter((head) => head));
  byId("jobs-rows").replaceChildren(...found.jobs.map((job) => row(job, hasTubes)));
  show(byId("jobs-table"), found.jobs.length > 0);
  const many = found.more ? `the first ${count(found.jobs.length)}` : counted(found.jobs.length, "job");
  const parts = [isSearch ? `${many} found` : found.jobs.length === 0 ? "no jobs" : `${many}, as of ${new Date().toLocaleTimeString()}`];
  if (found.coverage === "cut") parts.push("there was no time to look at all");
  if (found.coverage === "unsure") parts.push("there may be more: the server has been restarted, and its last id is not known");
  setText(byId("jobs-facts"), parts.join(" · "));
  show(byId("more-jobs"), (found.more && found.jobs.length < MOST) || (found.coverage === "cut" && !wish.longer && !isSearch));
  acts();
}

function pickAll(jobs) {
  return el("input", { type: "checkbox", "aria-label": "Choose all jobs of the list", onchange: (event) => {
    chosen = new Map(event.target.checked ? jobs.map((job) => [job.id, job]) : []);
    for (const box of byId("jobs-rows").querySelectorAll("input")) box.checked = event.target.checked;
    acts();
  } });
}

function row(job, hasTubes) {
  const pick = el("input", { type: "checkbox", "aria-label": `Choose job ${job.id}`, onchange: (event) => {
    if (event.target.checked) chosen.set(job.id, job);
    else chosen.delete(job.id);
    acts();
  } });
  pick.checked = chosen.has(job.id);
  const open = el("button", { type: "button", class: "link", onclick: () => openJob(place.server, job.id, after) }, job.id);
  const left = job["time-left"] === undefined ? "" : time(job["time-left"]);
  return el("tr", {},
    isReadOnly ? null : el("td", { class: "pick" }, pick),
    el("td", { class: "id" }, open),
    hasTubes ? el("td", { class: "tube" }, job.tube) : null,
    el("td", { class: "state" }, el("span", { class: `chip ${job.state}` }, job.state)),
    el("td", { class: "minor" }, count(job.pri)),
    el("td", { class: "age" }, time(job.age)),
    el("td", { class: "minor" }, left),
    el("td", { class: "size" }, size(job.size)),
    el("td", { class: "preview", title: "The beginning of the body" }, job.preview ?? ""));
}

function after() {
  load();
  changed();
}

function acts() {
  const node = byId("jobs-acts");
  const reload = place.tube === null && wish.pattern === "" ? null : el("button", { type: "button", onclick: load }, "Reload");
  const ids = [...chosen.keys()];
  const jobs = [...chosen.values()];
  const run = (what, ask) => async () => {
    if (await perform(place.server, what, ask)) {
      chosen = new Map();
      after();
    }
  };
  const buttons = [];
  if (ids.length > 0) {
    const kickable = jobs.filter((job) => job.state === "buried" || job.state === "delayed").map((job) => job.id);
    if (kickable.length > 0) {
      buttons.push(el("button", { type: "button", onclick: run({ act: "kick-jobs", ids: kickable }, { title: "Kick the chosen jobs", verb: "Kick" }) }, `Kick ${count(kickable.length)} chosen`));
    }
    buttons.push(el("button", { type: "button", class: "grave", onclick: run({ act: "delete", ids }, { title: "Delete the chosen jobs", verb: "Delete", isGrave: true }) }, `Delete ${count(ids.length)} chosen`));
  }
  node.replaceChildren(...buttons, ...(reload ? [reload] : []));
}
