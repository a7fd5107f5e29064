// Sends requests, only to the server of this page.

const meta = (name) => document.querySelector(`meta[name="${name}"]`).content;

export const isReadOnly = meta("read-only") === "true";
const token = meta("token");

// The address must have no name and password, because fetch refuses them.
const root = new URL(".", location.origin + location.pathname);

// The time limit of a request in milliseconds, longer than that of the server.
const TIMEOUT = 130000;

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("no answer from beanstalkctl");
  }
  let reply;
  try {
    reply = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    reply = { error: `unreadable response with status ${response.status}` };
  }
  if (!response.ok) throw new Error(reply.error ?? `status ${response.status}`);
  return reply;
}

function query(parameters) {
  const known = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return new URLSearchParams(known).toString();
}

function ends(signal) {
  const limit = AbortSignal.timeout(TIMEOUT);
  return signal && AbortSignal.any ? AbortSignal.any([signal, limit]) : signal ?? limit;
}

export function get(path, parameters, signal) {
  return answer(fetch(new URL(`api/${path}?${query(parameters)}`, root), { signal: ends(signal) }));
}

export function bodyAddress(server, id) {
  return `api/body?${query({ server, id })}`;
}

// Plans an action (dry) or carries it out. The action is refused if the server was restarted after the
// jobs were listed.
export function act(order, signal) {
  return answer(fetch(new URL("api/act", root), {
    method: "POST",
    headers: { "content-type": "application/json", "x-token": token },
    body: JSON.stringify(order),
    signal: ends(signal),
  }));
}
