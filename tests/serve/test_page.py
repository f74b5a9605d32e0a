"""The page, in a real browser: answers, their figures, and that nothing of them runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from browser import Page, open_browser
from loading import cheap_rows
from serving import Running
from tiny import without_template


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    browser = open_browser()
    yield browser
    browser.quit()


@pytest.fixture
def page(running: Running, browser: Any) -> Page:
    page = Page(browser, running)
    page.set(temperature=0, max_tokens=20)
    return page


def answer_of(running: Running, *texts: str, **more: Any) -> Any:
    """The whole answer to a conversation whose messages alternate."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return running.ask("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 20, **more})


def test_a_conversation(running: Running, page: Page) -> None:
    assert page.text("#model") == "tiny"
    page.ask("the self")
    answer = answer_of(running, "the self")
    expected = answer["choices"][0]["message"]["content"]
    assert page.contents(".assistant .tokens") == [expected]
    tinted = page.contents(".assistant .tokens .model")
    assert 0 < len("".join(tinted)) < len(expected)
    assert page.js("return document.querySelector('.tokens .model').title") == "drafted by a model"
    figures = page.text(".figures").split(" · ")
    assert figures[0] == "20 tokens"
    assert figures[1].endswith(" tokens/s")
    length = float(figures[2].removesuffix(" a step"))
    assert length == pytest.approx(20 / (20 - answer["timings"]["draft_n_accepted"]), abs=0.01)
    assert len(figures) == 3  # what a plain pass costs was not measured

    page.js("$('drafting').click()")
    page.ask("again")
    second = page.contents(".assistant .tokens")[1]
    assert second == answer_of(running, "the self", expected, "again")["choices"][0]["message"]["content"]
    assert not page.all(".assistant:last-child .model")
    assert "no drafts" in page.text(".assistant:last-child .figures")


def test_times_plain_and_who_drafted(pair: Any, browser: Any) -> None:
    """With measured costs a message says how many times as fast as plain decoding it came; n-grams have a tint."""
    with Running(pair[0], draft="auto", n_threads=1) as other:
        cheap_rows(other.server.llm)
        plain = other.client.get("/props").json()["speculative"]["plain_tokens_per_second"]
        assert plain > 0
        page = Page(browser, other)
        page.set(temperature=0, max_tokens=200)
        page.ask("the self")
        body = {"messages": [{"role": "user", "content": "the self"}], "temperature": 0, "max_tokens": 200}
        choices = [e["choices"][0] for e in other.stream("/v1/chat/completions", body)[:-1] if e["choices"]]
        by = [tuple(choice["drafted_by"]) for choice in choices if choice.get("drafted")]
        assert set(by) == {("ngram",)}
        assert page.contents(".tokens .ngram")
        assert page.text(".figures").endswith(" \N{MULTIPLICATION SIGN} plain")
        assert not page.contents(".tokens .model")


NASTY = (
    "# Title\n\nSome **bold** text, `code < 1`, a [link](https://example.org/a), a [bad one](javascript:bad()), "
    "![picture](http://example.org/x.png).\n\n```python\nif a < b:\n    print('<b>')\n```\n\n"
    "<script>bad()</script><img src=x onerror='bad()'><svg onload=bad()>\n\n"
    "| a | b |\n|---|---|\n| 1 | <a href='javascript:bad()'>x</a> |\n\n"
    '<javascript:bad()> [r]\n\n[r]: javascript:bad()\n\n```"><script>bad()</script>\nx\n```\n'
)
SHOW = (
    "window.bad = () => { window.hurt = true }; chat.messages.push({ role: 'user', text: arguments[0], files: "
    "[{ kind: 'text', name: arguments[0], data: '' }] }, { role: 'assistant', state: 'done', note: arguments[0], "
    "pieces: [['reasoning', arguments[0]], ['own', arguments[0]]] }); draw()"
)


def test_answers_are_markdown(page: Page) -> None:
    """Headings, code and links are rendered; HTML stays text in all parts of the page, and no part of it runs."""
    page.js(SHOW, NASTY)
    page.wait(lambda: page.all(".markdown table"))
    assert page.text(".markdown h1") == "Title"
    assert page.text(".markdown strong") == "bold"
    code = page.all(".markdown pre code")
    assert code[0].get_attribute("class") == "language-python"
    assert code[0].text == "if a < b:\n    print('<b>')"
    shown = page.text(".markdown")
    assert "<script>bad()</script><img src=x onerror='bad()'><svg onload=bad()>" in shown
    links = page.all("main a")
    assert [link.get_attribute("href") for link in links] == ["https://example.org/a", "http://example.org/x.png"]
    assert all(link.get_attribute("rel") == "noopener noreferrer" for link in links)
    assert not page.all("body :is(img, svg, iframe, object, style)")
    assert len(page.all("script")) == 1
    # and if some HTML had come through, the policy would not let it run
    page.js(
        "const div = document.createElement('div'); div.innerHTML = \"<img src='data:,' onerror='bad()'>\";"
        "document.body.append(div); const s = document.createElement('script'); s.textContent = 'bad()'; div.append(s);"
    )
    page.wait(lambda: page.js("return document.querySelector('img').complete"))
    assert page.js("return window.hurt") is None
    refused = [entry for entry in page.browser.get_log("browser") if "Content Security Policy" in entry["message"]]
    assert len(refused) == 2, refused


def test_tokens_or_markdown(page: Page) -> None:
    """A finished answer is Markdown; a switch shows its tokens, and which were drafted."""
    page.ask("the self")
    page.wait(lambda: page.all(".assistant .markdown"))

    def shown() -> list[bool]:
        return [page.all(f".assistant {selector}")[0].is_displayed() for selector in (".model", ".markdown")]

    assert shown() == [False, True]
    page.js("$('rendered').click()")
    assert shown() == [True, False]


def test_an_answer_too_long_for_markdown(page: Page) -> None:
    """An answer that is too long stays text, and the page says so."""
    page.js(SHOW, "x" * 40000)
    page.wait(lambda: "not shown as Markdown" in page.text(".state"))
    assert "32768" in page.text(".state")
    assert page.all(".assistant .tokens")[0].is_displayed()


def test_rendering_is_bounded(running: Running) -> None:
    """Texts that are hard for parsers take a time in proportion to their size; other values than texts are refused."""
    for unit in ("[", "*a", "> "):
        html = running.ask("/markdown", {"markdown": unit * (32768 // len(unit))})["html"]
        assert html.startswith(("<p>", "<blockquote>"))
    assert running.post("/markdown", {"markdown": 3}).status_code == 400
    assert running.post("/markdown", {"markdown": "x" * 32769}).status_code == 400


def test_it_asks_nobody_else(running: Running, browser: Any) -> None:
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in entries if e["method"] == "Network.requestWillBeSent"]
    assert any(url.startswith(running.url) for url in urls)
    assert all(url.startswith(("http://127.0.0.1:", "data:")) for url in urls), urls
    messages = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert all("status of 400" in entry["message"] for entry in messages), messages


def test_a_model_without_a_template(pair: Any, tmp_path: Any, browser: Any) -> None:
    """The page continues a text, and its own text if nothing is added; a reload keeps it."""
    target, head = pair
    plain = without_template(target, tmp_path / "plain.gguf")
    with Running(plain, head, draft_n_max=4) as other:
        page = Page(browser, other)
        assert "no chat template" in page.text("main")
        page.set(temperature=0, max_tokens=12)
        page.type("def f(")
        page.press("Continue")
        page.wait_idle()
        assert page.all(".text .model")

        def expected(prompt: str) -> str:
            body = {"prompt": prompt, "temperature": 0, "max_tokens": 12}
            return prompt + str(other.ask("/v1/completions", body)["choices"][0]["text"])

        once = expected("def f(")
        assert page.contents(".text .tokens") == [once]
        page.press("Continue")
        page.wait_idle()
        assert page.contents(".text .tokens") == [expected(once)]
        page.paste("x" * 5000)
        page.press("Continue")
        page.wait(lambda: "exceeds the available context size" in page.text("#notice"))
        page.reload()
        assert page.contents(".text .tokens") == [expected(once)]
        assert page.box == "x" * 5000


def test_without_a_browser(running: Running, tiny_target: Any) -> None:
    response = running.client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "unsafe-eval" not in policy
    assert "<!doctype html>" in response.text
    assert "http://" not in response.text
    assert "https://" not in response.text
    with Running(tiny_target, options={"ui": False}) as other:
        assert other.client.get("/").status_code == 404
        assert other.post("/markdown", {"markdown": "x"}).status_code == 404
