// The servers in the bar, and the charts of the chosen one.

import { Chart } from "./chart.js";
import { byId, count, counted, el, rate, setClass, setText, show, time } from "./dom.js";
import { address } from "./route.js";

export const JOBS = [
  { key: "ready", name: "ready", style: "ready", write: count },
  { key: "reserved", name: "reserved", style: "reserved", write: count },
  { key: "delayed", name: "delayed", style: "delayed", write: count },
  { key: "buried", name: "buried", style: "buried", write: count, isOdd: true },
];
export const RATES = [
  { key: "puts", name: "put", style: "puts", write: rate },
  { key: "deletes", name: "deleted", style: "deletes", write: rate },
];
const WORKERS = [{ key: "waiting", name: "waiting for a job", style: "waiting", write: count }];

const charts = [
  new Chart("Jobs", JOBS),
  new Chart("Jobs a second", RATES),
  new Chart("Workers", WORKERS),
];

export function begin() {
  byId("server-charts").append(...charts.map((chart) => chart.node));
}

// Makes a link for each server, which looks like a button but has an address.
function nav(servers, chosen) {
  const nodes = byId("servers");
  while (nodes.children.length > servers.length) nodes.lastChild.remove();
  servers.forEach((server, at) => {
    let node = nodes.children[at];
    if (!node) {
      node = el("a", { class: "server" }, el("span", { class: "dot" }), el("span", { class: "name" }), el("span", { class: "note" }));
      nodes.append(node);
    }
    const href = address({ server: at });
    if (node.getAttribute("href") !== href) node.setAttribute("href", href);
    if (at === chosen) node.setAttribute("aria-current", "page");
    else node.removeAttribute("aria-current");
    setClass(node, "down", server.error !== undefined || server.binlog !== undefined);
    setClass(node, "up", server.ready !== undefined && server.binlog === undefined);
    setText(node.children[1], server.name);
    const note = server.error !== undefined ? "down"
      : server.ready === undefined ? "asking"
      : server.binlog ? `binlog ${server.binlog}`
      : server.draining ? "draining"
      : server.buried > 0 ? `${count(server.ready)} ready, ${count(server.buried)} buried`
      : `${count(server.ready)} ready`;
    setText(node.children[2], note);
    node.title = server.error ?? "";
  });
}

function facts(server) {
  const stats = server.stats;
  if (!stats) return "";
  return [
    stats.version === undefined ? null : `version ${stats.version}`,
    stats.hostname === undefined ? null : `on ${stats.hostname}, process ${stats.pid}`,
    stats.uptime === undefined ? null : `up ${time(stats.uptime)}`,
    stats["current-connections"] === undefined ? null : counted(stats["current-connections"], "connection"),
    stats["current-workers"] === undefined ? null : counted(stats["current-workers"], "worker"),
    stats["current-producers"] === undefined ? null : counted(stats["current-producers"], "producer"),
    stats["job-timeouts"] > 0 ? counted(stats["job-timeouts"], "timeout") : null,
    stats["jobs-buried-for-losses"] > 0 ? `${counted(stats["jobs-buried-for-losses"], "job")} buried by --bury-after` : null,
    stats.draining === true ? "draining: it accepts no jobs" : null,
  ].filter((part) => part !== null).join(" · ");
}

// Describes the problem of a server.
function wrong(server) {
  // Most errors begin with the name of the server.
  if (server.error !== undefined) return `${server.name} is down: ${server.error.replace(`${server.name}: `, "")}. Trying again every second.`;
  if (server.binlog === undefined) return "";
  // Show a time of day: screen readers would read a changing duration aloud every second.
  const begin = new Date(Date.now() - 1000 * (server.stats["binlog-trouble-age"] ?? 0));
  const since = begin.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  const [state, effect] = server.binlog === "full" ? ["has been full since", "the server may refuse jobs"]
    : ["failed at", "the server confirms no changes"];
  return `The binlog of ${server.name} ${state} ${since}: ${effect}. The daemon's log has the reason.`;
}

export function draw(reply, isOverview) {
  nav(reply.servers, reply.chosen);
  const server = reply.server;
  const trouble = byId("trouble");
  const why = wrong(server);
  setText(trouble, why);
  show(trouble, why !== "");
  setText(byId("server-name"), server.name);
  setText(byId("server-facts"), facts(server));
  if (isOverview) {
    for (const chart of charts) chart.draw(server.past, server);
  }
}
