"""The page, in a real browser: Debian's chromium, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from serving import Running
from tiny import without_template

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
    shown = browser.execute_script("return document.querySelector('.assistant .tokens').textContent")
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


NASTY = (
    "# Title\n\nSome **bold** text, `code < 1`, a [link](https://example.org/a), a [bad one](javascript:bad()), "
    "![picture](http://example.org/x.png).\n\n```python\nif a < b:\n    print('<b>')\n```\n\n"
    "<script>bad()</script><img src=x onerror='bad()'><svg onload=bad()>\n\n"
    "| a | b |\n|---|---|\n| 1 | <a href='javascript:bad()'>x</a> |\n\n"
    '<javascript:bad()> [r]\n\n[r]: javascript:bad()\n\n```"><script>bad()</script>\nx\n```\n'
)


def test_answers_are_markdown(running: Running, browser: Chrome) -> None:
    """Headings, code and links are rendered; HTML stays text, and no part of it runs."""
    browser.get(running.url)
    script = "window.bad = () => { window.hurt = true }; render(add('assistant'), arguments[0])"
    browser.execute_script(script, NASTY)
    wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".markdown table"))
    assert text_of(browser, ".markdown h1") == "Title"
    assert text_of(browser, ".markdown strong") == "bold"
    code = browser.find_elements(By.CSS_SELECTOR, ".markdown pre code")
    assert code[0].get_attribute("class") == "language-python"
    assert code[0].text == "if a < b:\n    print('<b>')"
    shown = text_of(browser, ".markdown")
    assert "<script>bad()</script><img src=x onerror='bad()'><svg onload=bad()>" in shown
    links = browser.find_elements(By.CSS_SELECTOR, ".markdown a")
    assert [link.get_attribute("href") for link in links] == ["https://example.org/a", "http://example.org/x.png"]
    assert all(link.get_attribute("rel") == "noopener noreferrer" for link in links)
    assert not browser.find_elements(By.CSS_SELECTOR, ".markdown :is(script, img, svg, iframe, object, style)")
    # and if some HTML had come through, the policy would not let it run
    browser.execute_script(
        "const div = document.createElement('div'); div.innerHTML = \"<img src='data:,' onerror='bad()'>\";"
        "document.body.append(div); const s = document.createElement('script'); s.textContent = 'bad()'; div.append(s);"
    )
    wait(browser, lambda: browser.execute_script("return document.querySelector('img').complete"))
    assert browser.execute_script("return window.hurt") is None
    refused = [entry for entry in browser.get_log("browser") if "Content Security Policy" in entry["message"]]
    assert len(refused) == 2, refused


def test_tokens_or_markdown(running: Running, browser: Chrome) -> None:
    """A finished answer is Markdown; a switch shows its tokens, and which were drafted."""
    browser.get(running.url)
    set_field(browser, "temperature", 0)
    set_field(browser, "max_tokens", 20)
    send(browser, "the self")
    wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".assistant .markdown"))

    def shown() -> list[bool]:
        found = (browser.find_elements(By.CSS_SELECTOR, f".assistant .{kind}")[0] for kind in ("drafted", "markdown"))
        return [element.is_displayed() for element in found]

    assert shown() == [False, True]
    browser.find_element(By.ID, "rendered").click()
    assert shown() == [True, False]


def test_an_answer_too_long_for_markdown(running: Running, browser: Chrome) -> None:
    """An answer that is too long stays text, and the page says so."""
    browser.get(running.url)
    browser.execute_script("const t = add('assistant'); append(t, 'abc', 'own'); render(t, 'x'.repeat(40000))")
    wait(browser, lambda: "not shown as Markdown" in text_of(browser, ".error"))
    assert "32768" in text_of(browser, ".error")
    assert "abc" in text_of(browser, ".assistant")


def test_rendering_is_bounded(running: Running) -> None:
    """Texts that are hard for parsers take a time in proportion to their size; other values than texts are refused."""
    for unit in ("[", "*a", "> "):
        html = running.ask("/markdown", {"markdown": unit * (32768 // len(unit))})["html"]
        assert html.startswith(("<p>", "<blockquote>"))
    assert running.post("/markdown", {"markdown": 3}).status_code == 400
    assert running.post("/markdown", {"markdown": "x" * 32769}).status_code == 400


def test_stop(running: Running, browser: Chrome) -> None:
    browser.get(running.url)
    set_field(browser, "max_tokens", 450)
    send(browser, "the self")
    wait(browser, lambda: text_of(browser, ".assistant"))
    browser.execute_script("document.getElementById('stop').click()")
    wait(browser, lambda: idle(browser))
    wait(browser, lambda: not running.server.engine_thread.answers)


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


def test_a_model_without_a_template(pair: Any, tmp_path: Any, browser: Chrome) -> None:
    """The page continues a text, and its own text if nothing is added."""
    target, head = pair
    plain = without_template(target, tmp_path / "plain.gguf")
    with Running(plain, head, draft_n_max=4) as other:
        browser.get(other.url)
        wait(browser, lambda: text_of(browser, "#send") == "continue")
        assert "no chat template" in text_of(browser, "#figures")
        set_field(browser, "temperature", 0)
        set_field(browser, "max_tokens", 12)
        send(browser, "def f(")
        wait(browser, lambda: idle(browser) and browser.find_elements(By.CSS_SELECTOR, ".text .drafted"))

        def expected(prompt: str) -> str:
            body = {"prompt": prompt, "temperature": 0, "max_tokens": 12}
            return prompt + other.ask("/v1/completions", body)["choices"][0]["text"]

        def text() -> str:
            return browser.execute_script("return document.querySelector('.text').textContent")

        once = expected("def f(")
        assert text() == once
        browser.find_element(By.ID, "send").click()
        wait(browser, lambda: idle(browser) and len(text()) > len(once))
        assert text() == expected(once)
        browser.find_element(By.ID, "clear").click()
        assert not browser.find_elements(By.CSS_SELECTOR, ".text")


def test_without_a_browser(running: Running, tiny_target: Any) -> None:
    response = running.client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "<!doctype html>" in response.text
    assert "http://" not in response.text
    assert "https://" not in response.text
    with Running(tiny_target, options={"ui": False}) as other:
        assert other.client.get("/").status_code == 404
        assert other.post("/markdown", {"markdown": "x"}).status_code == 404
