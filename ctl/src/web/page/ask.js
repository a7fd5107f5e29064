// Dialogs. Every act first asks the server what it would do, says that with the number, and is only
// carried out when that has been agreed to. Escape closes a dialog, and nothing is done.

import { act } from "./api.js";
import { byId, count, el } from "./dom.js";

let noticeTimer;

export function notice(text, isBad = false) {
  const node = byId("notice");
  node.textContent = text;
  node.classList.toggle("bad", isBad);
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { node.textContent = ""; }, isBad ? 20000 : 8000);
}

// Shows a dialog with a form; `submit` gets the form when its main button is pressed.
function open(title, content, buttons) {
  const dialog = byId("ask");
  const form = el("form", { method: "dialog" },
    el("h2", { id: "ask-title" }, title), ...content, el("div", { class: "buttons" }, ...buttons));
  dialog.replaceChildren(form);
  if (!dialog.open) dialog.showModal();
  (form.querySelector("[data-first]") ?? buttons[0]).focus();
  return { dialog, form };
}

function cancel(text) {
  return el("button", { type: "button", class: "quiet", onclick: () => byId("ask").close() }, text);
}

// Asks for the arguments of an act. `check` may say what is wrong with them. Resolves to the form,
// or to null.
function fields(title, content, label, check = () => "") {
  return new Promise((resolve) => {
    const error = el("p", { class: "error", role: "alert" });
    const { dialog, form } = open(title, [...content, error], [cancel("Cancel"), el("button", { type: "submit", class: "main" }, label)]);
    let result = null;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      error.textContent = check(form);
      if (error.textContent !== "") return;
      result = form;
      dialog.close();
    });
    dialog.addEventListener("close", () => resolve(result), { once: true });
  });
}

// Says what an act will do, asks, and does it. Resolves to whether it was done.
export async function perform(server, what, { title, verb, isGrave = false }) {
  let told;
  try {
    told = await act(server, what);
  } catch (error) {
    notice(`${title}: ${error.message}`, true);
    return false;
  }
  const notes = () => told.notes.map((note) => el("p", { class: "note" }, note));
  const says = el("p", { class: "will" }, told.will);
  if (told.count === 0) {
    open(title, [says, ...notes()], [cancel("Close")]);
    return false;
  }
  return new Promise((resolve) => {
    let isDone = false;
    const label = what.act === "pause" || what.act === "resume" ? verb : `${verb} ${count(told.count)}`;
    const main = el("button", { type: "submit", class: isGrave ? "main grave" : "main" }, label);
    const error = el("p", { class: "error", role: "alert" });
    // Enter does nothing by itself: the answer that changes nothing has the focus, as in a terminal.
    const quit = cancel("Cancel");
    const { dialog, form } = open(title, [says, ...notes(), error], [quit, main]);
    // The dialog may be closed while the act is under way, and be another one when it is done.
    const isShown = () => form.isConnected && dialog.open;
    let isWorking = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      isWorking = true;
      main.disabled = true;
      main.textContent = "Working";
      quit.textContent = "Close";
      try {
        const done = await act(server, told.what ?? what, told.count);
        isDone = true;
        notice([done.done, ...done.notes].join(" "));
        if (isShown()) dialog.close();
      } catch (failure) {
        if (isShown()) error.textContent = failure.message;
        else notice(`${title}: ${failure.message}`, true);
        main.textContent = "Try again";
        main.disabled = false;
        quit.textContent = "Cancel";
      }
      isWorking = false;
      if (!isShown()) resolve(isDone);
    });
    dialog.addEventListener("close", () => {
      if (!isWorking) resolve(isDone);
    }, { once: true });
  });
}

function field(label, input) {
  return el("label", { class: "row" }, el("span", {}, label), input);
}

export async function pause(server, tube) {
  const number = el("input", { name: "number", type: "number", min: "1", max: "99999", value: "10", required: true, "data-first": true });
  const unit = el("select", { name: "unit", "aria-label": "Unit" },
    el("option", { value: "1" }, "seconds"), el("option", { value: "60", selected: true }, "minutes"), el("option", { value: "3600" }, "hours"));
  const content = [el("p", {}, "No worker gets a job of this tube for that time. Puts go on."), field("For", el("span", { class: "pair" }, number, unit))];
  const form = await fields(`Pause ${tube}`, content, "Continue");
  if (!form) return false;
  const seconds = Math.round(Number(number.value) * Number(unit.value));
  return perform(server, { act: "pause", tube, seconds }, { title: `Pause ${tube}`, verb: "Pause" });
}

export async function clear(server, tube, data) {
  const boxes = ["ready", "delayed", "buried"].map((state, at) => el("label", { class: "check" },
    el("input", { type: "checkbox", name: state, checked: data[state] > 0, "data-first": at === 0 }), ` ${count(data[state])} ${state}`));
  const content = [el("p", {}, "Jobs are deleted for good. beanstalkctl clear --save keeps them in a file."), el("div", { class: "boxes" }, ...boxes)];
  const form = await fields(`Clear ${tube}`, content, "Continue");
  if (!form) return false;
  const states = ["ready", "delayed", "buried"].filter((state) => form.elements[state].checked);
  if (states.length === 0) return false;
  return perform(server, { act: "clear", tube, states }, { title: `Clear ${tube}`, verb: "Delete", isGrave: true });
}

// What fits into a request as base64.
const PUT_BYTES = 3000000;

// Says what is wrong with the body of a job.
function checkBody(form) {
  const file = form.elements.file.files[0];
  const bytes = file ? file.size : new TextEncoder().encode(form.elements.body.value).length;
  return bytes > PUT_BYTES ? `The body has ${count(bytes)} bytes, and no more than ${count(PUT_BYTES)} can be put here.` : "";
}

function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

export async function put(server, tube) {
  const number = (name, value) => el("input", { name, type: "number", min: "0", max: "4294967295", value, required: true });
  const content = [
    field("Tube", el("input", { name: "tube", value: tube, required: true, maxlength: "200", spellcheck: "false" })),
    field("Body", el("textarea", { name: "body", rows: "6", spellcheck: "false", "data-first": true })),
    field("or a file", el("input", { name: "file", type: "file" })),
    el("div", { class: "three" }, field("Priority", number("pri", "1024")), field("Delay, s", number("delay", "0")), field("Time to run, s", number("ttr", "60"))),
  ];
  const form = await fields("Put a job", content, "Continue", checkBody);
  if (!form) return false;
  const value = (name) => form.elements[name].value;
  const what = { act: "put", tube: value("tube"), pri: Number(value("pri")), delay: Number(value("delay")), ttr: Number(value("ttr")) };
  const file = form.elements.file.files[0];
  what.base64 = base64(file ? new Uint8Array(await file.arrayBuffer()) : new TextEncoder().encode(value("body")));
  return perform(server, what, { title: "Put a job", verb: "Put" });
}
