// Requests and draws the visible data once a second, as long as the page is visible.

import { clear, kick, move, pause, put, resume } from "./acts.js";
import { get, isReadOnly } from "./api.js";
import { openJob } from "./body.js";
import { Chart } from "./chart.js";
import { byId, counted, el, setClass, setText, show, time } from "./dom.js";
import * as jobs from "./jobs.js";
import { address, differs, read } from "./route.js";
import * as servers from "./servers.js";
import * as tubes from "./tubes.js";

const INTERVAL = 1000;
const RETRY = 2000;

let place = {};
let timer = null;
let running = null;
let left = null;
// The latest data of the tube, and the instance of its server.
let last = null;
let instance = null;
// Whether Back leads from the open job to its list.
let hasList = false;

const WAITS = [
  { key: "wait", name: "mean wait until reserved", style: "waiting", write: time },
  { key: "next", name: "next in line", style: "delayed", write: time },
];
const waits = new Chart("Wait", WAITS, time);
const charts = [new Chart("Jobs", servers.JOBS), new Chart("Jobs a second", servers.RATES)];

function route() {
  const before = place;
  place = read(location.hash);
  const isList = differs(before, place, ["server", "tube", "state", "find", "regex", "exact"]);
  // An open question belongs to the data that the page showed before.
  byId("ask").close();
  if (differs(before, place, ["server", "tube"])) enter(before);
  if (isList) jobs.enter(place);
  if (place.job === null) {
    byId("job").close();
  } else if (isList || before.job !== place.job) {
    hasList = !isList && before.job === null;
    openJob(place.server, place.job, jobs.after);
  }
}

// Shows another server or tube.
function enter(before) {
  const isOverview = place.tube === null;
  if (before.server !== place.server) tubes.forget();
  for (const id of ["server", "tubes", "server-charts"]) show(byId(id), isOverview);
  for (const id of ["tube", "tube-charts"]) show(byId(id), !isOverview);
  setClass(byId("main"), "overview", isOverview);
  byId("back").href = address({ server: place.server });
  setText(byId("tube-name"), place.tube ?? "");
  byId("tube-acts").replaceChildren();
  last = null;
  left = before.tube ?? null;
  if (!isOverview) byId("tube-name").focus({ preventScroll: true });
  window.scrollTo(0, 0);
  look();
}

// Removes a closed job from the address.
function closeJob() {
  if (place.job === null || byId("job").open) return;
  if (hasList) history.back();
  else location.replace(address({ ...place, job: null }));
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
    const reply = await get("look", { server: place.server, tube: place.tube, ...wish }, mine.signal);
    if (running !== mine) return;
    draw(reply);
    pulse(reply.server.error === undefined ? "live" : "server down", reply.server.error === undefined ? "live" : "lost");
  } catch (error) {
    if (running !== mine) return;
    pulse("no answer", "lost");
    const trouble = byId("trouble");
    setText(trouble, `${error.message}. Trying again.`);
    show(trouble, true);
    wait = RETRY;
  }
  clearTimeout(timer);
  timer = setTimeout(look, wait);
}

function draw(reply) {
  const isOverview = place.tube === null;
  servers.draw(reply, isOverview);
  instance = reply.server.instance;
  document.title = isOverview ? `${reply.server.name} – beanstalkd` : `${place.tube} – beanstalkd`;
  // Data is marked as old if its server is down.
  const isUp = reply.server.error === undefined;
  setClass(byId("main"), "is-down", !isUp);
  if (!isOverview) {
    drawTube(reply, isUp);
    return;
  }
  show(byId("tubes"), reply.tubes !== undefined);
  show(byId("need"), reply.tubes !== undefined);
  if (reply.tubes) {
    tubes.draw(reply.tubes, place.server);
    if (left !== null) tubes.focus(left);
    left = null;
  }
}

function drawTube(reply, isUp) {
  const tube = reply.tube;
  const isThere = tube !== undefined && tube !== null;
  setText(byId("tube-facts"), !isUp ? ""
    : !isThere ? "No such tube at present: it has no jobs, and no connection uses or watches it."
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
    // Only this project's daemon reports waits. Without waits there is no chart.
    const hasWaits = [...tube.past.wait, ...tube.past.next].some((value) => value !== null);
    show(waits.node, hasWaits);
    if (hasWaits) waits.draw(tube.past, { wait: tube.past.wait.at(-1), next: tube.next });
  }
  jobs.update(tube, reply.server);
  acts(tube);
}

function facts(tube) {
  const parts = [`${counted(tube.waiting, "worker")} waiting`];
  if (tube.trouble.includes("unattended")) parts.push("no worker watches it");
  if (tube.next !== undefined) parts.push(`the next job has waited ${time(tube.next)}`);
  if (tube.losses > 0) parts.push(`${counted(tube.losses, "job")} buried by --bury-after`);
  const bound = (value) => (value === "longest" ? "hours" : time(value));
  if (tube.half !== undefined) parts.push(`in the last minute half waited at most ${bound(tube.half)}, 95 of 100 at most ${bound(tube.most)}`);
  return parts.join(" · ");
}

// The buttons are made only once, so that the focus stays.
function acts(tube) {
  if (isReadOnly) return;
  const node = byId("tube-acts");
  last = tube;
  if (node.children.length === 0) {
    const { server, tube: name } = place;
    const button = (label, act, style) => el("button", { type: "button", class: style, onclick: async () => {
      if (await act(server, name)) jobs.after();
    } }, label);
    node.append(
      button("Kick", () => kick(server, name, last, instance)),
      button("Pause", () => pause(server, name, instance)),
      button("Resume", () => resume(server, name, instance)),
      button("Put", () => put(server, name, instance)),
      button("Move", () => move(server, name, last, instance)),
      button("Clear", () => clear(server, name, last, instance), "grave"),
    );
  }
  const [kicks, , resumes, , moves, clears] = node.children;
  kicks.disabled = tube.buried + tube.delayed === 0;
  show(resumes, tube.paused !== undefined);
  moves.disabled = tube.ready + tube.delayed + tube.buried === 0;
  clears.disabled = moves.disabled;
}

show(byId("read-only"), isReadOnly);
servers.begin();
byId("tube-charts").append(...charts.map((chart) => chart.node), waits.node);
tubes.begin(look);
jobs.begin(look);
byId("job").addEventListener("close", closeJob);
document.addEventListener("visibilitychange", look);
window.addEventListener("hashchange", route);
route();
