"""Machines on this machine: namespaces of their own for network, mounts and host name, on one
bridge. What runs in them is ended by their network namespace, so nothing else is ever touched."""

import ctypes
import functools
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from trial import Failed, execute, say_when as say

CLONE_NEWNET = 0x40000000
# How long a command may take that ought to take no time.
COMMAND_SECONDS = 30
END_SECONDS = 20
# Storage, the two candidates to serve, and the clients with their proxy.
ADDRESSES = {
    "s1": "10.77.0.11",
    "s2": "10.77.0.12",
    "s3": "10.77.0.13",
    "c1": "10.77.0.21",
    "c2": "10.77.0.22",
    "cl": "10.77.0.31",
}
STORAGE = ("s1", "s2", "s3")
CANDIDATES = ("c1", "c2")
# Of a try, by its process id. Paths of sockets must be short.
PREFIX = "ha-%d-"
FOLDER = "/tmp/beanstalkd-failover-%d"

libc = ctypes.CDLL(None, use_errno=True)
run = functools.partial(execute, seconds=COMMAND_SECONDS)


class Node:
    """A machine: a process that does nothing holds its namespaces open."""

    def __init__(self, network, name):
        self.name, self.address = name, ADDRESSES[name]
        self.namespace = f"{network.prefix}{name}"
        self.folder = network.folder / name
        self.log = network.folder / "log"
        self.mount = self.folder / "mnt"
        # The ports, each with its namespace, that connect it.
        self.ports = [(network.switch, f"to-{name}")]
        self.is_cut = False
        for folder in (self.mount, self.folder / "glusterd", self.folder / "brick"):
            folder.mkdir(parents=True)
        run("ip", "netns", "add", self.namespace)
        run(
            "ip", "link", "add", f"to-{name}", "netns", network.switch,
            "type", "veth", "peer", "name", "eth0", "netns", self.namespace,
        )  # fmt: skip
        run("ip", "-n", network.switch, "link", "set", f"to-{name}", "master", "bridge", "up")
        run("ip", "-n", self.namespace, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", self.namespace, "link", "set", device, "up")
        # /run and the places of glusterd must not be those of the machine, nor of other nodes.
        setup = f"""set -e
            mount --make-rprivate /
            hostname {name}
            mount --bind {network.folder}/hosts /etc/hosts
            mkdir -p /var/lib/glusterd /var/log/glusterfs
            mount --bind {self.folder}/glusterd /var/lib/glusterd
            mount --bind {self.log} /var/log/glusterfs
            mount -t tmpfs tmpfs /run
            mkdir -p /run/gluster /run/ceph
            echo ready
            exec sleep infinity"""
        self.holder = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", "-m", "-u", "sh", "-c", setup],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        line = self.holder.stdout.readline()
        if line != b"ready\n":
            raise Failed(f"cannot set up {self.namespace}: {line} {self.holder.stdout.read()}")

    def inside(self, *command):
        words = [str(word) for word in command]
        return ["nsenter", "-t", str(self.holder.pid), "-m", "-n", "-u", "--", *words]

    def run(self, *command, **options):
        return run(*self.inside(*command), **options)

    def start(self, *command, log=None):
        """Starts a program in the foreground. Its process id is that of the program itself."""
        with open(self.log / f"{log or Path(command[0]).name}-{self.name}.out", "ab") as output:
            return subprocess.Popen(
                self.inside(*command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def enter(self):
        """From now on the sockets of this thread are those of the node. Never the main thread, or
        the node's end would be that of the try."""
        with open(f"/proc/{self.holder.pid}/ns/net", "rb") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def is_mounted(self):
        mounts = Path(f"/proc/{self.holder.pid}/mounts").read_text()
        return f" {self.mount} fuse." in mounts


class Network:
    """All nodes, and the bridge between them."""

    def __init__(self):
        self.folder = Path(FOLDER % os.getpid())
        self.prefix = PREFIX % os.getpid()
        self.switch = f"{self.prefix}sw"
        self.nodes = {}

    def up(self):
        (self.folder / "log").mkdir(parents=True)
        hosts = [f"{address} {name}\n" for name, address in ADDRESSES.items()]
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(hosts))
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for name in ADDRESSES:
            self.nodes[name] = Node(self, name)

    def cut(self, name, last_port_only=False):
        """As if the cables were pulled: what the node sends vanishes, and nothing tells it."""
        node = self.nodes[name]
        node.is_cut = not last_port_only
        set_ports(node.ports[-1:] if last_port_only else node.ports, "down")

    def heal(self, name):
        set_ports(self.nodes[name].ports, "up")
        self.nodes[name].is_cut = False

    def down(self, keeps_folder):
        take_down(self.prefix)
        if not keeps_folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def set_ports(ports, state):
    for namespace, port in ports:
        run("ip", "-n", namespace, "link", "set", port, state)


def namespaces(prefix):
    names = (line.split()[0] for line in run("ip", "netns", "list")[1].splitlines())
    return [name for name in names if name.startswith(prefix)]


def take_down(prefix):
    """Ends what runs in the namespaces that are named so, and removes them. Mounts end with the
    last process in their namespace."""
    deadline = time.monotonic() + END_SECONDS
    names = namespaces(prefix)
    for name in names:
        while pids := run("ip", "netns", "pids", name, check=False)[1].split():
            if time.monotonic() > deadline:
                say(f"{name}: these do not end: {' '.join(pids)}")
                break
            for pid in pids:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)
    for name in names:
        run("ip", "netns", "del", name, check=False)


def take_down_leftovers():
    """What a try has left that was itself killed."""
    found = (re.match(PREFIX.replace("%d", r"(\d+)"), name) for name in namespaces(""))
    for pid in {int(match[1]) for match in found if match}:
        if not Path(f"/proc/{pid}").exists():
            say(f"taking down what process {pid} has left")
            take_down(PREFIX % pid)
            shutil.rmtree(FOLDER % pid, ignore_errors=True)
