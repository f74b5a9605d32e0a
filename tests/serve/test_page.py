"""The page, in a real browser: Debian's chromium, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from serving import Running

selenium = pytest.importorskip("selenium")

from selenium.webdriver import Chrome, ChromeOptions, ChromeService  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no chromium")
    options = ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=400,800"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = Chrome(options=options, service=ChromeService(driver))
    yield browser
    browser.quit()


def text_of(browser: Chrome, selector: str) -> str:
    return "".join(element.text for element in browser.find_elements(By.CSS_SELECTOR, selector))


def set_field(browser: Chrome, name: str, value: Any) -> None:
    browser.execute_script("document.getElementById(arguments[0]).value = arguments[1]", name, str(value))


def send(browser: Chrome, text: str) -> None:
    browser.find_element(By.ID, "input").send_keys(text)
    browser.find_element(By.ID, "send").click()


def wait(browser: Chrome, condition: Any) -> None:
    WebDriverWait(browser, 20, poll_frequency=0.05).until(lambda _: condition())


def idle(browser: Chrome) -> bool:
    return browser.find_element(By.ID, "send").is_displayed()


def test_a_conversation(running: Running, browser: Chrome) -> None:
    browser.get(running.url)
    wait(browser, lambda: text_of(browser, "#model") == "tiny")
    set_field(browser, "temperature", 0)
    set_field(browser, "max_tokens", 20)
    send(browser, "the self")
    wait(browser, lambda: idle(browser) and text_of(browser, ".assistant"))
    body = {"messages": [{"role": "user", "content": "the self"}], "temperature": 0, "max_tokens": 20}
    answer = running.ask("/v1/chat/completions", body)
    expected = answer["choices"][0]["message"]["content"]
    shown = browser.execute_script("return document.querySelector('.assistant').textContent")
    assert shown == expected
    tinted = browser.execute_script(
        "return [...document.querySelectorAll('.drafted')].map(e => e.textContent).join('')"
    )
    assert 0 < len(tinted) < len(shown)
    figures = text_of(browser, "#figures")
    assert "20 tokens" in figures
    assert "tokens/s" in figures
    n_accepted = int(figures.split(" of ")[0].split()[-1])
    assert n_accepted == answer["timings"]["draft_n_accepted"]
    length = float(figures.split("mean acceptance length ")[1].split(",")[0])
    assert length == pytest.approx(20 / (20 - n_accepted), abs=0.01)

    browser.execute_script("document.getElementById('drafting').click()")
    send(browser, "again")
    wait(browser, lambda: idle(browser) and len(browser.find_elements(By.CSS_SELECTOR, ".assistant")) == 2)
    last = browser.find_elements(By.CSS_SELECTOR, ".assistant")[-1]
    assert not last.find_elements(By.CSS_SELECTOR, ".drafted")
    assert "no drafts" in text_of(browser, "#figures")
    browser.execute_script("document.getElementById('drafting').click()")


def test_stop(running: Running, browser: Chrome) -> None:
    browser.get(running.url)
    set_field(browser, "max_tokens", 450)
    send(browser, "the self")
    wait(browser, lambda: text_of(browser, ".assistant"))
    browser.execute_script("document.getElementById('stop').click()")
    wait(browser, lambda: idle(browser))
    wait(browser, lambda: not running.server.engine_thread.jobs)


def test_errors_and_phones(running: Running, browser: Chrome) -> None:
    browser.get(running.url)
    set_field(browser, "max_tokens", 5)
    browser.execute_script("document.getElementById('input').value = 'x'.repeat(5000)")
    browser.find_element(By.ID, "send").click()
    wait(browser, lambda: "exceeds the available context size" in text_of(browser, ".error"))
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


def test_it_asks_nobody_else(running: Running, browser: Chrome) -> None:
    import json

    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in entries if e["method"] == "Network.requestWillBeSent"]
    assert urls
    assert all(url.startswith((running.url, "data:")) for url in urls), urls
    messages = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert all("status of 400" in entry["message"] for entry in messages), messages


def test_without_a_browser(running: Running, tiny_target: Any) -> None:
    response = running.client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "<!doctype html>" in response.text
    assert "http://" not in response.text
    assert "https://" not in response.text
    with Running(tiny_target, options={"ui": False}) as other:
        assert other.client.get("/").status_code == 404
