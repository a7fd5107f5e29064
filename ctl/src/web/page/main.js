// Asks once a second for what is shown, as long as somebody can see it, and draws it.

import { get, isReadOnly } from "./api.js";
import { clear, pause, perform, put } from "./ask.js";
import { Chart } from "./chart.js";
import { byId, counted, el, setClass, setText, show, time } from "./dom.js";
import * as jobs from "./jobs.js";
import * as servers from "./servers.js";
import * as tubes from "./tubes.js";

const INTERVAL = 1000;
const RETRY = 2000;

const place = { server: 0, tube: null };
let timer = null;
let running = null;
let left = null;
let last = null;

const WAITS = [
  { key: "wait", name: "mean wait until reserved", style: "waiting", write: time },
  { key: "next", name: "next in line", style: "delayed", write: time },
];
const waits = new Chart("Wait", WAITS, time);
const charts = [new Chart("Jobs", servers.JOBS), new Chart("Jobs a second", servers.RATES)];

// The address behind # says what is shown, so that Back works and a link can be kept.
function read() {
  const [, server, tube] = /^#\/(\d+)(?:\/(.*))?$/.exec(location.hash) ?? [null, "0", undefined];
  let name = null;
  try {
    name = tube ? decodeURIComponent(tube) : null;
  } catch {
    name = null;
  }
  return { server: Number(server), tube: name };
}

function route() {
  const before = { ...place };
  Object.assign(place, read());
  const isOverview = place.tube === null;
  if (before.server !== place.server) tubes.forget();
  show(byId("server"), isOverview);
  show(byId("tubes"), isOverview);
  show(byId("tube"), !isOverview);
  byId("back").href = `#/${place.server}`;
  setText(byId("tube-name"), place.tube ?? "");
  byId("tube-acts").replaceChildren();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  last = null;
  jobs.enter(place.server, place.tube);
  left = before.tube;
  if (!isOverview) byId("tube-name").focus({ preventScroll: true });
  window.scrollTo(0, 0);
  look();
}

function pulse(text, style) {
  const node = byId("pulse");
  setText(node, text);
  for (const name of ["live", "lost", "rest"]) setClass(node, name, name === style);
}

async function look() {
  clearTimeout(timer);
  if (document.hidden) {
    pulse("resting", "rest");
    return;
  }
  running?.abort();
  const mine = new AbortController();
  running = mine;
  let wait = INTERVAL;
  try {
    const wish = place.tube === null ? tubes.wish : { rows: 0 };
    const told = await get("look", { server: place.server, tube: place.tube, ...wish }, mine.signal);
    if (running !== mine) return;
    draw(told);
    pulse(told.server.error === undefined ? "live" : "server down", told.server.error === undefined ? "live" : "lost");
  } catch (error) {
    if (running !== mine) return;
    pulse("no answer", "lost");
    const trouble = byId("trouble");
    setText(trouble, `${error.message}. It is asked again.`);
    show(trouble, true);
    wait = RETRY;
  }
  clearTimeout(timer);
  timer = setTimeout(look, wait);
}

function draw(told) {
  const isOverview = place.tube === null;
  servers.draw(told, isOverview);
  document.title = isOverview ? `${told.server.name} – beanstalkd` : `${place.tube} – beanstalkd`;
  if (isOverview) {
    // What a server that is down had is not shown as if it were there.
    show(byId("tubes"), told.tubes !== undefined);
    show(byId("jobs"), told.tubes !== undefined);
    if (told.tubes) tubes.draw(told.tubes, place.server);
    if (left !== null && told.tubes) {
      tubes.focus(left);
      left = null;
    }
    return;
  }
  show(byId("jobs"), told.server.error === undefined);
  drawTube(told);
}

function drawTube(told) {
  const tube = told.tube;
  const isThere = tube !== undefined && tube !== null;
  setText(byId("tube-facts"), told.server.error !== undefined ? ""
    : !isThere ? "There is no such tube now: it has no jobs, and nobody uses or watches it."
    : facts(tube));
  show(byId("tube-charts"), isThere);
  show(byId("tube-paused"), isThere && tube.paused !== undefined);
  if (!isThere) {
    byId("tube-acts").replaceChildren();
    last = null;
    return;
  }
  if (tube.paused !== undefined) setText(byId("tube-paused"), `paused, ${time(tube.paused)} left`);
  if (tube.past) {
    for (const chart of charts) chart.draw(tube.past, tube);
    // Only this daemon tells waits; no chart of nothing is drawn.
    const hasWaits = [...tube.past.wait, ...tube.past.next].some((value) => value !== null);
    show(waits.node, hasWaits);
    if (hasWaits) waits.draw(tube.past, { wait: tube.past.wait.at(-1), next: tube.next });
  }
  jobs.tell(tube);
  acts(tube);
}

function facts(tube) {
  const parts = [`${counted(tube.waiting, "worker")} waiting`];
  if (tube.next !== undefined) parts.push(`the next job has waited ${time(tube.next)}`);
  const bound = (value) => (value === "longest" ? "hours" : time(value));
  if (tube.half !== undefined) parts.push(`in the last minute half waited at most ${bound(tube.half)}, 95 of 100 at most ${bound(tube.most)}`);
  return parts.join(" · ");
}

// The buttons are made once, and only change what they say, so that the focus stays.
function acts(tube) {
  if (isReadOnly) return;
  const node = byId("tube-acts");
  last = tube;
  if (node.children.length === 0) {
    const { server, tube: name } = place;
    const after = (isDone) => {
      if (isDone) {
        jobs.load();
        look();
      }
    };
    const button = (label, press, style) => el("button", { type: "button", class: style, onclick: async () => after(await press()) }, label);
    node.append(
      button("Kick", () => perform(server, { act: "kick", tube: name }, { title: `Kick ${name}`, verb: "Kick" })),
      button("Pause", () => pause(server, name)),
      button("Resume", () => perform(server, { act: "resume", tube: name }, { title: `Resume ${name}`, verb: "Resume" })),
      button("Put", () => put(server, name)),
      button("Clear", () => clear(server, name, last), "grave"),
    );
  }
  const [kick, , resume, , remove] = node.children;
  const kickable = tube.buried > 0 ? counted(tube.buried, "buried job") : counted(tube.delayed, "delayed job");
  setText(kick, tube.buried + tube.delayed > 0 ? `Kick ${kickable}` : "Kick");
  kick.disabled = tube.buried + tube.delayed === 0;
  show(resume, tube.paused !== undefined);
  remove.disabled = tube.ready + tube.delayed + tube.buried === 0;
}

show(byId("read-only"), isReadOnly);
servers.begin();
byId("tube-charts").append(...charts.map((chart) => chart.node), waits.node);
tubes.begin(look);
jobs.begin(look);
document.addEventListener("visibilitychange", look);
window.addEventListener("hashchange", route);
route();
