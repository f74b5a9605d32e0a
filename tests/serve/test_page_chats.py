"""The page's chats in a real browser: what it keeps, what fails, and that it can be used on any screen."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from browser import NARROW, WIDE, Page, open_browser
from serving import Running
from vlm_pairs import load_vlm


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


def answer_of(running: Running, *texts: Any, **more: Any) -> str:
    """The answer to a conversation whose messages alternate."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    body = {"messages": messages, "temperature": 0, "max_tokens": 20, **more}
    return str(running.ask("/v1/chat/completions", body)["choices"][0]["message"]["content"])


def test_a_reload_loses_nothing(running: Running, page: Page) -> None:
    page.ask("the self")
    first = page.contents(".assistant .tokens")
    page.press("New chat")
    page.ask("another")
    second = page.contents(".assistant .tokens")
    page.type("not sent yet")
    page.wait(lambda: page.js("return !timer"))  # it is kept
    page.reload()
    assert (page.contents(".user .plain"), page.contents(".assistant .tokens")) == (["another"], second)
    assert page.box == "not sent yet"
    assert page.js("return $('max_tokens').value") == "20"
    assert page.contents("#list li button:first-child") == ["another", "the self"]
    assert page.all(".figures")
    page.press("the self", "#list")
    assert page.contents(".assistant .tokens") == first
    assert page.box == ""
    page.press("Delete the chat: the self")
    assert page.contents("#list li button:first-child")[-1] == "another"
    page.press("Undo")
    assert page.contents(".assistant .tokens") == first


def test_a_failed_message_returns(running: Running, page: Page) -> None:
    """It goes back into the box with its files, and is not sent with the next one."""
    page.js("return attach([new File(['hello'], 'a.txt', { type: 'text/plain' })])")
    page.paste("x" * 5000)
    page.press("Send")
    page.wait(lambda: "exceeds the available context size" in page.text("#notice"))
    page.wait_idle()
    assert not page.all(".message")
    assert page.box == "x" * 5000
    page.press("Remove a.txt")
    page.js("$('input').value = ''")
    page.ask("the self")
    assert page.contents(".assistant .tokens") == [answer_of(running, "the self")]
    assert not page.all("#notice")[0].is_displayed()


def test_a_wrong_key(pair: Any, browser: Any) -> None:
    with Running(*pair, options={"api_keys": ("right",)}) as other:
        page = Page(browser, other)
        assert "wants an API key" in page.text("#notice")
        page.type("the self")
        page.press("Send")
        page.wait(lambda: "back in the box" in page.text("#notice"))
        assert not page.all(".message")
        page.press("Settings", "#notice")
        page.js("$('key').value = 'right'; $('key').dispatchEvent(new Event('change', { bubbles: true }))")
        page.press("Done")
        page.wait(lambda: page.text("#model") == "tiny")
        page.set(max_tokens=4)
        page.press("Send")
        page.wait(lambda: page.all(".assistant .markdown"))
        page.reload()
        assert page.text("#model") == "tiny"


def test_edit_regenerate_copy(running: Running, page: Page) -> None:
    page.ask("the self")
    page.ask("more")
    page.press("Edit", ".user:first-child")
    assert page.box == "the self"
    assert "replaces what follows" in page.text("#editing")
    page.js("$('input').select()")
    page.ask("another")
    expected = answer_of(running, "another")
    assert (page.contents(".user .plain"), page.contents(".assistant .tokens")) == (["another"], [expected])
    page.set(max_tokens=5)
    page.press("Regenerate")
    page.wait_idle()
    assert page.contents(".assistant .tokens") == [answer_of(running, "another", max_tokens=5)]
    grant = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": running.url}
    page.browser.execute_cdp_cmd("Browser.grantPermissions", grant)
    page.press("Copy", ".assistant")
    page.wait(lambda: page.contents(".assistant .foot button:first-child") == ["Copied"])
    copied = page.browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert [copied] == page.contents(".assistant .tokens")


def test_a_stopped_answer(running: Running, page: Page) -> None:
    """It is marked as one, though the engine's step goes on, goes on where it was, and its request has ended."""
    page.set(max_tokens=450)
    is_stopped, drawn = threading.Event(), []

    def draw(part: Any, token: int) -> int:
        drawn.append(token)
        if len(drawn) > 12:
            assert is_stopped.wait(120)  # longer than the page may take to stop
        return token

    running.server.engine.stepper.on_sample = draw
    try:
        page.type("the self")
        page.press("Send")
        page.wait(lambda: page.contents(".assistant .tokens") not in ([], [""]))
        page.press("Stop")
        page.wait_idle()
    finally:
        is_stopped.set()
        running.server.engine.stepper.on_sample = None
    page.wait(lambda: not running.server.engine_thread.answers)
    so_far = page.contents(".assistant .tokens")[0]
    page.reload()
    assert page.text(".state").startswith("Stopped.")
    page.set(max_tokens=5)
    page.press("Continue")
    page.wait_idle()
    expected = so_far + answer_of(running, "the self", so_far, max_tokens=5)
    assert page.contents(".assistant .tokens") == [expected]


def test_a_full_context(running: Running, page: Page) -> None:
    """An answer that fills the context says so; it goes on without the oldest messages."""
    page.ask("the self")
    page.set(max_tokens=None)
    page.js("const s = options; options = () => ({ ...s(), ignore_eos: true })")
    page.resize((1280, 400))
    page.js("document.documentElement.style.fontSize = '24px'")
    page.ask("more")
    n_ctx = running.server.engine.n_ctx
    assert f"The context is full ({n_ctx} tokens)." in page.text(".state")
    page.wait(lambda: len(page.all(".markdown")) == 2)
    bottom, end = page.js(
        "return [$('log'), [...document.querySelectorAll('.foot')].pop()].map(e => e.getBoundingClientRect().bottom)"
    )
    assert end <= bottom  # how it ended is in view
    so_far = page.contents(".assistant .tokens")[-1]
    page.press("Go on without the oldest messages")
    page.wait(lambda: len(page.contents(".assistant .tokens")[-1]) > len(so_far))
    page.wait_idle()
    longer = page.contents(".assistant .tokens")[-1]
    assert longer.startswith(so_far)
    assert "no longer sent" in page.text(".left-out")
    page.press("Go on without the oldest messages")
    page.wait(lambda: "alone fills the context" in page.text("#notice"))
    assert page.contents(".assistant .tokens")[-1] == longer
    page.js("$('max_tokens').value = '5'")
    # a message for which there is no room any more goes on with what fits
    page.ask("third")
    assert page.box == "third"
    page.press("Go on without the oldest messages")
    page.wait(lambda: page.box == "" and page.js("return !running.size"))
    assert page.contents(".user .plain") == ["the self", "more", "third"]
    assert page.contents(".assistant .tokens")[-1] == answer_of(running, "third", max_tokens=5, ignore_eos=True)
    assert len(page.all(".left-out")) == 1


def test_attachments(running: Running, page: Page, tmp_path: Any) -> None:
    """A text is sent with its name; images are refused with a reason where the model reads none, as other files are."""
    (tmp_path / "notes.txt").write_text("the\nself\n")
    page.all("#picker")[0].send_keys(str(tmp_path / "notes.txt"))
    page.wait(lambda: page.contents("#files li"))
    page.ask("again")
    expected = answer_of(running, "notes.txt:\n```\nthe\nself\n```\n\nagain")
    assert page.contents(".assistant .tokens") == [expected]
    assert "notes.txt" in page.text(".user .files")
    page.js(
        "return attach([new File(['x'], 'a.png', { type: 'image/png' }), new File([new Uint8Array([255])], 'b.bin')])"
    )
    page.wait(lambda: "a.png was not attached: this model reads no images" in page.text("#notice"))
    assert "b.bin was not attached: it is no text in UTF-8" in page.text("#notice")


def test_images(browser: Any, tmp_path: Any) -> None:
    vlm = load_vlm("qwen25vl")
    with Running(vlm, mmproj_path=vlm.mmproj, options={"jinja": True}) as other:
        page = Page(browser, other)
        page.set(temperature=0, max_tokens=6)
        (tmp_path / "a.png").write_bytes(vlm.file)
        page.all("#picker")[0].send_keys(str(tmp_path / "a.png"))
        page.wait(lambda: page.all("#files img"))
        page.ask("What is this?")
        url = f"data:image/png;base64,{base64.b64encode(vlm.file).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
        assert page.contents(".assistant .tokens") == [answer_of(other, content, max_tokens=6)]
        page.reload()
        assert page.js("return document.querySelector('.user img').naturalWidth") > 0


RECTS = """
return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).map(e => {
  const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom, e.id || e.textContent]; })
"""
CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (c) => c.slice(0, 3).map(x => x / 255).map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)
  .reduce((sum, x, i) => sum + x * [.2126, .7152, .0722][i], 0);
const back = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
return [...document.querySelectorAll("button, .plain, .tokens span, .markdown p, .figures, .state, #notice span")]
  .filter(e => e.checkVisibility() && e.textContent).map(e => {
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(back(e))].sort((x, y) => y - x);
    return [(a + .05) / (b + .05), e.className, e.textContent]; })
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
def test_screens(page: Page, size: tuple[int, int], scheme: str) -> None:
    """Nothing is wider than the screen, no control covers another one, and all texts can be read."""
    page.resize(size, scheme)
    page.ask("the self")
    page.js(f"$('input').value = '{'x' * 3000}'; tell('Something failed. ' + 'y'.repeat(200))")
    assert page.js("return document.documentElement.scrollWidth") <= size[0]
    page.js("document.body.classList.remove('rendered')")
    for ratio, *what in page.js(CONTRAST):
        assert ratio >= 4.5, what
    shown = page.js(RECTS, "header > *, form button, form textarea")
    assert len(shown) >= 6
    _apart(shown, size)
    # the usual model's name is whole, and an answer's figures are a line
    texts = {
        "h1": "SmolLM2-135M-Instruct.Q4_1.gguf",
        ".figures": "1234 tokens · 130.7 tokens/s · 15.57 a step · 6.90 \u00d7 plain",
    }
    for selector, text in texts.items():
        page.js("document.querySelector(arguments[0]).textContent = arguments[1]", selector, text)
    assert page.js("const h = document.querySelector('h1'); return h.scrollWidth <= h.clientWidth")
    assert page.js("return document.querySelector('.figures').clientHeight") < 30
    # messages stand above the box, with a bar to scroll too
    page.js("document.querySelector('.message').style.minHeight = '2000px'")
    [answer], [box] = page.js(RECTS, ".assistant"), page.js(RECTS, ".box")
    assert answer[0] == pytest.approx(box[0], abs=1)
    page.press("Settings")
    fields = page.js(RECTS, "dialog input, dialog textarea, dialog button")
    assert len(fields) == 12
    _apart(fields, size)
    labels = page.js("return [...document.querySelectorAll('dialog :is(input, textarea)')].map(e => e.labels.length)")
    assert labels == [1] * 11
    page.press("Done")


def _apart(rects: list[Any], size: tuple[int, int]) -> None:
    """Rectangles are within the screen, and apart from each other."""
    for i, (left, top, right, bottom, name) in enumerate(rects):
        assert 0 <= left < right <= size[0], name
        assert 0 <= top < bottom <= size[1], name
        for *other, other_name in rects[:i]:
            is_apart = other[2] <= left or right <= other[0] or other[3] <= top or bottom <= other[1]
            assert is_apart, (name, other_name)


def test_keyboard(running: Running, page: Page) -> None:
    """Enter sends, the arrow brings the last message back, Escape leaves it and closes what is open."""
    from selenium.webdriver.common.keys import Keys

    page.resize(NARROW)

    def focused() -> str:
        name: str = page.js("return document.activeElement.id")
        return name

    page.type("the self" + Keys.ENTER)
    page.wait_idle()
    page.wait(lambda: page.contents(".assistant .tokens") == [answer_of(running, "the self")])
    assert "The answer is complete." in page.contents("#status")[0] or "max_tokens" in page.contents("#status")[0]
    assert focused() == "input"
    page.type(Keys.ARROW_UP)
    assert page.box == "the self"
    page.type(Keys.ESCAPE)
    assert page.box == ""
    page.js("$('menu').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert focused() == "new"
    assert page.js("return $('menu').ariaExpanded") == "true"
    page.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert focused() == "menu"
    page.js("$('configure').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.js("return $('settings').open")
    page.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not page.js("return $('settings').open")
