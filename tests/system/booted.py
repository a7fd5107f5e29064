"""A machine for packages: this one seen through an overlay, in which everything that is written is
forgotten. systemd-nspawn boots its own systemd there, without a network. When it ends, so do all its
processes.

It needs root, Debian with systemd and systemd-container, and a network for Debian's packages. Where
one is missing a trial says so, loudly, and succeeds; with --must-run it fails.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import trial
from trial import Failed, check, execute, run, say

SCRIPT = Path(sys.argv[0])

# Where the tree of the overlay finds what came from outside.
STAGE = Path("/beanstalkd-test")
# Where README says that ours is, if it is read there.
OURS = STAGE / "target/deb/beanstalkd_ours.deb"
THEIRS = STAGE / "theirs"
DEFAULTS = Path("/etc/default/beanstalkd")
DAEMON = "beanstalkd.service"
# What make_disk needs.
DISK_PACKAGES = ("nbdkit", "libnbd-bin", "fuse3")
# Installing asks nobody; where dpkg asks nevertheless, it finds no answer and fails.
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C.UTF-8",
}
BOOT_SECONDS = 1800
LINES_A_MINUTE = 20
# All that runs in the container ends with this script, whoever ends it.
NSPAWN = (
    "setpriv", "--pdeathsig", "KILL",
    "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--link-journal=no",
)  # fmt: skip
# The one thing that this machine boots for; with it the machine ends.
UNIT = f"""
[Unit]
SuccessAction=exit-force
FailureAction=exit-force

[Service]
Type=oneshot
TimeoutStartSec={BOOT_SECONDS}
Environment={" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())}
ExecStart={sys.executable} {STAGE}/{SCRIPT.name} --story
StandardOutput=file:{STAGE}/output
StandardError=inherit
"""


class Skip(Exception):
    """What this machine lacks."""


def enter():
    """Moves into a mount namespace of its own."""
    if os.geteuid() != 0:
        raise Skip("it needs root")
    for program in ("dpkg", "apt-get", "unshare", "setpriv", "systemd-nspawn", "/lib/systemd/systemd"):
        if shutil.which(program) is None:
            raise Skip(f"there is no {program}")
    attempt("there are no namespaces", "unshare", "--mount", "true")
    os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv, "--inside"])


def machine(deb, packages):
    """Makes a machine that has Debian's package, boots it, and returns the story's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", base)
        try:
            for name in ("theirs", "upper", "work", "root"):
                (base / name).mkdir()
            download = ("apt-get", "download", "-q", "beanstalkd")
            attempt("Debian's package cannot be had", *download, cwd=base / "theirs")
            root = base / "root"
            options = f"lowerdir=/,upperdir={base}/upper,workdir={base}/work"
            attempt("there is no overlay file system", "mount", "-t", "overlay", "overlay", "-o", options, root)
            if not (root / "var/lib/dpkg/status").exists():
                raise Skip("the overlay of the root has no packages")
            # Units want control groups of the new kind.
            for kind, place, sign in (
                ("sysfs", "/sys", "fs/cgroup"),
                ("cgroup2", "/sys/fs/cgroup", "cgroup.controllers"),
            ):
                if not Path(place, sign).exists():
                    attempt(f"there is no {kind}", "mount", "-t", kind, kind, place)
            attempt("systemd-nspawn does not run here", *NSPAWN, f"--directory={root}", "true")
            furnish(root, base / "theirs", deb, packages)
            return boot(root)
        finally:
            run("umount", "--recursive", "--lazy", base)


def attempt(lack, *command, **options):
    """Runs a command that fails where the machine lacks this."""
    try:
        run(*command, **options)
    except Failed as failure:
        raise Skip(f"{lack}: {str(failure).splitlines()[-1]}") from failure


def furnish(root, theirs, ours, packages):
    """Installs Debian's package and others, while there is a network; starts nothing."""
    stage = root / STAGE.relative_to("/")
    shutil.copytree(theirs, root / THEIRS.relative_to("/"))
    (stage / "target/deb").mkdir(parents=True)
    shutil.copy(ours, root / OURS.relative_to("/"))
    run("dpkg", "--extract", ours, str(stage / "tree"))
    (stage / "target/release").symlink_to("../tree/usr/bin")
    for script in (SCRIPT, __file__, trial.__file__, Path(__file__).with_name("works")):
        shutil.copy(script, stage)
    (stage / "output").touch()
    (root / "etc/systemd/system/story.service").write_text(UNIT)
    # Disks are not this machine's, and it is no new one, which would enable every unit.
    (root / "etc/fstab").write_text("")
    (root / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
    # Nor does each step bring the index of all manual pages up to date.
    (root / "var/lib/man-db/auto-update").unlink(missing_ok=True)
    (root / "etc/apt/apt.conf.d/yes").write_text('APT::Get::Assume-Yes "true";\n')

    # A container may have this, so that services stay off.
    (root / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
    for command in (
        "dpkg --purge beanstalkd",
        " ".join((f"apt-get install -q --no-install-recommends {THEIRS}/*.deb", *packages)),
    ):
        run(*NSPAWN, f"--directory={root}", "--resolv-conf=replace-host", "--setenv=RUNLEVEL=1",
            "--pipe", "/bin/sh", "-ec", command)  # fmt: skip


def boot(root):
    """Boots it, shows what the story says, and returns its exit status."""
    try:
        return subprocess.run(
            [*NSPAWN, f"--directory={root}", "--private-network", "--console=read-only", "--boot", "--",
             "--unit=story.service", "--show-status=no", "--log-level=warning"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=BOOT_SECONDS, check=False,
        ).returncode  # fmt: skip
    finally:
        print((root / STAGE.relative_to("/") / "output").read_text(), end="", flush=True)


def start(unit=DAEMON, settings=None, *flags):
    """As an administrator does on the machine that has booted."""
    if settings is not None:
        DEFAULTS.write_text(settings)
    allow_starts(unit)
    run("systemctl", "restart", *flags, unit)


def allow_starts(unit):
    """The unit limits their number. An instance may not be loaded yet."""
    subprocess.run(["systemctl", "reset-failed", unit], stderr=subprocess.DEVNULL, check=False)


def expect_shown(unit, *words):
    """What status shows of a unit, and that it fills no journal."""
    status = execute("systemctl", "status", "--full", unit, check=False)[1]
    check(all(word in status for word in words), f"status does not show {words}: {status}")
    text = run("journalctl", f"--unit={unit}", "--output=short-unix", "--quiet")
    times = [float(line.split()[0]) for line in text.splitlines()]
    most = max(sum(begin <= at < begin + 60 for at in times) for begin in times)
    check(most <= LINES_A_MINUTE, f"{most} lines in a minute: {text}")
    say(f"{unit}: {', '.join(words)}; at most {most} lines a minute, {len(times)} in all")


def make_disk(place, fails):
    """Mounts a disk of 256 MB whose writes are errors while the file `fails` exists. With a journal
    its file system would stay read-only afterwards."""
    nodes = {"fuse": "c 10 229", "loop-control": "c 10 237"}
    nodes |= {f"loop{number}": f"b 7 {number}" for number in range(32)}
    for node, kind in nodes.items():
        run("mknod", f"/dev/{node}", *kind.split())
    below = Path("/run/disk")
    for folder in (below, place):
        folder.mkdir()
    subprocess.Popen(
        ["nbdfuse", below, "--command", "nbdkit", "-s", "--filter=error", "memory", "256M",
         "error=EIO", "error-pwrite-rate=100%", f"error-pwrite-file={fails}"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    trial.wait((below / "nbd").exists, "the disk")
    run("mkfs.ext4", "-q", "-O", "^has_journal", below / "nbd")
    run("mount", "-o", "loop,errors=continue", below / "nbd", place)
    shutil.chown(place, "beanstalkd")


def main(what, story, packages=()):
    """Runs the story on a machine that has these packages of Debian beside its beanstalkd."""
    parser = argparse.ArgumentParser(description=what.splitlines()[0])
    parser.add_argument("deb", nargs="?", help="the package to install")
    parser.add_argument("--must-run", action="store_true", help="fail where it cannot run")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--story", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.story:
        try:
            story()
        except BaseException:
            subprocess.run(["journalctl", "--no-pager", "--lines=30", "--output=cat"], check=False)
            raise
        return 0
    if not options.deb:
        parser.error("which package?")
    os.environ.update(ENVIRONMENT)
    # An end from outside, too, ends the machine.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("FAILED: interrupted"))
    try:
        if not options.inside:
            enter()
        status = machine(options.deb, packages)
    except Skip as reason:
        trial.skipped(f"{SCRIPT.name}: {reason}")
        return int(options.must_run)
    say("passed" if status == 0 else "FAILED")
    return status
