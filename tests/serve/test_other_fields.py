"""Fields of vLLM, SGLang and others: they hold as there, are refused by name, or are named once in the log."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.serve.fields import COMPLETION_FIELDS, Completion
from llama_cpp_eagle3.serve.other_fields import NOTHING, OTHER_FIELDS
from serving import Running

DOC = Path(__file__).parents[2] / "docs" / "serving.md"
PROMPT = "the self"
N = 24


def ask(running: Running, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = running.ask(
        "/completion", {"prompt": PROMPT, "n_predict": N, "temperature": 0, "return_tokens": True, **more}
    )
    return answer


def tokens_of(running: Running, text: str) -> list[int]:
    return list(running.ask("/tokenize", {"content": text})["tokens"])


@pytest.fixture(scope="module")
def plain(running: Running) -> dict[str, Any]:
    return ask(running)


def test_tokens_that_end_a_text(running: Running, plain: dict[str, Any]) -> None:
    token = plain["tokens"][7]
    n = plain["tokens"].index(token)
    before = running.ask("/detokenize", {"tokens": plain["tokens"][:n]})["content"]
    after = running.ask("/detokenize", {"tokens": plain["tokens"][: n + 1]})["content"]
    for more, text in (({}, before), ({"include_stop_str_in_output": True}, after), ({"no_stop_trim": True}, after)):
        answer = ask(running, stop_token_ids=[token], **more)
        assert (answer["content"], answer["stop_type"]) == (text, "eos")
        assert answer["tokens_predicted"] == n + 1
    assert ask(running, stop_token_ids=[token], ignore_eos=True)["content"] == before


def test_stop_strings_that_stay(running: Running, plain: dict[str, Any]) -> None:
    text = plain["content"]
    word = text[9:12]
    answer = ask(running, stop=["\0", word], include_stop_str_in_output=True)
    assert answer["content"] == text[: text.index(word) + len(word)]
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", word)


def test_other_names(running: Running, plain: dict[str, Any]) -> None:
    """Names of text-generation-inference, SGLang and Anthropic, on endpoints that have others."""
    body = {"prompt": PROMPT, "temperature": 0}
    answer = running.ask("/completion", {**body, "max_new_tokens": 5})
    assert (answer["tokens_predicted"], answer["stop_type"]) == (5, "limit")
    word = plain["content"][9:12]
    answer = running.ask("/completion", {**body, "n_predict": N, "stop_sequences": ["\0", word]})
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", word)
    assert answer["content"] == plain["content"][: plain["content"].index(word)]
    answer = ask(running, stop_sequences=[word], min_new_tokens=N)
    assert answer["tokens_predicted"] == N
    refused = running.post("/completion", {**body, "stop_sequences": 5})
    assert refused.status_code == 400
    assert "'stop_sequences'" in refused.text


def test_the_least_number_of_tokens(running: Running, plain: dict[str, Any]) -> None:
    """Neither the model's end, nor a token or string that stops, ends a text before it."""
    eos, n = running.server.llm.token_eos(), 9
    bias = [[eos, 1000.0]]
    assert ask(running, logit_bias=bias)["tokens_predicted"] == 1
    answer = ask(running, logit_bias=bias, min_tokens=n)
    assert answer["tokens_predicted"] == n + 1
    assert answer["content"] == running.ask("/detokenize", {"tokens": plain["tokens"][:n]})["content"]
    token = plain["tokens"][2]
    stopped = ask(running, stop_token_ids=[token], min_tokens=n)
    assert stopped["tokens_predicted"] > n
    assert token not in stopped["tokens"][:n]
    word = running.ask("/detokenize", {"tokens": [token]})["content"]
    assert ask(running, stop=[word])["tokens_predicted"] <= 3
    answer = ask(running, stop=[word], min_tokens=n)
    assert answer["tokens_predicted"] > n
    assert plain["content"].startswith(answer["content"])


def test_a_grammar_goes_before_the_least_number(running: Running) -> None:
    answer = ask(running, grammar='root ::= "ab"', min_tokens=N)
    assert (answer["content"], answer["stop_type"]) == ("ab", "eos")


def test_too_many_are_refused(running: Running) -> None:
    response = running.post("/completion", {"prompt": PROMPT, "n_predict": 5, "min_tokens": 6})
    assert response.status_code == 400
    assert "min_tokens" in response.json()["error"]["message"]


def test_bad_words(running: Running, plain: dict[str, Any]) -> None:
    """A word of one token never comes, one of several does not become whole, at the beginning or after a blank."""
    pieces = [running.ask("/detokenize", {"tokens": [token]})["content"] for token in plain["tokens"]]
    for word in (pieces[3], pieces[4] + pieces[5]):
        assert word in plain["content"]
        answer = ask(running, bad_words=[word])
        variants = [tokens_of(running, text) for text in (word.lstrip(), " " + word.lstrip())]
        for variant in variants:
            n = len(variant)
            assert variant not in [answer["tokens"][i : i + n] for i in range(len(answer["tokens"]))]
    assert ask(running, bad_words=["\u2603 nowhere"])["content"] == plain["content"]


def test_allowed_tokens(running: Running, plain: dict[str, Any]) -> None:
    allowed = sorted(set(plain["tokens"][:3]))
    for more in ({}, {"temperature": 1.0, "seed": 1}):
        answer = ask(running, allowed_token_ids=allowed, **more)
        assert set(answer["tokens"]) <= set(allowed)
        assert answer["tokens_predicted"] == N
    for name, wrong in (("allowed_token_ids", [10**7]), ("stop_token_ids", [-1]), ("allowed_token_ids", [])):
        response = running.post("/completion", {"prompt": PROMPT, name: wrong})
        assert response.status_code == 400, name
        assert f"Field '{name}'" in response.json()["error"]["message"]


CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "allowed tokens and a grammar": {"grammar": 'root ::= "yes"', "allowed_token_ids": "x"},
    "words and a grammar": {"grammar": 'root ::= "yes"', "bad_words": ["y", "ye", "yes"]},
    "allowed tokens and a bias": {"allowed_token_ids": "x", "logit_bias": [["x", False]]},
    "allowed tokens and words": {"allowed_token_ids": "x", "bad_words": ["x"]},
    "a token that would end the text too early": {"allowed_token_ids": "x", "stop_token_ids": "x", "min_tokens": 3},
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_nothing_is_left(running: Running, name: str) -> None:
    """Then a token that is forbidden is not taken all the same."""
    x = tokens_of(running, "x")
    body = {field: x if value == "x" else value for field, value in CONTRADICTIONS[name].items()}
    for more in ({}, {"temperature": 1.0, "seed": 1}):
        response = running.post("/completion", {"prompt": PROMPT, "n_predict": 8, "temperature": 0, **body, **more})
        assert response.status_code == 400, response.text
        assert "forbidden by bad_words, allowed_token_ids or min_tokens" in response.json()["error"]["message"]


def test_a_grammar_ends_a_text_of_allowed_tokens(running: Running) -> None:
    """The token that ends it need not be among them."""
    answer = ask(running, grammar='root ::= "xyz"', allowed_token_ids=tokens_of(running, "xyz"))
    assert (answer["content"], answer["stop_type"]) == ("xyz", "eos")


def test_the_penalty_of_the_whole_text(running: Running, plain: dict[str, Any]) -> None:
    last, expected = plain["tokens"][:2]
    prompt = [expected, *[last] * 80]  # the token is farther back than llama-server's penalty looks

    def next_of(**more: Any) -> int:
        return int(ask(running, prompt=prompt, n_predict=1, **more)["tokens"][0])

    assert next_of() == next_of(repeat_penalty=1e6) == expected
    assert next_of(repetition_penalty=1e6) != expected
    assert next_of(repetition_penalty=1e6, repeat_last_n=64) == expected
    assert ask(running, repetition_penalty=1.0)["generation_settings"]["repeat_last_n"] == 64
    response = running.post("/completion", {"prompt": PROMPT, "repetition_penalty": 0})
    assert "repetition_penalty" in response.json()["error"]["message"]


def test_drafts_change_nothing(running: Running) -> None:
    body = {"seed": 3, "temperature": 1.0, "bad_words": ["the"], "min_tokens": 12}
    assert ask(running, **body)["content"] == ask(running, **body, speculative=False)["content"]


@pytest.mark.parametrize("name", [name for name, field in OTHER_FIELDS.items() if field.is_refused])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_what_cannot_be_ignored_is_refused(running: Running, path: str, name: str) -> None:
    if (path, name) in (("/v1/messages", "system"), ("/v1/responses", "instructions")):
        return  # there it is read
    body = {"prompt": PROMPT, "input": PROMPT, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
    response = running.post(path, {**body, name: ["x"]})
    assert response.status_code == 400
    assert f"'{name}'" in response.json()["error"]["message"]
    for value in OTHER_FIELDS[name].plain:
        assert running.post(path, {**body, name: value}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_what_is_ignored_is_named_once(running: Running, path: str, caplog: pytest.LogCaptureFixture) -> None:
    body = {"prompt": PROMPT, "input": PROMPT, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
    only = {"completions": "prompt", "responses": "input"}.get(path.rpartition("/")[2].replace("chat", ""), "messages")
    only = "messages" if "chat" in path else only
    name = f"field_of_{path.rpartition('/')[2]}_{'chat' in path}"
    asked = {only: body[only], "max_output_tokens" if "resp" in path else "max_tokens": 2}
    quiet = {"user": "x", "model": "y", "metadata": {}, "skip_special_tokens": True, "priority": 0}
    with caplog.at_level(logging.WARNING, logger="llama_cpp_eagle3"):
        running.ask(path, asked | quiet)
        assert not caplog.records
        for _ in range(2):
            running.ask(path, asked | {name: 1, "another": None})
    (record,) = caplog.records
    assert record.getMessage().endswith(f"(said once): {name!r}")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/chat/completions", {"reasoning": {"exclude": True}}),
        ("/v1/chat/completions", {"stream_options": {"include_all": True, "include_usage": True}}),
        ("/v1/completions", {"speculative": {"n_most": 5, "n_max": 2}}),
        ("/v1/messages", {"output_config": {"task_budget": {}, "effort": "low"}}),
        ("/v1/messages", {"thinking": {"display": "omitted", "type": "disabled"}}),
        ("/v1/responses", {"text": {"colour": "red", "format": {"type": "text"}}}),
        ("/v1/responses", {"reasoning": {"context": "all", "effort": "low", "max_tokens": 5}}),
    ],
)
def test_fields_inside_of_others(
    running: Running, path: str, named: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """What is not read of a field's object is named once, by its path."""
    body = {"completions": {"prompt": PROMPT}, "responses": {"input": PROMPT}}.get(
        path[4:], {"messages": [{"role": "user", "content": PROMPT}]}
    )
    (field,) = named
    expected = f"{field}.{next(iter(named[field]))}"
    with caplog.at_level(logging.WARNING, logger="llama_cpp_eagle3"):
        for _ in range(2):
            running.ask(path, {**body, "max_output_tokens" if "resp" in path else "max_tokens": 2, **named})
    (record,) = caplog.records
    assert record.getMessage().endswith(f"(said once): {expected!r}")


def test_a_kind_of_thinking_that_there_is_not(running: Running) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
    for path in ("/v1/chat/completions", "/v1/messages"):
        response = running.post(path, {**body, "thinking": {"type": "deep"}})
        assert response.status_code == 400
        assert "thinking.type" in response.json()["error"]["message"]
        running.ask(path, {**body, "thinking": {"type": "adaptive"}})


def test_the_table_has_what_is_not_read() -> None:
    """A field is in one place: read, or in the table of those that are not."""
    assert not OTHER_FIELDS.keys() & (COMPLETION_FIELDS - {"n", "n_cmpl"})
    for name in ("min_tokens", "stop_token_ids", "bad_words", "allowed_token_ids", "include_stop_str_in_output"):
        assert name in Completion.model_fields


def test_the_documents_table() -> None:
    rows = re.findall(r"^\| (`.*`) \| (ignored|refused): (.*) \|$", DOC.read_text("utf-8"), re.M)
    found = {name: (how, why) for names, how, why in rows for name in re.findall(r"`(\w+)`", names)}
    for name, field in OTHER_FIELDS.items():
        if field.why != NOTHING:
            assert found.pop(name) == ("refused" if field.is_refused else "ignored", field.why)
    assert not found
