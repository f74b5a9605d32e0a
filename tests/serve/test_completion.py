"""/completion and /v1/completions, as clients of llama-server and OpenAI know them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import llama_cpp
import numpy as np
import pytest

from loading import load_plain, take
from serving import Running
from tiny import BOS

PROMPT = "the self"
N = 24


@pytest.fixture(scope="module")
def plain(pair: Any) -> Iterator[llama_cpp.Llama]:
    with closing(load_plain(pair[0])) as plain:
        yield plain


@pytest.fixture(scope="module")
def expected(plain: llama_cpp.Llama) -> str:
    """Return plain llama_cpp's greedy text."""
    tokens = take(plain, plain.tokenize(PROMPT.encode(), special=True), N)
    return str(plain.detokenize(tokens).decode())


def greedy(**more: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "n_predict": N, "temperature": 0.0, **more}


def test_whole(running: Running, expected: str) -> None:
    answer = running.ask("/completion", greedy(return_tokens=True, cache_prompt=False))
    assert answer["content"] == expected
    assert len(answer["tokens"]) == answer["tokens_predicted"] == N
    assert (answer["stop"], answer["stop_type"], answer["truncated"]) == (True, "limit", False)
    assert answer["prompt"] == BOS + PROMPT
    timings = answer["timings"]
    assert timings["prompt_n"] == answer["tokens_evaluated"]
    assert timings["cache_n"] == 0
    assert timings["predicted_n"] == N
    assert timings["predicted_per_second"] == pytest.approx(1e3 / timings["predicted_ms"] * (N - 1))
    assert timings["draft_n"] >= timings["draft_n_accepted"] > N // 2
    assert answer["generation_settings"]["n_predict"] == N
    again = running.ask("/completion", greedy())
    assert again["content"] == expected
    assert again["timings"]["prompt_n"] == 1
    assert again["tokens"] == []


def test_one_event_per_token(running: Running, expected: str) -> None:
    *tokens, last = running.stream("/completion", greedy())
    assert len(tokens) == N
    assert [len(event["tokens"]) for event in tokens] == [1] * N
    assert [event["tokens_predicted"] for event in tokens] == list(range(1, N + 1))
    assert "".join(event["content"] for event in tokens) + last["content"] == expected
    assert sum(event["drafted"] for event in tokens) == last["timings"]["draft_n_accepted"] > 0
    assert last["stop"] is True
    assert all(event["stop"] is False for event in tokens)


def test_openai(running: Running, expected: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": N, "temperature": 0}
    answer = running.ask("/v1/completions", body)
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": expected, "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"]["completion_tokens"] == N
    assert answer["usage"]["total_tokens"] == N + answer["usage"]["prompt_tokens"]
    assert answer["system_fingerprint"].startswith("b")
    *events, done = running.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    usage = events.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == N
    assert len(events) == N + 1
    assert "".join(event["choices"][0]["text"] for event in events) == expected
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * N + ["length"]
    assert not any("usage" in event for event in events)
    assert len({event["id"] for event in events}) == 1


def test_stop(running: Running, expected: str) -> None:
    word = expected[9:12]
    n = expected.index(word)
    for body in (greedy(stop=word), greedy(stop=["\x00never", word])):
        answer = running.ask("/completion", body)
        assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == (expected[:n], "word", word)
        events = running.stream("/completion", body)
        assert "".join(event["content"] for event in events) == expected[:n]
    assert running.ask("/v1/completions", greedy(stop=None))["choices"][0]["text"] == expected
    answer = running.ask("/v1/completions", greedy(stop=[word]))
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_seeds(running: Running) -> None:
    body = {"prompt": PROMPT, "n_predict": N, "temperature": 5.0, "top_k": 0, "min_p": 0, "top_p": 1, "seed": 7}
    first = running.ask("/completion", body)["content"]
    assert running.ask("/completion", body)["content"] == first
    assert running.ask("/completion", {**body, "speculative": False})["content"] == first
    assert running.ask("/completion", {**body, "seed": 8})["content"] != first
    assert running.ask("/completion", {**body, "speculative": {"n_max": 1}})["content"] == first
    assert running.ask("/completion", {**body, "repeat_last_n": 3, "frequency_penalty": 1e-9})["content"] == first
    theirs = running.ask("/completion", {**body, "rng": "llama"})
    assert theirs["content"] != first
    assert theirs["generation_settings"]["rng"] == "llama"
    assert running.ask("/completion", body)["generation_settings"]["rng"] == "gumbel"
    assert running.client.get("/props").json()["default_generation_settings"]["params"]["rng"] == "gumbel"
    for more in ({"rng": "dice"}, {"seed": 1.5}, {"seed": "x"}):
        response = running.client.post("/completion", json=body | more)
        assert response.status_code == 400
        assert f"Field '{next(iter(more))}'" in response.json()["error"]["message"]
    several = running.ask("/completion", {**body, "n": 3})
    assert [answer["index"] for answer in several] == [0, 1, 2]
    assert several[0]["content"] == first
    for i, answer in enumerate(several):  # each choice has a seed of its own
        alone = running.ask("/completion", {**body, "seed": body["seed"] + i, "speculative": False})
        assert alone["content"] == answer["content"]
    assert len({answer["content"] for answer in several}) == 3
    assert len({answer["content"] for answer in several}) == 3


def test_several_prompts(running: Running, expected: str) -> None:
    tokens = running.ask("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
    answers = running.ask(
        "/completion", greedy(prompt=[PROMPT, tokens, {"prompt_string": PROMPT}, [tokens[0], PROMPT]])
    )
    assert [answer["content"] for answer in answers] == [expected] * 4
    choices = running.ask("/v1/completions", greedy(prompt=[PROMPT, PROMPT], n=2, n_predict=3))
    assert [choice["index"] for choice in choices["choices"]] == [0, 1, 2, 3]
    assert choices["usage"]["completion_tokens"] == 12
    assert choices["usage"]["prompt_tokens"] == 2 * len(tokens)
    events = running.stream("/v1/completions", greedy(prompt=[PROMPT, PROMPT]))[:-1]
    for i in (0, 1):
        texts = [event["choices"][0]["text"] for event in events if event["choices"][0]["index"] == i]
        assert "".join(texts) == expected


def test_logprobs_are_the_targets(running: Running, plain: llama_cpp.Llama) -> None:
    """Log probabilities are plain llama_cpp's, those of drafted tokens too."""
    answer = running.ask("/completion", greedy(n_probs=3, return_tokens=True))
    assert answer["timings"]["draft_n_accepted"] > 0
    tokens = plain.tokenize(PROMPT.encode(), special=True)
    assert len(answer["completion_probabilities"]) == N
    plain.reset()
    plain.eval(tokens)
    for item in answer["completion_probabilities"]:
        x = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(plain.ctx, -1), shape=(plain.n_vocab(),))
        logs = x - x.max() - np.log(np.exp(x - x.max()).sum())
        assert item["logprob"] == pytest.approx(logs[item["id"]], abs=2e-3)
        best = np.argsort(-logs)[:3]
        assert [top["logprob"] for top in item["top_logprobs"]] == pytest.approx(list(logs[best]), abs=2e-3)
        assert bytes(item["bytes"]).decode() == item["token"]
        plain.eval([item["id"]])
    events = running.stream("/completion", greedy(n_probs=3))
    streamed = [event["completion_probabilities"][0] for event in events[:-1]]
    assert [item["id"] for item in streamed] == answer["tokens"]


def test_logprobs_of_openai(running: Running, expected: str) -> None:
    logprobs = running.ask("/v1/completions", greedy(logprobs=2))["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == expected
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"]) == N
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])
    for more in ({}, {"echo": True}):
        body = greedy(logprobs=0, **more)
        alone = running.ask("/v1/completions", body)["choices"][0]["logprobs"]
        assert alone["tokens"][-N:] == logprobs["tokens"]
        assert alone["token_logprobs"][-N:] == pytest.approx(logprobs["token_logprobs"], abs=2e-3)
        assert all(not top for top in alone["top_logprobs"])
        parts = [e["choices"][0]["logprobs"] for e in running.stream("/v1/completions", body)[:-1]]
        assert [token for part in parts if part for token in part["tokens"]] == alone["tokens"]
    for none in (False, None):
        assert running.ask("/v1/completions", greedy(logprobs=none))["choices"][0]["logprobs"] is None
    assert "completion_probabilities" not in running.ask("/completion", greedy(logprobs=0))  # llama-server's field


def test_post_sampling_probs(running: Running) -> None:
    body = {"prompt": PROMPT, "n_predict": 6, "n_probs": 10, "post_sampling_probs": True, "temperature": 3.0, "seed": 1}
    answer = running.ask("/completion", {**body, "top_k": 4, "top_p": 1.0, "min_p": 0.0})
    assert answer["content"] == running.ask("/completion", {**body, "top_k": 4, "top_p": 1.0, "min_p": 0.0})["content"]
    for item in answer["completion_probabilities"]:
        probs = [top["prob"] for top in item["top_probs"]]
        assert len(probs) == 4
        assert probs == sorted(probs, reverse=True)
        assert sum(probs) == pytest.approx(1.0)
        assert item["prob"] == pytest.approx(next(t["prob"] for t in item["top_probs"] if t["id"] == item["id"]))


def test_echo_and_suffix(running: Running, expected: str) -> None:
    assert running.ask("/v1/completions", greedy(echo=True))["choices"][0]["text"] == PROMPT + expected
    events = running.stream("/v1/completions", greedy(echo=True))[:-1]
    assert "".join(event["choices"][0]["text"] for event in events) == PROMPT + expected
    response = running.post("/v1/completions", greedy(suffix="x"))
    assert response.status_code == 400
    assert "suffix" in response.json()["error"]["message"]


def test_logprobs_of_the_prompt(running: Running, plain: llama_cpp.Llama, pair: Any) -> None:
    """Benchmarks ask for them like this: echo with logprobs and no tokens, or some."""
    text = PROMPT * 20
    tokens = plain.tokenize(text.encode(), special=True)
    with closing(load_plain(pair[0], logits_all=True)) as reference:
        reference.eval(tokens)
        rows = reference.scores[: len(tokens)].astype(float)
    expected = [row[t] - np.logaddexp.reduce(row) for row, t in zip(rows, tokens[1:], strict=False)]
    body = {"prompt": text, "max_tokens": 0, "temperature": 0, "logprobs": 2, "echo": True}
    for more in ({}, {"max_tokens": 4, "n": 2, "stream": True}, {"max_tokens": 4}):
        if more.get("stream"):
            events = [e for e in running.stream("/v1/completions", body | more)[:-1] if e["choices"][0]["index"] == 1]
            parts = [e["choices"][0]["logprobs"] for e in events if e["choices"][0]["logprobs"]]
            found = {name: [x for part in parts for x in part[name]] for name in parts[0]}
            said = "".join(e["choices"][0]["text"] for e in events)
        else:
            choice = running.ask("/v1/completions", body | more)["choices"][0]
            found, said = choice["logprobs"], choice["text"]
        assert found["token_logprobs"][0] is None
        assert found["top_logprobs"][0] is None
        n = len(tokens)
        assert found["token_logprobs"][1:n] == pytest.approx(expected, abs=2e-3)
        assert len(found["tokens"]) == len(found["top_logprobs"]) == n + more.get("max_tokens", 0)
        assert all(len(top) == 2 for top in found["top_logprobs"][1:])
        assert "".join(found["tokens"]) == said
        assert said.startswith(text)
        assert found["text_offset"] == [len("".join(found["tokens"][:i])) for i in range(len(found["tokens"]))]
    again = running.ask("/v1/completions", body | {"max_tokens": 1})  # the cache does not count
    assert len(again["choices"][0]["logprobs"]["tokens"]) == len(tokens) + 1


@pytest.mark.parametrize("prompt", [PROMPT, "größer \u65e5\u672c " + PROMPT])
@pytest.mark.parametrize("echo", [False, True])
def test_offsets_of_tokens(running: Running, prompt: str, echo: bool) -> None:
    """Offsets are those in the text of their choice: after an echoed prompt, and in a stream as without one."""
    n = len(running.ask("/tokenize", {"content": prompt, "add_special": True})["tokens"])
    body = {"prompt": prompt, "max_tokens": 5, "temperature": 0, "logprobs": 1, "echo": echo, "n": 2}
    for choice in running.ask("/v1/completions", body)["choices"]:
        logprobs, text, offsets = choice["logprobs"], choice["text"], choice["logprobs"]["text_offset"]
        own = logprobs["tokens"][-5:]
        assert text.startswith(prompt) == echo
        assert text.endswith("".join(own))
        start = len(prompt) if echo else 0
        assert offsets[-5:] == [start + len("".join(own[:i])) for i in range(5)]
        assert len(offsets) == len(logprobs["tokens"]) == 5 + (n if echo else 0)
        events = [e["choices"][0] for e in running.stream("/v1/completions", body)[:-1]]
        parts = [e["logprobs"] for e in events if e["index"] == choice["index"] and e["logprobs"]]
        assert [offset for part in parts for offset in part["text_offset"]] == offsets


def test_a_line_that_is_indented_too_little(running: Running) -> None:
    grammar = 'root ::= "if x:" "\\n    y" "\\n\\t\\t  z" "\\n  end" [0-9]*'
    body = {"prompt": PROMPT, "temperature": 0.0, "grammar": grammar, "n_predict": 60}
    whole = "if x:\n    y\n\t\t  z\n  end"
    assert running.ask("/completion", body)["content"].startswith(whole)
    for n_indent, text in ((2, whole), (3, "if x:\n    y\n\t\t  z\n  "), (5, "if x:\n    ")):
        answer = running.ask("/completion", {**body, "n_indent": n_indent})
        assert answer["content"] == text if n_indent > 2 else answer["content"].startswith(text)
        assert answer["stop_type"] == "limit" or n_indent == 2
        events = running.stream("/completion", {**body, "n_indent": n_indent})
        assert "".join(event["content"] for event in events) == answer["content"]


def test_logit_bias(running: Running, expected: str) -> None:
    first = running.ask("/completion", greedy(n_predict=1, return_tokens=True))
    token, text = first["tokens"][0], first["content"]
    for bias in ([[token, False]], {str(token): -100}, [[text, -100.0]], [[token, -1e9]]):
        answer = running.ask("/completion", greedy(n_predict=1, logit_bias=bias, return_tokens=True))
        assert answer["tokens"] != [token], bias
    assert running.ask("/completion", greedy(logit_bias=[]))["content"] == expected


@pytest.mark.parametrize(
    "bias",
    [["nonsense"], [[1]], [[1, 2, 3]], [[1, "x"]], [[1, True]], [[None, 1]], {"5": None}, {"-1": 1}, [[-1, 1]]],
)
def test_biases_that_say_nothing(running: Running, bias: Any) -> None:
    """None is left out without a word."""
    response = running.post("/completion", greedy(n_predict=1, logit_bias=bias))
    assert response.status_code == 400
    assert "Field 'logit_bias': expected" in response.json()["error"]["message"]


def test_biases_of_another_vocabulary(running: Running, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    """Some clients send everybody the same tokens. One that there is not cannot be generated: said once."""
    caplog.set_level(logging.WARNING, logger="llama_cpp_eagle3")
    n_vocab = running.server.engine.vocab.n_tokens
    for bias in ({"9999999": -100}, [[n_vocab, False]], {str(n_vocab): 5}):
        assert running.ask("/completion", greedy(logit_bias=bias))["content"] == expected
    (record,) = caplog.records
    assert "'logit_bias of tokens that the vocabulary lacks'" in record.getMessage()
    first = running.ask("/completion", greedy(n_predict=1, return_tokens=True))["tokens"][0]
    asked = greedy(n_predict=1, logit_bias={"9999999": 1, str(first): -100}, return_tokens=True)
    assert running.ask("/completion", asked)["tokens"] != [first]


def test_samplers_that_there_are_not(running: Running) -> None:
    for samplers, named in ((["top_k", "zzz"], "'zzz'"), ("kz", "'z'")):
        response = running.post("/completion", greedy(n_predict=1, samplers=samplers))
        assert response.status_code == 400
        assert f"there is no sampler {named}" in response.json()["error"]["message"]


def test_grammar_and_schema(running: Running) -> None:
    answer = running.ask("/completion", greedy(grammar='root ::= "ab" | "cd" [0-9]{3}'))
    assert answer["stop_type"] == "eos"
    assert answer["content"] == "ab" or answer["content"][:2] == "cd"
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    answer = running.ask("/completion", greedy(json_schema=schema, n_predict=40))
    assert answer["content"].replace(" ", "").replace("\n", "") in ('{"a":"x"}', '{"a":"y"}')
    without = running.ask("/completion", greedy(json_schema=schema, n_predict=40, speculative=False))
    assert without["content"] == answer["content"]


def test_the_end_of_the_text(running: Running, pair: Any) -> None:
    eos = running.server.llm.token_eos()
    bias = [[eos, 1000.0]]
    answer = running.ask("/completion", greedy(logit_bias=bias))
    assert (answer["content"], answer["stop_type"], answer["tokens_predicted"]) == ("", "eos", 1)
    answer = running.ask("/completion", greedy(logit_bias=bias, ignore_eos=True))
    assert answer["tokens_predicted"] == N
    assert answer["generation_settings"]["logit_bias"][-1]["bias"] is None
    assert running.ask("/completion", greedy(n_predict=0))["tokens_predicted"] == 0


def test_context_is_full(running: Running) -> None:
    n_ctx = running.server.engine.n_ctx
    answer = running.ask("/completion", {"prompt": [3] * (n_ctx - 5), "temperature": 0})
    assert (answer["tokens_predicted"], answer["truncated"], answer["stop_type"]) == (5, True, "limit")
    response = running.post("/completion", {"prompt": [3] * n_ctx})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", n_ctx, n_ctx)
    assert "exceeds the available context size" in error["message"]
    response = running.post("/completion", {"prompt": [3] * n_ctx, "stream": True})
    assert response.status_code == 400


def test_fields_progress_and_time(running: Running, expected: str) -> None:
    fields = ["content", "generation_settings/n_predict", "nothing/there"]
    assert running.ask("/completion", greedy(response_fields=fields)) == {
        "content": expected,
        "generation_settings/n_predict": N,
    }
    body = {"prompt": [5] * 200, "n_predict": 3, "return_progress": True, "timings_per_token": True}
    events = running.stream("/completion", body)
    progress = [event for event in events if "prompt_progress" in event]
    assert progress[0]["timings"]["prompt_ms"] == 0.0
    assert progress[-1]["prompt_progress"]["processed"] == progress[-1]["prompt_progress"]["total"] == 200
    assert sum("timings" in event for event in events) == len(events)


def test_samplers_in_their_order(running: Running, expected: str) -> None:
    body = greedy(temperature=9.0, seed=3)
    assert running.ask("/completion", {**body, "samplers": ["top_k"], "top_k": 1})["content"] == expected
    assert running.ask("/completion", {**body, "samplers": "k", "top_k": 1})["content"] == expected
    assert running.ask("/completion", {**body, "top_k": 0, "top_p": 1, "min_p": 0})["content"] != expected
    for more in (
        {"mirostat": 2},
        {"dry_multiplier": 1.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"samplers": ["adaptive_p"], "adaptive_target": 0.3},
        {"typical_p": 0.5, "top_n_sigma": 1.0, "dynatemp_range": 0.5, "min_keep": 2},
    ):
        settings = running.ask("/completion", {**body, **more})["generation_settings"]
        assert settings | more == settings


BAD: list[Any] = [
    b"{", b"[1]", b"5", b'"x"', b"\xff", b"{}", b'{"prompt": null}', b"[" * 5000,
    {"prompt": []}, {"prompt": [[]]}, {"prompt": 5}, {"prompt": [1.5]}, {"prompt": [-1]}, {"prompt": [10**9]},
    {"prompt": {"a": 1}}, {"prompt": [True]}, {"prompt": "a", "n_predict": "many"}, {"prompt": "a", "n_predict": -2},
    {"prompt": "a", "n_predict": 1 << 40}, {"prompt": "a", "temperature": []}, {"prompt": "a", "temperature": 1e400},
    {"prompt": "a", "stop": 5}, {"prompt": "a", "stop": [5]}, {"prompt": "a", "n": 0}, {"prompt": "a", "n": 10**6},
    {"prompt": "a", "grammar": "root ::= ("}, {"prompt": "a", "grammar": "x"}, {"prompt": "a", "grammar": 3},
    {"prompt": "a", "grammar": "root ::= root"}, {"prompt": "a", "grammar": 'root ::= "a"{99999999}'},
    {"prompt": "a", "grammar": "root ::= " + "(" * 9999 + '"a"' + ")" * 9999},
    {"prompt": "a", "json_schema": "x"}, {"prompt": "a", "json_schema": {"type": "nothing"}},
    {"prompt": "a", "json_schema": {"$ref": "#/nowhere"}}, {"prompt": "a", "logit_bias": 5},
    {"prompt": "a", "stream_options": 5}, {"prompt": "a", "samplers": 5}, {"prompt": "a", "repeat_penalty": 0},
    {"prompt": "a", "dry_sequence_breakers": []}, {"prompt": "a", "speculative": {"n_max": -1}},
    {"prompt": "a", "speculative": {"n_max": 2, "n_min": 3}}, {"prompt": "a", "speculative": {"mode": "magic"}},
    {"prompt": "a", "speculative.n_max": "x"}, {"prompt": "a", "n_indent": -2},
    {"prompt": "a", "grammar": "root ::= " + " ".join(['"a"?'] * 2000)},
    {"prompt": "a", "grammar": "root ::= [" + "a" * 9_000_000 + "]"},
    {"prompt": "a", "lora": [{"id": 0, "scale": 1}]},
    {"prompt": "a", "id_slot": "x"}, {"prompt": "a", "seed": 1 << 70}, {"prompt": "a", "best_of": 3},
    {"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}},
]  # fmt: skip


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_bad_bodies(running: Running, path: str) -> None:
    import json

    for body in BAD:
        data = body if isinstance(body, bytes) else json.dumps(body).replace("Infinity", "1e999").encode()
        response = running.client.post(path, content=data, headers={"Content-Type": "application/json"})
        assert response.status_code == 400, (body, response.text)
        error = response.json()["error"]
        assert error["code"] == 400, body
        assert error["type"] == "invalid_request_error", body
        assert error["message"], body
    assert running.ask("/completion", greedy())["content"]
    assert not running.server.engine_thread.answers


def test_tokens(running: Running) -> None:
    text = "the selfish ünïcode"
    tokens = running.ask("/tokenize", {"content": text})["tokens"]
    assert running.ask("/detokenize", {"tokens": tokens})["content"] == text
    assert len(running.ask("/tokenize", {"content": text, "add_special": True})["tokens"]) == len(tokens) + 1
    pieces = running.ask("/tokenize", {"content": text, "with_pieces": True})["tokens"]
    assert [item["id"] for item in pieces] == tokens
    assert any(isinstance(item["piece"], list) for item in pieces)  # half of a character
    of_vllm = running.ask("/tokenize", {"prompt": text})
    assert of_vllm["count"] == len(of_vllm["tokens"]) == len(tokens) + 1
    assert running.ask("/tokenize", {}) == {"tokens": []}
    for path, body in (
        ("/tokenize", {"content": 5}),
        ("/detokenize", {"tokens": ["x"]}),
        ("/detokenize", {"tokens": 1}),
    ):
        assert running.post(path, body).status_code == 400


def test_info(running: Running) -> None:
    assert running.client.get("/health").json() == {"status": "ok"}
    model = running.client.get("/v1/models").json()["data"][0]
    assert model["id"] == "tiny"
    assert model["root"].endswith("target.gguf")
    props = running.client.get("/props").json()
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == running.server.engine.n_ctx
    assert props["speculative"]["enabled"] is True
    tokenizer = running.client.get("/tokenizer_info").json()  # vLLM's, for lm-eval
    eos = running.ask("/tokenize", {"prompt": tokenizer["eos_token"], "add_special_tokens": False})["tokens"]
    assert eos == [running.server.llm.token_eos()]
    assert tokenizer["chat_template"] == props["chat_template"]
    for method, path, code in (("GET", "/nothing", 404), ("GET", "/completion", 405), ("POST", "/props", 501)):
        response = running.client.request(method, path)
        assert response.status_code == code
        assert response.json()["error"]["code"] == code
