// The jobs of a tube, by state or by a search of their bodies; or of all tubes, by a search.

import { jobButtons } from "./acts.js";
import { get, isReadOnly } from "./api.js";
import { notice } from "./ask.js";
import { byId, count, counted, el, setText, show, size, time } from "./dom.js";
import { STATES, address } from "./route.js";

const STEP = 50;
const MOST = 500;

let place;
let limit = STEP;
let isLonger = false;
let chosen = new Map();
let running = null;
// The last counts of the server, and the counts at the time of the list.
let counts = null;
let listed = null;
let instance = null;
let changed;

export function begin(onChange) {
  changed = onChange;
  byId("states").append(...["", ...STATES].map((state) => el("a", { "data-state": state })));
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    search(byId("pattern").value);
  });
  // An empty field ends the search.
  byId("pattern").addEventListener("input", (event) => {
    if (event.target.value === "" && place.find !== "") search("");
  });
  byId("more-jobs").addEventListener("click", () => {
    limit = Math.min(MOST, limit + 3 * STEP);
    isLonger = true;
    load();
  });
}

// Goes to the address of a search. If the page is already there, repeats the search.
function search(find) {
  const wish = { ...place, find, regex: byId("regex").checked, exact: !byId("any-case").checked, job: null };
  if (address(wish) === location.hash) load();
  else location.hash = address(wish);
}

// Shows the list of jobs at an address.
export function enter(where) {
  if (place === undefined || place.server !== where.server || place.tube !== where.tube) counts = null;
  place = where;
  limit = STEP;
  isLonger = false;
  chosen = new Map();
  byId("pattern").value = place.find;
  byId("pattern").placeholder = `Find jobs${place.tube === null ? "" : " of this tube"}: text of a body, or an id`;
  byId("regex").checked = place.regex;
  byId("any-case").checked = !place.exact;
  setText(byId("jobs-title"), place.find === "" ? "Jobs" : `Jobs with “${place.find}”`);
  show(byId("states"), place.tube !== null);
  load();
}

// Updates the counts on the links of states, with the instance of the server.
export function update(tube, server) {
  counts = { ...tube, instance: server.instance };
  tabs();
  if (listed === null && running === null) listed = counts;
  age();
}

function tabs() {
  for (const link of byId("states").children) {
    const state = link.dataset.state;
    const isShown = state === place.state;
    if (isShown) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    link.href = address({ ...place, state, job: null });
    const number = !counts ? "" : count(state ? counts[state] : STATES.reduce((sum, one) => sum + counts[one], 0));
    setText(link, `${state || "all"} ${number}`.trim());
    link.classList.toggle("odd", state === "buried" && counts?.buried > 0);
  }
}

// Shows that the list is older than the counts above the list.
function age() {
  const isOther = counts !== null && instance !== null && counts.instance !== instance;
  const isOld = counts !== null && listed !== null && STATES.some((state) => counts[state] !== listed[state]);
  setText(byId("jobs-age"), isOther ? "The server was restarted after this list."
    : isOld ? "The counts have changed since this list." : "");
  byId("reload")?.classList.toggle("main", isOther);
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
  const isSearch = place.find !== "";
  listed = null;
  instance = null;
  byId("jobs-hit").replaceChildren();
  age();
  show(byId("jobs"), place.tube !== null || isSearch);
  if (place.tube === null && !isSearch) {
    clean();
    setText(byId("jobs-facts"), "");
    return;
  }
  const mine = new AbortController();
  running = mine;
  setText(byId("jobs-facts"), isSearch ? "Searching …" : "Loading …");
  if (/^\d+$/.test(place.find)) hit(place, mine);
  try {
    const found = await get("jobs", {
      server: place.server, tube: place.tube, state: place.state, pattern: place.find,
      plain: !place.regex, ignore_case: !place.exact, limit, longer: isLonger,
    }, mine.signal);
    if (running !== mine) return;
    running = null;
    draw(found, isSearch);
  } catch (error) {
    if (running !== mine || error.name === "AbortError") return;
    running = null;
    clean();
    setText(byId("jobs-facts"), "");
    notice(error.message, true);
  }
}

// The search text may be the id of a job.
async function hit(where, mine) {
  try {
    const job = await get("job", { server: where.server, id: where.find }, mine.signal);
    if (place !== where) return;
    const link = el("a", { href: address({ ...where, job: where.find }) }, `Job ${where.find}`);
    byId("jobs-hit").replaceChildren(link, ` is ${job.state} in the tube ${job.tube}.`);
  } catch {
    // No job has this id.
  }
}

function draw(found, isSearch) {
  instance = found.instance;
  chosen = new Map(found.jobs.filter((job) => chosen.has(job.id)).map((job) => [job.id, job]));
  const hasTubes = place.tube === null;
  const titles = [isReadOnly ? null : "", "Id", hasTubes ? "Tube" : null, "State", "Priority", "Age", "Left", "Size", "Body"];
  const styles = ["pick", "id", "tube", "state", "minor", "age", "minor", "size", "preview"];
  const heads = titles.map((title, at) => (title === null ? null : el("th", { scope: "col", class: styles[at] }, at === 0 ? pickAll(found.jobs) : title)));
  byId("jobs-columns").replaceChildren(...heads.filter((head) => head));
  byId("jobs-rows").replaceChildren(...found.jobs.map((job) => row(job, hasTubes)));
  show(byId("jobs-table"), found.jobs.length > 0);
  const many = found.more ? `the first ${count(found.jobs.length)}` : counted(found.jobs.length, "job");
  const parts = [isSearch ? `${many} found` : found.jobs.length === 0 ? "no jobs" : `${many}, as of ${new Date().toLocaleTimeString()}`];
  if (found.coverage === "cut") parts.push("the time was too short for all jobs");
  if (found.coverage === "unsure") parts.push("there may be more: the server was restarted, and its last id is unknown");
  setText(byId("jobs-facts"), parts.join(" · "));
  show(byId("more-jobs"), (found.more && found.jobs.length < MOST) || (found.coverage === "cut" && !isLonger && !isSearch));
  // A complete list has its own counts. For other lists, the next counts of the server are used.
  const isWhole = !isSearch && !found.more && found.coverage === "all" && place.state === "";
  listed = isWhole ? Object.fromEntries(STATES.map((state) => [state, found.jobs.filter((job) => job.state === state).length])) : null;
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
  const left = job["time-left"] === undefined ? "" : time(job["time-left"]);
  return el("tr", {},
    isReadOnly ? null : el("td", { class: "pick" }, pick),
    el("td", { class: "id" }, el("a", { href: address({ ...place, job: job.id }) }, job.id)),
    hasTubes ? el("td", { class: "tube" }, job.tube) : null,
    el("td", { class: "state" }, el("span", { class: `chip ${job.state}` }, job.state)),
    el("td", { class: "minor" }, count(job.pri)),
    el("td", { class: "age" }, time(job.age)),
    el("td", { class: "minor" }, left),
    el("td", { class: "size" }, size(job.size)),
    el("td", { class: "preview", title: "The beginning of the body" }, job.preview ?? ""));
}

export function after() {
  chosen = new Map();
  load();
  changed();
}

function acts() {
  const jobs = [...chosen.values()];
  const whose = (verb, many) => `${verb} ${count(many)} chosen`;
  const buttons = jobs.length > 0 ? jobButtons(place.server, jobs, instance, whose, after) : [];
  const reload = place.tube === null && place.find === "" ? [] : [el("button", { type: "button", id: "reload", onclick: load }, "Reload")];
  byId("jobs-acts").replaceChildren(...buttons.filter((button) => !button.disabled), ...reload);
}
