"""The load, and the journal of its changes beside the log of the disk's writes."""

import os
import random
import socket
import threading
import time
from dataclasses import dataclass, field

CLIENTS = 3
REPLY_SECONDS = 60
SAMPLE_SECONDS = 0.005
TIME_TO_RUN = 3600
DELAY = 3600
# The most jobs that a client keeps in the queue.
JOBS = 60
SHORT_BYTES, LONG_BYTES = 2_000, 30_000
REFUSALS = (b"OUT_OF_MEMORY", b"INTERNAL_ERROR")


@dataclass
class Change:
    """A job's state after a command. It may be on the disk once the log is longer than `sent`, and
    must be once the log is as long as `acknowledged`; both are lengths in bytes."""

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


class Client(threading.Thread):
    """Sends seeded commands for jobs of its own, in a tube of its own."""

    def __init__(self, journal, port, seed, name, is_original):
        super().__init__(daemon=True)
        self.is_original = is_original
        self.journal, self.port, self.name = journal, port, name
        self.random = random.Random(f"{seed} {name}")
        self.jobs, self.count = [], 0
        self.replies = {}
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
                        self.replies[b"closed"] = self.replies.get(b"closed", 0) + 1
                        self.jobs = []
        except (ValueError, IndexError, KeyError) as error:
            self.error = error

    def connect(self):
        """Connects; the forwarder accepts before the daemon does."""
        deadline = time.monotonic() + REPLY_SECONDS
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", self.port), REPLY_SECONDS)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.input = self.socket.makefile("rb")
                tube = b"%s-%d" % (self.name.encode(), self.count)
                self.exchange(b"use %s\r\n" % tube)
                self.exchange(b"watch %s\r\n" % tube)
                self.exchange(b"ignore default\r\n")
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def exchange(self, command):
        self.socket.sendall(command)
        words = self.input.readline().split()
        if not words:
            raise ConnectionError("the daemon has closed the connection")
        self.replies[words[0]] = self.replies.get(words[0], 0) + 1
        return words

    def change(self, command, expected, *changes):
        """Sends a command that leads each job to a state, and notes its reply. Returns its words,
        or None if it was refused. A refusal changes nothing; only of the original that is not
        known, so its change stays without a reply."""
        begun = [(job, Change(state, self.journal.length())) for job, state in changes]
        was_full = self.journal.is_full
        for job, change in begun:
            job.changes.append(change)
        words = self.exchange(command)
        at, length = time.monotonic(), self.journal.length()
        for job, change in begun:
            if words[0] == expected:
                change.at, change.acknowledged = at, length
                change.is_firm = not (was_full or self.journal.is_full)
            elif not self.is_original:
                job.changes.remove(change)
        if words[0] not in (expected, *REFUSALS) and not self.is_original:
            raise ValueError(f"{command[:40]}: {words}")
        return words if words[0] == expected else None

    def step(self):
        self.jobs = [job for job in self.jobs if job.state()]
        if len(self.jobs) < self.random.randrange(JOBS):
            return self.put()
        choices = [self.reserve, self.delete, self.kick, self.kick_job, self.put]
        return self.random.choice(choices)()

    def put(self):
        self.count += 1
        limit = self.random.choice([10, SHORT_BYTES, SHORT_BYTES, LONG_BYTES])
        filler = self.random.randbytes(self.random.randrange(limit)).hex().encode()
        job = Job(b"%s-%d %s" % (self.name.encode(), self.count, filler))
        delay, priority = self.random.choice([0, 0, DELAY]), self.random.randrange(1000)
        text = b"put %d %d %d %d\r\n%s\r\n"
        command = text % (priority, delay, TIME_TO_RUN, len(job.body), job.body)
        self.journal.jobs[job.body.split()[0]] = job
        state = ("delayed" if delay else "ready", priority)
        if words := self.change(command, b"INSERTED", (job, state)):
            job.id = int(words[1])
            self.jobs.append(job)

    def reserve(self):
        """Reserves a job and does one of the things that workers do. The reservation itself has no
        record: it is no change."""
        words = self.exchange(b"reserve-with-timeout 0\r\n")
        if words[0] == b"TIMED_OUT":
            return
        body = self.input.read(int(words[2]) + 2)[:-2]
        job = self.journal.jobs[body.split()[0]]
        if job.body != body or job.id != int(words[1]):
            raise ValueError(f"another job was reserved: {words}")
        priority = self.random.randrange(1000)
        number = self.random.randrange(4)
        if number == 0 and self.change(b"bury %d %d\r\n" % (job.id, priority), b"BURIED",
                                       (job, ("buried", priority))):  # fmt: skip
            return
        if number == 1:
            delay = self.random.choice([0, DELAY])
            state = ("delayed" if delay else "ready", priority)
            command = b"release %d %d %d\r\n" % (job.id, priority, delay)
            if self.change(command, b"RELEASED", (job, state)):
                return
        self.change(b"delete %d\r\n" % job.id, b"DELETED", (job, None))

    def delete(self):
        if self.jobs:
            job = self.random.choice(self.jobs)
            self.change(b"delete %d\r\n" % job.id, b"DELETED", (job, None))

    def kicked(self, job):
        return job, ("ready", job.state()[1])

    def of_state(self, *states):
        return [job for job in self.jobs if job.state()[0] in states]

    def kick(self):
        """Kicks some buried jobs: the ones that were buried first. On a full disk fewer follow."""
        buried = sorted(self.of_state("buried"), key=lambda job: job.changes[-1].at)
        jobs = buried[: self.random.randint(1, len(buried))] if buried else []
        changes = [self.kicked(job) for job in jobs]
        if jobs and (words := self.change(b"kick %d\r\n" % len(jobs), b"KICKED", *changes)):
            for job in jobs[int(words[1]) :]:
                job.changes.pop()

    def kick_job(self):
        if jobs := self.of_state("buried", "delayed"):
            job = self.random.choice(jobs)
            self.change(b"kick-job %d\r\n" % job.id, b"KICKED", self.kicked(job))

    def end(self):
        """Waits for the thread. Without a daemon it may wait for a reply, so its socket is closed."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self.join()
        self.socket.close()
