"""The page at / in a headless Chromium: what it shows, that it asks nobody else, that its console is
silent, and that a keyboard is enough. Keeps pictures in $SCREENSHOTS, if that is set.

Debian's chromium, chromium-driver and python3-selenium; skipped (77), with a word, without them.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
from server import DEMO, SPILLWAY, serving  # noqa: E402

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = None

PATIENCE = 60  # Seconds that a wait may take before something is wrong
KEY = "the-key-of-the-test"


def browser(width, height, dark=False):
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars", f"--window-size={max(width, 500)},{height}"):
        options.add_argument(argument)
    if dark:
        options.add_argument("--force-dark-mode")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    # A window cannot be as narrow as a phone; its viewport can.
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                           {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    return driver


class DashboardTest(unittest.TestCase):
    def open(self, url, width=1280, height=900, dark=False):
        driver = browser(width, height, dark)
        self.addCleanup(driver.quit)
        driver.get(url)
        return driver

    def start(self, *flags):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        url, pid = self.enterContext(serving(SPILLWAY, DEMO, "--batch-dir", folder, *flags))
        return url, pid

    def wait(self, driver, condition, what):
        WebDriverWait(driver, PATIENCE, 0.1).until(lambda _: condition(), what)

    def text(self, driver, name):
        return driver.find_element(By.ID, name).text

    def keep(self, driver, name):
        if folder := os.environ.get("SCREENSHOTS"):
            height = driver.execute_script("return document.documentElement.scrollHeight")
            width = driver.execute_script("return window.innerWidth")
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                   {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
            driver.save_screenshot(str(pathlib.Path(folder) / f"{name}.png"))

    def check_quiet(self, driver, url, allowed=()):
        """No message in the console, and no request but to the server itself."""
        messages = [entry["message"] for entry in driver.get_log("browser")
                    if not any(part in entry["message"] for part in allowed)]
        self.assertEqual(messages, [])
        asked = set()
        for entry in driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.add(message["params"]["request"]["url"])
        self.assertTrue(any(address.endswith("/api/events") for address in asked))
        for address in asked:
            self.assertTrue(address.startswith((url, "data:", "blob:")), address)

    def type_prompt(self, driver, prompt, tokens):
        field = driver.find_element(By.ID, "tokens")
        field.clear()
        field.send_keys(str(tokens))
        driver.find_element(By.ID, "prompt").send_keys(prompt)

    def test_pictures_of_every_part(self):
        url, _ = self.start()
        for width, height, dark in ((1280, 900, False), (1280, 900, True), (390, 844, False), (390, 844, True)):
            with self.subTest(width=width, dark=dark):
                driver = self.open(url, width, height, dark)
                self.wait(driver, lambda: self.text(driver, "state") == "running", "the page connects")
                self.type_prompt(driver, "Once upon a time", 40)
                driver.find_element(By.ID, "play-go").click()
                self.wait(driver, lambda: "tokens" in self.text(driver, "play-state"), "tokens arrive")
                self.wait(driver, lambda: not driver.find_element(By.ID, "play-stop").is_enabled(), "the answer ends")
                spans = driver.find_elements(By.CSS_SELECTOR, "#answer span")
                self.assertGreater(len(spans), 10)
                self.assertTrue(all(span.get_attribute("title").endswith(" %") for span in spans))
                self.wait(driver, lambda: "Pass" in self.text(driver, "sweep-text"), "a pass is drawn")
                self.assertGreater(len(driver.find_elements(By.CSS_SELECTOR, "#sweep-chart rect.track")), 0)
                wide = driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
                self.assertLessEqual(wide, 0, "the page is wider than its window")
                self.keep(driver, f"dashboard-{width}-{'dark' if dark else 'light'}")
                self.check_quiet(driver, url)

    def test_a_batch_from_upload_to_download(self):
        url, _ = self.start()
        driver = self.open(url)
        self.wait(driver, lambda: self.text(driver, "state") == "running", "the page connects")
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as lines:
            for number in range(20):
                lines.write(json.dumps({"custom_id": f"l{number}", "method": "POST", "url": "/v1/completions",
                                        "body": {"prompt": "The", "max_tokens": 4}}) + "\n")
            lines.flush()
            driver.find_element(By.ID, "file").send_keys(lines.name)
            driver.find_element(By.CSS_SELECTOR, "#upload-form button").click()
            self.wait(driver, lambda: "under way" in self.text(driver, "upload-state"), "the batch begins")
        self.wait(driver, lambda: "completed" in self.text(driver, "batches"), "the batch ends")
        self.assertIn("20 of 20", self.text(driver, "batches"))
        button = driver.find_element(By.XPATH, "//button[text()='answers']")
        self.assertIn("Download the answers of batch_", button.get_attribute("aria-label"))
        button.click()
        self.keep(driver, "dashboard-batches")
        self.check_quiet(driver, url)

    def test_a_keyboard_is_enough(self):
        url, _ = self.start()
        driver = self.open(url)
        self.wait(driver, lambda: self.text(driver, "state") == "running", "the page connects")
        seen = []
        for _ in range(30):
            ActionChains(driver).send_keys(Keys.TAB).perform()
            focus = driver.switch_to.active_element
            if focus.tag_name == "body":  # Once around
                break
            name = focus.get_attribute("id") or focus.get_attribute("class") or focus.text
            if name in seen:
                break
            seen.append(name)
            shown = driver.execute_script(
                "const style = getComputedStyle(arguments[0]); return style.outlineStyle !== 'none' || style.boxShadow !== 'none'", focus)
            self.assertTrue(shown, f"nobody sees that the focus is at {name}")
        self.assertEqual(seen[0], "skip")
        for control in ("file", "endpoint", "prompt", "as-chat", "tokens", "temperature", "play-go", "plan"):
            self.assertIn(control, seen)
        driver.find_element(By.ID, "prompt").send_keys("One", Keys.TAB, Keys.TAB, Keys.TAB, Keys.TAB, Keys.ENTER)
        self.wait(driver, lambda: "tokens" in self.text(driver, "play-state"), "Enter sends the prompt")

    def test_every_control_has_a_name(self):
        url, _ = self.start()
        driver = self.open(url)
        tree = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        for node in tree:
            role = node.get("role", {}).get("value")
            if role in ("button", "textbox", "combobox", "checkbox", "spinbutton", "image", "link") and not node.get("ignored"):
                self.assertTrue(node.get("name", {}).get("value"), f"a {role} without a name")

    def test_behind_a_key(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write(KEY + "\n")
            keys.flush()
            url, _ = self.start("--api-key-file", keys.name)
            driver = self.open(url)
            self.wait(driver, lambda: driver.find_element(By.ID, "key-form").is_displayed(), "the page asks for a key")
            self.keep(driver, "dashboard-key")
            field = driver.find_element(By.ID, "key")
            field.send_keys("another", Keys.ENTER)
            self.wait(driver, lambda: "not one" in self.text(driver, "key-error"), "a wrong key is refused")
            field.clear()
            field.send_keys(KEY, Keys.ENTER)
            self.wait(driver, lambda: self.text(driver, "state") == "running", "the key opens")
            self.assertFalse(driver.find_element(By.ID, "key-form").is_displayed())
            self.check_quiet(driver, url, allowed=("status of 401",))

    def test_a_server_that_ends_and_comes_back(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        with serving(SPILLWAY, DEMO, "--batch-dir", folder) as (url, _):
            driver = self.open(url)
            self.wait(driver, lambda: self.text(driver, "state") == "running", "the page connects")
        self.wait(driver, lambda: self.text(driver, "state") == "disconnected", "the page sees that it is alone")
        self.keep(driver, "dashboard-disconnected")
        port = url.rsplit(":", 1)[1]
        with serving(SPILLWAY, DEMO, "--batch-dir", folder, "--port", port):
            self.wait(driver, lambda: self.text(driver, "state") == "running", "the page connects again")


if __name__ == "__main__":
    if webdriver is None or not shutil.which("chromedriver") or not shutil.which("chromium"):
        print("SKIPPED: no chromium here; Debian has chromium, chromium-driver and python3-selenium "
              "(scripts/setup --services)", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
