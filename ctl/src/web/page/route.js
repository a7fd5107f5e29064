// The address after # names the view, so that Back works and a link can be sent to a colleague:
// #/0 is a server, #/0/mail a tube, #/0/mail?state=buried a state, ?find=text a search in a tube or
// in all tubes, and ?job=12 a job.

export const STATES = ["ready", "delayed", "buried", "reserved"];

const NOWHERE = { server: 0, tube: null, state: "", find: "", regex: false, exact: false, job: null };

export function read(hash) {
  const [path, query] = hash.split("?", 2);
  const [, server, name] = /^#\/(\d+)(?:\/(.*))?$/.exec(path) ?? [null, "0", ""];
  const given = new URLSearchParams(query ?? "");
  let tube = null;
  try {
    tube = name ? decodeURIComponent(name) : null;
  } catch {
    // The path has an invalid escape, so it names no tube.
  }
  const state = given.get("state");
  const job = given.get("job");
  return {
    server: Number(server),
    tube,
    state: tube !== null && STATES.includes(state) ? state : "",
    find: given.get("find") ?? "",
    regex: given.has("regex"),
    exact: given.has("exact"),
    job: /^\d+$/.test(job ?? "") ? job : null,
  };
}

export function address(place) {
  const all = { ...NOWHERE, ...place };
  const query = new URLSearchParams();
  if (all.state) query.set("state", all.state);
  if (all.find) {
    query.set("find", all.find);
    if (all.regex) query.set("regex", "1");
    if (all.exact) query.set("exact", "1");
  }
  if (all.job !== null) query.set("job", all.job);
  const path = all.tube === null ? `#/${all.server}` : `#/${all.server}/${encodeURIComponent(all.tube)}`;
  return query.size > 0 ? `${path}?${query}` : path;
}

export function differs(before, after, keys) {
  return keys.some((key) => before[key] !== after[key]);
}
