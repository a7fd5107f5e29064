// Dialogs. For every action, the server first counts the jobs, the dialog shows the plan, and the
// action is carried out only after consent. Escape closes a dialog without effect.

import { act } from "./api.js";
import { byId, count, el, sentence } from "./dom.js";

let noticeTimer;

export function notice(text, isBad = false) {
  const node = byId("notice");
  node.textContent = text;
  node.classList.toggle("bad", isBad);
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { node.textContent = ""; }, isBad ? 20000 : 8000);
}

// Shows a dialog with a form.
function open(title, content, buttons) {
  const dialog = byId("ask");
  const form = el("form", { method: "dialog" },
    el("h2", { id: "ask-title" }, title), ...content, el("div", { class: "buttons" }, ...buttons));
  dialog.replaceChildren(form);
  if (!dialog.open) dialog.showModal();
  (form.querySelector("[data-first]") ?? buttons[0]).focus();
  return { dialog, form };
}

// Calls `call` when the dialog with this form is closed. A close event arrives late, so it may belong
// to the previous form of the dialog.
function whenClosed(dialog, form, call) {
  const listener = () => {
    if (form.isConnected && dialog.open) return;
    dialog.removeEventListener("close", listener);
    call();
  };
  dialog.addEventListener("close", listener);
}

function cancel(text) {
  return el("button", { type: "button", class: "quiet", onclick: () => byId("ask").close() }, text);
}

// Asks for the arguments of an action. `check` returns an error, or an empty string. Resolves to the
// form, or to null if the user cancels.
export function fields(title, content, label, check = () => "") {
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
    whenClosed(dialog, form, () => resolve(result));
  });
}

// Shows the plan of an action, asks, and carries out the action. The dialog is open while the server
// counts; a reply after the user has closed the dialog is dropped. Resolves to whether the action was done.
export function perform(server, what, { title, verb, isGrave = false, instance }) {
  return new Promise((resolve) => {
    const plan = el("p", { class: "will", role: "status" }, "Counting …");
    const notes = el("div", { class: "notes" });
    const error = el("p", { class: "error", role: "alert" });
    const main = el("button", { type: "submit", class: isGrave ? "main grave" : "main", hidden: true }, verb);
    // Cancel has the focus, so that Enter alone changes nothing, as in a terminal.
    const quit = cancel("Cancel");
    const { dialog, form } = open(title, [plan, notes, error], [quit, main]);
    const counting = new AbortController();
    let agreed = null;
    let isDone = false;
    let isWorking = false;
    // The user may close the dialog during the action, and open another dialog before the action ends.
    const isShown = () => form.isConnected && dialog.open;

    const ask = async () => {
      try {
        const reply = await act({ server, dry: true, what, instance }, counting.signal);
        if (!isShown()) return;
        plan.textContent = reply.will;
        notes.replaceChildren(...reply.notes.map((note) => el("p", { class: "note" }, note)));
        quit.textContent = reply.count === 0 ? "Close" : "Cancel";
        main.hidden = reply.count === 0;
        main.textContent = what.act === "pause" ? verb : `${verb} ${count(reply.count)}`;
        agreed = { server, dry: false, question: reply.question };
      } catch (failure) {
        if (!isShown()) return;
        plan.textContent = "Nothing was changed.";
        error.textContent = failure.message;
        quit.textContent = "Close";
      }
    };

    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (agreed === null || main.disabled) return;
      isWorking = true;
      main.disabled = true;
      main.textContent = "Working";
      error.textContent = "";
      quit.textContent = "Close";
      try {
        const done = await act(agreed);
        isDone = true;
        notice([done.done, ...done.notes].map(sentence).join(" "));
        if (isShown()) dialog.close();
      } catch (failure) {
        if (isShown()) error.textContent = failure.message;
        else notice(`${title}: ${failure.message}`, true);
        // The action may be partly done. The other jobs need another question.
        main.hidden = true;
      }
      isWorking = false;
      if (!isShown()) resolve(isDone);
    });
    whenClosed(dialog, form, () => {
      counting.abort();
      if (!isWorking) resolve(isDone);
    });
    ask();
  });
}
