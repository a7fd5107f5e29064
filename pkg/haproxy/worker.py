#!/usr/bin/env python3
"""A worker for several servers, in one thread: an example, to be rebuilt in your own workers.

    pkg/haproxy/worker.py COMMAND HOST:PORT [HOST:PORT ...]

COMMAND gets the body of each job on its standard input. The job is deleted if COMMAND ends with 0,
and otherwise buried. The worker waits in a `reserve` at all servers at the same time. A server gets
its next `reserve` only when its job is done, so the worker holds at most one job of each: with four
servers, a job may wait here for three others. The time to run of jobs must allow for that.
"""

import selectors
import socket
import subprocess
import sys
import time

# When a server that is down is tried again, and how long a connection or a reply may take.
RETRY_SECONDS = 1
REPLY_SECONDS = 10


class Server:
    """A connection that waits for a job. Its socket can be read when there is one."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=REPLY_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A machine that has vanished does not say so.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.input = self.socket.makefile("rb")
        self.reserve()

    def fileno(self):
        return self.socket.fileno()

    def reserve(self):
        self.socket.sendall(b"reserve\r\n")

    def take(self, work):
        """Does the job that has come, and waits for the next one."""
        word, job, size = self.line()
        if word != b"RESERVED":
            raise ConnectionError(f"{word} instead of a job")
        body = self.input.read(int(size) + 2)[:-2]
        verb = b"delete %s\r\n" if work(body) else b"bury %s 0\r\n"
        self.socket.sendall(verb % job)
        # NOT_FOUND means that its time to run had ended, and another worker gets it.
        self.line()
        # Not before the reply has been read: what is in a buffer of ours is no event of the socket.
        self.reserve()

    def line(self):
        line = self.input.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("closed")
        return line.split()

    def close(self):
        self.input.close()
        self.socket.close()


def serve(addresses, work):
    """Gives the body of each job to `work`, for ever."""
    selector = selectors.DefaultSelector()
    retry_at = dict.fromkeys(addresses, 0.0)

    def lose(address, error):
        print(f"{address}: {error}", file=sys.stderr)
        retry_at[address] = time.monotonic() + RETRY_SECONDS

    while True:
        for address in [it for it, at in retry_at.items() if at <= time.monotonic()]:
            try:
                selector.register(Server(address), selectors.EVENT_READ, address)
                del retry_at[address]
            except OSError as error:
                lose(address, error)
        for key, _ in selector.select(RETRY_SECONDS if retry_at else None):
            try:
                key.fileobj.take(work)
            except OSError as error:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                lose(key.data, error)


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    command, *addresses = sys.argv[1:]

    def work(body):
        return subprocess.run(command, shell=True, input=body, check=False).returncode == 0

    serve(addresses, work)


if __name__ == "__main__":
    main()
