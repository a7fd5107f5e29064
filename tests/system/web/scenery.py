"""Tubes as an operator may have them, with traffic, for the pictures of the page."""

import json
import random
import threading
import time

SEED = 7
# Long enough for the charts to be full.
FILL_SECONDS = 180
# Server, name, puts a second, how much of that the workers manage.
TUBES = (
    (0, "mail.outgoing", 24, 1.0),
    (0, "images.resize", 9, 0.93),
    (0, "search.index", 31, 1.0),
    (0, "reports.nightly", 0.5, 0.6),
    (0, "webhooks", 14, 0.97),
    (0, "billing.invoices", 3, 1.0),
    (0, "video.transcode", 1, 0.5),
    (1, "audit.log", 5, 1.0),
)
# Jobs that are there from the beginning, with their tubes.
WAITING = (("video.transcode", 140, 0), ("billing.invoices", 23, 900), ("newsletter", 61, 0))
WINDOW = (1240, 900)


def body(tube, number):
    return json.dumps({
        "order": 471100 + number, "kind": tube, "to": f"user{number % 97}@example.org", "attempt": 1 + number % 3,
        "lines": [{"sku": "A-17", "count": 2}, {"sku": "C-4", "count": 1}],
    }).encode()  # fmt: skip


class Scenery:
    def __init__(self, clients):
        self.clients = clients
        self.ends = threading.Event()
        self.threads = []

    def close(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()

    def traffic(self, connect, tube, rate, share):
        """A producer with pauses of random length, and a worker that waits and takes this share of the jobs."""
        producer, worker, dice = connect(), connect(), random.Random(f"{tube} {SEED}")
        worker.watch_only(tube)
        worker.send("reserve")
        number = 0
        while not self.ends.wait(dice.expovariate(rate)):
            producer.put_into(tube, body(tube, number))
            number += 1
            if dice.random() < share:
                job = worker.reply()[1]
                worker.ask(f"release {job} 1024 30" if dice.random() > 0.99 else f"delete {job}")
                worker.send("reserve")

    def fill(self):
        client = self.clients[0]()
        for tube, count, delay in WAITING:
            for number in range(count):
                client.put_into(tube, body(tube, number), delay=delay and delay + 60 * number)
        for number in range(7):
            client.bury("billing.invoices", body("billing.invoices", number))
        client.ask("pause-tube newsletter 5400")
        for server, *of in TUBES:
            thread = threading.Thread(target=self.traffic, args=(self.clients[server], *of))
            thread.start()
            self.threads.append(thread)

    def play(self, browser, address, folder):
        """Waits until there is something to see, and takes the pictures of the documents."""
        folder.mkdir(parents=True, exist_ok=True)
        self.fill()
        browser.look_like("light", *WINDOW)
        # The page must be looked at, or nothing would be drawn.
        time.sleep(FILL_SECONDS)
        for scheme, place, rows in (("light", "#/0", "#rows td"), ("dark", "#/0/billing.invoices", ".jobs tbody td")):
            browser.look_like(scheme, *WINDOW)
            browser.go(address + place)
            browser.sees(".chart .line")
            browser.sees(rows)
            time.sleep(2.5)
            browser.shoot(folder / f"web-{scheme}.png")
