// Speaks with the server that this page came from, and with nothing else.

const meta = (name) => document.querySelector(`meta[name="${name}"]`).content;

export const isReadOnly = meta("read-only") === "true";
const token = meta("token");

// Without the name and the password that an address may have: no request could be made with them.
const root = new URL(".", location.origin + location.pathname);

// Longer than the server lets a request take.
const TIMEOUT = 130000;

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("beanstalkctl does not answer");
  }
  let told;
  try {
    told = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    told = { error: `the answer ${response.status} cannot be read` };
  }
  if (!response.ok) throw new Error(told.error ?? `the answer is ${response.status}`);
  return told;
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

// Says what an act would do (dry), or does it. It is refused if the server is not the instance that
// the jobs are of.
export function act(order, signal) {
  return answer(fetch(new URL("api/act", root), {
    method: "POST",
    headers: { "content-type": "application/json", "x-token": token },
    body: JSON.stringify(order),
    signal: ends(signal),
  }));
}
