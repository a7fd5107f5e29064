"""Disks with a file system that one machine mounts. DRBD: each candidate has a copy, and a machine
that has lost its peer switches it off before it writes. Ceph RBD: an image in a cluster that takes
no writes of a machine that has lost the image's lock."""

import json
import os
import shutil
import time

from cuts import SECTOR, Cut, Images, copy_data, read_log
from guests import Guest, Virtual
from nodes import CANDIDATES, run
from storage import Ceph
from trial import PACKAGING, wait

# The bytes of the file system, and of the disk: DRBD's own data are at its end.
FILE_SYSTEM, DISK = "63M", "64M"
LINK_ADDRESSES = {"c1": "10.78.0.21", "c2": "10.78.0.22"}
CONNECT_SECONDS = 60
# The defects that the trial must find: the stage, the experiment, and what each changes in jobs.res
# or jobs-volume.
PLANTS = {
    "no-fencing": ("drbd", "link", ("resource-and-stonith", "dont-care")),
    # DRBD refuses it together with the other way of fencing.
    "protocol-a": (
        "drbd",
        "fading",
        ("resource-and-stonith", "resource-only"),
        ("protocol C", "protocol A"),
    ),
    "no-lock": ("rbd", "cut", ("--exclusive", ""), ("| grep -q 'Watchers: none'", "> /dev/null")),
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
IMAGE = "jobs/disk"
# The guests have no udev.
RBD_WITHOUT_UDEV = """#!/bin/sh
[ "$1" != unmap ] || set -- "$@" --options noudev
exec /usr/lib/rbd "$@"
"""
# As systemd would: jobs-disk.service, and a daemon that jobs-volume wants.
SYSTEMCTL_OF_IMAGE = """#!/bin/sh
case "$*" in
    "start --no-block beanstalkd") touch /run/wanted ;;
    "stop --no-block beanstalkd") rm -f /run/wanted; kill $(pidof beanstalkd) ;;
    "kill --signal=KILL beanstalkd") kill -9 $(pidof beanstalkd) ;;
    *) exit 1 ;;
esac 2> /dev/null
"""
SERVICE_ON_IMAGE = """#!/bin/sh
shift
rm -f /run/stopped /run/wanted
echo 'service starts'
while [ ! -e /run/stopped ]; do
    jobs-volume &
    echo $! > /run/jobs-volume.pid
    wait $!
    sleep 1
done &
while [ ! -e /run/stopped ]; do
    if [ -e /run/wanted ]; then
        sh -c 'echo process $$; exec "$@"' sh /beanstalkd "$@"
        echo "service ended $?"
        sleep 1
        echo 'service starts'
    else
        sleep 0.2
    fi
done
"""


def planted(text, plant):
    """The text with a defect, if one is planted."""
    for change in PLANTS[plant][2:] if plant else ():
        text = text.replace(*change)
    return text


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
        text = planted(text, self.plant)
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


class RbdGuest(Guest):
    def hand_over(self):
        """As systemd would stop jobs-disk.service."""
        self.ask("touch /run/stopped; systemctl stop --no-block beanstalkd")
        wait(lambda: self.runs[-1].status is not None, "the daemon ends", CONNECT_SECONDS)
        self.ask("MAINPID=$(cat /run/jobs-volume.pid) jobs-volume leave")


class Rbd(Virtual, Ceph):
    name = "Ceph RBD"
    packages = (*Virtual.packages, *Ceph.packages)
    programs = (*Virtual.programs, *Ceph.programs, "rbd")
    devices = Virtual.devices
    mounted = ()
    flags = ""
    # jobs-volume ends a daemon that cannot write.
    ends = ("0", "signal 9")

    def up(self):
        Ceph.up(self)
        self.ask("osd", "pool", "create", "jobs", "8")
        self.ask("osd", "pool", "application", "enable", "jobs", "rbd")
        lines = self.config.read_text().splitlines()
        lines = [line for line in lines if line.startswith(("[", "mon_host", "auth_"))]
        script = (PACKAGING / "failover/rbd/jobs-volume").read_text()
        files = {
            "usr/lib/rbd": shutil.which("rbd"),
            "usr/local/sbin/rbd": RBD_WITHOUT_UDEV,
            "etc/ceph/ceph.conf": "\n".join([*lines, "rbd_default_map_options = noudev\n"]),
            "usr/local/sbin/jobs-volume": planted(script, self.plant),
            "usr/local/sbin/systemctl": SYSTEMCTL_OF_IMAGE,
            "usr/local/sbin/service": SERVICE_ON_IMAGE,
        }
        self.build(CANDIDATES, files, ("rbd",))

    def prepare(self, folder):
        """A new image with a file system, and two machines."""
        self.wait_until_healthy()
        self.disk = self.nodes["cl"].folder / "disk"
        self.remove_image()
        self.make_disk(self.disk, folder, "64M")
        features = "layering" if self.plant else "layering,exclusive-lock"
        self.rbd("import", "--no-progress", "--image-feature", features, self.disk, IMAGE)
        self.guests = {name: RbdGuest(self, name) for name in CANDIDATES}
        for guest in self.guests.values():
            run("truncate", "-s", "1M", guest.disk)
            guest.boot()
            guest.ask("modprobe rbd")

    def rbd(self, *words, check=True):
        return self.nodes["cl"].run("rbd", "-c", self.config, *words, check=check)

    def watchers(self):
        """The addresses of the clients that have the image."""
        status, text = self.rbd("status", "--format", "json", IMAGE, check=False)
        found = json.loads(text[text.index("{") :])["watchers"] if status == 0 else []
        return [watcher["address"] for watcher in found]

    def evict(self, name):
        """Blocklists a machine, whose writes no store takes from then on."""
        for address in self.watchers():
            if address.startswith(f"{self.nodes[name].address}:"):
                self.ask("osd", "blocklist", "add", address)

    def remove_image(self):
        for name in CANDIDATES:
            self.evict(name)
        wait(lambda: not self.watchers(), "no machine has the image", CONNECT_SECONDS)
        self.rbd("rm", "--no-progress", IMAGE, check=False)

    def copies(self):
        """The image, beside all caches."""
        node = self.nodes["cl"]
        self.disk.unlink()
        self.rbd("export", "--no-progress", IMAGE, self.disk)
        node.run("mount", "-t", "ext4", "-o", "loop", self.disk, node.mount)
        return ("cl",)

    def clear(self, folder):
        super().clear(folder)
        self.nodes["cl"].run("umount", self.nodes["cl"].mount, check=False)
