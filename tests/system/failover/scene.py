"""One experiment: what it sets up, and how it is judged."""

import collections
import contextlib
import itertools
import math
import threading
import time

from clients import Client, Daemon, Ledger, Producer
from nodes import say
from trial import Failed, wait

READY_SECONDS = 60
PRODUCERS = 4
# How long load runs before a fault, and after the daemon has come back.
LOAD_SECONDS = 2
# A file system gives up a silent machine after 30 seconds or later.
TAKEOVER_SECONDS = 90
# How long the old active daemon may need to see that it has lost the lock.
END_SECONDS = 60
JUDGE_PORT = 11399
JUDGE_SECONDS = 120


class Scene:
    """A directory, two candidates that share it, load through the proxy, and what came of it."""

    def __init__(self, attempt, name, number):
        self.attempt, self.name, self.number = attempt, name, number
        self.network, self.storage = attempt.network, attempt.storage
        self.nodes = attempt.network.nodes
        self.folder = f"{name}-{number}"
        self.ledger = Ledger(self.folder, attempt.seed)
        self.managers, self.producers, self.remarks = {}, [], []
        self.old = self.fault_at = self.settled_at = self.halted_at = None
        # The longest in which clients got no answer, each after a fault of its own.
        self.pauses = []
        self.stories = {}

    def directory(self, name):
        return self.nodes[name].mount / self.folder

    def manage(self, name):
        program, directory = self.attempt.program, self.directory(name)
        self.managers[name] = self.storage.manager(self.nodes[name], program, directory)
        return self.managers[name].runs[0]

    def runs(self):
        return [run for manager in self.managers.values() for run in manager.runs]

    def prepare(self):
        """A new directory, in a file system that is well, and a proxy that knows of no daemon."""
        self.storage.prepare(self.folder)
        look = self.attempt.look
        wait(look.all_down, "the proxy knows of no daemon", READY_SECONDS)

    def begin(self):
        """c1 serves, c2 waits, and the proxy knows it."""
        self.prepare()
        self.start_active()
        self.start_standby()
        wait(lambda: self.standby.waits_at, "c2 waits for the lock", READY_SECONDS)
        look = self.attempt.look
        wait(lambda: look.is_up("c1"), "the proxy sees c1", READY_SECONDS)
        self.settled_at = time.monotonic()

    def begin_with_load(self, *names):
        """Clients put through the proxy, and on these candidates to their own daemon."""
        self.begin()
        self.load()
        for name in names or ("c1",):
            self.load_inside(name)
        time.sleep(LOAD_SECONDS)

    def start_active(self):
        self.old = self.manage("c1")
        wait(lambda: self.old.listens_at, "c1 serves", READY_SECONDS)

    def start_standby(self):
        self.standby = self.manage("c2")

    def load(self):
        """Clients that come through the proxy."""
        for number in range(PRODUCERS):
            self.put_to("cl", "127.0.0.1", f"proxied{number}")

    def load_inside(self, name="c1"):
        """A client on the candidate itself: it puts there whatever the proxy and the network do."""
        return self.put_to(name, "127.0.0.1", f"inside-{name}")

    def put_to(self, name, host, label):
        producer = Producer(self.ledger, self.nodes[name], host, label)
        self.producers.append(producer)
        return producer

    def say(self, text):
        say(f"{self.folder}: {text}")

    def fault(self, what):
        """From now on it is counted how long clients wait."""
        self.fault_at = time.monotonic()
        self.say(f"{what}; {len(self.ledger.acks)} acknowledged so far")

    def since_fault(self):
        return time.monotonic() - self.fault_at

    def wait_for_takeover(self):
        """Until a put that came through the proxy is acknowledged by another run."""

        def taken_over():
            old = self.old.identity()
            return any(ack.is_proxied and ack.process != old for ack in self.ledger.acks[-100:])

        wait(taken_over, "another daemon acknowledges", TAKEOVER_SECONDS)
        self.say(f"another daemon serves {self.since_fault():.1f} s later")
        time.sleep(LOAD_SECONDS)

    def heal(self):
        self.network.heal("c1")
        self.say(f"c1 is healed; its daemon: {self.old.story()}")

    def wait_for_the_old_one(self):
        """Until the daemon that was active first has ended."""
        if self.old.story() != "runs":
            return
        try:
            wait(lambda: self.old.story() != "runs", "the old one ends", END_SECONDS)
        except Failed:
            self.say(f"the old one still runs after {END_SECONDS} s")
        else:
            self.say(f"the old one has ended with {self.old.story()}")

    def end(self):
        """The end of whatever runs, however far it has come."""
        for producer in self.producers:
            producer.stopping.set()
        self.halted_at = time.monotonic()
        for producer in self.producers:
            producer.halt()
        for manager in self.managers.values():
            manager.stopping.set()
        # What became of each run by itself.
        self.stories = {run: run.story() for run in self.runs()}
        self.network.heal("c1")
        for manager in self.managers.values():
            manager.stop()

    def longest_pause(self, since, until):
        """In seconds, between two answers that clients got through the proxy."""
        acks = (ack.at for ack in self.ledger.acks if ack.is_proxied and since < ack.at < until)
        times = [since, *sorted(acks), until]
        return max(late - soon for soon, late in itertools.pairwise(times))

    @contextlib.contextmanager
    def quiet(self):
        """Meanwhile no client puts."""
        for producer in self.producers:
            producer.resumed.clear()
        yield
        for producer in self.producers:
            producer.resumed.set()


class Row:
    """What is judged of an experiment, as a line of the table."""

    TITLES = (
        "experiment", "round", "next INSERTED", "acknowledged", "deleted", "lost", "twice",
        "returned", "both at once", "old one", "standby up early", "remarks",
    )  # fmt: skip

    def __init__(self, scene):
        self.scene = scene
        self.next = self.lost = self.twice = self.returned = self.both = self.early = None
        self.failures = []

    @contextlib.contextmanager
    def noting_failures(self):
        try:
            yield
        except (Failed, OSError) as failure:
            self.failures.append(str(failure))

    def judge(self, statuses):
        """Everything that can be told once all daemons have ended."""
        scene = self.scene
        if scene.old not in scene.stories or scene.fault_at is None:
            raise Failed("nothing to judge")
        self.next = max(scene.pauses or [scene.longest_pause(scene.fault_at, scene.halted_at)])
        self.judge_ends(statuses)
        self.judge_overlap()
        self.judge_proxy()
        self.judge_jobs()

    def judge_ends(self, statuses):
        old = self.scene.stories[self.scene.old]
        if old.isdigit():
            self.scene.say(f"the old one's last line was\n    {self.scene.old.lines[-1]}")
        if old not in statuses:
            self.failures.append(f"the old one: {old}, not {' or '.join(statuses)}")

    def judge_overlap(self):
        """Of two runs, the one that acknowledged first must not go on when the other has begun."""
        scene = self.scene
        acks = sorted(scene.ledger.acks, key=lambda ack: ack.at)
        first = {}
        for ack in acks:
            first.setdefault(ack.process, ack.at)
        order = list(first)
        self.both = 0
        for ack in acks:
            later = order[order.index(ack.process) + 1 :]
            if later and ack.at > first[later[0]]:
                self.both += 1
                if self.both == 1:
                    late = ack.at - first[later[0]]
                    body = ack.body.decode()
                    scene.say(f"{body} is acknowledged {late:.3f} s after another's first")
        if self.both:
            self.failures.append("two daemons acknowledged at once")

    def judge_proxy(self):
        """Whether the standby was taken for up, or was given a client, before it served."""
        scene = self.scene
        runs = scene.managers["c2"].runs
        serves_at = min((run.listens_at for run in runs if run.listens_at), default=math.inf)
        before, later = scene.attempt.look.states("c2", scene.settled_at)
        early = [
            at for at, (status, sessions) in later
            if at < serves_at and (status == "UP" or sessions > before[1])
        ]  # fmt: skip
        self.early = "yes" if early else "no"
        if early:
            self.failures.append("the proxy took the standby for up")

    def judge_jobs(self):
        """Every acknowledged job must be in what has survived, unless it was deleted."""
        scene, ledger = self.scene, self.scene.ledger
        self.lost = self.twice = self.returned = 0
        for name in scene.storage.copies():
            self.judge_copy(name, ledger)

    def judge_copy(self, name, ledger):
        scene, found = self.scene, self.survivors(name)
        acknowledged = {ack.body for ack in ledger.acks}
        lost = acknowledged - set(found) - ledger.deleted - ledger.perhaps_deleted
        twice = {body for body, count in found.items() if count > 1} - ledger.unknown
        returned = ledger.deleted & set(found) - ledger.unknown | set(ledger.returned)
        invented = set(found) - ledger.sent
        self.lost = max(self.lost, len(lost))
        self.twice = max(self.twice, len(twice))
        self.returned = max(self.returned, len(returned))
        faults = {"lost": lost, "twice": twice, "returned": returned, "invented": invented}
        for what, bodies in faults.items():
            if bodies:
                scene.say(f"{what}, on {name}: {sorted(bodies)[:5]}")
                self.failures.append(f"{len(bodies)} {what}, on {name}")
        again = sum(count > 1 for body, count in found.items() if body in ledger.unknown)
        if again:
            scene.remarks.append(f"{again} twice of {len(ledger.unknown)} with unknown answers")

    def survivors(self, name):
        """The bodies of all jobs that a daemon finds there, and how often it has each."""
        scene, node = self.scene, self.scene.nodes[name]
        directory = scene.directory(name)
        program = scene.attempt.program
        status, text = node.run(program, "--check-binlog", directory, seconds=60, check=False)
        if status != 0:
            scene.remarks.append(f"--check-binlog: {status}")
            scene.say(f"--check-binlog: {status}\n{text}")
        flags = ("-l", "127.0.0.1", "-p", str(JUDGE_PORT))
        daemon = Daemon(node, program, directory, *flags)
        found = collections.Counter()
        try:
            wait(lambda: daemon.listens_at, "the jobs are read for the judgement", JUDGE_SECONDS)
            reader = threading.Thread(target=reserve_all, args=(node, found), daemon=True)
            reader.start()
            reader.join(JUDGE_SECONDS)
            if None not in found:
                raise Failed(f"not all jobs could be reserved; {len(found)} were")
            del found[None]
        finally:
            daemon.kill()
            daemon.child.wait()
        return found

    def cells(self):
        scene = self.scene
        return [
            scene.name,
            scene.number,
            "-" if self.next is None else f"{self.next:.1f} s",
            len(scene.ledger.acks),
            len(scene.ledger.deleted),
            *(
                "?" if known is None else known
                for known in (self.lost, self.twice, self.returned, self.both)
            ),
            scene.stories.get(scene.old, "?"),
            self.early or "?",
            "; ".join([f"FAILED: {text}" for text in self.failures] + scene.remarks),
        ]


def reserve_all(node, found):
    """Counts the bodies of all jobs; None is counted when there is no other."""
    node.enter()
    client = Client("127.0.0.1", JUDGE_PORT)
    while (reply := client.ask("reserve-with-timeout 0"))[0] == "RESERVED":
        found[client.body] += 1
    if reply[0] == "TIMED_OUT":
        found[None] = 1
    client.close()
