"""Grammars: no grammar hangs or ends the process, lazy ones wait, and reasoning is not constrained."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
import pytest

import utf8_texts
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import GrammarLookahead, TokenTree, grammar_sampler
from llama_cpp_eagle3.engine import SAMPLERS, DraftSettings, Reasoning, Sampling, Sequence
from llama_cpp_eagle3.models import bundled_pair
from loading import finish


@pytest.fixture(scope="module")
def llm() -> Iterator[Eagle3Llama]:
    target, head = bundled_pair()
    llm = Eagle3Llama(target, draft_model_path=head, draft="chain", n_ctx=512, verbose=False)
    yield llm
    llm.close()


def run(llm: Eagle3Llama, sampling: Sampling, max_tokens: int = 40, draft: DraftSettings | None = None) -> Sequence:
    sequence = llm.engine.add(llm.tokenize(b"import os\n"), sampling, max_tokens=max_tokens, draft=draft)
    finish(llm)
    return sequence


def greedy(grammar: str, **options: object) -> Sampling:
    return Sampling(temperature=0.0, grammar=grammar, **options)  # type: ignore[arg-type]


def rules(n: int, rule: str) -> str:
    """Return n rules, each of which refers to the next one."""
    lines = [f"r{i} ::= " + rule.replace("NEXT", f"r{i + 1}") for i in range(n)]
    return "\n".join(["root ::= r0", *lines, f'r{n} ::= "a"'])


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a"{5,2}', r"found \{5,2\}"),
        ('root ::= "b"{0}\nr ::= "a"{5,2}', r"found \{5,2\}"),
        ('root ::= "' + "a" * 100_000 + '"{2000}', "more than 1000000 elements"),
        ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, "nested deeper than 200"),
        (rules(60, "NEXT | NEXT"), "more than 20000 ways"),
        (rules(60, 'NEXT "x" | NEXT "y"'), "more than 20000 ways"),
        (rules(60, '[a]? NEXT "x" | [a]? NEXT "y"'), "more than 20000 ways"),
        (rules(60, "NEXT | NEXT | n r0") + '\nn ::= m\nm ::= "" | "z"', "empty in too many ways"),
        (rules(10_000, "NEXT"), "more than 4000 rules"),
        ('root ::= root "a" | "b"', "left recursion"),
        ('root ::= b root "x" | "y"\nb ::= c\nc ::= "" | "z"', "left recursion"),
        ('root ::= "a" root', "no text of it ends"),
        ('root ::= a{2}\na ::= "x" (b | a)\nb ::= [a-z]* a', "no text of it ends"),
        ("root ::= foo", "Undefined rule identifier 'foo'"),
        ('other ::= "a"', "no rule named root"),
        ('root ::= "a', "unexpected end of input"),
        ('root ::= "a" (', "expecting"),
        ("", "no rule named root"),
        (r'root ::= "\U12"', "expecting 8 hex chars"),
        ("root ::= <[99999999999999999999]>", "llama.cpp"),
        ("root ::= <" + "a" * 50_000 + ">", "at most 1024 bytes"),
        ("#" * (5 << 20), "at most 4194304 bytes"),
    ],
)
def test_grammars_that_are_refused(llm: Eagle3Llama, grammar: str, message: str) -> None:
    start = time.thread_time()
    with pytest.raises(ValueError, match=message):
        llm.engine.add([1], greedy(grammar))
    assert time.thread_time() - start < 2.0
    assert not llm.engine.has_work


def test_ambiguous_grammar_ends_its_own_text(llm: Eagle3Llama) -> None:
    start = time.thread_time()
    sequence = run(llm, greedy(rules(60, '"a" NEXT "x" | "a" NEXT "y"')))
    assert sequence.result.finish_reason == "error"
    assert isinstance(sequence.result.error, ValueError)
    assert "too ambiguous" in str(sequence.result.error)
    assert time.thread_time() - start < 20.0
    assert run(llm, greedy('root ::= "a"+'), 5).result.finish_reason == "length"


def test_a_slow_grammar_ends_its_own_text(llm: Eagle3Llama) -> None:
    """Tokens that take less than half a second each may take three seconds and 0.02 for each token, and no more."""
    start = time.thread_time()
    grammar = rules(12, '"a" NEXT "x" | "a" NEXT "y"').replace('r12 ::= "a"', 'r12 ::= "a" r12 "b" | "c"')
    # 4096 ways at once, and others after each token
    sequence = run(llm, greedy(grammar), 400)
    assert isinstance(sequence.result.error, ValueError), sequence.n_generated
    assert "longer than 3 seconds of CPU time and 0.02 for each token" in str(sequence.result.error)
    assert time.thread_time() - start < 20.0


def test_looking_ahead_gives_up_by_work(llm: Eagle3Llama) -> None:
    """The look-ahead ends by its work, not by time: a busy machine drafts the same tokens."""
    vocab = ctypes.cast(lib.llama_model_get_vocab(llm.model), ctypes.c_void_p).value
    assert vocab is not None
    a, b = llm.tokenize(b"a", add_bos=False), llm.tokenize(b"b", add_bos=False)
    given_up = []
    for _ in range(3):
        sampler = grammar_sampler(TokenTree(vocab), rules(60, '"a" NEXT "x" | "a" NEXT "y"'))
        lookahead = GrammarLookahead(sampler, redraws=False)
        allows_b = [lookahead.allowed(a * n, b)[0] for n in range(20)]
        given_up.append(allows_b.index(True))
        assert all(allows_b[given_up[-1] :])
        lib.llama_sampler_free(ctypes.cast(sampler, lib.llama_sampler_p_ctypes))
    assert given_up == given_up[:1] * 3
    assert 2 < given_up[0] < 19


@pytest.mark.parametrize("samplers", [None, SAMPLERS])
@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= [z-a]",
        "root ::= <[999999999]>",
        r'root ::= "\UFFFFFFFF"',
        'root ::= "a" [z-a]',
    ],
)
def test_grammar_that_leads_nowhere(llm: Eagle3Llama, grammar: str, samplers: tuple[str, ...] | None) -> None:
    sequence = run(llm, greedy(grammar, samplers=samplers))
    assert sequence.result.finish_reason == "error"
    assert isinstance(sequence.result.error, ValueError)
    assert "allows no token here" in str(sequence.result.error)


def test_grammar_that_no_token_fits_ends_its_own_text(llm: Eagle3Llama) -> None:
    sequence = run(llm, greedy('root ::= "a" empty\nempty ::= [\\x00-\\x00]'))
    assert sequence.result.finish_reason in ("error", "stop")
    assert run(llm, greedy('root ::= "ab"')).result.finish_reason == "stop"


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('root ::= "x"{3} "y"', "xxxy"),
        ('root ::= ("x"? "y")+ "\\n" # the end', None),
        ('root ::= (([a-c] | "\\"")* ".")', None),
        ('root ::= "\\u00e4" "\\U0001F600"', "\u00e4\U0001f600"),
    ],
)
def test_grammars_that_are_used(llm: Eagle3Llama, grammar: str, text: str | None) -> None:
    sequence = run(llm, greedy(grammar))
    assert sequence.result.error is None
    assert text is None or str(sequence.detokenizer) == text


LAZY = {"grammar": 'root ::= "import" " zzz" [a-z]{4} "\\n"', "grammar_lazy": True}


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "{" ws "\\"" [^"\\\\]* "\\"" ws ":" ws ("true" | "null" | [0-9]+) ws "}"\nws ::= [ \\n]*',
        "root ::= [^a-z]+ | .*",
        "root ::= ([äöüß日本語] | [\\U0001F300-\\U0001F6FF])+",
        "root ::= [a-z]+ (<[300]> | !<[301]>) root?",
        'root ::= "" | "def " [a-z_]+ "(" [^)]* "):" root',
    ],
)
def test_allowed_tokens_are_those_of_llama_cpp(llm: Eagle3Llama, grammar: str) -> None:
    """The allowed tokens are llama.cpp's for the whole vocabulary, along random texts that the grammar allows."""
    rng = np.random.default_rng(5)
    n_vocab = llm.n_vocab()
    vocab = lib.llama_model_get_vocab(llm.model)
    address = ctypes.cast(vocab, ctypes.c_void_p).value
    assert address is not None
    theirs = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    ours = ctypes.cast(grammar_sampler(TokenTree(address), grammar, "root"), lib.llama_sampler_p_ctypes)
    n_inside, pieces, before = 0, [llm.detokenize([token]) for token in range(n_vocab)], b""
    for _ in range(40):
        allowed = [_allowed(sampler, n_vocab) for sampler in (ours, theirs)]
        np.testing.assert_array_equal(allowed[0], allowed[1] & np.array(utf8_texts.that_go_on(before, pieces)))
        choices = [token for token in np.flatnonzero(allowed[0]) if not lib.llama_vocab_is_eog(vocab, int(token))]
        if not choices:
            break
        token = int(rng.choice(choices))
        for sampler in (ours, theirs):
            lib.llama_sampler_accept(sampler, token)
        before += pieces[token]
        n_inside += 1
    assert n_inside > 0
    for sampler in (ours, theirs):
        lib.llama_sampler_free(sampler)


@pytest.mark.parametrize("n_best", [1, 40])
@pytest.mark.parametrize("grammar", ['root ::= [^"]* "\\""', 'root ::= [ab]{60} [^"]*', "root ::= [äöü日本語]+"])
def test_best_of_the_allowed_tokens(llm: Eagle3Llama, grammar: str, n_best: int) -> None:
    """A top-k after the grammar gives the same, whether all tokens were checked by the grammar or not."""
    rng = np.random.default_rng(6)
    n_vocab = llm.n_vocab()
    address = ctypes.cast(lib.llama_model_get_vocab(llm.model), ctypes.c_void_p).value
    assert address is not None
    samplers = [
        ctypes.cast(grammar_sampler(TokenTree(address), grammar, n_best=n), lib.llama_sampler_p_ctypes)
        for n in (0, n_best)
    ]
    for _ in range(20):
        logits = rng.integers(-50, 50, n_vocab).astype(np.float32)  # many are equal
        logits[rng.integers(0, n_vocab, 5)] = -np.inf
        of_all, of_best = (_applied(sampler, logits) for sampler in samplers)
        best = sorted(of_all, key=lambda token: (-logits[token], token))[:n_best]
        assert sorted(of_best, key=lambda token: (-logits[token], token))[:n_best] == best
        for sampler in samplers:
            lib.llama_sampler_accept(sampler, best[0])
    for sampler in samplers:
        lib.llama_sampler_free(sampler)


def _applied(sampler: Any, logits: npt.NDArray[np.float32]) -> list[int]:
    """Return the tokens that a sampler leaves."""
    data = (lib.llama_token_data * len(logits))(*((i, logit, 0.0) for i, logit in enumerate(logits)))
    candidates = lib.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
    lib.llama_sampler_apply(sampler, ctypes.byref(candidates))
    return [data[i].id for i in range(candidates.size) if data[i].logit != -np.inf]


def _allowed(sampler: Any, n_vocab: int) -> npt.NDArray[np.bool_]:
    data = (lib.llama_token_data * n_vocab)(*((token, 0.0, 0.0) for token in range(n_vocab)))
    candidates = lib.llama_token_data_array(data=data, size=n_vocab, selected=-1, sorted=False)
    lib.llama_sampler_apply(sampler, ctypes.byref(candidates))
    return np.array([candidate.logit == 0.0 for candidate in data])


def test_lazy_grammar_waits_for_its_trigger(llm: Eagle3Llama) -> None:
    free = run(llm, Sampling(temperature=0.0))
    assert "import" in str(free.detokenizer)[1:]
    before = str(free.detokenizer).index("import")
    lazy = run(llm, Sampling(temperature=0.0, grammar_triggers=["import"], **LAZY))  # type: ignore[arg-type]
    assert str(lazy.detokenizer)[:before] == str(free.detokenizer)[:before]
    assert str(lazy.detokenizer)[before:].startswith("import zzz")
    assert lazy.result.finish_reason == "stop"
    never = run(llm, Sampling(temperature=0.0, grammar_triggers=["@@@"], **LAZY))  # type: ignore[arg-type]
    assert str(never.detokenizer) == str(free.detokenizer)


@pytest.mark.parametrize("seed", [1, 2])
def test_lazy_grammar_is_lossless(llm: Eagle3Llama, seed: int) -> None:
    sampling = Sampling(temperature=0.9, seed=seed, grammar_triggers=["import"], **LAZY)  # type: ignore[arg-type]
    drafted = run(llm, sampling, 60)
    plain = run(llm, sampling, 60, DraftSettings(mode="off"))
    assert drafted.tokens == plain.tokens
    assert drafted.result.stats.drafted > 0 == plain.result.stats.drafted


def test_trigger_that_is_no_regular_expression(llm: Eagle3Llama) -> None:
    with pytest.raises(ValueError, match="no regular expression"):
        llm.engine.add([1], Sampling(grammar_triggers=["(["], **LAZY))  # type: ignore[arg-type]


def test_end_of_the_prompt_belongs_to_the_grammar(llm: Eagle3Llama) -> None:
    prefill = llm.tokenize(b"import os\n", add_bos=False)
    sampling = Sampling(samplers=(), temperature=0.0, grammar='root ::= "import os\\n" "xy"', grammar_prefill=prefill)
    assert str(run(llm, sampling).detokenizer) == "xy"
    with pytest.raises(ValueError, match="does not begin with the end of the prompt"):
        llm.engine.add([1], Sampling(grammar='root ::= "b"', grammar_prefill=prefill))


@pytest.mark.parametrize("samplers", [None, ("temperature",)])
def test_reasoning(llm: Eagle3Llama, samplers: tuple[str, ...] | None) -> None:
    """A lazy grammar does not read the reasoning, and the reasoning's budget ends it."""

    def tokens(text: str) -> list[int]:
        return llm.tokenize(text.encode(), add_bos=False)

    free = run(llm, Sampling(temperature=0.0, samplers=samplers, ignore_eos=True), 20)
    first = free.generated[0]
    reasoning = Reasoning(start=[first], ends=[tokens("@@")], forced=tokens("!@@"), budget=5)
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "samplers": samplers, **LAZY}
    assert "os" in str(free.detokenizer)[:10]  # it would trigger the grammar outside the reasoning
    sequence = run(llm, Sampling(reasoning=reasoning, grammar_triggers=["os"], **options))
    assert sequence.result.error is None
    assert sequence.generated[:6] == free.generated[:6]
    assert str(sequence.detokenizer).startswith(str(free.detokenizer)[:15])
    assert sequence.generated[6 : 6 + len(tokens("!@@"))] == tokens("!@@")


def saying(llm: Eagle3Llama, text: str) -> Any:
    """Return a logits processor by which the model writes this text, unless its tokens are forbidden."""
    n_prompt, tokens = len(llm.tokenize(b"import os\n")), llm.tokenize(text.encode(), add_bos=False)

    def process(input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        if len(input_ids) - n_prompt < len(tokens):
            scores[tokens[len(input_ids) - n_prompt]] += np.single(1000)
        return scores

    return process


@pytest.mark.parametrize("samplers", [None, ("temperature",)])
@pytest.mark.parametrize("forced", ["[end]", "[end]\n\n"])
@pytest.mark.parametrize(
    ("said", "budget", "written"),
    [
        ("def f(self): a b c d e f", 3, "def f(self): a b cFORCED"),  # the last token of the start is "):"
        ("def f(self): a zz b[end]: zz xx xx", 20, "def f(self): a zz b[end]: zz yyyy"),  # and that of the end "]:"
        ("def f(self): a zz b[end] zz xx xx", 20, "def f(self): a zz b[end] zz yyyy"),
        ("def f(self): a[end]: g(self): a b c d e f", 5, "def f(self): a[end]: g(self): a b c d eFORCED"),
        ("def f(self):[end]: zz xx xx", 0, "def f(self):FORCED"),
    ],
)
def test_tags_that_are_written_with_other_tokens(
    llm: Eagle3Llama, samplers: tuple[str, ...] | None, forced: str, said: str, budget: int, written: str
) -> None:
    """A tag's first and last tokens may hold the text around it too: the text counts."""

    def tokens(text: str) -> list[int]:
        return llm.tokenize(text.encode(), add_bos=False)

    assert tokens("f(self):")[1:] != [*tokens("(self)"), *tokens(":")]
    reasoning = Reasoning(start=tokens("(self)"), ends=[tokens(forced)], forced=tokens(forced), budget=budget)
    sampling = Sampling(
        temperature=0.0,
        samplers=samplers,
        ignore_eos=True,
        reasoning=reasoning,
        logits_processors=[saying(llm, said)],
        grammar='root ::= "zz" " " "y"{4} [a-z]*',
        grammar_lazy=True,
        grammar_triggers=["zz"],
    )
    sequence = run(llm, sampling)
    assert sequence.result.error is None
    assert str(sequence.detokenizer).startswith(written.replace("FORCED", forced))


@pytest.mark.parametrize(("prompt", "n"), [("def f(self): a", 2), ("def f(self): a b c", 0), ("(self)", 3)])
def test_tags_at_the_end_of_the_prompt(llm: Eagle3Llama, prompt: str, n: int) -> None:
    """The prompt's thought counts in the budget."""

    def tokens(text: str) -> list[int]:
        return llm.tokenize(text.encode(), add_bos=False)

    reasoning = Reasoning(start=tokens("(self)"), ends=[tokens("[end]")], forced=tokens("[end]"), budget=3)
    sampling = Sampling(
        temperature=0.0,
        reasoning=reasoning,
        grammar_prefill=tokens(prompt),
        logits_processors=[saying(llm, " x" * 20)],
    )
    assert str(run(llm, sampling).detokenizer).startswith(" x" * n + "[end]")
