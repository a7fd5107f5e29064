"""Starts a daemon on the image of a cut, and compares its jobs with the journal."""

import bisect
import os
import re
import socket
import subprocess
import time
from collections import Counter

import trial
from load import WORKERS
from machine import run

START_SECONDS = 30
# Within this time a daemon has ended that closes its connections because it crashes.
CRASH_SECONDS = 1
# How many commands are sent before their replies are read.
BATCH = 200
# With `-f 50`: how old a change may be that a power cut undoes, in seconds. The flag promises 50
# milliseconds and two syncs, and in an emulator a sync may take half a second.
PROMISE_SECONDS = 1.5


class Daemon:
    """A daemon on a directory of this machine."""

    def __init__(self, program, directory, flags):
        # No packet waits for another there, as it may with TCP.
        self.path = program.parent / f"socket-{os.getpid()}"
        command = [program, "-l", f"unix:{self.path}", "-b", directory, *flags]
        self.log = self.path.with_suffix(".log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )

    def connect(self):
        """Whether it serves."""
        deadline = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            stream = socket.socket(socket.AF_UNIX)
            stream.settimeout(START_SECONDS)
            try:
                stream.connect(str(self.path))
                self.client = trial.Client(stream)
                return True
            except OSError:
                stream.close()
                time.sleep(0.005)
        return False

    def each(self, command, ids):
        """The body of each reply to a command for these ids, by id."""
        ids, bodies = list(ids), {}
        for begin in range(0, len(ids), BATCH):
            batch = ids[begin : begin + BATCH]
            self.client.send("\r\n".join(f"{command} {id}" for id in batch))
            for id in batch:
                self.client.reply()
                bodies[id] = self.client.body
        return bodies

    def jobs(self, last_id):
        """{id: (body, state, priority)} of all jobs up to an id."""
        stats = self.each("stats-job", range(1, last_id + 1))
        stats = {id: text.decode() for id, text in stats.items() if text}
        bodies = self.each("peek", stats)
        return {
            id: (bodies[id], field(text, "state"), int(field(text, "pri")))
            for id, text in stats.items()
        }

    def count(self):
        stats, states = self.client.stats(), ("ready", "reserved", "delayed", "buried")
        return sum(int(stats[f"current-jobs-{state}"]) for state in states)

    def has_ended(self):
        """Whether it ends, after it has closed a connection."""
        try:
            self.process.wait(CRASH_SECONDS)
            return True
        except subprocess.TimeoutExpired:
            return False

    def end_of_log(self):
        lines = self.log.read_text(errors="replace").splitlines()
        return f"status {self.process.poll()}: {lines[-1] if lines else ''}"

    def end(self):
        self.process.kill()
        self.process.wait()
        self.path.unlink(missing_ok=True)


def field(text, name):
    return re.search(rf"^{name}: (\S+)", text, re.MULTILINE)[1]


class Judge:
    """All that is known of one load: its journal, and the flags of the daemon."""

    def __init__(self, program, is_original, flags, journal):
        self.program, self.is_original = program, is_original
        self.flags, self.journal = flags, journal
        self.lengths = [length for _, length in journal.samples]
        # While the sampler had to wait, the guest may have had to wait as well.
        times = [at for at, _ in journal.samples]
        self.stall = max(later - at for at, later in zip(times, times[1:]))

    def is_firm(self, change, length):
        """Whether a change must be on the disk once the log has this length."""
        if change.acknowledged is None or not change.is_firm or self.flags == ["-F"]:
            return False
        if change.acknowledged > length:
            return False
        if self.flags == ["-f0"]:
            return True
        sample = bisect.bisect_left(self.lengths, length) - 1
        written_at = self.journal.samples[sample][0] if sample >= 0 else 0
        return change.at + PROMISE_SECONDS + self.stall < written_at

    def allowed(self, job, length):
        """The states that a job may have after a cut at this length of the log."""
        states = [None]
        for change in job.changes:
            if change.sent < length:
                states = [] if self.is_firm(change, length) else states
                states.append(change.state)
        return states

    def judge(self, directory, length):
        """The faults after a cut, and whether --check-binlog reports damage."""
        faults, is_damaged = [], False
        if not self.is_original:
            status, output = run(self.program, "--check-binlog", directory, check=False)
            is_damaged = status == 1
            if status not in (0, 1):
                faults.append(("no start", f"--check-binlog: status {status}: {output}"))
        daemon = Daemon(self.program, directory, self.flags)
        try:
            faults += self.serve(daemon, length)
        except (OSError, IndexError, ValueError) as error:
            faults.append(("no start", f"{error!r}; {daemon.end_of_log()}"))
        finally:
            daemon.end()
        return faults, is_damaged

    def serve(self, daemon, length):
        """Compares all jobs. On a full btrfs a write may fail, which closes the connection."""
        while daemon.connect():
            try:
                return list(self.compare(daemon, length))
            except ConnectionError:
                if daemon.has_ended():
                    raise
        return [("no start", daemon.end_of_log())]

    def compare(self, daemon, length):
        known = [job for job in self.journal.jobs.values() if job.id]
        last_id = max((job.id for job in known), default=0)
        # Each worker may have sent one more put, without a reply.
        found = daemon.jobs(last_id + WORKERS)
        if len(found) != daemon.count():
            yield "changed", f"{daemon.count()} jobs, of which {len(found)} have ids of the load"
        restored = {}
        for id, (body, state, priority) in found.items():
            job = self.journal.jobs.get(body.split()[0] if body.split() else b"")
            if job is None or job.body != body or job.id not in (id, None):
                yield "changed", f"job {id} has a body that was not put: {body[:40]}"
            else:
                restored[body.split()[0]] = (state, priority)
        for name, job in self.journal.jobs.items():
            state, allowed = restored.get(name), self.allowed(job, length)
            if state not in allowed:
                fault = "lost" if state is None else "returned" if allowed == [None] else "changed"
                yield fault, f"job {job.id} ({name.decode()}) is {state}, not one of {allowed}"
        firm = [job.id for job in known if self.is_firm(job.changes[0], length)]
        words = daemon.client.put(b"x")
        if words[0] == "INSERTED" and firm and int(words[1]) <= max(firm):
            yield "id reused", f"a new job has the id {words[1]}; {max(firm)} was given out"


def tally(results):
    """The number of cuts with each fault, and of damaged ones."""
    counts = Counter(fault for _, faults, _ in results for fault in {kind for kind, _ in faults})
    return counts, sum(is_damaged for _, _, is_damaged in results)
