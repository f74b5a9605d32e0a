"""A stream says what a whole answer says, in each API: texts, thoughts, calls, ends, prefilled answers, `echo`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from dialects import CHATS, TEXTS, Said
from serving import Running

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
THOUGHT = "<think>\nI think.\n</think>\n\n"
SAID = {
    "text": "It is warm.\n\n  Yes, größer \U0001f600.\n",
    "a thought": THOUGHT + "So it is.",
    "a call": CALL,
    "a text and a call": "I ask.\n" + CALL,
    "a thought and a call": THOUGHT + CALL,
    "two calls": CALL + "\n" + CALL.replace("Rome", "Oslo"),
    "no format": "It\n<tool_call>\n{{{{",
    "a call and no format": CALL + "\n<tool_call>\n{{{{",
    "another tag": "a < b </tool_call> <tool",
    "a fence": '```json\n{"a": 1}\n```',
}


@pytest.mark.parametrize("api", CHATS)
@pytest.mark.parametrize("name", SAID)
def test_a_stream_is_the_whole(tools: Running, says: Callable[[str], None], api: str, name: str) -> None:
    """Cut off anywhere, with and without tools."""
    says(SAID[name])
    n_tokens = len(tools.ask("/tokenize", {"content": SAID[name]})["tokens"])
    for given, n in (([TOOL], n_tokens + 1), (None, n_tokens + 1), *(([TOOL], n_tokens * i // 4) for i in (1, 2, 3))):
        asked = {"prompt": "the self", "n": max(1, n), "tools": given}
        whole, streamed = CHATS[api].ask(tools, **asked), CHATS[api].stream(tools, **asked)
        assert asdict(whole) == asdict(streamed), n


@pytest.mark.parametrize("api", CHATS)
@pytest.mark.parametrize("begin", ["It is", "It is ", "It is\n\n", "  indented:", "```python\n", '{"a":', "ü"])
def test_an_answer_that_goes_on(tools: Running, says: Callable[[str], None], api: str, begin: str) -> None:
    """It gives what is new; with `echo` the beginning too."""
    says(" a text")
    for more, expected in (({}, " a text"), ({"echo": True}, begin + " a text")):
        asked = {"prompt": "the self", "n": 40, "begin": begin, **more}
        whole, streamed = CHATS[api].ask(tools, **asked), CHATS[api].stream(tools, **asked)
        assert whole.text == streamed.text == expected


@pytest.mark.parametrize("api", CHATS)
@pytest.mark.parametrize("begin", ['<tool_call>\n{"name": "get', 'I ask.\n<tool_call>\n{"name": "get', CALL])
def test_a_begun_call_that_goes_on_as_no_call(
    tools: Running, says: Callable[[str], None], api: str, begin: str
) -> None:
    """What the prompt has of the message is sent once, with `echo`."""
    for text in (" end", "\n\nend\n", "b</think>\n\nc"):
        says(text)
        for has_echo in (False, True):
            asked = {"prompt": "the self", "n": 40, "begin": begin, "tools": [TOOL], "echo": has_echo}
            whole, streamed = CHATS[api].ask(tools, **asked), CHATS[api].stream(tools, **asked)
            assert asdict(whole) == asdict(streamed), asked
            if begin != CALL:
                assert whole.text == (begin + text if has_echo else text)


@pytest.mark.parametrize("api", TEXTS)
def test_texts(running: Running, api: str) -> None:
    asked: dict[str, Any] = {"prompt": "the self", "n": 24}
    plain = TEXTS[api].ask(running, **asked)
    word = plain.text[9:12]
    for more in (
        *(
            {},
            {"stop": [word]},
            {"stop": [word], "include_stop_str_in_output": True},
            {"stop": [word], "min_tokens": 20},
        ),
        *([{"echo": True}, {"echo": True, "stop": [word]}] if api == "completions" else []),
    ):
        whole, streamed = TEXTS[api].ask(running, **asked, **more), TEXTS[api].stream(running, **asked, **more)
        assert asdict(whole) == asdict(streamed), more


ENDS: dict[str, tuple[str, str, str]] = {
    "chat": ("tool_calls", "length", "stop"),
    "functions": ("function_call", "length", "stop"),
    "responses": ("completed, completed call", "incomplete, incomplete call", "completed, incomplete call"),
    "messages": ("tool_use", "max_tokens", "stop_sequence"),
}
"""API -> why an answer ends: after a call, cut off in it, at a stop string in it."""


@pytest.mark.parametrize("api", CHATS)
def test_a_call_that_is_cut_is_not_complete(tools: Running, says: Callable[[str], None], api: str) -> None:
    says(CALL)
    n = len(tools.ask("/tokenize", {"content": CALL[: CALL.index("Rome") + 2]})["tokens"])
    stop = {"stop_sequences" if api == "messages" else "stop": ["ome"]}
    whole, cut, stopped = ENDS[api]
    for reason, n_max, more in ((whole, 400, {}), (cut, n, {}), (stopped, 400, stop)):
        asked = {"prompt": "the self", "n": n_max, "tools": [TOOL], **more}
        for said in (CHATS[api].ask(tools, **asked), CHATS[api].stream(tools, **asked)):
            assert said.reason == reason
            assert [name for name, _ in said.calls] == ["get_weather"]


@pytest.mark.parametrize("api", CHATS)
def test_tokens_of_thoughts(tools: Running, says: Callable[[str], None], api: str) -> None:
    """They are counted with their tags, also if the thought is cut off."""
    n_tokens = lambda text: len(tools.ask("/tokenize", {"content": text})["tokens"])  # noqa: E731
    says(THOUGHT + "So it is.")
    for n, expected in ((400, n_tokens(THOUGHT.rstrip())), (12, 12)):
        said: Said = CHATS[api].ask(tools, prompt="the self", n=n)
        assert said.thought
        assert said.n_thought == expected
    says("So it is.")
    assert CHATS[api].ask(tools, prompt="the self", n=400).n_thought == 0
