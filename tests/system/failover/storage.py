"""The file systems that the two candidates share: CephFS, which fences a machine that it has given
up, and GlusterFS, which gives up a lock more easily."""

import json
import os
import signal
import subprocess
import uuid
from pathlib import Path

from clients import Manager
from nodes import CANDIDATES, STORAGE, run, say
from trial import PACKAGING, Failed, wait

HERE = Path(__file__).resolve().parent
SETUP_SECONDS = 90
MOUNT_SECONDS = 60
UNMOUNT_SECONDS = 10
RECOVERY_SECONDS = 120
# The least that CephFS takes: a client that has been silent for so long is evicted.
SESSION_SECONDS = 30


class Storage:
    """What all have in common, and how most are mounted: by a process in each candidate, with
    FUSE."""

    devices = ("/dev/fuse",)
    plant = None
    # Further ways in which the first active daemon may end.
    ends = ()
    # The nodes that mount it.
    mounted = CANDIDATES

    def __init__(self, network):
        self.folder, self.nodes = network.folder, network.nodes
        self.fuse = {}

    def prepare(self, folder):
        """Makes the directory of an experiment."""
        self.wait_until_healthy()
        self.cure()
        self.nodes["c1"].run("mkdir", self.nodes["c1"].mount / folder)

    def manager(self, node, program, directory):
        """Starts the service on a candidate."""
        return Manager(node, program, directory)

    def machine(self, name, daemon):
        """The processes that are a candidate."""
        return self.fuse[name], daemon.child

    def settle(self, scene):
        """Repairs everything before the load ends, if that is of interest."""

    def copies(self):
        """The candidates on which all jobs must be, for the judge."""
        self.cure()
        return CANDIDATES[:1]

    def clear(self, folder):
        node = self.nodes[self.mounted[-1]]
        node.run("rm", "-rf", node.mount / folder, seconds=SETUP_SECONDS, check=False)

    def mount(self, name):
        node = self.nodes[name]
        self.fuse[name] = node.start(*self.mount_command(node), log="fuse")
        wait(node.is_mounted, f"{name} mounts {self.name}", MOUNT_SECONDS)
        wait(lambda: not self.is_sick(name), f"{name} can write to {self.name}", MOUNT_SECONDS)

    def unmount(self, name):
        node = self.nodes[name]
        status, _ = node.run("umount", node.mount, seconds=UNMOUNT_SECONDS, check=False)
        try:
            self.fuse[name].wait(UNMOUNT_SECONDS if status == 0 else 0)
        except subprocess.TimeoutExpired:
            self.fuse[name].kill()
            self.fuse[name].wait()
            node.run("umount", "-l", node.mount, check=False)

    def remount(self, name):
        self.unmount(name)
        self.mount(name)

    def is_sick(self, name):
        node = self.nodes[name]
        probe = node.mount / f"probe-{name}"
        return node.run("touch", probe, seconds=UNMOUNT_SECONDS, check=False)[0] != 0

    def cure(self):
        """Both candidates can write again, whatever has happened to their mounts."""
        for name in CANDIDATES:
            if self.is_sick(name):
                say(f"{name} mounts {self.name} again")
                self.remount(name)

    def wait_until_healthy(self):
        wait(self.is_healthy, f"{self.name} is healthy", RECOVERY_SECONDS)


class Ceph(Storage):
    name = "CephFS"
    packages = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph-common")
    programs = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph")

    @staticmethod
    def version():
        return run("ceph", "--version")[1].strip()

    def up(self):
        self.data = self.folder / "ceph"
        self.data.mkdir()
        self.config = self.folder / "ceph.conf"
        monitor, text = self.nodes["s1"], (HERE / "ceph.conf").read_text()
        fsid = str(uuid.uuid4())
        for old, new in (("FOLDER", self.folder), ("FSID", fsid), ("MONITOR", monitor.address)):
            text = text.replace(old, str(new))
        self.config.write_text(text)
        (self.data / "keyring").touch()
        say("CephFS: a monitor and a manager")
        at = f"[v2:{monitor.address}:3300]"
        monmap = self.data / "monmap"
        run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", at, monmap)
        run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "-c", self.config)
        self.start("s1", "ceph-mon", "a", "--public-addr", monitor.address)
        wait(lambda: self.ask("status", check=False), "the monitor answers", SETUP_SECONDS)
        (self.data / "mgr.x").mkdir()
        self.start("s1", "ceph-mgr", "x")
        # What can be killed and started again, by name.
        self.parts = {}
        for number, name in enumerate(STORAGE):
            say(f"CephFS: object store {number}")
            identity = str(uuid.uuid4())
            (self.data / f"osd.{number}").mkdir()
            self.ask("osd", "new", identity)
            self.nodes[name].run(
                "ceph-osd", "-i", number, "--mkfs", "--osd-uuid", identity, "-c", self.config
            )
            self.ask("osd", "crush", "add", f"osd.{number}", "1", "root=default")
            self.start(name, "ceph-osd", str(number))
        for pool in ("meta", "data"):
            self.ask("osd", "pool", "create", pool, "8")
        self.ask("fs", "new", "cephfs", "meta", "data")
        for option in ("session_timeout", "session_autoclose"):
            self.ask("fs", "set", "cephfs", option, SESSION_SECONDS)
        (self.data / "mds.m").mkdir()
        self.start("s2", "ceph-mds", "m")
        wait(self.is_healthy, "all stores are up and the metadata server is active", SETUP_SECONDS)
        for name in self.mounted:
            self.mount(name)

    def start(self, name, program, identity, *more):
        process = self.nodes[name].start(
            program, "-f", "-i", identity, "-c", self.config, *more, log=f"{program}-{identity}"
        )
        if program in ("ceph-osd", "ceph-mds"):
            self.parts[f"{program} {identity}"] = (process, (name, program, identity, *more))

    def kill_part(self, part):
        process, _ = self.parts[part]
        process.kill()
        process.wait()

    def start_part(self, part):
        self.start(*self.parts[part][1])

    def ask(self, *words, check=True):
        """What ceph answers, or with `check` off an empty text if it does not."""
        status, output = self.nodes["cl"].run("ceph", "-c", self.config, *words, check=check)
        return output if status == 0 else ""

    def is_healthy(self):
        text = self.ask("status", "-f", "json", check=False)
        if "{" not in text:
            return False
        status = json.loads(text[text.index("{") :])
        groups = status["pgmap"].get("pgs_by_state", [])
        ranks = status["fsmap"].get("by_rank", [])
        return (
            status["osdmap"]["num_up_osds"] == len(STORAGE)
            and [group["state_name"] for group in groups] == ["active+clean"]
            and [rank["status"] for rank in ranks] == ["up:active"]
        )

    def mount_command(self, node):
        return (
            "ceph-fuse", "-f", "-c", self.config, "-n", "client.admin",
            "--client_mountpoint=/", node.mount,
        )  # fmt: skip

    def evict(self, name):
        """Tells the metadata server to give up a client, which then may not write to any store."""
        self.ask("tell", "mds.m", "client", "evict", f"client_metadata.hostname={name}")


class Gluster(Storage):
    name = "GlusterFS"
    packages = ("glusterfs-server", "glusterfs-client")
    programs = ("glusterd", "glusterfs", "gluster")
    volume = "jobs"

    @staticmethod
    def version():
        return run("glusterd", "--version")[1].splitlines()[0]

    def up(self):
        for name in STORAGE:
            say(f"GlusterFS: {name}")
            self.nodes[name].start("glusterd", "-N", "-p", "/run/glusterd.pid")
        for name in STORAGE:
            self.wait_for(name)
        for name in STORAGE[1:]:
            self.ask("peer", "probe", name)
        wait(
            lambda: self.ask("pool", "list").count("Connected") == len(STORAGE),
            "the storage nodes know each other",
            SETUP_SECONDS,
        )
        say("GlusterFS: a volume of three copies")
        bricks = [f"{name}:{self.nodes[name].folder}/brick/{self.volume}" for name in STORAGE]
        wait(
            lambda: self.ask(
                "volume", "create", self.volume, "replica", "3", *bricks, "force", check=False
            ),
            "the volume is created",
            SETUP_SECONDS,
        )
        for line in (PACKAGING / "failover/glusterfs.options").read_text().splitlines():
            if line and not line.startswith("#"):
                self.ask("volume", "set", self.volume, *line.split())
        self.ask("volume", "start", self.volume)
        for name in CANDIDATES:
            self.mount(name)
        self.parts = {f"brick {name}": name for name in STORAGE}
        self.wait_until_healthy()

    def wait_for(self, name):
        def answers():
            return self.nodes[name].run(*self.words("pool", "list"), check=False)[0] == 0

        wait(answers, f"glusterd answers on {name}", SETUP_SECONDS)

    def words(self, *words):
        return ("gluster", "--mode=script", *words)

    def ask(self, *words, check=True):
        status, output = self.nodes["s1"].run(*self.words(*words), check=check)
        return output if status == 0 else ""

    def mount_command(self, node):
        return (
            "glusterfs", "-N", "--process-name", "fuse", "--log-level=WARNING",
            "--volfile-server=s1", f"--volfile-id={self.volume}", node.mount,
        )  # fmt: skip

    def kill_part(self, part):
        """glusterd starts its bricks itself, so this one is looked for among the node's."""
        namespace = self.nodes[self.parts[part]].namespace
        for pid in run("ip", "netns", "pids", namespace)[1].split():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"glusterfsd"):
                os.kill(int(pid), signal.SIGKILL)
                return
        raise Failed(f"there is no {part}")

    def start_part(self, part):
        self.nodes[self.parts[part]].run(*self.words("volume", "start", self.volume, "force"))

    def clear_lock(self, folder):
        """Forgets who has locked the file. It would have to be an error of the file system."""
        self.ask(
            "volume", "clear-locks", self.volume, f"/{folder}/lock", "kind", "granted", "posix"
        )

    def stored(self, folder):
        """Where a node stores the directory, beside all caches."""
        return self.nodes["s1"].folder / "brick" / self.volume / folder

    def is_healthy(self):
        text = self.ask("volume", "heal", self.volume, "info", check=False)
        healed = text.count("Number of entries: 0") == len(STORAGE)
        return healed and text.count("Status: Connected") == len(STORAGE)
