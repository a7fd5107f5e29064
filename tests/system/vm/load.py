"""The load, and the journal of its changes beside the log of the disk's writes."""

import contextlib
import os
import random
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import trial

WORKERS = 3
CONNECT_SECONDS = 60
SAMPLE_SECONDS = 0.005
TIME_TO_RUN = 3600
DELAY = 3600
# The most jobs that a worker keeps in the queue.
JOBS = 60
SHORT_BYTES, LONG_BYTES = 2_000, 30_000
REFUSALS = ("OUT_OF_MEMORY", "INTERNAL_ERROR")


@dataclass
class Change:
    """A job's state after a command. It may be on the disk once the log is longer than `sent`
    bytes, and must be once the log has `acknowledged` bytes."""

    state: tuple  # (state, priority), or None of a job that is not there
    sent: int
    acknowledged: int | None = None
    at: float | None = None  # the time of the reply
    is_firm: bool = True


@dataclass
class Job:
    body: bytes
    id: int | None = None
    changes: list = field(default_factory=list)

    def state(self):
        return self.changes[-1].state


class Journal:
    """All jobs by the first word of their bodies, and the length of the log over time."""

    def __init__(self, log):
        self.jobs = {}
        self.descriptor = os.open(log, os.O_RDONLY)
        # While the disk is full, a release may be acknowledged before its record has space.
        self.is_full = False
        self.samples = []
        self.stopping = threading.Event()
        self.sampler = threading.Thread(target=self.sample, daemon=True)
        self.sampler.start()

    def length(self):
        return os.fstat(self.descriptor).st_size

    def sample(self):
        while not self.stopping.wait(SAMPLE_SECONDS):
            self.samples.append((time.monotonic(), self.length()))

    def stop(self):
        self.stopping.set()
        self.sampler.join()
        os.close(self.descriptor)
        # The rest goes to other processes.
        del self.sampler, self.stopping


class Worker(threading.Thread):
    """Sends seeded commands for jobs of its own, in a tube of its own."""

    def __init__(self, journal, port, seed, name, is_original):
        super().__init__(daemon=True)
        self.is_original = is_original
        self.journal, self.port, self.name = journal, port, name
        self.random = random.Random(f"{seed} {name}")
        self.jobs, self.count = [], 0
        self.replies = Counter()
        self.error = None
        self.stopping = threading.Event()

    def run(self):
        try:
            while not self.stopping.is_set():
                try:
                    self.connect()
                    while not self.stopping.is_set():
                        self.step()
                except OSError:
                    # The power cut, or a failed write, whose changes get no reply. What they left
                    # is unknown, so another tube follows.
                    if not self.stopping.is_set():
                        self.replies["closed"] += 1
                        self.jobs = []
        except (ValueError, IndexError, KeyError) as error:
            self.error = error

    def connect(self):
        """Connects; the forwarder accepts before the daemon does."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                self.client = trial.Client(self.port)
                self.client.ask(f"use {self.name}-{self.count}")
                self.client.watch_only(f"{self.name}-{self.count}")
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def ask(self, line, body=None):
        words = self.client.ask(line, body)
        self.replies[words[0]] += 1
        return words

    def change(self, line, expected, *changes, body=None):
        """Sends a command that leads each job to a state, and notes its reply. Returns its words,
        or None if it was refused. A refusal changes nothing; only of the original that is not
        known, so its change stays without a reply."""
        begun = [(job, Change(state, self.journal.length())) for job, state in changes]
        for job, change in begun:
            job.changes.append(change)
        words = self.ask(line, body)
        at, length = time.monotonic(), self.journal.length()
        for job, change in begun:
            if words[0] == expected:
                change.at, change.acknowledged = at, length
            elif not self.is_original:
                job.changes.remove(change)
        if words[0] not in (expected, *REFUSALS) and not self.is_original:
            raise ValueError(f"{line}: {words}")
        return words if words[0] == expected else None

    def step(self):
        self.jobs = [job for job in self.jobs if job.state()]
        if len(self.jobs) <= self.random.randrange(JOBS):
            return self.put()
        choices = [self.reserve, self.delete, self.kick, self.kick_job, self.put]
        return self.random.choice(choices)()

    def put(self):
        self.count += 1
        limit = self.random.choice([10, SHORT_BYTES, SHORT_BYTES, LONG_BYTES])
        filler = self.random.randbytes(self.random.randrange(limit)).hex()
        job = Job(f"{self.name}-{self.count} {filler}".encode())
        delay, priority = self.random.choice([0, 0, DELAY]), self.random.randrange(1000)
        line = f"put {priority} {delay} {TIME_TO_RUN} {len(job.body)}"
        self.journal.jobs[job.body.split()[0]] = job
        state = ("delayed" if delay else "ready", priority)
        if words := self.change(line, "INSERTED", (job, state), body=job.body):
            job.id = int(words[1])
            self.jobs.append(job)

    def reserve(self):
        """Reserves a job and buries, releases or deletes it. The reservation has no record: it is
        no change."""
        words = self.ask("reserve-with-timeout 0")
        if words[0] == "TIMED_OUT":
            return
        job = self.journal.jobs[self.client.body.split()[0]]
        if (job.body, job.id) != (self.client.body, int(words[1])):
            raise ValueError(f"another job was reserved: {words}")
        act = self.random.choice([self.bury, self.release, self.delete, self.delete])
        if not act(job, self.random.randrange(1000)):
            self.delete(job)

    def bury(self, job, priority):
        return self.change(f"bury {job.id} {priority}", "BURIED", (job, ("buried", priority)))

    def release(self, job, priority):
        delay = self.random.choice([0, DELAY])
        state = ("delayed" if delay else "ready", priority)
        was_full = self.journal.is_full
        words = self.change(f"release {job.id} {priority} {delay}", "RELEASED", (job, state))
        if words and delay == 0 and (was_full or self.journal.is_full):
            # On a full disk its record may follow when there is space.
            job.changes[-1].is_firm = False
        return words

    def delete(self, job=None, _=None):
        """Deletes a reserved job, or any."""
        job = job or self.random.choice(self.jobs)
        return self.change(f"delete {job.id}", "DELETED", (job, None))

    def kicked(self, job):
        return job, ("ready", job.state()[1])

    def of_state(self, *states):
        return [job for job in self.jobs if job.state()[0] in states]

    def kick(self):
        """Kicks some buried jobs: the ones that were buried first. On a full disk fewer follow."""
        buried = sorted(self.of_state("buried"), key=lambda job: job.changes[-1].at)
        jobs = buried[: self.random.randint(1, len(buried))] if buried else []
        changes = [self.kicked(job) for job in jobs]
        if jobs and (words := self.change(f"kick {len(jobs)}", "KICKED", *changes)):
            for job in jobs[int(words[1]) :]:
                job.changes.pop()

    def kick_job(self):
        if jobs := self.of_state("buried", "delayed"):
            job = self.random.choice(jobs)
            self.change(f"kick-job {job.id}", "KICKED", self.kicked(job))

    def end(self):
        """Waits for the thread. It may wait for a reply itself, so its connection is ended."""
        with contextlib.suppress(OSError):  # The daemon may have closed it.
            self.client.stream.shutdown(socket.SHUT_RDWR)
        self.join()
        self.client.close()
