"""The work that a schema or a pattern asks for has a bound, whatever it says."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import pytest

import hostile
from chatting import Load
from llama_cpp_eagle3.chat import constraint_of, schema_grammar
from llama_cpp_eagle3.chat.schema import SchemaError
from llama_cpp_eagle3.chat.schema.matching import Pattern
from llama_cpp_eagle3.chat.schema.work import Work
from random_schemas import PATTERNS

SCHEMAS = hostile.schemas()
SECONDS = 25.0
"""Of CPU time: several times what the slowest one takes, which without a bound would be minutes to years."""
MORE_PATTERNS = (r"^(a+)+$", r"^(a*)*$", r"(a|b)*c(d|e){2,3}", r"^(?P<n>a)?$", r"^\x41\u0042[\]\\^-]$", r"^a{2}{$", "")


@pytest.mark.parametrize("pattern", [*PATTERNS, *MORE_PATTERNS])
def test_matching_is_that_of_python(pattern: str) -> None:
    dice, matcher = random.Random(0), Pattern(pattern, Work())
    for _ in range(400):
        text = "".join(dice.choice('aabbccdxe,-1239 "\\\tAB]{_') for _ in range(dice.randrange(7)))
        assert matcher.matches(text) == (re.search(pattern, text) is not None), text


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"^\d$", "٣", None),  # a digit in Python, none in ECMAScript
        (r"^\D$", "٣", None),
        (r"^\w+$", "ü", None),
        (r"^\w+$", "u", True),
        (r"^\w+$", "ü!", False),
        (r"(?=a)b", "b", None),
        ("^a$", "a\n", False),
    ],
)
def test_what_dialects_disagree_about(pattern: str, text: str, matches: bool | None) -> None:
    assert Pattern(pattern, Work()).matches(text) is matches


def test_matching_takes_as_long_as_the_text() -> None:
    matcher, start = Pattern("^(a+)+$", Work()), time.thread_time()
    assert matcher.matches("a" * 100_000 + "!") is False
    assert matcher.matches("a" * 100_000) is True
    assert time.thread_time() - start < SECONDS
    with pytest.raises(SchemaError, match="too much work"):
        Pattern("^" + "(a|a?)" * 9000 + "$", Work()).matches("a" * 100_000)


def in_time(work: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Return what is returned, or the message of the error."""
    start = time.thread_time()
    try:
        found = work()
    except ValueError as e:
        found = str(e)
    assert time.thread_time() - start < seconds
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(name: str) -> None:
    found = in_time(lambda: schema_grammar(SCHEMAS[name]))
    if isinstance(found, str):
        assert re.match("it takes too much work|its grammar has more than|nothing is left", found)
    else:
        assert len(found.text) < 6 << 20
        assert len(found.loosened) <= 201


@pytest.mark.parametrize(
    ("name", "template"),
    [*zip(SCHEMAS, cycle(["NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja", "Qwen3-Coder.jinja"]), strict=False)],
)
def test_schemas_of_tools(load: Load, template: str, name: str) -> None:
    schema = SCHEMAS[name]
    if len(schema.get("properties", ())) > 5000:  # the template alone takes a millisecond for each
        schema = schema | {"properties": dict(islice(schema["properties"].items(), 5000))}
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": schema}}
    chat, message = load(template), {"role": "user", "content": "a"}
    found = in_time(lambda: chat.apply([message], tools=[tool]), 2 * SECONDS)
    assert len(found if isinstance(found, str) else found.loosened) <= 500


@pytest.mark.parametrize(
    "body",
    [
        {"regex": "(a?b?){1,300}" * 50},
        {"regex": "(?<a" * 50_000},
        {"regex": "a{1" * 100_000},
        {"regex": "^" + "a?" * 19_000},
        {"choice": ["a" * i for i in range(1, 2800)]},
        {"choice": [f"{i}" for i in range(20_000)]},
    ],
    ids=lambda body: str(body)[:30],
)
def test_patterns_and_choices(body: dict[str, Any]) -> None:
    found = in_time(lambda: constraint_of(body))
    assert len(found if isinstance(found, str) else found.grammar) < 4 << 20


def test_required_properties_take_as_long_as_others() -> None:
    """Where each was looked for among all, 16,000 took four times as long."""
    properties, seconds = {f"p{i}": {} for i in range(16_000)}, []
    for required in ([], list(properties)):
        start = time.thread_time()
        schema_grammar({"type": "object", "properties": properties, "required": required})
        seconds.append(time.thread_time() - start)
    assert seconds[1] < 2 * seconds[0]
