"""Tries tls.cfg: a daemon behind haproxy with TLS, and clients with good and bad certificates.

It makes a CA, certificates and another CA with openssl.
"""

import grp
import os
import random
import re
import signal
import ssl
import subprocess
import time
import warnings
from pathlib import Path

from trial import (
    PACKAGING, Client, Daemon, Failed, answers, check, connect, end, expect, free_ports, run, say, wait,
)  # fmt: skip

# `timeout client` of tls.cfg: until then a handshake must be over.
HANDSHAKE_SECONDS = 5
# Two checks and some more.
CHECKED_SECONDS = 4
# The largest job without -z.
BODY_BYTES = 65535


class Certificates:
    """Files below a folder: two CAs, and what they have signed. All end after a day."""

    def __init__(self, folder):
        self.folder = folder
        for ca in ("ca", "other-ca"):
            self.make(ca, "-addext", "keyUsage=critical,keyCertSign")
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        self.make("server", *self.signed_by("ca"), "-addext", names)
        self.make("client", *self.signed_by("ca"))
        self.make("stranger", *self.signed_by("other-ca"))

    def make(self, name, *more):
        run(
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc",
            "-days", "1", "-subj", f"/CN={name}", "-keyout", self.path(name), "-out", self.path(name), *more,
        )  # fmt: skip

    def signed_by(self, ca):
        path = self.path(ca)
        return ("-CA", path, "-CAkey", path, "-addext", "basicConstraints=critical,CA:FALSE")

    def path(self, name):
        return self.folder / f"{name}.pem"

    def context(self, name=None, ca="ca"):
        """What a client knows that has this certificate, and trusts this CA."""
        context = ssl.create_default_context(cafile=self.path(ca))
        if name:
            context.load_cert_chain(self.path(name))
        return context


def secure(port, context):
    """In TLS 1.3 a refusal may come only with the first read."""
    return context.wrap_socket(connect(port), server_hostname="localhost")


def expect_refusal(what, reason, open_stream):
    """The client must learn the reason, so that it is refused for this and for nothing else."""
    try:
        reply = Client(open_stream()).ask("list-tube-used")
    except OSError as error:
        if reason.lower() not in str(error).lower().replace("_", " "):
            raise Failed(f"{what} is refused for another reason: {error}") from error
        say(f"refused: {what}: {error}")
        return
    raise Failed(f"{what} is not refused, but gets {reply}")


class Place:
    """A folder with the daemon's socket, and what runs there."""

    def __init__(self, folder, program, stack):
        self.folder, self.stack = folder, stack
        folder.chmod(0o755)
        self.socket = folder / "socket"
        self.certificates = Certificates(folder)
        # What UMask=0007 does in a unit.
        self.daemon = Daemon(program, "-l", f"127.0.0.1,unix:{self.socket}", umask=0o007)
        stack.callback(self.daemon.close)

    def configuration(self, port):
        """tls.cfg with the paths of this place."""
        text = (PACKAGING / "haproxy/tls.cfg").read_text()
        changes = [
            (r":11301\b", f"127.0.0.1:{port}"),
            (r"/run/haproxy/admin\.sock", f"{self.folder}/admin-{port}.sock"),
            (r"/run/beanstalkd/socket", str(self.socket)),
            (r"/etc/haproxy/beanstalkd\.pem", str(self.certificates.path("server"))),
            (r"/etc/haproxy/clients\.pem", str(self.certificates.path("ca"))),
        ]
        groups = {group.gr_name: group.gr_gid for group in grp.getgrall()}
        if os.geteuid() == 0 and "haproxy" in groups:
            # The daemon of this place has no group of its own.
            changes.append((r"\bgroup beanstalkd\b", "group haproxy"))
            os.chown(self.socket, -1, groups["haproxy"])
        else:
            changes.append((r"\n +(user|group) .*", ""))
        for old, new in changes:
            text, count = re.subn(old, new, text)
            check(count, f"tls.cfg lacks {old}")
        return text

    def haproxy(self, name, text):
        path = self.folder / name
        path.write_text(text)
        self.stack.callback(end, subprocess.Popen(["haproxy", "-db", "-q", "-f", path]))


def check_jobs(port, context):
    """Any bytes go through, and each client gets its own replies."""
    body = random.Random(1).randbytes(BODY_BYTES)
    producer, worker = (Client(secure(port, context)) for _ in range(2))
    worker.send("reserve-with-timeout 60")
    word, job = producer.put(body)
    expect(word, "INSERTED", "the reply to a put")
    expect(worker.reply(), ["RESERVED", job, str(BODY_BYTES)], "the reply to a waiting worker")
    check(worker.body == body, "the body is another one")
    expect(worker.ask(f"delete {job}"), ["DELETED"], "the reply to a delete")
    say(f"{producer.stream.version()}, {producer.stream.cipher()[0]}: {BODY_BYTES} random bytes")
    say("    are put as a job, reserved by a worker that waits, compared and deleted")


def check_silence(port, context):
    """A peer that says nothing is sent away; a worker that waits is not."""
    begun = time.monotonic()
    peer, worker = connect(port), Client(secure(port, context))
    worker.send(f"reserve-with-timeout {HANDSHAKE_SECONDS + 2}")
    expect(peer.recv(1), b"", "a peer without a handshake is closed")
    say(f"a peer that begins no handshake is closed after {time.monotonic() - begun:.1f} s")
    expect(worker.reply(), ["TIMED_OUT"], "a worker that waits for longer")
    say(f"a worker that waits for a job stays, here {time.monotonic() - begun:.1f} s")


def check_drain(port, context, daemon):
    """While the daemon drains, workers must still reach it, or it never gets empty."""
    client = Client(secure(port, context))
    expect(client.put(b"last")[0], "INSERTED", "the reply to a put")
    daemon.send_signal(signal.SIGUSR1)
    time.sleep(CHECKED_SECONDS)
    expect(client.put(b"x"), ["DRAINING"], "the reply to a put while it drains")
    late = Client(secure(port, context))
    expect(late.take(), b"last", "a worker that comes while it drains")
    say("while the daemon drains, a producer is told so, and a worker still gets the last job")
    daemon.send_signal(signal.SIGUSR2)
    wait(lambda: client.put(b"x")[0] == "INSERTED", "the end of draining")
    expect(client.take(), b"x", "a reserve")


def check_all(program, folder, stack):
    place = Place(folder, program, stack)
    certificates = place.certificates
    context = certificates.context("client")
    port, open_port = free_ports(2)
    text = place.configuration(port)
    place.haproxy("tls.cfg", text)
    wait(lambda: answers(lambda: secure(port, context)), "haproxy")
    check_jobs(port, context)
    older = certificates.context("client")
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    check_jobs(port, older)
    check_silence(port, context)
    check_drain(port, context, place.daemon.process)

    old = certificates.context("client")
    with warnings.catch_warnings():
        # Python would rather not offer such a version.
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    stranger, nobody = certificates.context("stranger"), certificates.context()
    deceived = certificates.context("client", ca="other-ca")
    refusals = [
        ("a client without a certificate", "certificate required", nobody),
        ("a client with a certificate of another CA", "unknown ca", stranger),
        ("a client that offers at most TLS 1.1", "protocol version", old),
        ("a server that the client does not trust", "certificate verify failed", deceived),
    ]
    for what, reason, context in refusals:
        expect_refusal(what, reason, lambda context=context: secure(port, context))
    expect_refusal("a client without TLS", "closed after b''", lambda: connect(port))

    text = place.configuration(open_port)
    text, count = re.subn(r" ca-file \S+ verify required(?=\n)", "", text)
    expect(count, 1, "places of tls.cfg that want certificates of clients")
    place.haproxy("open.cfg", text)
    wait(lambda: answers(lambda: secure(open_port, nobody)), "a client without a certificate, if none is wanted")
    check_jobs(open_port, nobody)
    what = "a client without TLS, if no certificate is wanted"
    expect_refusal(what, "closed after b''", lambda: connect(open_port))

    client = Client(secure(port, certificates.context("client")))
    expect(client.put(b"x")[0], "INSERTED", "the reply to a put")
    place.daemon.close()
    expect(client.input.read(), b"", "a connection, when the daemon has ended")
    say("when the daemon ends, connections through haproxy end")
