"""DRBD: each candidate has a copy of one disk. A machine that has lost its peer switches it off
before it writes."""

import os
import time

from cuts import SECTOR, Cut, Images, copy_data, read_log
from guests import Guest, Virtual
from nodes import CANDIDATES, run
from trial import PACKAGING, wait

# The bytes of the file system, and of the disk: DRBD's own data are at its end.
FILE_SYSTEM, DISK = "63M", "64M"
LINK_ADDRESSES = {"c1": "10.78.0.21", "c2": "10.78.0.22"}
CONNECT_SECONDS = 60
# The defects that the trial must find: the experiment, and what each changes in jobs.res.
PLANTS = {
    "no-fencing": ("link", ("resource-and-stonith", "dont-care")),
    # DRBD refuses it together with the other way of fencing.
    "protocol-a": (
        "fading",
        ("resource-and-stonith", "resource-only"),
        ("protocol C", "protocol A"),
    ),
}
# The guests have no systemd.
SYSTEMCTL = """#!/bin/sh
[ "$*" = "start --no-block beanstalkd" ]
"""
SCRIPTS = ("jobs-promote", "jobs-demote", "jobs-fence")
# The programs of the guest, by their place there.
FILES = {
    **{f"sbin/{name}": f"/sbin/{name}" for name in ("drbdadm", "drbdsetup", "drbdmeta")},
    **{f"lib/drbd/{name}": f"/lib/drbd/{name}" for name in ("drbdadm-84", "drbdsetup-84")},
    **{f"usr/local/sbin/{name}": PACKAGING / "failover/drbd" / name for name in SCRIPTS},
    # A loop of a shell starts the daemon.
    "usr/local/sbin/systemctl": SYSTEMCTL,
}


class DrbdGuest(Guest):
    """A candidate. When its power is cut, its disk loses a part of the writes that it has not
    flushed."""

    def boot(self):
        self.fresh, self.log = self.node.folder / "fresh", self.node.folder / "writes"
        if self.machine:
            self.lose_writes()
        copy_data(self.disk, self.fresh)
        super().boot()
        self.ask("mkdir -p /var/lib/drbd /var/lock && modprobe drbd")

    def start_again(self):
        self.boot()
        self.start()

    def hand_over(self):
        """As systemd would stop jobs-disk.service."""
        self.ask(f"touch /run/stopped; kill {self.runs[-1].pid}")
        wait(lambda: self.runs[-1].status is not None, "the daemon ends", CONNECT_SECONDS)
        self.ask("jobs-demote")

    def leave(self):
        """The same, while it waits."""
        self.ask("touch /run/stopped; MAINPID=$(pidof jobs-promote) jobs-demote")

    def lose_writes(self):
        entries = read_log(self.log)
        flush = max(number for number, entry in enumerate(entries) if entry.is_flush)
        images = Images(self.fresh, self.log, entries, self.node.folder, SECTOR)
        seed = f"{self.storage.seed} {self.name} {len(entries)}"
        os.replace(images.make(Cut(len(entries) - 1, flush, seed, True)), self.disk)


class Drbd(Virtual):
    name = "DRBD 8.4"
    packages = (*Virtual.packages, "drbd-utils")
    programs = (*Virtual.programs, "drbdadm")
    before, flags = "jobs-promote", ""

    def up(self):
        text = "global { usage-count no; }\n" + (PACKAGING / "failover/drbd/jobs.res").read_text()
        text = text.replace("/dev/disk/by-partlabel/jobs", "/dev/vda")
        for change in PLANTS[self.plant][1:] if self.plant else ():
            text = text.replace(*change)
        self.build(CANDIDATES, {**FILES, "etc/drbd.conf": text}, ("drbd",))
        first, second = (self.nodes[name] for name in CANDIDATES)
        run(
            "ip", "-n", first.namespace, "link", "add", "cable", "type", "veth",
            "peer", "name", "cable", "netns", second.namespace,
        )  # fmt: skip
        for node in (first, second):
            self.add_tap(node.name, "cable", LINK_ADDRESSES[node.name])
            # It is cut with the machine's other port.
            node.ports.append((node.namespace, "cable"))

    def prepare(self, folder):
        """Two machines with equal copies of a new file system."""
        self.guests = {name: DrbdGuest(self, name) for name in CANDIDATES}
        first, second = self.guests.values()
        self.make_disk(first.disk, folder, FILE_SYSTEM)
        run("truncate", "-s", DISK, first.disk)
        run("cp", "--sparse=always", first.disk, second.disk)
        for guest in self.guests.values():
            guest.boot()
            guest.ask("drbdadm -- --force create-md jobs && drbdadm up jobs")
        wait(
            lambda: first.ask("drbdadm cstate jobs").startswith("Connected"),
            "the machines connect",
            CONNECT_SECONDS,
        )
        first.ask("drbdadm new-current-uuid --clear-bitmap jobs/0")
        self.wait_until_healthy()

    def is_healthy(self):
        states = [guest.ask("drbdadm dstate jobs", check=False) for guest in self.guests.values()]
        return all("UpToDate/UpToDate" in state for state in states)

    def is_decided(self):
        """Whether one machine has switched the other off."""
        return not all(guest.is_on() for guest in self.guests.values())

    def settle(self, scene):
        """Starts machines that are off again, and waits until both have all jobs."""
        for guest in self.guests.values():
            if not guest.is_on():
                guest.start_again()
        begun = time.monotonic()
        self.wait_until_healthy()
        scene.say(f"both copies are equal {time.monotonic() - begun:.1f} s after the last start")

    def copies(self):
        for name in CANDIDATES:
            self.mount_disk(name)
        return CANDIDATES
