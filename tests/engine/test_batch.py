"""`generate_batch` gives each prompt the text that it gets alone, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import llama_cpp
import numpy as np
import pytest

from llama_cpp_eagle3 import BusyError, ContextFullError, Eagle3Llama
from llama_cpp_eagle3.engine import Sequence, State
from loading import is_tie, load, load_plain, prompts
from recurrent_pairs import write_pair

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")

N = 24


@pytest.fixture(scope="module", params=["random", "perfect", "qwen35", "qwen3next", "mamba2"])
def pair(request: Any, tmp_path_factory: Any, tiny_target: Any, tiny_head: Any, perfect_pair: Any) -> tuple[Any, Any]:
    if request.param == "random":
        return tiny_target, tiny_head
    if request.param == "perfect":
        return tuple(perfect_pair)
    return write_pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def llm(pair: Any) -> Iterator[Eagle3Llama]:
    with closing(load(*pair, n_parallel=3, n_ctx=1024, draft_n_max=4, n_batch=64, n_ubatch=32)) as llm:
        yield llm


def alone(plain: llama_cpp.Llama, prompt: Any, **options: Any) -> tuple[str, str]:
    """Return text and finish reason of a single run of plain llama_cpp."""
    plain.reset()
    choice = plain.create_completion(prompt, **{"temperature": 0.0} | options)["choices"][0]
    return choice["text"], choice["finish_reason"]


def test_greedy(pair: Any, llm: Eagle3Llama) -> None:
    """There are more prompts than slots, of different lengths, some longer than a batch."""
    n_vocab = min(llm.n_vocab(), 128)
    texts = [*prompts(8, n_vocab), *prompts(2, n_vocab, (80, 100))]
    results = llm.generate_batch(texts, temperature=0.0, max_tokens=N)
    with closing(load_plain(pair[0])) as plain:
        n_ties = 0
        for prompt, result in zip(texts, results, strict=True):
            plain.reset()
            expected = []
            for token in plain.generate(prompt, temp=0.0):
                if len(expected) == len(result.tokens):
                    break
                expected.append(token)
            n_ties += is_tie(plain, prompt, expected, result.tokens)
            assert result.finish_reason == "stop" or N <= len(result.tokens) <= N + 16  # ends a character
            assert result.prompt_tokens == prompt
        assert n_ties <= 1
    assert llm.n_tokens == 0
    assert llm.last_stats.tokens == sum(r.stats.tokens for r in results)
    # prompts with the same beginning evaluate it once
    assert llm.last_stats.prompt_tokens == sum(r.stats.prompt_tokens for r in results) <= sum(len(p) for p in texts)
    assert llm.last_stats.steps == sum(r.stats.steps for r in results)
    assert llm.last_stats.drafted > 0
    with closing(llm.generate(texts[0], temp=0.0)) as stream:  # alone again
        assert [next(stream) for _ in range(len(results[0].tokens))] == results[0].tokens


def test_each_its_own(tiny_target: Any, perfect_pair: Any, tiny_head: Any) -> None:
    """Each prompt has its own sampler, seed, length, stop string and processor, and the same text as alone."""

    def no_vowels(input_ids: Any, scores: Any) -> Any:
        scores[[ord(c) for c in "aeiou"]] = -np.inf
        scores[int(input_ids[-1])] = -np.inf  # nor the last token: processors get their own prompt's tokens
        return scores

    processor = llama_cpp.LogitsProcessorList([no_vowels])
    options = [
        {"seed": 1, "temperature": 0.8},
        {"seed": 2, "temperature": 1.2, "top_k": 0, "top_p": 1.0, "max_tokens": 5},
        {"seed": 3, "repeat_penalty": 1.3, "frequency_penalty": 0.3},
        {"temperature": 0.0, "max_tokens": 40},
        {"seed": 5, "stop": ["e", "q"]},
        {"seed": 6, "logits_processor": processor},
        {"seed": 7, "mirostat_mode": 2},
        {"temperature": 0.0, "logits_processor": processor},
    ]
    texts = [f"text {i}: " for i in range(len(options))]
    for target, head in ((tiny_target, tiny_head), perfect_pair):
        with (
            closing(load_plain(target)) as plain,
            closing(load(target, head, n_parallel=4, draft_n_max=3, rng="llama")) as llm,
        ):
            results = llm.generate_batch(texts, options, max_tokens=N)
            for text, option, result in zip(texts, options, results, strict=True):
                expected = alone(plain, text, **{"temperature": 0.8, "max_tokens": N} | option)
                assert (result.text, result.finish_reason) == expected
            with pytest.raises(TypeError, match="unexpected options"):
                llm.generate_batch(["a"], [{"temprature": 1.0}])
            with pytest.raises(ValueError, match="options for each of 2 prompts, found 1"):
                llm.generate_batch(["a", "b"], [{}])


def test_places_are_given_on(tiny_target: Any, tiny_head: Any) -> None:
    """Short prompts do not wait for long ones, as the number of passes shows."""
    with closing(load(tiny_target, tiny_head, n_parallel=2, draft_n_max=0)) as llm:
        passes = []
        target = llm.target

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(target, name)

            def decode_parts(self, parts: Any) -> None:
                passes.append(len(parts))
                target.decode_parts(parts)

        llm.engine.memory.target = Counting()  # type: ignore[assignment]
        llm.generate_batch(["long"] + ["short"] * 5, [{"max_tokens": 50}] + [{"max_tokens": 6}] * 5, temperature=0.0)
        # 49 steps of the long one, beside which the short ones run, and prefill
        assert sum(n == 2 for n in passes) >= 25
        assert len(passes) <= 52 + 6


def test_without_a_head(tiny_target: Any) -> None:
    with closing(load_plain(tiny_target)) as plain, closing(load(tiny_target, n_parallel=3)) as llm:
        texts = ["a", "bc", "def", "ghij"]
        for text, result in zip(texts, llm.generate_batch(texts, temperature=0.0, max_tokens=N), strict=True):
            assert (result.text, result.finish_reason) == alone(plain, text, max_tokens=N)


def test_auto_and_tree_draft_chains(tiny_target: Any, perfect_pair: Any) -> None:
    with closing(load_plain(perfect_pair[0])) as plain:
        for options in ({"draft": "auto"}, {"draft_tree_tokens": 6}):
            with closing(load(*perfect_pair, n_parallel=2, **options)) as llm:
                for text, result in zip(
                    "abc", llm.generate_batch([*"abc"], temperature=0.0, max_tokens=N), strict=True
                ):
                    assert (result.text, result.finish_reason) == alone(plain, text, max_tokens=N)
                # trees again, with the sequences of the prompts
                assert (
                    llm.create_completion("a", max_tokens=N, temperature=0.0)["choices"][0]["text"]
                    == alone(plain, "a", max_tokens=N)[0]
                )


def test_errors_before_anything_is_evaluated(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head, n_parallel=2, n_ctx=256, draft_n_max=3)) as llm:
        llm.eval([1, 2, 3])
        with pytest.raises(ContextFullError, match=r"prompt 1: .* max_tokens=256 do not fit, the context holds 256"):
            llm.generate_batch(["a", "b"], [{}, {"max_tokens": 256}])
        with pytest.raises(ContextFullError, match="prompt 0: 300 tokens do not fit"):
            llm.generate_batch([[1] * 300])
        with pytest.raises(ValueError, match="prompt 1: expected tokens in 0"):
            llm.generate_batch([[1], [9999]])
        with pytest.raises(ValueError, match="cannot parse the grammar"):
            llm.generate_batch(["a", "b"], [{}, {"grammar": llama_cpp.LlamaGrammar.from_string('root ::= "a" (')}])
        with pytest.raises(ValueError, match="prompt 1: expected at least one token"):
            llm.generate_batch([[1], []])
        assert llm.n_tokens == 3
        assert llm.generate_batch([]) == []

        def nested(input_ids: Any, scores: Any) -> Any:
            llm.eval([1])
            return scores

        nested_first = [{"logits_processor": [nested]}, {}, {}]
        results = llm.generate_batch(["a", "b", "c"], nested_first, temperature=0.0, max_tokens=5)
        assert [type(r.error) for r in results] == [BusyError, type(None), type(None)]
        assert [r.finish_reason for r in results] == ["error", "length", "length"]
        assert len(llm.generate_batch(["a", "b", "c"], max_tokens=5, temperature=0.0)) == 3
    with pytest.raises(ValueError, match="room for 256 sequences, found n_parallel=300"):
        load(tiny_target, tiny_head, n_parallel=300)
    with pytest.raises(ValueError, match="n_parallel=20 sequences need batches of that size, found n_batch=16"):
        load(tiny_target, tiny_head, n_parallel=20, n_batch=16)
    with closing(load(tiny_target, tiny_head, draft="auto", n_batch=4, n_ubatch=4)) as llm:
        llm.generate_batch(["a"], max_tokens=4)


def test_those_that_wait_are_not_counted_each_step(
    tiny_target: Any, tiny_head: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of a step depends only on running sequences: 5 times the prompts take 5 times the checks, not 25."""
    n_looks = 0

    def is_done(sequence: Sequence) -> bool:
        nonlocal n_looks
        n_looks += 1
        return sequence.state is State.DONE

    monkeypatch.setattr(Sequence, "is_done", property(is_done))
    found = []
    with closing(load(tiny_target, tiny_head, n_parallel=2)) as llm:
        for n in (40, 200):
            n_looks = 0
            results = llm.generate_batch([[3, 4]] * n, max_tokens=4, temperature=0.0, ignore_eos=True)
            assert all(len(result.tokens) == 4 for result in results)
            found.append(n_looks)
    assert found[1] <= 6 * found[0]


def test_progress_bar(tiny_target: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(load(tiny_target, n_parallel=2)) as llm:
        llm.generate_batch(["a", "b", "c"], max_tokens=2, progress=True)
        assert "3/3" in capsys.readouterr().err
        llm.generate_batch(["a", "b", "c"], max_tokens=2)
        assert capsys.readouterr().err == ""
