"""The server's page in Debian's chromium, without a window."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

pytest.importorskip("selenium")

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from serving import Running

WIDE, NARROW = (1280, 800), (390, 800)


def open_browser() -> Chrome:
    """Start chromium; where there is none the test is skipped."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no chromium and chromedriver: `apt-get install chromium chromium-driver`")
    options = ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=ChromeService(driver))


class Page:
    """The page of a server, by what a user sees and does."""

    def __init__(self, browser: Chrome, running: Running):
        """Open it as in a browser that has never been here."""
        self.browser = browser
        self.resize(WIDE)
        browser.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": running.url, "storageTypes": "all"})
        browser.get(running.url)
        browser.execute_script("sessionStorage.clear()")
        self.reload()

    def reload(self) -> None:
        self.browser.refresh()
        self.wait(lambda: self.js("return props !== null && chat !== null || !$('notice').hidden"))

    def resize(self, size: tuple[int, int], scheme: str = "light") -> None:
        """Set the screen's size and colour scheme."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def js(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return "".join(element.text for element in self.all(selector))

    def contents(self, selector: str) -> list[str]:
        """The texts of elements, hidden ones too."""
        found: list[str] = self.js(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )
        return found

    def wait(self, condition: Any) -> None:
        WebDriverWait(self.browser, 60, poll_frequency=0.05).until(lambda _: condition())

    def wait_idle(self) -> None:
        self.wait(lambda: self.js("return !running.size && !$('send').hidden"))

    def set(self, **fields: Any) -> None:
        """Set fields of the settings."""
        for name, value in fields.items():
            self.js("$(arguments[0]).value = arguments[1]; keepSettings()", name, "" if value is None else str(value))

    @property
    def box(self) -> str:
        value: str = self.js("return $('input').value")
        return value

    def type(self, text: str) -> None:
        self.js("$('input').focus()")
        self.browser.switch_to.active_element.send_keys(text)

    def paste(self, text: str) -> None:
        """Put a long text into the box, of which no key is typed."""
        self.js(
            "$('input').value = arguments[0]; $('input').dispatchEvent(new Event('input', { bubbles: true }))", text
        )

    def press(self, name: str, inside: str = "body") -> None:
        """Press the button with this text or label."""
        script = (
            "return [...document.querySelectorAll(arguments[0])].filter(b => b.checkVisibility({ visibilityProperty: "
            "true }) && [b.innerText.trim(), b.getAttribute('aria-label')].includes(arguments[1])).pop()"
        )
        while True:
            found = self.js(script, f"{inside} button", name)
            assert found is not None, f"no button {name!r}"
            try:
                return found.click()
            except StaleElementReferenceException:  # the page has drawn it anew meanwhile
                continue

    def ask(self, text: str) -> None:
        """Send a message, and wait for the end of its answer."""
        self.type(text)
        self.press("Send")
        self.wait_idle()
