"""A browser as an operator uses it: what try-page needs, on top of Selenium."""

import shutil

from trial import PATIENCE_SECONDS, Failed, wait

try:
    from selenium import webdriver
    from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = Keys = None

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing():
    """What is not installed."""
    absent = [] if webdriver else ["python3-selenium"]
    absent += [] if shutil.which("chromedriver") else ["chromedriver"]
    return absent + ([] if any(map(shutil.which, BROWSERS)) else ["chromium"])


class Browser:
    """One window of one browser."""

    def __init__(self, profile, names=""):
        options = webdriver.ChromeOptions()
        options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
            "--window-size=1240,900",
            "--lang=en-GB",
            f"--user-data-dir={profile}",
            f"--host-resolver-rules={names}",
        ):
            options.add_argument(argument)
        self.driver = webdriver.Chrome(options=options)
        self.driver.set_script_timeout(PATIENCE_SECONDS)
        self.go = self.driver.get
        self.js = self.driver.execute_script
        self.close = self.driver.quit

    def go_anew(self, address):
        """Loads the page again, even if only the part of the address after # differs."""
        self.go("about:blank")
        self.go(address)

    def later(self, script, *arguments):
        """The result of a promise."""
        whole = f"const done = arguments[arguments.length - 1]; (async () => {{ {script} }})()" \
            ".then(done, (error) => done(String(error)));"
        return self.driver.execute_async_script(whole, *arguments)

    def cdp(self, command, **parameters):
        return self.driver.execute_cdp_cmd(command, parameters)

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
        def is_clicked():
            try:
                self.sees(css, text).click()
            except (StaleElementReferenceException, ElementClickInterceptedException):
                return False
            return True

        wait(is_clicked, f"a click on {css} {text or ''}")

    def text(self, css):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? null", css)

    def fill(self, css, text):
        element = self.sees(css)
        element.clear()
        element.send_keys(text)

    def press(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def escape(self, css):
        """Closes what is open by the Escape key."""
        self.press(Keys.ESCAPE)
        self.gone(css)

    def focused(self):
        return self.js("return document.activeElement.textContent.trim()")

    def tab_to(self, text):
        """Presses Tab until what has the focus says this."""
        for _ in range(80):
            if self.focused().startswith(text):
                return
            self.press(Keys.TAB)
        raise Failed(f"no Tab leads to {text}")

    def look_like(self, scheme, width, height, is_phone=False):
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=is_phone,
        )  # fmt: skip

    def shoot(self, path):
        self.driver.save_screenshot(str(path))
