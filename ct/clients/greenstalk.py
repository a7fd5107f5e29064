"""Calls to greenstalk: arguments are `tcp HOST PORT` or `unix PATH`."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import greenstalk
from traced import Traced

ADDRESS = sys.argv[2] if sys.argv[1] == "unix" else (sys.argv[2], int(sys.argv[3]))


def client(name, **options):
    return Traced(name, greenstalk.Client(ADDRESS, **options), greenstalk.Error)


a, b = client("a"), client("b")

print("# an empty daemon")
a.tubes()
a.using()
a.watching()
for verb in (a.peek, a.delete, a.kick_job, a.reserve_job, a.stats_job):
    verb(1)
for verb in (a.peek_ready, a.peek_delayed, a.peek_buried):
    verb()
a.kick(10)
a.reserve(timeout=0)
a.stats_tube("nosuch")
a.pause_tube("nosuch", 1)
a.stats_tube("default")

print("# from put to delete")
number = a.put("hello")
a.peek(number)
a.peek_ready()
a.stats_job(number)
job = a.reserve()
a.stats_job(job)
b.peek(number)
b.delete(job)
b.kick_job(job)
b.reserve_job(number)
a.delete(job)
a.delete(job)
a.peek(number)

print("# bodies")
for body in ("", "x", "Grüße, 世界 🫘", "two\r\nlines\r\n", "DELETED\r\nRESERVED 1 1\r\n", "é" * 30_000):
    a.put(body)
    a.delete(a.reserve(timeout=1))
raw = client("raw", encoding=None)
for body in (bytes(range(256)), b"\0", b"\r\n", b"\r\n" * 1_000, bytes(range(255)) * 257):
    number = raw.put(body)
    raw.peek(number)
    raw.delete(raw.reserve(timeout=1))
raw.put(b"x" * 65_536)
raw.put(b"x" * 1_000_000)
raw.using()

print("# priority, then age")
for body, priority in (("late", 2000), ("first", 0), ("second", 5), ("third", 5), ("last", 2**32 - 1)):
    a.put(body, priority=priority)
a.stats_tube("default")
for _ in range(5):
    a.delete(a.reserve(timeout=0))
a.put("refused", priority=2**32)
a = client("a")  # After such a put the two sides disagree on where commands begin.

print("# release")
a.put("again", priority=10, ttr=100)
job = a.reserve()
a.release(job, priority=7)
b.release(job)
job = a.reserve(timeout=0)
a.stats_job(job)
a.release(job, priority=8, delay=1)
a.stats_job(job)
a.peek_delayed()
a.reserve(timeout=0)
job = a.reserve(timeout=3)
a.stats_job(job)
a.delete(job)

print("# bury and kick")
jobs = []
for body in ("one", "two", "three"):
    a.put(body)
    jobs.append(a.reserve(timeout=0))
for job in (jobs[1], jobs[0], jobs[2]):
    a.bury(job, priority=3)
a.bury(jobs[0])
a.peek_buried()
a.stats_job(jobs[1])
delayed = a.put("later", delay=1_000)
a.stats_job(delayed)
b.kick(2)
b.kick_job(jobs[2])
b.kick_job(jobs[2])
b.kick(10)
b.kick(10)
a.stats_job(jobs[2])
a.stats_tube("default")
for _ in range(4):
    a.delete(a.reserve(timeout=0))

print("# reserve by id")
ready, delayed, buried = a.put("ready"), a.put("delayed", delay=1_000), a.put("buried")
a.bury(a.reserve_job(buried))
for number in (delayed, buried, ready):
    job = a.reserve_job(number)
    a.reserve_job(number)
    b.reserve_job(number)
    a.stats_job(number)
    a.delete(job)

print("# delete in any state")
delayed, buried, ready = a.put("delayed", delay=1_000), a.put("buried"), a.put("ready")
a.bury(a.reserve_job(buried))
for number in (delayed, buried, ready):
    b.delete(number)

print("# touch, DEADLINE_SOON and the end of the time to run")
a.put("short", ttr=2)
job = b.reserve()
time.sleep(0.2)
b.touch(job)
a.touch(job)
b.stats_job(job)
started = time.monotonic()
b.reserve(timeout=5)
print("# about a second later:", 0.8 < time.monotonic() - started < 1.6)
b.reserve(timeout=0)
a.put("other")
b.delete(b.reserve(timeout=0))
time.sleep(1.3)
b.using()  # 1.12 may notice the end only when the worker speaks.
time.sleep(0.1)
b.touch(job)
b.release(job)
b.stats_job(job)
job = a.reserve(timeout=3)
a.stats_job(job)
a.delete(job)

print("# waiting")
started = time.monotonic()
a.reserve(timeout=1)
print("# a second passed:", 0.9 < time.monotonic() - started < 1.6)
with ThreadPoolExecutor() as pool:
    for timeout in (5, None):
        waiting = pool.submit(b.quiet_call, "reserve", timeout=timeout)
        time.sleep(0.3)
        a.stats_tube("default")
        a.put("for b")
        line, job = waiting.result()
        print(line)
        b.delete(job)
    a.put("soon", delay=1)
    line, job = pool.submit(b.quiet_call, "reserve", timeout=5).result()
    print(line)
    b.delete(job)

print("# tubes")
a.use("mail")
a.using()
a.put("letter")
b.watch("mail")
b.watch("mail")
b.watch("a/b+c;d.e$f_g(h)-0")
b.watching()
b.tubes()
b.ignore("default")
b.ignore("nosuch")
b.delete(b.reserve(timeout=0))
b.ignore("mail")
b.ignore("a/b+c;d.e$f_g(h)-0")
b.watch("x" * 200)
b.watch("x" * 201)
b.watch("-bad")
b.use("white space")
b.watch("default")
b.ignore("x" * 200)
b.ignore("a/b+c;d.e$f_g(h)-0")
a.use("default")
a.tubes()
several = client("several", use="u", watch=["v", "w"])
several.using()
several.watching()
a.tubes()

print("# pause")
a.put("paused")
a.pause_tube("default", 1_000)
a.stats_tube("default")
a.reserve(timeout=0)
a.peek_ready()
a.pause_tube("default", 1)
started = time.monotonic()
a.delete(a.reserve(timeout=3))
print("# a second passed:", 0.9 < time.monotonic() - started < 1.6)
a.put("paused again")
a.pause_tube("default", 1_000)
a.pause_tube("default", 0)
a.stats_tube("default")
a.delete(a.reserve(timeout=0))

print("# a worker leaves")
number = a.put("kept")
gone = client("gone")
gone.reserve()
a.stats_job(number)
gone.close()
a.delete(a.reserve(timeout=3))

print("# what is left")
b.put("left")
b.stats_tube("default")
b.stats_tube("mail")
b.tubes()
b.stats()

print("# drain")
os.kill(greenstalk.Client(ADDRESS).stats()["pid"], signal.SIGUSR1)
time.sleep(0.2)
a.put("too late")
a.delete(a.reserve(timeout=0))
a.stats()
print("done")
