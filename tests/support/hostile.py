"""Schemas, patterns and requests whose work would have no end, or that a parser's stack would not survive."""

from __future__ import annotations

import base64
import gzip
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"


def schemas() -> dict[str, Any]:
    """Return JSON schemas by what is wrong with them. They are within the limits of a request."""
    dice = random.Random(0)
    a34 = "a" * 34 + "!"
    return {
        "a pattern that backtracks, for an enum": {"enum": [a34], "pattern": "^(a+)+$"},
        "a pattern that backtracks, for names": {"properties": {a34: {}}, "patternProperties": {"^(a+)+$": {}}},
        "a pattern of names that backtracks": {"required": [a34], "propertyNames": {"pattern": "^(a+)+$"}},
        "an enum of 99,000 values": {"enum": [f"value {i}" for i in range(99_000)], "pattern": "^[a-z]+ [0-9]*$"},
        "texts that begin with each other": {"enum": ["a" * i for i in range(2800)]},
        "names x patterns": {
            "properties": {f"p{i}": {} for i in range(20_000)},
            "patternProperties": {f"^p{i}.*x": {} for i in range(20_000)},
        },
        "a common multiple of a million digits": {
            "type": "integer",
            "allOf": [{"multipleOf": dice.randrange(10**290, 10**300)} for _ in range(900)],
        },
        "combinations": {"allOf": [{"anyOf": [{"required": [f"a{i}.{k}"]} for k in range(14)]} for i in range(2000)]},
        "alternatives that are compared": {
            "oneOf": [
                {"anyOf": [{"required": [f"{i}.{k}"], "properties": {f"{i}.{k}": {"const": i}}} for k in range(200)]}
                for i in range(50)
            ]
        },
        "a constant x an enum": {"enum": [str(i) for i in range(50_000)], "const": "x" * 1_000_000},
        "50,000 things to say": {"properties": {f"a{i}": {"$ref": "#/nowhere"} for i in range(49_000)}},
        "references, twice each": {
            "$ref": "#/$defs/a0",
            "$defs": {
                f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"$ref": f"#/$defs/a{i + 2}"}]} for i in range(5000)
            },
        },
        "references in circles": {
            "$ref": "#/$defs/a0",
            "$defs": {
                f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{(7 * i + k) % 60}"} for k in range(8)]} for i in range(60)
            },
        },
        "a circle through allOf": {"type": "object", "properties": {"x": {"allOf": [{"$ref": "#"}]}}},
        "properties, twice each": {
            "type": "object",
            "properties": {"r": {"allOf": [{"$ref": "#/$defs/a0"}]}},
            "$defs": {
                f"a{i}": {
                    "type": "object",
                    "properties": {name: {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}]} for name in "xy"},
                }
                for i in range(60)
            },
        },
        "patterns with lengths": {
            "properties": {
                f"a{i}": {"type": "string", "pattern": f"^(\\w{{0,9}}\\w{{0,9}}){{0,9}}{i}$", "maxLength": 20}
                for i in range(10_000)
            }
        },
        "categories that there are not": {
            "properties": {
                f"a{i}": {"type": "string", "pattern": f"^\\p{{{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}}}$"}
                for i in range(5000)
            }
        },
        "parts that can be empty": {"type": "string", "pattern": f"^((({'a?' * 140})*{'b?' * 140})*)*$"},
        "a class of 20,000 classes": {"type": "string", "pattern": f"^[{chr(92)}w{(chr(92) + 'w') * 20_000}]$"},
        "19,000 classes": {"type": "string", "pattern": f"^{'[^' + chr(92) + 'W]'}{(chr(92) + 'w') * 18_999}$"},
        "items": {"prefixItems": [{"const": i} for i in range(49_000)]},
        "names that are excluded": {
            "properties": {f"{i}{'a' * 90}": {} for i in range(20_000)},
            "additionalProperties": True,
        },
        "a constant that is nested": {"const": json.loads("[" * 480 + "]" * 480)},
        "a schema that is nested": json.loads('{"items":' * 480 + "{}" + "}" * 480),
        "a number of 400 digits": {"type": "integer", "minimum": 10**400, "maximum": 10**401},
    }


def grammars() -> dict[str, str]:
    """Return GBNF by what is wrong with it."""
    ways = "\n".join([f'r{i} ::= "a" r{i + 1} "x" | "a" r{i + 1} "y"' for i in range(60)])
    return {
        "60 choices at once": f'root ::= r0\n{ways}\nr60 ::= "a"',
        "repetitions of repetitions": 'root ::= (("a"? "b"?){0,30}){0,30} "c"',
        "4 MB of comments": "#" * (4 << 20),
        "brackets": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    }


@dataclass(frozen=True)
class Body:
    """A request. Its bytes are made when it is sent, and not all at once."""

    path: str
    make: Callable[[], bytes]
    headers: dict[str, str] = field(default_factory=dict)


def bodies(image: bytes) -> dict[str, Body]:
    """Return requests that keep a server busy, by name; image: a small PNG. They are within its limits, or just not."""
    found: dict[str, Body] = {}

    def add(name: str, path: str, make: Callable[[], Any], **headers: str) -> None:
        def encoded() -> bytes:
            value = make()
            return value if isinstance(value, bytes) else json.dumps(value).encode()

        assert name not in found
        found[name] = Body(path, encoded, {"Content-Type": "application/json", **headers})

    def chat(name: str, **fields: Any) -> None:
        add(name, CHAT, lambda: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, **fields})

    def raw(name: str, begin: bytes, part: bytes, n: int, end: bytes) -> None:
        add(f"a body of {name}", "/completion", lambda: begin + part * n + end)

    all_schemas = schemas()
    for name in (
        "a pattern that backtracks, for an enum", "an enum of 99,000 values", "a common multiple of a million digits",
        "a constant x an enum", "a class of 20,000 classes", "references in circles", "a schema that is nested",
    ):  # fmt: skip
        chat(f"schema: {name}", response_format={"type": "json_schema", "json_schema": {"schema": all_schemas[name]}})
    name = "properties, twice each"
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": all_schemas[name]}}
    chat(f"tool: {name}", tools=[tool])
    for name, text in grammars().items():
        add(f"grammar: {name}", "/completion", lambda text=text: {"prompt": "a", "n_predict": 60, "grammar": text})
    rules = "\n".join(f"a{i}: a{i + 1}? a{i + 1}?" for i in range(2500))
    chat("rules in Lark, twice each", guided_grammar=f'start: a0\n{rules}\na2500: "z"')
    chat("a pattern of 20,000 brackets", regex="a{1" * 20_000)
    chat("20,000 choices", choice=[f"{i} {i}" for i in range(20_000)])
    chat("a schema as a text of 300,000 names", json_schema="{" + ",".join(f'"{i}":1' for i in range(300_000)) + "}")

    n = 1 << 20
    raw("a million empty objects", b'{"prompt":[', b"{},", n, b"1]}")
    raw("a million lists", b'{"prompt":[', b"[],", n // 2, b"1]}")
    add("a body of 260,000 names", "/completion", lambda: {f"name {i}": i for i in range(260_000)})
    raw("260,000 fractions", b'{"prompt":[', b"1.2345678901234567e-300,", 260_000, b"1]}")
    raw("numbers of 500 digits", b'{"prompt":[', b"9" * 500 + b",", 60_000, b"1]}")
    raw("halves of characters", b'{"prompt":"', rb"\ud83d", 3 << 20, b'"}')
    raw("backslashes", b'{"prompt":"\\ud83d', rb"\\", 8 << 20, b'"}')
    raw("escapes", b'{"prompt":"', rb"\u00e9", 3 << 20, b'"}')
    raw("brackets", b'{"prompt":', b"[", 16 << 20, b"")
    add("gzip", "/completion", lambda: gzip.compress(bytes(16 << 20), 1), **{"Content-Encoding": "gzip"})

    def messages(name: str, *messages: dict[str, Any], **fields: Any) -> None:
        add(name, CHAT, lambda: {"messages": [*messages, {"role": "user", "content": "a"}], "max_tokens": 2, **fields})

    def call(arguments: str) -> dict[str, Any]:
        function = {"name": "f", "arguments": arguments}
        return {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}

    deep = "[" * 501 + "]" * 501
    empty = "[" + "[]," * (5 << 20) + "[]"
    messages("10,000 messages", *({"role": ("user", "assistant")[i % 2], "content": "a"} for i in range(9999)))
    critic = "w" * 1500
    messages("9,999 of an unknown role", *({"role": "critic", "content": f"{critic}{i:04}"} for i in range(9999)))
    messages("five million words", {"role": "assistant", "content": "ab " * 5_000_000})
    messages("a tool's message of 16 MB", call("{}"), {"role": "tool", "tool_call_id": "a", "content": f"{empty}]"})
    messages("one that is nested", call("{}"), {"role": "tool", "tool_call_id": "a", "content": f"{empty},{deep}]"})
    messages("arguments of 16 MB", call(f'{{"a":{empty}]}}'), {"role": "tool", "tool_call_id": "a", "content": "b"})
    messages("arguments that are cut", call(f'{{"a":{empty}'), {"role": "tool", "tool_call_id": "a", "content": "b"})
    names = {f"p{i}": {"type": "string", "description": "a"} for i in range(150)}
    chat(
        "80 tools",
        tools=[
            {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": names}}}
            for i in range(80)
        ],
    )
    chat("arguments of a template", chat_template_kwargs={f"a{i}": {"b": ["c"] * 8} for i in range(900)})

    def picture(name: str, data: Callable[[], bytes]) -> None:
        def body() -> Any:
            url = "data:image/png;base64," + base64.b64encode(data()).decode()
            content = [{"type": "image_url", "image_url": {"url": url}}]
            return {"messages": [{"role": "user", "content": content}], "max_tokens": 2}

        add(f"a picture of {name}", CHAT, body)

    picture("a million segments", lambda: b"\xff\xd8" + b"\xff\xe1\x00\x02" * n + b"\xff\xd9")
    picture("a million blocks", lambda: b"GIF89a\1\0\1\0\0\0\0" + b"!\xf9\1\0\0" * n + b";")
    picture("chunks", lambda: image[:33] + struct.pack(">I4sI", 0, b"tEXt", 0) * n + image[33:])
    picture("zeros", lambda: image[:41] + bytes(12 << 20))
    picture("a size", lambda: image[:16] + struct.pack(">II", 60_000, 60_000) + image[24:])

    add("markdown", "/markdown", lambda: {"markdown": ("[" * 80 + "*a **b _" * 20 + "`" * 40) * 110})
    add("a text of 16 MB", "/completion", lambda: {"prompt": "a" * (16 << 20)})
    add("tokens that are not there", "/completion", lambda: {"prompt": [10**9] * n})
    add("biases", "/completion", lambda: {"prompt": "a", "n_predict": 2, "logit_bias": [["a", 1.0]] * 65_536})
    add("allowed tokens", "/completion", lambda: {"prompt": "a", "n_predict": 2, "allowed_token_ids": [1] * n})
    add(
        "log-probabilities",
        "/v1/completions",
        lambda: {"prompt": "a b c d " * 200, "max_tokens": 50, "logprobs": 300, "echo": True, "temperature": 1},
    )
    add(
        "the same as a stream",
        "/v1/completions",
        lambda: {"prompt": "a b c d " * 200, "max_tokens": 2, "logprobs": 300, "echo": True, "stream": True},
    )
    return found


SLOW = {
    "loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% set x = j %}{% endfor %}{% endfor %}",
    "numbers": "{% for i in range(100000000) %}{% endfor %}",
    "lists": "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "a gigabyte": "{{ 'a' * 1073741824 }}",
    "many texts": "{% for i in range(1000) %}{{ 'a' * 1000000 }}{% endfor %}",
    "a text that is allowed": "{% set x = 'a' * 1000 %}{% for i in range(50000) %}{{ x }}{% endfor %}",
    "doubled": "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "searched": "{% set ns = namespace(s='aa') %}{% for i in range(24) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
    "{{ (ns.s ~ 'b') in ns.s ~ ns.s }}",
    "looked up": "{% set a = range(1000000) %}{% for i in range(1000000) %}{{ (0 - 1) in a }}{% endfor %}",
}
"""What a template may do -> its Jinja."""


def slow_template() -> str:
    """A template that does what the first message names."""
    cases = "".join(f"{{% if messages[0].content == '{name}' %}}{text}{{% endif %}}" for name, text in SLOW.items())
    return f"{cases}{{{{ messages[0].content }}}}"
