"use strict";
// Calls to jackd (npm): arguments are `tcp HOST PORT` or `unix PATH`.
//
// It can put neither an empty body (it asserts one) nor bytes (it turns a Buffer into JSON).

const Jackd = require("jackd");
const { traced, sleep, scenario } = require("./traced.js");

const [, , kind, place, port] = process.argv;

async function client(name) {
  const jackd = new Jackd();
  // Node takes a path for a port, and makes a UNIX socket of it.
  await jackd.connect(kind === "unix" ? { port: place } : { host: place, port: Number(port) });
  const refusals = ["Error", "InvalidResponseError"]; // Not AssertionError and the like.
  return traced(name, (method, given) => jackd[method](...given),
    (error) => refusals.includes(error.constructor.name) ? error.message : undefined);
}

scenario(async () => {
  const [a, b] = [await client("a"), await client("b")];

  console.log("# an empty daemon");
  await a.listTubes();
  await a.listTubeUsed();
  await a.listTubesWatched();
  for (const verb of ["peek", "delete", "kickJob", "reserveJob", "statsJob"]) await a[verb]("1");
  for (const verb of ["peekReady", "peekDelayed", "peekBuried"]) await a[verb]();
  await a.kick(10);
  await a.reserveWithTimeout(0);
  await a.statsTube("nosuch");
  await a.statsTube("default");

  console.log("# from put to delete");
  let id = await a.put("hello");
  await a.peek(id);
  await a.peekReady();
  await a.statsJob(id);
  await a.reserve();
  await a.statsJob(id);
  await b.peek(id);
  await b.delete(id);
  await b.kickJob(id);
  await b.reserveJob(id);
  await a.delete(id);
  await a.delete(id);

  console.log("# bodies");
  const bodies = ["x", "Grüße, 世界 🫘", "two\r\nlines\r\n", "DELETED\r\nRESERVED 1 1\r\n", "\0\x01\x7f",
    "\r\n", "é".repeat(30_000), "x".repeat(65_535)];
  for (const body of bodies) {
    await a.put(body);
    await a.peekReady();
    await a.delete((await a.reserveWithTimeout(1)).id);
  }
  await a.put({ an: "object", of: ["JSON"] });
  await a.delete((await a.reserve()).id);
  await a.put("x".repeat(65_536));
  await a.listTubeUsed();

  console.log("# priority, then age");
  const priorities = { late: 2000, first: 0, second: 5, third: 5, last: 2 ** 32 - 1 };
  for (const [body, priority] of Object.entries(priorities)) await a.put(body, { priority });
  await a.statsTube("default");
  for (const _ in priorities) await a.delete((await a.reserveWithTimeout(0)).id);

  console.log("# release");
  id = await a.put("again", { priority: 10, ttr: 100 });
  await a.reserve();
  await a.release(id, { priority: 7 });
  await b.release(id);
  await a.reserveWithTimeout(0);
  await a.statsJob(id);
  await a.release(id, { priority: 8, delay: 1 });
  await a.statsJob(id);
  await a.peekDelayed();
  await a.reserveWithTimeout(0);
  await a.reserveWithTimeout(3);
  await a.statsJob(id);
  await a.delete(id);

  console.log("# bury and kick");
  const ids = [];
  for (const body of ["one", "two", "three"]) {
    ids.push(await a.put(body));
    await a.reserveWithTimeout(0);
  }
  for (const each of [ids[1], ids[0], ids[2]]) await a.bury(each, 3);
  await a.bury(ids[0]);
  await a.peekBuried();
  await a.statsJob(ids[1]);
  await a.statsJob(await a.put("later", { delay: 1000 }));
  await b.kick(2);
  await b.kickJob(ids[2]);
  await b.kickJob(ids[2]);
  await b.kick(10);
  await b.kick(10);
  await a.statsJob(ids[2]);
  await a.statsTube("default");
  for (let i = 0; i < 4; i++) await a.delete((await a.reserveWithTimeout(0)).id);

  console.log("# reserve by id");
  const ready = await a.put("ready");
  const delayed = await a.put("delayed", { delay: 1000 });
  const buried = await a.put("buried");
  await a.reserveJob(buried);
  await a.bury(buried);
  for (const each of [delayed, buried, ready]) {
    await a.reserveJob(each);
    await a.reserveJob(each);
    await b.reserveJob(each);
    await a.statsJob(each);
    await a.delete(each);
  }

  console.log("# touch, DEADLINE_SOON and the end of the time to run");
  id = await a.put("short", { ttr: 2 });
  await b.reserve();
  await sleep(0.2);
  await b.touch(id);
  await a.touch(id);
  await b.statsJob(id);
  await b.reserveWithTimeout(5);
  await b.reserveWithTimeout(0);
  await b.reserve();
  await sleep(1.3);
  await b.listTubeUsed(); // 1.12 may notice the end only when the worker speaks.
  await sleep(0.1);
  await b.touch(id);
  await b.release(id);
  await b.statsJob(id);
  await a.reserveWithTimeout(3);
  await a.statsJob(id);
  await a.delete(id);

  console.log("# waiting");
  await a.reserveWithTimeout(1);
  for (const [verb, ...timeout] of [["reserveWithTimeout", 5], ["reserve"]]) {
    const waiting = b.quietCall(verb, ...timeout);
    await sleep(0.3);
    await a.statsTube("default");
    await a.put("for b");
    const [line, job] = await waiting;
    console.log(line);
    await b.delete(job.id);
  }
  await a.put("soon", { delay: 1 });
  await b.delete((await b.reserve()).id);

  console.log("# tubes");
  await a.use("mail");
  await a.listTubeUsed();
  await a.put("letter");
  await b.watch("mail");
  await b.watch("mail");
  await b.watch("a/b+c;d.e$f_g(h)-0");
  await b.listTubesWatched();
  await b.listTubes();
  await b.ignore("default");
  await b.ignore("nosuch");
  await b.delete((await b.reserveWithTimeout(0)).id);
  await b.ignore("mail");
  await b.ignore("a/b+c;d.e$f_g(h)-0");
  await b.watch("x".repeat(200));
  await b.watch("x".repeat(201));
  await b.use("white space");
  await b.watch("default");
  await b.ignore("x".repeat(200));
  await a.use("default");
  await a.listTubes();

  console.log("# pause");
  await a.put("paused");
  await a.pauseTube("nosuch", { delay: "1\r\n" }); // It sends no CR LF of its own.
  await a.pauseTube("default", { delay: "1000\r\n" });
  await a.statsTube("default");
  await a.reserveWithTimeout(0);
  await a.peekReady();
  await a.pauseTube("default", { delay: "1\r\n" });
  await a.delete((await a.reserveWithTimeout(3)).id);

  console.log("# a worker leaves");
  id = await a.put("kept");
  const gone = await client("gone");
  await gone.reserve();
  await a.statsJob(id);
  await gone.quit();
  await a.delete((await a.reserveWithTimeout(3)).id);

  console.log("# what is left");
  await b.put("left");
  await b.statsTube("default");
  await b.statsTube("mail");
  await b.listTubes();
  await b.stats();
});
