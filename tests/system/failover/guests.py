"""Candidates, and servers, that are virtual machines. Each is in the namespaces of a node, and has
its address."""

import contextlib
import socket
import threading

from clients import PORT, Run
from machine import Machine, get_kernel, make_root
from nodes import run, say
from storage import Storage
from trial import wait

START_SECONDS = 30
SEGMENT_BYTES = 1 << 20
# As its fencing device, each guest has a serial line to the trial.
POWER_OFF = """#!/bin/sh
exec 3<> /dev/ttyS2
echo "$1" >&3
read -r -t 15 answer <&3 && [ "$answer" = off ]
"""
# As systemd would: the unit that comes before the daemon's, Restart=always and RestartSec=1.
SERVICE = """#!/bin/sh
before=$1
shift
rm -f /run/stopped
while [ ! -e /run/stopped ]; do
    echo 'service starts'
    $before && sh -c 'echo process $$; exec "$@"' sh /beanstalkd "$@"
    echo "service ended $?"
    sleep 1
done
"""


class GuestRun(Run):
    """A run of the daemon in a guest."""

    def __init__(self, guest):
        super().__init__(guest.node)
        self.machine = guest.machine

    def kill(self):
        self.machine.ask(f"kill -9 {self.pid}")

    def story(self):
        is_off = self.status is None and self.machine.process.poll() is not None
        return "switched off" if is_off else super().story()


class Guest:
    """A machine, and the service on it if it is a candidate."""

    def __init__(self, storage, name):
        self.storage, self.name, self.node = storage, name, storage.nodes[name]
        self.disk = self.node.folder / "disk"
        # Where QEMU logs the disk's writes, if that is of interest.
        self.log = None
        self.stopping = threading.Event()
        self.runs, self.boots = [], 0
        self.machine = self.service = None

    def boot(self):
        channels = [self.node.folder / f"{kind}.sock" for kind in ("log", "fence")]
        more = []
        for number, channel in enumerate(channels):
            channel.unlink(missing_ok=True)
            more += ["-chardev", f"socket,id=s{number},path={channel},server=on,wait=off"]
            more += ["-serial", f"chardev:s{number}"]
        for number, (tap, _) in enumerate(self.node.taps):
            mac = f"52:54:00:77:{self.node.address.split('.')[-1]}:0{number}"
            more += ["-netdev", f"tap,id=n{number},ifname={tap},script=no,downscript=no"]
            more += ["-device", f"virtio-net-pci,netdev=n{number},mac={mac},romfile="]
        kernel, root, prefix = self.storage.kernel, self.storage.root, self.node.inside()
        self.machine = Machine(kernel, root, self.disk, self.log, PORT, prefix, more)
        for channel, follow in zip(channels, (self.follow_log, self.follow_fence)):
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(str(channel))
            threading.Thread(target=follow, args=(self.machine, stream), daemon=True).start()
        self.ask(f"hostname {self.name}; cd /; export PATH=$PATH:/sbin:/usr/sbin:/usr/local/sbin")
        for number, (_, address) in enumerate(self.node.taps, 1):
            self.ask(f"ip addr add {address}/24 dev eth{number} && ip link set eth{number} up")
        self.ask("mkdir -p /srv/beanstalkd /var/lib /run && ln -s /run /var/run")
        self.ask("for tty in /dev/ttyS1 /dev/ttyS2; do stty raw -echo < $tty; done")
        self.ask("chmod +x /usr/local/sbin/*")
        # No two runs have the same process id.
        self.boots += 1
        self.ask(f"echo {self.boots * 1000} > /proc/sys/kernel/ns_last_pid")

    def ask(self, command, **options):
        return self.machine.ask(command, **options)

    def is_on(self):
        return self.machine.process.poll() is None

    def start(self):
        """Starts the service."""
        self.ask(f"service {self.service} > /dev/ttyS1 2>&1 & true")

    def stop(self):
        if self.machine:
            self.machine.kill()

    def follow_log(self, machine, stream):
        for line in stream.makefile(errors="replace"):
            line = line.strip()
            if line == "service starts":
                self.runs.append(GuestRun(self))
            elif line.startswith("service ended "):
                status = int(line.split()[2])
                # A shell adds 128 to a signal.
                self.runs[-1].end(status if status < 128 else 128 - status)
            elif self.runs:
                self.runs[-1].note(line)

    def follow_fence(self, machine, stream):
        """Switches the other machine off when this one asks for it, unless it is cut off."""
        for line in stream.makefile():
            name = line.strip()
            with self.storage.fence, contextlib.suppress(OSError):
                if machine.process.poll() is None and not self.node.is_cut:
                    say(f"{self.name} has {name} switched off")
                    self.storage.guests[name].stop()
                    stream.sendall(b"off\n")


class Virtual(Storage):
    """What storage has in common whose candidates are guests."""

    packages = ("qemu-system-x86", "busybox-static", "e2fsprogs")
    programs = ("qemu-system-x86_64", "busybox", "mkfs.ext4")
    devices = ("/dev/loop-control",)
    # The command that the service waits for before it starts the daemon, and flags of the daemon.
    before, flags = "true", "--wait-for-lock"

    def build(self, names, files, modules=()):
        """Makes the root of the guests, with these files by their places, or the texts of some."""
        self.kernel, self.fence, self.guests = get_kernel(), threading.Lock(), {}
        made = self.folder / "made"
        made.mkdir()
        files = {
            "beanstalkd": self.folder / "beanstalkd",
            "usr/local/sbin/power-off": POWER_OFF,
            "usr/local/sbin/service": SERVICE,
            **files,
        }
        for number, (place, source) in enumerate(files.items()):
            if "\n" in str(source):
                files[place] = made / str(number)
                files[place].write_text(source)
        self.root = make_root(self.folder, self.kernel, files, modules)
        for name in names:
            self.nodes[name].run("ip", "address", "flush", "dev", "eth0")
            self.nodes[name].taps = []
            self.add_tap(name, "eth0", self.nodes[name].address)

    def add_tap(self, name, port, address):
        """Connects a guest to a port of its node."""
        node, bridge, tap = self.nodes[name], f"{port}-bridge", f"{port}-tap"
        node.run("ip", "link", "add", bridge, "type", "bridge")
        node.run("ip", "tuntap", "add", tap, "mode", "tap")
        for device in (port, tap):
            node.run("ip", "link", "set", device, "master", bridge, "up")
        node.run("ip", "link", "set", bridge, "up")
        node.taps.append((tap, address))

    def version(self):
        (image,) = (self.kernel / "boot").glob("vmlinuz-*")
        return f"{self.name}, {image.name}"

    def make_disk(self, disk, folder, size):
        """Makes a file system with one empty directory."""
        tree = self.folder / "tree" / folder
        (tree / folder).mkdir(parents=True)
        disk.unlink(missing_ok=True)
        run("mkfs.ext4", "-q", "-m", "0", "-d", tree, disk, size)

    def manager(self, node, program, directory):
        guest = self.guests[node.name]
        guest.service = (
            f"'{self.before}' -b /srv/beanstalkd/{directory.name} -f0 -l 0.0.0.0 -p {PORT}"
            f" -s {SEGMENT_BYTES} --exit-on-binlog-failure 0 {self.flags}"
        )
        guest.start()
        wait(lambda: guest.runs, f"the service starts on {node.name}", START_SECONDS)
        return guest

    def machine(self, name, _):
        return (self.guests[name].machine.process,)

    def mount_disk(self, name):
        """Mounts the disk of a guest, which is off, for the judge."""
        node = self.nodes[name]
        node.run("umount", node.mount, check=False)
        node.run("mount", "-t", "ext4", "-o", "loop", self.guests[name].disk, node.mount)

    def clear(self, _):
        for name, guest in self.guests.items():
            guest.stop()
            self.nodes[name].run("umount", self.nodes[name].mount, check=False)
