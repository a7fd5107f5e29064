// The actions on a tube and on jobs, and the questions for their arguments.

import { fields, perform } from "./ask.js";
import { count, counted, el } from "./dom.js";

// The states in which an action can change a job. Reserved jobs belong to workers.
const FREE = ["ready", "delayed", "buried"];

// The actions on jobs, and the states that each accepts.
const ON_JOBS = [
  { act: "kick", verb: "Kick", states: ["buried", "delayed"] },
  { act: "release", verb: "Release", states: FREE, ask: askRelease },
  { act: "bury", verb: "Bury", states: ["ready", "delayed"] },
  { act: "move", verb: "Move", states: FREE, ask: askInto },
  { act: "delete", verb: "Delete", states: FREE, isGrave: true },
];

function field(label, input) {
  return el("label", { class: "row" }, el("span", {}, label), input);
}

function number(name, value, most = 4294967295) {
  return el("input", { name, type: "number", min: "0", max: most, value, required: value !== null });
}

function tubeName(name, value, isFirst) {
  return el("input", { name, value, required: true, maxlength: "200", spellcheck: "false", autocapitalize: "off", "data-first": isFirst });
}

async function askRelease(title) {
  const pri = number("pri", null);
  pri.placeholder = "its own";
  const delay = number("delay", "0");
  delay.dataset.first = "";
  const content = [
    el("p", {}, "Released jobs become ready, or are delayed."),
    el("div", { class: "pair" }, field("Delay, s", delay), field("Priority", pri)),
  ];
  if (!(await fields(title, content, "Continue"))) return null;
  return { delay: Number(delay.value), pri: pri.value === "" ? null : Number(pri.value) };
}

async function askInto(title) {
  const into = tubeName("into", "", true);
  const content = [el("p", {}, "The jobs keep their state and priority, and get new ids."), field("To the tube", into)];
  return (await fields(title, content, "Continue")) ? { into: into.value.trim() } : null;
}

// Returns the buttons for jobs of one instance of a server. After an action is done, calls `after`
// with that action.
export function jobButtons(server, jobs, instance, whose, after) {
  return ON_JOBS.flatMap(({ act, verb, states, ask, isGrave }) => {
    const ids = jobs.filter((job) => states.includes(job.state)).map((job) => job.id);
    const title = jobs.length === 1 ? `${verb} job ${jobs[0].id}` : `${verb} the chosen jobs`;
    const press = async () => {
      const more = ask ? await ask(title) : {};
      if (more === null) return;
      if (await perform(server, { act, jobs: { ids }, ...more }, { title, verb, isGrave, instance })) after(act);
    };
    const button = el("button", { type: "button", class: isGrave ? "grave" : null, onclick: press }, whose(verb, ids.length));
    button.disabled = ids.length === 0;
    return [button];
  });
}

// Asks for the number and the state of the jobs to kick.
export async function kick(server, tube, data, instance) {
  const title = `Kick jobs of ${tube}`;
  const states = ["buried", "delayed"].filter((state) => data[state] > 0);
  const many = number("count", data[states[0]], data[states[0]]);
  many.min = "1";
  many.dataset.first = "";
  const state = el("select", { name: "state", "aria-label": "State", onchange: () => {
    many.max = data[state.value];
    many.value = data[state.value];
  } }, ...states.map((name) => el("option", { value: name }, `of ${counted(data[name], `${name} job`)}`)));
  const content = [el("p", {}, "Kicked jobs become ready. The first jobs of the tube are kicked first; if the server does not list its jobs, those with the lowest ids."), field("Kick", el("span", { class: "pair" }, many, state))];
  if (!(await fields(title, content, "Continue"))) return false;
  const what = { act: "kick", jobs: { tube, states: [state.value], count: Number(many.value) } };
  return perform(server, what, { title, verb: "Kick", instance });
}

export async function pause(server, tube, instance) {
  const long = el("input", { name: "number", type: "number", min: "1", max: "99999", value: "10", required: true, "data-first": true });
  const unit = el("select", { name: "unit", "aria-label": "Unit" },
    el("option", { value: "1" }, "seconds"), el("option", { value: "60", selected: true }, "minutes"), el("option", { value: "3600" }, "hours"));
  const content = [el("p", {}, "Workers get no jobs of this tube for that time. Puts are still accepted."), field("For", el("span", { class: "pair" }, long, unit))];
  if (!(await fields(`Pause ${tube}`, content, "Continue"))) return false;
  const seconds = Math.round(Number(long.value) * Number(unit.value));
  return perform(server, { act: "pause", tube, seconds }, { title: `Pause ${tube}`, verb: "Pause", instance });
}

export function resume(server, tube, instance) {
  return perform(server, { act: "pause", tube, seconds: 0 }, { title: `Resume ${tube}`, verb: "Resume", instance });
}

// Returns checkboxes for the states of jobs.
function boxes(data) {
  const all = FREE.map((state, at) => el("label", { class: "check" },
    el("input", { type: "checkbox", name: state, checked: data[state] > 0, "data-first": at === 0 }), ` ${count(data[state])} ${state}`));
  return el("div", { class: "boxes" }, ...all);
}

function checked(form) {
  return FREE.filter((state) => form.elements[state].checked);
}

const oneChecked = (form) => (checked(form).length === 0 ? "Choose a state." : "");

export async function move(server, tube, data, instance) {
  const title = `Move jobs of ${tube}`;
  const into = tubeName("into", "", false);
  const content = [el("p", {}, "The jobs keep their state and priority, and get new ids."), boxes(data), field("To the tube", into)];
  const form = await fields(title, content, "Continue", oneChecked);
  if (!form) return false;
  const what = { act: "move", jobs: { tube, states: checked(form) }, into: into.value.trim() };
  return perform(server, what, { title, verb: "Move", instance });
}

export async function clear(server, tube, data, instance) {
  const title = `Clear ${tube}`;
  const content = [el("p", {}, "Deleted jobs cannot be restored. To save them to a file first, use beanstalkctl clear --save."), boxes(data)];
  const form = await fields(title, content, "Continue", oneChecked);
  if (!form) return false;
  return perform(server, { act: "delete", jobs: { tube, states: checked(form) } }, { title, verb: "Delete", isGrave: true, instance });
}

// The largest body that fits into a request as base64, in bytes.
const PUT_BYTES = 3000000;

// Returns an error for a body that is too large.
function checkBody(form) {
  const file = form.elements.file.files[0];
  const bytes = file ? file.size : new TextEncoder().encode(form.elements.body.value).length;
  return bytes > PUT_BYTES ? `The body has ${count(bytes)} bytes. The page accepts at most ${count(PUT_BYTES)}: use beanstalkctl put --file.` : "";
}

function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

export async function put(server, tube, instance) {
  const body = el("textarea", { name: "body", rows: "6", spellcheck: "false", "data-first": true });
  const content = [
    field("Tube", tubeName("tube", tube, false)),
    field("Body", body),
    field("or a file", el("input", { name: "file", type: "file" })),
    el("div", { class: "three" }, field("Priority", number("pri", "1024")), field("Delay, s", number("delay", "0")), field("Time to run, s", number("ttr", "60"))),
  ];
  const form = await fields("Put a job", content, "Continue", checkBody);
  if (!form) return false;
  const value = (name) => form.elements[name].value;
  const file = form.elements.file.files[0];
  const bytes = file ? new Uint8Array(await file.arrayBuffer()) : new TextEncoder().encode(value("body"));
  const what = { act: "put", tube: value("tube").trim(), base64: base64(bytes), pri: Number(value("pri")), delay: Number(value("delay")), ttr: Number(value("ttr")) };
  return perform(server, what, { title: "Put a job", verb: "Put", instance });
}
