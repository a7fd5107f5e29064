"""Tubes as an operator may have them, with traffic, for the pictures of the page."""

import json
import random
import threading
import time

SEED = 7
# Long enough for the charts to be full.
FILL_SECONDS = 180
# Names, puts a second, how much of that the workers manage, and seconds until a job is done.
TUBES = (
    ("mail.outgoing", 24, 1.0, 0.05),
    ("images.resize", 9, 0.93, 0.3),
    ("search.index", 31, 1.0, 0.02),
    ("reports.nightly", 0.5, 0.6, 1.0),
    ("webhooks", 14, 0.97, 0.1),
    ("billing.invoices", 3, 1.0, 0.2),
    ("push.notifications", 18, 1.0, 0.02),
    ("video.transcode", 1, 0.5, 2.0),
)
WIDE = (1240, 900)
NARROW = (390, 844)


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
        self.random = random.Random(SEED)

    def close(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()

    def begin(self, act, *arguments):
        thread = threading.Thread(target=act, args=arguments)
        thread.start()
        self.threads.append(thread)

    def produce(self, connect, tube, rate):
        client, number, dice = connect(), 0, random.Random(tube)
        while not self.ends.is_set():
            wave = 1 + 0.6 * ((time.monotonic() / 40) % 1) + dice.uniform(-0.4, 0.4)
            client.put_into(tube, body(tube, number))
            number += 1
            self.ends.wait(1 / (rate * max(0.2, wave)))

    def work(self, connect, tube, seconds):
        client, dice = connect(), random.Random(tube + "w")
        client.ask(f"watch {tube}")
        client.ask("ignore default")
        while not self.ends.is_set():
            reply = client.ask("reserve-with-timeout 1")
            if reply[0] != "RESERVED":
                continue
            self.ends.wait(seconds * dice.uniform(0.5, 1.5))
            if tube == "webhooks" and dice.random() < 0.002:
                client.ask(f"bury {reply[1]} 1024")
            elif dice.random() < 0.01:
                client.ask(f"release {reply[1]} 1024 30")
            else:
                client.ask(f"delete {reply[1]}")

    def fill(self):
        connect = self.clients[0]
        client = connect()
        for number in range(140):
            client.put_into("video.transcode", body("video.transcode", number))
        for number in range(7):
            client.bury("billing.invoices", body("billing.invoices", number))
        for number in range(23):
            client.put_into("billing.invoices", body("billing.invoices", 100 + number), delay=900 + 60 * number)
        for number in range(61):
            client.put_into("newsletter", body("newsletter", number))
        client.ask("pause-tube newsletter 5400")
        for tube, rate, share, seconds in TUBES:
            self.begin(self.produce, connect, tube, rate)
            for _ in range(max(1, round(1.35 * rate * share * seconds))):
                self.begin(self.work, connect, tube, seconds)
        self.begin(self.produce, self.clients[1], "audit.log", 5)
        self.begin(self.work, self.clients[1], "audit.log", 0.02)

    def play(self, browser, address, folder):
        """Waits until there is something to see, and takes the pictures."""
        folder.mkdir(parents=True, exist_ok=True)
        self.fill()
        browser.look_like("light", *WIDE)
        # The page must be looked at, or nothing would be drawn.
        time.sleep(FILL_SECONDS)
        for scheme in ("light", "dark"):
            for name, (width, height) in (("wide", WIDE), ("narrow", NARROW)):
                browser.look_like(scheme, width, height, is_phone=name == "narrow")
                self.shoot(browser, address + "#/0", folder / f"{scheme}-{name}.png")
                self.shoot(browser, address + "#/0/billing.invoices", folder / f"{scheme}-{name}-tube.png")
            # No worker takes this one away meanwhile.
            browser.poke("#jobs-rows tr:has(.chip.buried) a")
            browser.sees("#job pre")
            browser.shoot(folder / f"{scheme}-narrow-job.png")
            browser.press("Escape")
            browser.gone("#job")
            browser.look_like(scheme, *WIDE)
            browser.poke("#tube-acts button", "Kick")
            browser.poke("#ask button", "Continue")
            browser.sees("#ask button.main", "Kick")
            browser.shoot(folder / f"{scheme}-wide-ask.png")
            browser.press("Escape")

    @staticmethod
    def shoot(browser, address, path):
        browser.go(address)
        browser.sees(".chart .line")
        browser.sees(".jobs tbody td" if address.endswith("invoices") else "#rows td")
        time.sleep(2.5)
        browser.shoot(path)
