"""Llama's interface, with a head: the same answers as plain llama_cpp."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import placement
from adapters import write_lora
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine.draft import Draft
from loading import Drafts, is_tie, load, load_plain, path_of, prompts, take
from tiny import vocab, write_target
from tolerance import of_target

pytestmark = pytest.mark.also_on_rpc("target-on-rpc")

PROMPT = "the return of the self"


@pytest.fixture
def both(perfect_pair: Any) -> Iterator[tuple[llama_cpp.Llama, Eagle3Llama]]:
    """Return plain llama_cpp and ours on a pair where every draft is accepted: all stops fall inside accepted runs."""
    target, head = perfect_pair
    plain, llm = load_plain(target, logits_all=True), load(target, head, logits_all=True, rng="llama")
    yield plain, llm
    assert llm.drafters[0].n_past() == llm.n_tokens or llm.n_tokens == 0
    plain.close()
    llm.close()


def answer(response: Any) -> Any:
    """Return a response without the fields that differ by nature."""
    return {k: v for k, v in response.items() if k not in ("id", "created", "model")}


def same(a: Any, b: Any) -> None:
    """Check that responses are the same; numbers may differ by rounding."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, float | np.floating):
        assert a == pytest.approx(b, abs=of_target(1e-4))
    else:
        assert a == b


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 17, None])
def test_completion(both: Any, max_tokens: int | None) -> None:
    plain, llm = both
    options = {"max_tokens": max_tokens, "temperature": 0.0}
    same(answer(plain(PROMPT, **options)), answer(llm(PROMPT, **options)))
    assert plain.n_tokens == llm.n_tokens
    if max_tokens is None:
        return  # the context is full
    # and continue from there: the budget fell inside an accepted run
    text = PROMPT + llm(PROMPT, **options)["choices"][0]["text"]
    same(answer(plain(text, max_tokens=5, temperature=0.0)), answer(llm(text, max_tokens=5, temperature=0.0)))


@pytest.mark.parametrize(
    "options",
    [
        {"echo": True},
        {"logprobs": 3},
        {"logprobs": 2, "echo": True},
        {"stop": ["re"], "max_tokens": 200},
        {"logit_bias": {65: 100.0}},
        {"temperature": 0.8, "seed": 7},
        {"temperature": 0.8, "seed": 7, "repeat_penalty": 1.2, "mirostat_mode": 2},
    ],
    ids=str,
)
def test_completion_options(both: Any, options: dict[str, Any]) -> None:
    plain, llm = both
    options = {"max_tokens": 20, "temperature": 0.0} | options
    same(answer(plain.create_completion(PROMPT, **options)), answer(llm.create_completion(PROMPT, **options)))


@pytest.mark.parametrize("length", range(1, 8))
def test_stop_string_anywhere_in_a_run(both: Any, length: int) -> None:
    plain, llm = both
    text = plain(PROMPT, max_tokens=12, temperature=0.0)["choices"][0]["text"]
    options = {"max_tokens": 12, "temperature": 0.0, "stop": [text[length : length + 2]]}
    expected = answer(plain(PROMPT, **options))
    assert expected["choices"][0]["finish_reason"] == "stop"
    same(expected, answer(llm(PROMPT, **options)))


@pytest.mark.parametrize("options", [{}, {"logprobs": 2}, {"stop": ["s"]}, {"temperature": 0.9, "seed": 3}], ids=str)
def test_streaming(both: Any, options: dict[str, Any]) -> None:
    options = {"max_tokens": 24, "temperature": 0.0, "stream": True} | options
    chunks = [list(model.create_completion(PROMPT, **options)) for model in both]
    assert len(chunks[0]) == len(chunks[1])
    for a, b in zip(*chunks, strict=True):
        same(answer(a), answer(b))


MESSAGES = [{"role": "system", "content": "be short"}, {"role": "user", "content": "the self"}]


def test_chat(both: Any) -> None:
    plain, llm = both
    options = {"messages": MESSAGES, "max_tokens": 20, "temperature": 0.0}
    same(answer(plain.create_chat_completion(**options)), answer(llm.create_chat_completion(**options)))
    streams = [list(model.create_chat_completion(**options, stream=True)) for model in both]
    assert len(streams[0]) > 5
    for a, b in zip(*streams, strict=True):
        same(answer(a), answer(b))


def test_json_schema(both: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"of": {"enum": ["in", "at", "re"]}, "n": {"type": "boolean"}},
        "required": ["of", "n"],
        "additionalProperties": False,
    }
    options = {
        "messages": MESSAGES,
        "max_tokens": 200,
        "temperature": 0.0,
        "response_format": {"type": "json_object", "schema": schema},
    }
    content = [model.create_chat_completion(**options)["choices"][0]["message"]["content"] for model in both]
    assert content[0] == content[1]
    found = json.loads(content[1])
    assert found["of"] in ("in", "at", "re")
    assert isinstance(found["n"], bool)


def test_grammar(both: Any) -> None:
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= ("the " | "self ")+ "."')
    for temperature in (0.0, 1.0):
        options = {"grammar": grammar, "max_tokens": 40, "temperature": temperature, "seed": 5}
        texts = [model(PROMPT, **options)["choices"][0]["text"] for model in both]
        assert texts[0] == texts[1]
        assert set(texts[1].rstrip(".").split()) <= {"the", "self", "th", "t", "se", "s", "sel"}


def test_grammar_that_cannot_be_parsed(both: Any) -> None:
    _, llm = both
    with pytest.raises(ValueError, match="cannot parse the grammar"):
        llm(PROMPT, grammar=llama_cpp.LlamaGrammar.from_string("root ::= ("))
    assert llm(PROMPT, max_tokens=4)["usage"]["completion_tokens"] == 4


def test_processors_and_criteria_see_what_llama_shows_them(both: Any) -> None:
    """Processors and criteria get the evaluated tokens, one more with each call, and the logits of the drawn row."""
    seen: list[list[tuple[list[int], np.ndarray]]] = []
    for model in both:
        calls: list[tuple[list[int], np.ndarray]] = []
        seen.append(calls)

        def process(ids: np.ndarray, scores: np.ndarray, calls: Any = calls) -> np.ndarray:
            calls.append((ids.tolist(), np.array(scores)))
            return scores

        lengths: list[int] = []

        def stop(ids: np.ndarray, scores: np.ndarray, lengths: Any = lengths) -> bool:
            lengths.append(len(ids))
            return len(lengths) > 10

        tokens = take(
            model,
            [1, 2, 3, 4],
            50,
            logits_processor=llama_cpp.LogitsProcessorList([process]),
            stopping_criteria=llama_cpp.StoppingCriteriaList([stop]),
        )
        assert len(tokens) == 10
        assert lengths == list(range(4, 15))
    assert len(seen[0]) == len(seen[1]) == 11
    for (ids_a, scores_a), (ids_b, scores_b) in zip(*seen, strict=True):
        assert ids_a == ids_b
        np.testing.assert_allclose(scores_a, scores_b, atol=of_target(1e-4))


def test_criteria_get_the_logits_of_the_row(tiny_target: Any, tiny_head: Any) -> None:
    """Llama passes the first row, or garbage without logits_all; ours is the row that was drawn from."""
    llm = load(tiny_target, tiny_head)
    best: list[int] = []

    def stop(ids: np.ndarray, scores: np.ndarray) -> bool:
        best.append(int(scores.argmax()))
        return False

    tokens = take(llm, [1, 2, 3], 20, stopping_criteria=llama_cpp.StoppingCriteriaList([stop]))
    assert tokens == best[:20]
    llm.close()


def test_scores_are_llama_s(both: Any) -> None:
    for model in both:
        take(model, [9, 8, 7, 6], 30)
    plain, llm = both
    assert plain.n_tokens == llm.n_tokens
    np.testing.assert_array_equal(plain._input_ids, llm._input_ids)
    np.testing.assert_allclose(plain._scores, llm._scores, atol=of_target(1e-4))
    assert list(plain.eval_tokens) == list(llm.eval_tokens)


@pytest.mark.parametrize("eos_scale", [1.5, 2.5])
def test_eos_inside_an_accepted_run(tmp_path: Any, tiny_head: Any, eos_scale: float) -> None:
    """The drafter knows the answer, the end of the text included, and continues to draft after it."""
    target = write_target(tmp_path / "eos.gguf", eos_scale=eos_scale)
    plain, llm = load_plain(target), load(target, tiny_head, draft_n_max=6)
    n_stopped = 0
    for prompt in prompts(30, seed=2):
        context = [*prompt, *take(plain, prompt, 100)]
        llm.engine.drafting.override = Drafts(lambda _, __, c=context: Draft.chain(c[llm.n_tokens + 1 :][:6]))
        options = {"max_tokens": 60, "temperature": 0.0}
        expected, found = plain.create_completion(prompt, **options), llm.create_completion(prompt, **options)
        if placement.is_vulkan():  # plain is on the CPU
            n = min(plain.n_tokens, llm.n_tokens)
            texts = [model.input_ids[len(prompt) : n].tolist() for model in (plain, llm)]
            if is_tie(plain, prompt, *texts):
                continue
        same(answer(expected), answer(found))
        n_stopped += found["choices"][0]["finish_reason"] == "stop"
        assert plain.n_tokens == llm.n_tokens
    assert n_stopped > 3
    assert llm.stats.draft_acceptance_rate > 0.8
    llm.engine.drafting.override = None
    plain.close()
    llm.close()


def test_eval_and_sample_by_hand(both: Any) -> None:
    results = []
    for model in both:
        model.eval([1, 2, 3])
        model._sampler = None
        tokens = []
        for _ in range(8):
            tokens.append(model.sample(temp=0.0))
            model.eval([tokens[-1]])
        results.append(tokens)
    assert results[0] == results[1]


def test_sample_at_a_position(both: Any) -> None:
    _, llm = both
    llm.eval([1, 2, 3, 4])
    llm._sampler = None
    assert llm.sample(temp=0.0, idx=2) == int(llm.scores[2].argmax())
    with pytest.raises(
        ValueError, match="expected a position that was decoded last, found 6"
    ):  # llama_cpp would abort the process here
        llm.sample(temp=0.0, idx=6)


def test_sample_after_an_abandoned_step(tiny_target: Any, tiny_head: Any) -> None:
    """`sample` reads the row of the last accepted token, not the last row of the batch, which a rejected one left."""
    llm = load(tiny_target, tiny_head)
    for n in range(1, 6):
        tokens = take(llm, [3, 2, 1], n)
        assert llm.sample(temp=0.0) == tokens[-1]
    llm.load_state(llm.save_state())
    assert llm.sample(temp=0.0) == tokens[-1]  # a loaded state has no logits: the last token is evaluated again
    llm.reset()
    with pytest.raises(ValueError, match="at least one token"):
        llm.sample(temp=0.0)
    llm.close()


@pytest.mark.parametrize("cache", [llama_cpp.LlamaRAMCache, llama_cpp.LlamaDiskCache])
def test_caches(both: Any, cache: Any, tmp_path: Any) -> None:
    options = {"max_tokens": 8, "temperature": 0.0}
    texts = []
    for i, model in enumerate(both):
        model.set_cache(cache() if cache is llama_cpp.LlamaRAMCache else cache(str(tmp_path / str(i))))
        texts.append(
            [model(p, **options)["choices"][0]["text"] for p in (PROMPT, "at the end", PROMPT, PROMPT + " is")]
        )
        model.set_cache(None)
    assert texts[0] == texts[1]


def test_lora(tiny_target: Any, tiny_head: Any, tmp_path: Any) -> None:
    lora = write_lora(tmp_path / "lora.gguf", tiny_target)
    plain, llm = load_plain(tiny_target, lora_path=lora), load(tiny_target, tiny_head, lora_path=Path(lora))
    without = load(tiny_target, tiny_head)
    expected = take(plain, [1, 2, 3], 40)
    assert take(llm, [1, 2, 3], 40) == expected
    assert take(without, [1, 2, 3], 40) != expected
    for model in (plain, llm, without):
        model.close()


def test_pickle(tiny_target: Any, tiny_head: Any) -> None:
    llm = load(tiny_target, tiny_head, draft_n_max=2, draft_p_min=0.1)
    llm.draft_n_max = 4
    expected = take(llm, [1, 2, 3], 20)
    clone = pickle.loads(pickle.dumps(llm))
    assert (clone.draft_n_max, clone.draft_p_min) == (4, 0.1)
    assert clone.draft_model_path == path_of(tiny_head)
    assert take(clone, [1, 2, 3], 20) == expected
    assert clone.stats.drafted > 0
    clone.close()
    llm.close()


@pytest.mark.parametrize(("cpu_kernels", "atol"), [("off", 1e-6), ("on", 1e-5)], ids=["ggml", "ours"])
def test_embedding_without_a_head(cpu_kernels: str, atol: float, tiny_target: Any) -> None:
    """Our kernels add F32 numbers in another order than ggml's."""
    plain, llm = load_plain(tiny_target, embedding=True), load(tiny_target, embedding=True, cpu_kernels=cpu_kernels)
    np.testing.assert_allclose(plain.embed(PROMPT), llm.embed(PROMPT), atol=of_target(atol))
    plain.close()
    llm.close()


def test_vocab_only(tiny_target: Any) -> None:
    llm = load(tiny_target, vocab_only=True)
    assert llm.detokenize(llm.tokenize(b"the return")) == b"the return"
    llm.close()


def test_detokenize(both: Any, tmp_path: Any) -> None:
    plain, llm = both
    for tokens in prompts(20, seed=3):
        for special in (False, True):
            assert llm.detokenize(tokens, special=special) == plain.detokenize(tokens, special=special)
    assert llm.detokenize([]) == b""


def test_long_pieces_are_not_lost(tiny_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama_cpp stops at 32 bytes."""
    tokens = vocab.vocab_tokens(320)
    last_merge = vocab.N_VOCAB_MIN - 3
    tokens[last_merge] = "\u010a" + 44 * "\u0120"  # GPT-2's spelling of a newline and spaces
    monkeypatch.setattr(vocab, "vocab_tokens", lambda n_vocab: tokens)
    target = write_target(tiny_dir / "long.gguf")
    with closing(load(target, vocab_only=True)) as llm:
        assert llm.detokenize([65, last_merge]) == llm.detokenize([65]) + b"\n" + 44 * b" "


@pytest.mark.parametrize("logits_all", [False, True])
def test_prefix_from_host_memory(perfect_pair: Any, logits_all: bool) -> None:
    """A prompt begins with another text's prefix in host memory, while the arrays still hold a third text."""
    target, head = perfect_pair
    first, other = list(range(40, 80)), [7, 7]
    with (
        closing(load_plain(target, logits_all=logits_all)) as plain,
        closing(load(target, head, logits_all=logits_all, prefix_cache_bytes=1 << 20)) as llm,
    ):
        for prompt in (first, other, first[:20]):
            for each in (plain, llm):
                tokens = each.generate(prompt, temp=0.0)
                next(tokens)
                tokens.close()
            n = len(prompt)
            assert llm.n_tokens == n
            assert llm.input_ids[:n].tolist() == prompt
            if logits_all:
                np.testing.assert_allclose(llm.scores[:n], plain.scores[:n], atol=of_target(1e-4))
