"""A virtual machine: Debian's kernel, a root in memory with busybox and some programs, and a disk,
whose writes and flushes QEMU may log."""

import functools
import os
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

from trial import Failed, execute, free_ports

COMMAND_SECONDS = 120
BOOT_SECONDS = 180
# A guest boots within 5 seconds, or KVM hangs, as it may in a nested machine.
KVM_BOOT_SECONDS = 15
INSTALL_SECONDS = 900
KERNEL_PACKAGE = "linux-image-cloud-amd64"
# What the kernel's package has as modules; each brings in the ones that it depends on.
MODULES = ("virtio_pci", "virtio_blk", "virtio_net")
# Below this the kernel's package is unpacked.
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or Path(__file__).parents[3] / "target")
# The daemon's port in the guest; QEMU forwards to it.
PORT = 11300
MEMORY = "512M"
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs devtmpfs /dev
mount -t proc proc /proc
mount -t sysfs sysfs /sys
stty -echo
modprobe -a MODULES
ip link set lo up
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
echo status=0=
while read -r line; do eval "$line"; done
"""


run = functools.partial(execute, seconds=COMMAND_SECONDS)


def get_kernel():
    """Unpacks Debian's kernel, once, and returns the folder."""
    folder = TARGET / "vm"
    unpacked = folder / "unpacked"
    if unpacked.exists():
        return unpacked
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _, text = run("apt-cache", "depends", KERNEL_PACKAGE)
    package = re.search(r"Depends: (linux-image-\S+)", text)
    if not package:
        raise Failed(f"apt knows no {KERNEL_PACKAGE}: run apt-get update")
    run("apt-get", "download", "-q", package[1], cwd=folder, seconds=INSTALL_SECONDS)
    (archive,) = folder.glob("*.deb")
    run("dpkg-deb", "-x", archive, folder / "half", seconds=INSTALL_SECONDS)
    archive.unlink()
    (release,) = (folder / "half/lib/modules").iterdir()
    run("busybox", "depmod", "-b", folder / "half", release.name)
    (folder / "half").rename(unpacked)
    return unpacked


def modules(folder, names):
    """The folder of the kernel's modules, and the paths in it of these and all that they need."""
    (release,) = (folder / "lib/modules").iterdir()
    lines = (release / "modules.dep").read_text().splitlines()
    needs = {line.split(":")[0]: line.split(":")[1].split() for line in lines if ":" in line}
    paths = {Path(path).name.removesuffix(".ko").replace("-", "_"): path for path in needs}
    found, open_paths = [], [paths[name] for name in names]
    while open_paths:
        path = open_paths.pop()
        if path not in found:
            found.append(path)
            open_paths += needs[path]
    return release, found


def make_root(folder, kernel, files, extra_modules=()):
    """Makes the archive of the guest's root. `files` has the source of each by its place there; the
    libraries that they are linked with come with them."""
    root = folder / "root"
    for name in ("bin", "dev", "proc", "sys", "tmp", "mnt"):
        (root / name).mkdir(parents=True)
    names = (*MODULES, *extra_modules)
    release, paths = modules(kernel, names)
    wanted = {"bin/busybox": shutil.which("busybox"), **files}
    wanted |= {f"lib/modules/{release.name}/{p}": release / p for p in (*paths, "modules.dep")}
    for source in files.values():
        found = re.findall(r"(/\S+) \(0x", run("ldd", source, check=False)[1])
        wanted |= {library.lstrip("/"): library for library in found}
    for place, source in wanted.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / place)
    (root / "init").write_text(INIT.replace("MODULES", " ".join(names)))
    (root / "init").chmod(0o755)
    archive = folder / "root.cpio"
    with open(archive, "wb") as output:
        names = subprocess.run(["find", "."], cwd=root, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(
            ["busybox", "cpio", "-o", "-H", "newc"],
            cwd=root,
            input=names,
            stdout=output,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    shutil.rmtree(root)
    return archive


class Machine:
    """A guest with one disk, if need be in a namespace that the words of `prefix` enter. The end of
    `log` grows with each write of the disk; commands go over its serial line, and the daemon's port
    is `port` here. `more` are further words for QEMU."""

    # KVM where a guest boots with it, or emulation.
    accelerators = {"kvm": KVM_BOOT_SECONDS, "tcg": BOOT_SECONDS}

    def __init__(self, kernel, root, disk, log=None, port=None, prefix=(), more=()):
        (image,) = (kernel / "boot").glob("vmlinuz-*")
        self.port = port or free_ports(1)[0]
        self.words = [
            *prefix, "qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none",
            "-m", MEMORY, "-serial", "stdio", "-kernel", image, "-initrd", root,
            # A busy host may give a guest no time while its kernel tests the timer.
            "-append", "console=ttyS0 quiet panic=1 no_timer_check",
            "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:{PORT}",
            "-device", "virtio-net-pci,netdev=net,romfile=",
            # The files may stay in this machine's memory: only the order in the log counts.
            "-blockdev", f"driver=file,filename={disk},node-name=disk,cache.no-flush=on",
            "-device", f"virtio-blk-pci,drive={'recorded' if log else 'disk'},write-cache=on",
            *more,
        ]  # fmt: skip
        if log:
            open(log, "wb").close()
            self.words += [
                "-blockdev", f"driver=file,filename={log},node-name=log,cache.no-flush=on",
                "-blockdev", "driver=blklogwrites,file=disk,log=log,node-name=recorded",
            ]  # fmt: skip
        for accelerator, seconds in list(Machine.accelerators.items()):
            try:
                self.boot(accelerator, seconds)
                return
            except Failed:
                self.kill()
                if accelerator == "tcg":
                    raise
                Machine.accelerators.pop(accelerator, None)

    def boot(self, accelerator, seconds):
        self.process = subprocess.Popen(
            [*self.words, "-accel", accelerator],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.said = b""
        self.answer("boot", seconds)
        self.ask("test -b /dev/vda")

    def ask(self, command, check=True):
        """Runs a line of shell in the guest; returns its output."""
        self.process.stdin.write(command.encode() + b"; echo status=$?=\n")
        self.process.stdin.flush()
        return self.answer(command, COMMAND_SECONDS, check)

    def answer(self, command, seconds, check=True):
        deadline = time.monotonic() + seconds
        while not (found := re.search(rb"(.*)status=(\d+)=", self.said, re.DOTALL)):
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self.process.stdout], [], [], left)[0]:
                text = f"no answer for {seconds} s to: {command}\n{self.text()}"
                raise Failed(text)
            some = os.read(self.process.stdout.fileno(), 65536)
            if not some:
                raise Failed(f"QEMU has ended\n{self.text()}")
            self.said += some
        self.said = b""
        output = found[1].decode(errors="replace")
        if check and found[2] != b"0":
            raise Failed(f"in the guest: {command}: status {found[2].decode()}\n{output}")
        return output

    def text(self):
        return self.said.decode(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
