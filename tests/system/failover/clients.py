"""What stands around the daemons: a service manager, clients that put numbered jobs, and an eye on
what the proxy thinks of them."""

import contextlib
import random
import socket
import subprocess
import threading
import time

import trial
from nodes import CANDIDATES
from trial import wait

PORT = 11300
# As Restart=always and RestartSec=1 of a unit.
RESTART_SECONDS = 1
END_SECONDS = 30
CONNECT_SECONDS = 2
# Storage that loses a node may be silent for long, and that is no failure of a put.
REPLY_SECONDS = 90
PAUSE_SECONDS = 0.01
RETRY_SECONDS = 0.05
LOOK_SECONDS = 0.05
READY_SECONDS = 60
TIME_TO_RUN = 3600
WORK_SHARE = 0.5


class Client(trial.Client):
    def __init__(self, host, port=PORT):
        stream = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
        stream.settimeout(REPLY_SECONDS)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(stream)

    def process(self):
        """The host name and the process id of the daemon at the other end."""
        stats = self.stats()
        if stats is None:
            raise ConnectionError("stats is refused")
        return stats["hostname"].strip('"'), int(stats["pid"])

    def close(self):
        """Ends also a read of another thread."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)
        self.stream.close()


class Run:
    """One run of the daemon: when it locked, listened and ended, and what it logged."""

    def __init__(self, node):
        self.node = node
        self.lines = []
        self.began_at = time.monotonic()
        self.waits_at = self.took_over_at = self.listens_at = self.ended_at = None
        self.status = self.pid = None

    def note(self, line):
        now = time.monotonic()
        self.lines.append(f"{now - self.began_at:8.2f} s: {line.rstrip()}")
        if line.startswith("process "):
            self.pid = int(line.split()[1])
        elif "waits for the" in line:
            self.waits_at = now
        elif "takes over" in line:
            self.took_over_at = now
        elif "listens on" in line:
            self.listens_at = self.listens_at or now

    def end(self, status):
        self.ended_at = time.monotonic()
        self.status = status

    def identity(self):
        """The host name and the process id."""
        return self.node.name, self.pid

    def story(self):
        """How it went, in a word: its status, or the signal that ended it."""
        if self.status is None:
            return "runs"
        return f"signal {-self.status}" if self.status < 0 else str(self.status)


class Daemon(Run):
    """A run in a node's namespaces."""

    def __init__(self, node, program, directory, *flags):
        super().__init__(node)
        self.child = subprocess.Popen(
            node.inside(program, "-b", directory, "-f0", "--wait-for-lock", *flags),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.pid = self.child.pid
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        for line in self.child.stdout:
            self.note(line)
        self.end(self.child.wait())

    def kill(self):
        self.child.kill()


class Manager:
    """Starts a candidate's daemon again whenever it has ended, as systemd would."""

    def __init__(self, node, program, directory):
        self.node, self.program, self.directory = node, program, directory
        self.runs = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.manage, daemon=True)
        self.thread.start()
        wait(lambda: self.runs, f"a daemon starts on {node.name}", READY_SECONDS)

    def manage(self):
        while not self.stopping.is_set():
            addresses = f"{self.node.address},127.0.0.1"
            flags = ("-l", addresses, "-p", str(PORT), "--exit-on-binlog-failure", "0")
            run = Daemon(self.node, self.program, self.directory, *flags)
            self.runs.append(run)
            while run.status is None and not self.stopping.wait(0.02):
                pass
            self.stopping.wait(RESTART_SECONDS)

    def stop(self):
        self.stopping.set()
        self.thread.join()
        last = self.runs[-1]
        last.kill()
        wait(lambda: last.status is not None, f"the daemon on {self.node.name} ends", END_SECONDS)


class Ack:
    """A put that was acknowledged: by which process, when, and to whom."""

    def __init__(self, body, at, process, producer):
        self.body, self.at, self.process = body, at, process
        self.is_proxied = producer.is_proxied


class Producer(threading.Thread):
    """Puts one job after the other, each again until it is acknowledged. After some of them it
    reserves a job of anyone, and deletes it."""

    def __init__(self, ledger, node, host, name):
        super().__init__(daemon=True)
        self.random = random.Random(f"{ledger.seed} {ledger.name} {name}")
        self.ledger, self.node, self.host, self.name = ledger, node, host, name
        self.is_proxied = node.name not in CANDIDATES and host == "127.0.0.1"
        self.client = None
        self.resumed, self.stopping = threading.Event(), threading.Event()
        self.resumed.set()
        self.start()

    def run(self):
        self.node.enter()
        number = 0
        while not self.stopping.is_set():
            body = f"{self.ledger.name}-{self.name}-{number}".encode()
            number += 1
            while not self.try_to_put(body) and not self.stopping.wait(RETRY_SECONDS):
                pass
            if self.random.random() < WORK_SHARE:
                self.work()
            self.stopping.wait(PAUSE_SECONDS)

    def work(self):
        body = None
        try:
            words = self.client.ask("reserve-with-timeout 0")
            if words[0] != "RESERVED":
                return
            body = self.client.body
            if body in self.ledger.deleted and body not in self.ledger.unknown:
                self.ledger.returned.append(body)
            if self.client.ask(f"delete {words[1]}") == ["DELETED"]:
                self.ledger.deleted.add(body)
                return
        except (OSError, AttributeError):
            self.leave()
        # It may be there or not.
        self.ledger.perhaps_deleted.add(body)

    def leave(self):
        """The next command is one of another connection."""
        if self.client:
            self.client.close()
        self.client = None

    def try_to_put(self, body):
        was_sent = False
        try:
            if self.client is None:
                client = Client(self.host)
                self.client, self.process = client, client.process()
            self.resumed.wait()
            if self.stopping.is_set():
                return False
            self.ledger.sent.add(body)
            was_sent = True
            reply = self.client.put(body, ttr=TIME_TO_RUN)[0]
        except OSError:
            if was_sent:
                self.ledger.unknown.add(body)
            self.leave()
            return False
        if reply == "INSERTED":
            self.ledger.acks.append(Ack(body, time.monotonic(), self.process, self))
            return True
        return False

    def halt(self):
        """Ends it, even if it waits for an answer."""
        self.stopping.set()
        self.resumed.set()
        self.join(1)
        client = self.client
        if client:
            client.close()
        self.join(CONNECT_SECONDS + 1)


class Ledger:
    """What became of all puts and deletes of an experiment."""

    def __init__(self, name, seed):
        self.name, self.seed = name, seed
        # All clients add to them, which is atomic.
        self.acks = []
        self.sent, self.unknown = set(), set()
        self.deleted, self.perhaps_deleted = set(), set()
        # Deleted jobs that a client has reserved again.
        self.returned = []


class Look(threading.Thread):
    """Asks the proxy again and again which servers it takes for up."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path = path
        # (when, {server: (status, sessions that it was given)}), whenever it changed.
        self.seen = []
        self.start()

    def run(self):
        while True:
            try:
                state = self.ask()
            except OSError:
                state = None
            if state and (not self.seen or self.seen[-1][1] != state):
                self.seen.append((time.monotonic(), state))
            time.sleep(LOOK_SECONDS)

    def ask(self):
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(CONNECT_SECONDS)
            channel.connect(str(self.path))
            channel.sendall(b"show stat\n")
            text = channel.makefile().read()
        if not text:
            raise ConnectionError("the proxy ends")
        lines = [line.split(",") for line in text.splitlines() if line]
        name, status, total = (lines[0].index(key) for key in ("svname", "status", "stot"))
        servers = dict(zip(("one", "two"), CANDIDATES))
        return {servers[line[name]]: (line[status].split()[0], int(line[total]))
                for line in lines[1:] if line[name] in servers}  # fmt: skip

    def is_up(self, name):
        return bool(self.seen) and self.seen[-1][1][name][0] == "UP"

    def all_down(self):
        return bool(self.seen) and not any(self.is_up(name) for name in CANDIDATES)

    def states(self, name, since):
        """What it thought of a server then, and each time it changed its mind since."""
        before = [state[name] for at, state in self.seen if at <= since]
        return before[-1], [(at, state[name]) for at, state in self.seen if at > since]
