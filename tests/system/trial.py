"""What scripts that try the daemon with other programs share: patience, ports, and a client."""

import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

# The files that packages ship, which the trials use as they are.
PACKAGING = Path(__file__).resolve().parent.parent.parent / "pkg"
REPLY_SECONDS = 30
# How long anything may take that is waited for: never a measurement.
PATIENCE_SECONDS = 90
COMMAND_SECONDS = 300
begun = time.monotonic()


class Failed(Exception):
    """Something that was expected did not come about."""


def expect(found, wanted, what):
    if found != wanted:
        raise Failed(f"{what}: {found!r}, not {wanted!r}")


def check(holds, what):
    if not holds:
        raise Failed(what)


def wait(condition, what, seconds=PATIENCE_SECONDS):
    """Waits until the condition holds, and returns what it returned."""
    deadline = time.monotonic() + seconds
    while not (held := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"waited {seconds} s in vain: {what}")
        time.sleep(0.05)
    return held


def say(text):
    """Prints a line of the script that was started."""
    print(f"{Path(sys.argv[0]).name}: {text}", flush=True)


def say_when(text):
    """The same with the time since the start."""
    print(f"{time.monotonic() - begun:7.1f} s: {text}", flush=True)


def skipped(why):
    print(f"\n*** SKIPPED: {why}\n", file=sys.stderr)


def check_files(paths):
    """Whether installed files have something in them, and usual modes."""
    for path in paths:
        status = path.lstat()
        check(status.st_size > 0, f"{path} is empty")
        mode = status.st_mode & 0o7777
        expect(oct(mode), oct(0o755 if mode & 0o100 else 0o644), f"the mode of {path}")


def execute(*command, seconds=COMMAND_SECONDS, check=True, **options):
    """A command's status and output; without `check` also that of one that fails or hangs."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=seconds, check=False, **options,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        if check:
            raise Failed(f"{shlex.join(words)}: no end within {seconds} seconds") from late
        return None, ""
    if check and done.returncode:
        raise Failed(f"{shlex.join(words)}: status {done.returncode}\n{done.stdout}")
    return done.returncode, done.stdout


def run(*command, **options):
    """What a command printed, which is shown only if it fails."""
    return execute(*command, **options)[1]


def free_ports(count):
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def connect(port, host="127.0.0.1"):
    stream = socket.create_connection((host, port), timeout=REPLY_SECONDS)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


class Client:
    """Speaks the protocol over a connection of its own to a port, or over a given stream."""

    def __init__(self, at):
        self.stream = connect(at) if isinstance(at, int) else at
        self.input = self.stream.makefile("rb")
        self.body = None

    def ask(self, line, body=None):
        """The words of the reply to a command."""
        self.send(line, body)
        return self.reply()

    def send(self, line, body=None):
        self.stream.sendall(line.encode() + b"\r\n" + (b"" if body is None else body + b"\r\n"))

    def reply(self):
        """The words of the next reply. If it announces a body, this is in `body`."""
        line = self.input.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError(f"closed after {line!r}")
        words = line.decode().split()
        self.body = None
        if words[0] in ("OK", "FOUND", "RESERVED"):
            size = int(words[-1])
            self.body = self.input.read(size + 2)[:size]
            if len(self.body) != size:
                raise ConnectionError("closed within a body")
        return words

    def put(self, body, pri=1024, delay=0, ttr=600):
        return self.ask(f"put {pri} {delay} {ttr} {len(body)}", body)

    def put_into(self, tube, body, **numbers):
        """The id of a new job."""
        self.ask(f"use {tube}")
        return self.put(body, **numbers)[1]

    def watch_only(self, tube):
        self.ask(f"watch {tube}")
        self.ask("ignore default")

    def take(self):
        """Reserves a job, deletes it, and returns its body; None if no job is ready."""
        words = self.ask("reserve-with-timeout 0")
        if words[0] != "RESERVED":
            return None
        body = self.body
        expect(self.ask(f"delete {words[1]}"), ["DELETED"], "the reply to a delete")
        return body

    def stats(self, command="stats"):
        """None if there is no such tube or job."""
        if self.ask(command)[0] != "OK":
            return None
        return dict(line.split(": ", 1) for line in self.body.decode().splitlines()[1:])

    def close(self):
        self.input.close()
        self.stream.close()


def answers(at):
    """Whether a daemon serves at a port, or at the stream that a function returns."""
    try:
        client = Client(at() if callable(at) else at)
        words = client.ask("list-tube-used")
        client.close()
        return words == ["USING", "default"]
    except OSError:
        return False


class Daemon:
    """A daemon on a free port of 127.0.0.1, or on a given one, that serves."""

    def __init__(self, program, *flags, port=None, **options):
        self.port = port or free_ports(1)[0]
        self.words = [program, "-l", "127.0.0.1", "-p", str(self.port), *flags]
        self.options = options
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.words, **self.options)
        wait(lambda: answers(self.port), f"the daemon on port {self.port}")

    def client(self):
        return Client(self.port)

    def close(self):
        end(self.process)


def end(process):
    process.terminate()
    process.wait(timeout=REPLY_SECONDS)
