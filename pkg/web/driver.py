"""A browser that is driven by WebDriver, which is JSON over HTTP: as much of it as try-page needs."""

import base64
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request

from trial import PATIENCE_SECONDS, Failed, check, wait

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Space": " ", "Backspace": "\ue003"}


def missing():
    """What of the two programs is not installed."""
    absent = [] if shutil.which("chromedriver") else ["chromedriver"]
    return absent + ([] if any(map(shutil.which, BROWSERS)) else ["chromium"])


class Browser:
    """One window of one browser."""

    def __init__(self, profile, names=""):
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        port = None
        for line in self.driver.stdout:
            found = re.search(r"successfully on port (\d+)", line)
            if found:
                port = found[1]
                break
        check(port, "chromedriver tells its port")
        # Nobody reads on, and a full pipe would stop it.
        threading.Thread(target=self.driver.stdout.read, daemon=True).start()
        self.root = f"http://127.0.0.1:{port}/session"
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
            "--window-size=1240,900",
            "--lang=en-GB",
            f"--user-data-dir={profile}",
        ]
        if names:
            arguments.append(f"--host-resolver-rules={names}")
        options = {"args": arguments, "binary": next(filter(None, map(shutil.which, BROWSERS)))}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options}}
        self.session = ""
        try:
            self.session = "/" + self.ask("POST", "", {"capabilities": wanted})["sessionId"]
        except Exception:
            self.close()
            raise

    def ask(self, method, path, value=None):
        data = None if value is None else json.dumps(value).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.root + self.session + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=2 * PATIENCE_SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            told = json.load(error)["value"]
            raise Failed(f"{path}: {told['error']}: {told['message'].splitlines()[0]}") from None

    def close(self):
        try:
            if self.session:
                self.ask("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()

    def go(self, address):
        self.ask("POST", "/url", {"url": address})

    def go_anew(self, address):
        """Loads the page again, even if only the part of the address after # differs."""
        self.go("about:blank")
        self.go(address)

    def js(self, script, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def later(self, script, *arguments):
        """The result of a promise."""
        whole = f"const done = arguments[arguments.length - 1]; (async () => {{ {script} }})()" \
            ".then(done, (error) => done(String(error)));"
        return self.ask("POST", "/execute/async", {"script": whole, "args": list(arguments)})

    def cdp(self, command, **parameters):
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def find(self, css, text=None):
        """The first visible element, of those with this text if it is given."""
        script = """return [...document.querySelectorAll(arguments[0])].find((it) =>
            it.checkVisibility() && (arguments[1] === null || it.textContent.trim().startsWith(arguments[1]))) ?? null"""
        return self.js(script, css, text)

    def sees(self, css, text=None):
        return wait(lambda: self.find(css, text), f"{css} {text or ''}")

    def gone(self, css, text=None):
        wait(lambda: not self.find(css, text), f"{css} {text or ''} is gone")

    def count(self, css):
        return self.js("return document.querySelectorAll(arguments[0]).length", css)

    def click(self, css, text=None):
        # What is drawn anew once a second may be gone between two commands.
        for _ in range(20):
            element = self.sees(css, text)
            try:
                self.ask("POST", f"/element/{element[ELEMENT]}/click", {})
                return
            except Failed as error:
                if "stale" not in str(error) and "intercepted" not in str(error):
                    raise
                time.sleep(0.3)
        raise Failed(f"{css} {text or ''} cannot be clicked")

    def text(self, css):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? null", css)

    def fill(self, css, text):
        element = self.sees(css)[ELEMENT]
        self.ask("POST", f"/element/{element}/clear", {})
        self.ask("POST", f"/element/{element}/value", {"text": text})

    def press(self, *keys):
        for key in keys:
            value = KEYS.get(key, key)
            actions = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
            self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def escape(self, css):
        """Closes what is open by the Escape key."""
        self.press("Escape")
        self.gone(css)

    def focused(self):
        return self.js("return document.activeElement.textContent.trim()")

    def tab_to(self, text):
        """Presses Tab until what has the focus says this."""
        for _ in range(80):
            if self.focused().startswith(text):
                return
            self.press("Tab")
        raise Failed(f"no Tab leads to {text}")

    def look_like(self, scheme, width, height, is_phone=False):
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=is_phone,
        )  # fmt: skip

    def shoot(self, path):
        path.write_bytes(base64.b64decode(self.cdp("Page.captureScreenshot", format="png")["data"]))
