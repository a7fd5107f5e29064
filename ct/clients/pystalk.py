"""Calls to pystalk, which knows TCP only: arguments are `tcp HOST PORT`.

It has no touch, no peek by id, no reserve by id and no reserve without a timeout.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pystalk
from traced import Traced


def client(name, **options):
    address = sys.argv[2], int(sys.argv[3])
    return Traced(name, pystalk.BeanstalkClient(*address, **options), pystalk.BeanstalkError)


a, b = client("a", auto_decode=True), client("b", auto_decode=True)

print("# an empty daemon")
a.ping()
a.list_tubes()
for verb in (a.peek_ready, a.peek_delayed, a.peek_buried):
    verb()
for verb in (a.delete_job, a.kick_job, a.stats_job):
    verb(1)
a.kick_jobs(10)
a.reserve_job(timeout=0)
a.stats_tube("nosuch")
a.pause_tube("nosuch", 1)
a.unpause_tube("nosuch")
a.stats_tube("default")

print("# from put to delete")
_, number = a.put_job("hello")
a.peek_ready()
a.stats_job(number)
job = a.reserve_job()
a.stats_job(job)
b.delete_job(job)
b.kick_job(job)
a.delete_job(job)
a.delete_job(job)

print("# bodies")
for body in ("", "x", "Grüße, 世界 🫘", "two\r\nlines\r\n", "DELETED\r\nRESERVED 1 1\r\n", "é" * 30_000):
    a.put_job(body)
    a.delete_job(a.reserve_job(timeout=1))
raw = client("raw")
for body in (bytes(range(256)), b"\0", b"\r\n", b"\r\n" * 1_000, bytes(range(255)) * 257):
    raw.put_job(body)
    raw.peek_ready()
    raw.delete_job(raw.reserve_job(timeout=1))
raw.put_job(b"x" * 65_536)
raw.put_job(b"x" * 1_000_000)
raw.list_tubes()

print("# priority, then age")
for body, pri in (("late", 2000), ("first", 0), ("second", 5), ("third", 5), ("last", 2**32 - 1)):
    a.put_job(body, pri=pri)
a.stats_tube("default")
for job in list(a._client.reserve_iter()):
    print("# reserved", job.job_id, job.job_data)
    a.delete_job(job)

print("# release")
a.put_job("again", pri=10, ttr=100)
job = a.reserve_job()
a.release_job(job, pri=7)
b.release_job(job)
job = a.reserve_job(timeout=0)
a.stats_job(job)
a.release_job(job, pri=8, delay=1)
a.stats_job(job)
a.peek_delayed()
a.reserve_job(timeout=0)
job = a.reserve_job(timeout=3)
a.stats_job(job)
a.delete_job(job)

print("# bury and kick")
jobs = []
for body in ("one", "two", "three"):
    a.put_job(body)
    jobs.append(a.reserve_job(timeout=0))
for job in (jobs[1], jobs[0], jobs[2]):
    a.bury_job(job, pri=3)
a.bury_job(jobs[0])
a.peek_buried()
a.stats_job(jobs[1])
_, delayed = a.put_job("later", delay=1_000)
a.stats_job(delayed)
b.kick_jobs(2)
b.kick_job(jobs[2])
b.kick_job(jobs[2])
b.kick_jobs(10)
b.kick_jobs(10)
a.stats_job(jobs[2])
a.stats_tube("default")
for _ in range(4):
    a.delete_job(a.reserve_job(timeout=0))

print("# DEADLINE_SOON and the end of the time to run")
a.put_job("short", ttr=2)
job = b.reserve_job()
started = time.monotonic()
b.reserve_job(timeout=5)
print("# about a second later:", 0.8 < time.monotonic() - started < 1.6)
b.reserve_job(timeout=0)
a.put_job("other")
b.delete_job(b.reserve_job(timeout=0))
time.sleep(1.3)
b.list_tubes()  # 1.12 may notice the end only when the worker speaks.
time.sleep(0.1)
b.release_job(job)
b.stats_job(job)
job = a.reserve_job(timeout=3)
a.stats_job(job)
a.delete_job(job)

print("# waiting")
started = time.monotonic()
a.reserve_job(timeout=1)
print("# a second passed:", 0.9 < time.monotonic() - started < 1.6)
with ThreadPoolExecutor() as pool:
    waiting = pool.submit(b.quiet_call, "reserve_job", timeout=5)
    time.sleep(0.3)
    a.stats_tube("default")
    a.put_job("for b")
    line, job = waiting.result()
    print(line)
    b.delete_job(job)
    a.put_job("soon", delay=1)
    line, job = pool.submit(b.quiet_call, "reserve_job", timeout=5).result()
    print(line)
    b.delete_job(job)

print("# tubes")
a.put_job_into("mail", "letter")
b.watch("mail")
b.watch("a/b+c;d.e$f_g(h)-0")
b.list_tubes()
b.delete_job(b.reserve_job(timeout=0))
b.ignore("mail")
b.ignore("a/b+c;d.e$f_g(h)-0")
b.watch("x" * 200)
b.list_tubes()
b.use("white space")
b.watch("default")
b.ignore("x" * 200)
b.list_tubes()
again = client("again")
again.use("u")
for tube in ("v", "w", "default"):
    again.watch(tube)
again.list_tubes()
again.close()
again.stats_tube("v")

print("# pause")
a.put_job("paused")
a.pause_tube("default", 1_000)
a.stats_tube("default")
a.reserve_job(timeout=0)
a.peek_ready()
a.pause_tube("default", 1)
started = time.monotonic()
a.delete_job(a.reserve_job(timeout=3))
print("# a second passed:", 0.9 < time.monotonic() - started < 1.6)
a.put_job("paused again")
a.pause_tube("default")
a.unpause_tube("default")
a.stats_tube("default")
a.delete_job(a.reserve_job(timeout=0))

print("# a worker leaves")
_, number = a.put_job("kept")
gone = client("gone")
gone.reserve_job()
a.stats_job(number)
gone.close()
a.delete_job(a.reserve_job(timeout=3))

print("# what is left")
b.use("default")
b.put_job("left")
b.stats_tube("default")
b.stats_tube("mail")
b.list_tubes()
b.stats()
print("done")
