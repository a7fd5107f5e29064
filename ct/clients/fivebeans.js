"use strict";
// Calls to fivebeans (npm): arguments are `tcp HOST PORT` or `unix PATH`.
//
// It has no reserve by id.

const { once } = require("events");
const Fivebeans = require("fivebeans");
const { traced, sleep, scenario } = require("./traced.js");

const [, , kind, place, port] = process.argv;

async function client(name) {
  // Node takes a path for a port, and makes a UNIX socket of it.
  const fivebeans = kind === "unix" ? new Fivebeans.client("", place) : new Fivebeans.client(place, port);
  fivebeans.connect();
  await once(fivebeans, "connect");
  const call = (method, given) => new Promise((resolve, reject) => {
    const callback = (error, ...values) => error ? reject(error) : resolve(values);
    fivebeans[method](...given, callback);
    if (method === "end") resolve([]);
  });
  return traced(name, call, (error) => typeof error === "string" ? error : undefined);
}

scenario(async () => {
  const [a, b] = [await client("a"), await client("b")];
  const put = async (body, priority = 1000, delay = 0, ttr = 60) => (await a.put(priority, delay, ttr, body))?.[0];
  const take = async (worker, timeout = 0) => worker.destroy((await worker.reserve_with_timeout(timeout))[0]);

  console.log("# an empty daemon");
  await a.list_tubes();
  await a.list_tube_used();
  await a.list_tubes_watched();
  for (const verb of ["peek", "destroy", "kick_job", "stats_job", "touch"]) await a[verb](1);
  for (const verb of ["peek_ready", "peek_delayed", "peek_buried"]) await a[verb]();
  await a.kick(10);
  await a.reserve_with_timeout(0);
  await a.stats_tube("nosuch");
  await a.pause_tube("nosuch", 1);
  await a.stats_tube("default");

  console.log("# from put to delete");
  let id = await put("hello");
  await a.peek(id);
  await a.peek_ready();
  await a.stats_job(id);
  await a.reserve();
  await a.stats_job(id);
  await b.peek(id);
  await b.destroy(id);
  await b.kick_job(id);
  await a.destroy(id);
  await a.destroy(id);

  console.log("# bodies");
  const bytes = Buffer.from([...Array(256).keys()]);
  const bodies = ["", "x", "Grüße, 世界 🫘", "two\r\nlines\r\n", "DELETED\r\nRESERVED 1 1\r\n", "\0", "\r\n",
    "é".repeat(30_000), bytes, Buffer.concat(Array(255).fill(bytes)), "x".repeat(65_535)];
  for (const body of bodies) {
    await a.peek(await put(body));
    await take(a, 1);
  }
  await put("x".repeat(65_536));
  await put("x".repeat(1_000_000));
  await a.list_tube_used();

  console.log("# many at once");
  await Promise.all(Array.from({ length: 100 }, (_, i) => put(`job ${i}`)));
  await a.stats_tube("default");
  const jobs = await Promise.all(Array.from({ length: 100 }, () => a.reserve_with_timeout(0)));
  await Promise.all(jobs.map((job) => a.destroy(job[0])));

  console.log("# priority, then age");
  const priorities = { late: 2000, first: 0, second: 5, third: 5, last: 2 ** 32 - 1 };
  for (const [body, priority] of Object.entries(priorities)) await put(body, priority);
  await a.stats_tube("default");
  for (const _ in priorities) await take(a);

  console.log("# release");
  id = await put("again", 10, 0, 100);
  await a.reserve();
  await a.release(id, 7, 0);
  await b.release(id, 7, 0);
  await a.reserve_with_timeout(0);
  await a.stats_job(id);
  await a.release(id, 8, 1);
  await a.stats_job(id);
  await a.peek_delayed();
  await a.reserve_with_timeout(0);
  await a.reserve_with_timeout(3);
  await a.stats_job(id);
  await a.destroy(id);

  console.log("# bury and kick");
  const ids = [];
  for (const body of ["one", "two", "three"]) {
    ids.push(await put(body));
    await a.reserve_with_timeout(0);
  }
  for (const each of [ids[1], ids[0], ids[2]]) await a.bury(each, 3);
  await a.bury(ids[0], 3);
  await a.peek_buried();
  await a.stats_job(ids[1]);
  await a.stats_job(await put("later", 0, 1000));
  await b.kick(2);
  await b.kick_job(ids[2]);
  await b.kick_job(ids[2]);
  await b.kick(10);
  await b.kick(10);
  await a.stats_job(ids[2]);
  await a.stats_tube("default");
  for (let i = 0; i < 4; i++) await take(a);

  console.log("# touch, DEADLINE_SOON and the end of the time to run");
  id = await put("short", 0, 0, 2);
  await b.reserve();
  await sleep(0.2);
  await b.touch(id);
  await a.touch(id);
  await b.stats_job(id);
  await b.reserve_with_timeout(5);
  await b.reserve_with_timeout(0);
  await b.reserve();
  await sleep(1.3);
  await b.list_tube_used(); // 1.12 may notice the end only when the worker speaks.
  await sleep(0.1);
  await b.touch(id);
  await b.release(id, 0, 0);
  await b.stats_job(id);
  await a.reserve_with_timeout(3);
  await a.stats_job(id);
  await a.destroy(id);

  console.log("# waiting");
  await a.reserve_with_timeout(1);
  for (const [verb, ...timeout] of [["reserve_with_timeout", 5], ["reserve"]]) {
    const waiting = b.quietCall(verb, ...timeout);
    await sleep(0.3);
    await a.stats_tube("default");
    await put("for b");
    const [line, [number]] = await waiting;
    console.log(line);
    await b.destroy(number);
  }
  await put("soon", 0, 1);
  await take(b, 5);

  console.log("# tubes");
  await a.use("mail");
  await a.list_tube_used();
  await put("letter");
  await b.watch("mail");
  await b.watch("mail");
  await b.watch("a/b+c;d.e$f_g(h)-0");
  await b.list_tubes_watched();
  await b.list_tubes();
  await b.ignore("default");
  await b.ignore("nosuch");
  await take(b);
  await b.ignore("mail");
  await b.ignore("a/b+c;d.e$f_g(h)-0");
  await b.watch("x".repeat(200));
  await b.watch("x".repeat(201));
  await b.use("white space");
  await b.watch("default");
  await b.ignore("x".repeat(200));
  await a.use("default");
  await a.list_tubes();

  console.log("# pause");
  await put("paused");
  await a.pause_tube("default", 1000);
  await a.stats_tube("default");
  await a.reserve_with_timeout(0);
  await a.peek_ready();
  await a.pause_tube("default", 1);
  await take(a, 3);
  await put("paused again");
  await a.pause_tube("default", 1000);
  await a.pause_tube("default", 0);
  await a.stats_tube("default");
  await take(a);

  console.log("# a worker leaves");
  id = await put("kept");
  const gone = await client("gone");
  await gone.reserve();
  await a.stats_job(id);
  await gone.end();
  await take(a, 3);

  console.log("# what is left");
  await put("left");
  await b.stats_tube("default");
  await b.stats_tube("mail");
  await b.list_tubes();
  await b.stats();
});
