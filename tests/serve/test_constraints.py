"""Constraints on all endpoints: the answer obeys them, or there is an error; lost keywords of schemas are reported."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from chat_cases import templates
from serving import Running

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": r"^\d{2}[^x]$"}, "n": {"enum": [1, 2]}},
    "required": ["a", "n"],
}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
GBNF = 'root ::= "yes" | "no"'
LARK = 'start: "yes" | "no"'
MESSAGES = [{"role": "user", "content": "x"}]
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "x", "n_predict": 80},
    "/v1/completions": {"prompt": "x", "max_tokens": 80},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 80},
    "/v1/responses": {"input": "x", "max_output_tokens": 80},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 80},
}
JSON: list[dict[str, Any]] = [
    {"json_schema": SCHEMA},
    {"response_format": FORM},
    {"guided_json": SCHEMA},
    {"guided_json": json.dumps(SCHEMA)},
    {"structured_outputs": {"json": SCHEMA}},
    {"format": SCHEMA},
    {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    {"output_format": {"type": "json_schema", "schema": SCHEMA}},
]
TEXT: list[tuple[dict[str, Any], str]] = [
    ({"guided_regex": r"[a-c]{3}\n"}, r"[a-c]{3}\n"),
    ({"regex": "ab|cd"}, "ab|cd"),
    ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ({"choice": ["yes", "no"]}, "yes|no"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"guided_grammar": GBNF}, "yes|no"),
    ({"ebnf": GBNF}, "yes|no"),
    ({"grammar": GBNF}, "yes|no"),
    ({"guided_grammar": LARK}, "yes|no"),
    ({"structured_outputs": {"grammar": LARK}}, "yes|no"),
    ({"response_format": {"type": "regex", "regex": "ab|cd"}}, "ab|cd"),
]
WRONG: list[dict[str, Any]] = [
    {"json_schema": "x"},
    {"json_schema": 5},
    {"json_schema": [SCHEMA]},
    {"response_format": "json_object"},
    {"response_format": {"type": "xml"}},
    {"response_format": {"type": "json_schema"}},
    {"guided_json": 5},
    {"guided_regex": "("},
    {"guided_choice": []},
    {"structured_outputs": {"structural_tag": "x"}},
    {"structural_tag": {}},
    {"format": "xml"},
    {"text": "json"},
    {"regex": 5},
    {"ebnf": "start: WORD"},
    {"ebnf": 'root ::= "a'},
    {"guided_grammar": "root ::= a"},
    {"guided_grammar": 'root ::= root "a" | "b"'},
    {"structured_outputs": {"grammar": "start: ("}},
    {"grammar": GBNF, "json_schema": SCHEMA},
    {"extra_body": {"guided_json": SCHEMA}},
]


def text_of(answer: dict[str, Any]) -> str:
    """Return the text of an answer of any API."""
    if "choices" in answer:
        choice = answer["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    if "output" in answer:
        return "".join(part["text"] for item in answer["output"] for part in item.get("content", ()))
    content = answer["content"]
    return str(content) if isinstance(content, str) else "".join(block["text"] for block in content)


def case(body: dict[str, Any]) -> str:
    return json.dumps(body)[:50]


@pytest.mark.parametrize("body", JSON, ids=case)
@pytest.mark.parametrize("path", ENDPOINTS)
def test_schemas(running: Running, path: str, body: dict[str, Any]) -> None:
    answer = running.ask(path, {**ENDPOINTS[path], **body, "seed": 5, "temperature": 1.0})
    jsonschema.validate(json.loads(text_of(answer)), SCHEMA)


@pytest.mark.parametrize(("body", "pattern"), TEXT, ids=[case(body) for body, _ in TEXT])
@pytest.mark.parametrize("path", ENDPOINTS)
def test_texts(running: Running, path: str, body: dict[str, Any], pattern: str) -> None:
    answer = running.ask(path, {**ENDPOINTS[path], **body, "seed": 5, "temperature": 1.0})
    assert re.fullmatch(pattern, text_of(answer))


@pytest.mark.parametrize("body", WRONG, ids=case)
@pytest.mark.parametrize("path", ENDPOINTS)
def test_constraints_that_are_refused(running: Running, path: str, body: dict[str, Any]) -> None:
    response = running.post(path, {**ENDPOINTS[path], **body})
    assert response.status_code == 400
    assert any(name in response.json()["error"]["message"] for name in body)


def test_a_schema_of_messages_beside_another(running: Running) -> None:
    """Neither is dropped, and the error names the fields that were sent."""
    output_config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    for name, other in (("response_format", {"type": "regex", "regex": "a"}), ("guided_json", {"type": "null"})):
        body = {**ENDPOINTS["/v1/messages"], "output_config": output_config, name: other}
        response = running.post("/v1/messages", body)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert "output_config.format.schema" in message
        assert name in message
    body = {**ENDPOINTS["/v1/messages"], "output_config": output_config, "response_format": FORM}
    jsonschema.validate(json.loads(text_of(running.ask("/v1/messages", body))), SCHEMA)


def test_prompts_that_are_kept_elsewhere(running: Running) -> None:
    """An answer without OpenAI's kept prompt is another answer."""
    response = running.post("/v1/responses", {**ENDPOINTS["/v1/responses"], "prompt": {"id": "pmpt_1"}})
    assert response.status_code == 400
    assert "'prompt'" in response.json()["error"]["message"]


def test_streams(running: Running) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        *events, _ = running.stream(path, {**ENDPOINTS[path], "guided_choice": ["yes", "no"]})
        deltas = [choice.get("delta", choice) for event in events for choice in event["choices"]]
        assert "".join(delta.get("text") or delta.get("content") or "" for delta in deltas) in ("yes", "no")


LOOSE = {
    "type": "object",
    "properties": {"a": {"pattern": "(", "type": "string"}, "n": {"const": 1}},
    "required": ["n"],
}


@pytest.mark.parametrize("path", [path for path in ENDPOINTS if path != "/v1/messages"])
def test_what_is_not_kept_is_in_the_metrics(running: Running, path: str) -> None:
    answer = running.ask(path, {**ENDPOINTS[path], "json_schema": LOOSE, "max_tokens": 200, "n_predict": 200})
    (item,) = answer["metrics"]["loosened"]
    assert (item["tool"], item["property"]) == ("", "a")
    assert "pattern '('" in item["reason"]
    plain = running.ask(path, {**ENDPOINTS[path], "json_schema": SCHEMA})
    assert "loosened" not in plain["metrics"]


def test_one_bad_tool_of_forty(roomy_tools: Running) -> None:
    tools = roomy_tools
    good = {
        "type": "object",
        "properties": {"path": {"type": "string", "pattern": "^[a-z]{1,5}$"}},
        "required": ["path"],
    }
    made = [
        {"type": "function", "function": {"name": f"t{i}", "parameters": LOOSE if i == 17 else good}} for i in range(40)
    ]
    body = {"messages": MESSAGES, "tools": made, "tool_choice": "required", "max_tokens": 200, "temperature": 1.0}
    answer = tools.ask("/v1/chat/completions", {**body, "seed": 4})
    assert [(item["tool"], item["property"]) for item in answer["metrics"]["loosened"]] == [("t17", "a")]
    for seed in range(3):
        answer = tools.ask("/v1/chat/completions", {**body, "seed": seed})
        for call in answer["choices"][0]["message"].get("tool_calls", ()):
            if answer["choices"][0]["finish_reason"] == "tool_calls" and call["function"]["name"] != "t17":
                jsonschema.validate(json.loads(call["function"]["arguments"]), good)
    *events, _ = tools.stream("/v1/chat/completions", body)
    assert events[-1]["metrics"]["loosened"][0]["tool"] == "t17"
    chosen = {"type": "function", "function": {"name": "t3"}}
    answer = tools.ask("/v1/chat/completions", {**body, "tool_choice": chosen})
    assert "loosened" not in answer["metrics"]  # the other tools are not offered


def test_prompts_that_begin_the_reasoning(pair: Any) -> None:
    """With a template whose prompt ends with <think>, a constraint holds for the answer's content."""
    template = next(path for path in templates() if path.name == "Qwen-QwQ-32B.jinja").read_text(encoding="utf-8")
    integer = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"]}
    with Running(*pair, draft_n_max=3, options={"chat_template": template}) as running:
        assert running.ask("/apply-template", {"messages": MESSAGES})["prompt"].endswith("<think>\n")
        for n in (0, 5):
            body = {"messages": MESSAGES, "max_tokens": 80, "temperature": 0, "reasoning_budget_tokens": n}
            for field, pattern in (*TEXT[:4], ({"json_schema": integer}, r'\{\s*"a": ?-?[0-9]+\s*\}')):
                message = running.ask("/v1/chat/completions", body | field)["choices"][0]["message"]
                assert re.fullmatch(pattern, message["content"]), (field, message)
                assert bool(message.get("reasoning_content")) == (n > 0)
            # llama-server's own field constrains the whole answer, which leaves no room for a thought
            message = running.ask("/v1/chat/completions", body | {"grammar": GBNF})["choices"][0]["message"]
            assert message.get("reasoning_content", "").strip() in ("yes", "no")
