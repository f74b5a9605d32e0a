"""Conversations as people and agents have them: generators that yield requests and are sent the answers.

A transcript yields lists of requests, which are sent at once, and is sent their answers, messages of OpenAI's form (of
a completion its text as `content`). The answers become part of the conversation, as clients do it: so each side
continues its own texts. `RESTART` instead of a list means to restart the server.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
RESTART = "restart"
Transcript = Generator["list[Json] | str", "list[Json]", None]
_WORDS = """the file that was read last has a list of places where people work and what they do there when it rains
before a day of rest they look at maps and count how often a road is used by cars or by those who walk"""


@dataclass(frozen=True)
class Sizes:
    """Words of the texts; a word is one token or two, in byte-level vocabularies five."""

    system: int = 150
    message: int = 30
    n_turns: int = 8


def words(n: int, seed: int) -> str:
    """Return a text of n words."""
    rng, known = random.Random(seed), _WORDS.split()
    return " ".join(rng.choice(known) for _ in range(n))


_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
    for name, text in (("read_file", "Read a file"), ("list_files", "List the files of a folder"))
]


class Talk:
    """A conversation that grows."""

    def __init__(self, system: str, tools: list[Json] | None = None):
        self.messages: list[Json] = [{"role": "system", "content": system}]
        self._more: Json = {"tools": tools} if tools else {}

    def user(self, text: str) -> Json:
        """Return the request after a user's next message."""
        self.messages.append({"role": "user", "content": text})
        return self.request()

    def request(self) -> Json:
        """Return the request for the conversation so far."""
        return {"messages": list(self.messages), **self._more}

    def answered(self, message: Json) -> None:
        """Add the model's message."""
        self.messages.append(message)

    def call(self, message: Json, i: int, result: str) -> None:
        """Add a call of a tool in place of the model's message, and the tool's result: thoughts stay."""
        arguments = json.dumps({"path": f"notes/{i}.txt"})
        function = {"name": "read_file", "arguments": arguments}
        calls = [{"id": f"call{i:05d}", "type": "function", "function": function}]
        self.messages.append({**message, "content": "", "tool_calls": calls})
        self.messages.append({"role": "tool", "tool_call_id": f"call{i:05d}", "content": result})


def tools(sizes: Sizes) -> Transcript:
    """Play turns with thoughts, where the model has them; in every third one a tool is called twice."""
    talk = Talk(words(sizes.system, 1), _TOOLS)
    for turn in range(sizes.n_turns):
        (answer,) = yield [talk.user(words(sizes.message, 10 + turn))]
        for k in range(2 if turn % 3 == 1 else 0):
            talk.call(answer, 10 * turn + k, words(2 * sizes.message, 30 + 10 * turn + k))
            (answer,) = yield [talk.request()]
        talk.answered(answer)


def agents(sizes: Sizes) -> Transcript:
    """Play four agents with one system prompt at once; one of them has two sub-agents; the client asks for a title."""
    system = words(2 * sizes.system, 2)
    talks = [Talk(system, _TOOLS) for _ in range(4)]
    for turn in range(3):
        requests = [talk.user(words(sizes.message, 100 + 10 * turn + i)) for i, talk in enumerate(talks)]
        for talk, answer in zip(talks, (yield requests), strict=True):
            talk.answered(answer)
        if turn == 0:
            title = Talk("Write a title of three words for this conversation.")
            yield [title.user(talks[0].messages[1]["content"])]
        if turn == 1:
            below = [Talk(words(sizes.system, 3), _TOOLS) for _ in range(2)]
            for part in range(2):
                requests = [talk.user(words(sizes.message, 150 + 10 * part + i)) for i, talk in enumerate(below)]
                for talk, answer in zip(below, (yield requests), strict=True):
                    talk.answered(answer)


def editor(sizes: Sizes) -> Transcript:
    """Complete while a user types at one position of a file, then at another one, then at the first one again."""
    lines = [words(8, 200 + i) + "\n" for i in range(sizes.system // 4)]
    typed = words(12, 300)
    for place in (2 * len(lines) // 3, len(lines) // 3, 2 * len(lines) // 3):
        for n in (4, 8, 12, 16):
            before = "".join(lines[:place])
            yield [{"input_prefix": before, "prompt": typed[:n], "input_suffix": "\n" + "".join(lines[place:][:10])}]


def typing(sizes: Sizes) -> Transcript:
    """Complete as `editor` does, for models without fill-in-the-middle: only the text before the cursor."""
    for (request,) in editor(sizes):
        yield [{"prompt": request["input_prefix"] + request["prompt"]}]


def edit(sizes: Sizes) -> Transcript:
    """Edit a user's message in the middle, and continue from there; then from the end again."""
    talk = Talk(words(sizes.system, 4))
    for turn in range(4):
        (answer,) = yield [talk.user(words(sizes.message, 400 + turn))]
        talk.answered(answer)
    other = Talk("")
    other.messages = [*talk.messages[:3], {"role": "user", "content": words(sizes.message, 450)}]
    (answer,) = yield [other.request()]
    other.answered(answer)
    yield [other.user(words(sizes.message, 451))]
    yield [talk.user(words(sizes.message, 452))]


def switch(sizes: Sizes) -> Transcript:
    """Play two conversations with different system prompts, turn by turn."""
    talks = [Talk(words(sizes.system, 500 + i)) for i in range(2)]
    for turn in range(sizes.n_turns // 2):
        for i, talk in enumerate(talks):
            (answer,) = yield [talk.user(words(sizes.message, 510 + 10 * turn + i))]
            talk.answered(answer)


def restart(sizes: Sizes) -> Transcript:
    """Play a conversation whose server is restarted in the middle."""
    talk = Talk(words(sizes.system, 6))
    for turn in range(6):
        if turn == 3:
            yield RESTART
        (answer,) = yield [talk.user(words(sizes.message, 600 + turn))]
        talk.answered(answer)


TRANSCRIPTS = {"tools": tools, "agents": agents, "editor": editor, "edit": edit, "switch": switch, "restart": restart}
