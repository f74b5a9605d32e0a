"""Drafts under a grammar: no drafter proposes a token that it forbids, and the text is that without drafts."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import llama_cpp.llama_cpp as lib
import pytest
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

import dflash
import mtp
from head_variants import VARIANTS
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat import json_schema_to_grammar
from llama_cpp_eagle3.draft.kinds import eagle3
from llama_cpp_eagle3.engine import SAMPLERS, Reasoning, SamplerChain, Sampling
from llama_cpp_eagle3.engine import Sequence as Text
from llama_cpp_eagle3.engine.sequence import Step
from llama_cpp_eagle3.engine.verifier import Verifier
from llama_cpp_eagle3.models import bundled_pair
from loading import cheap_rows, finish, load
from small import write_small_pair
from tiny import write_head

pytestmark = pytest.mark.usefixtures("no_clock")

JSON = json_schema_to_grammar(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 4},
            "kind": {"enum": ["file", "folder"]},
        },
        "required": ["name", "sizes", "kind"],
    }
)
N = 30
PROMPT = b'import json\n\nA = {"name": "a", "sizes": [1, 2, 2], "kind": "file"}\nB = '
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "hot": {"temperature": 1.0},
    "greedy, in order": {"temperature": 0.0, "samplers": SAMPLERS},
    "hot, in order": {"temperature": 1.0, "samplers": SAMPLERS},
    "unknown dice": {"temperature": 0.8, "rng": "llama"},
    "mirostat": {"mirostat_mode": 2},
}
WAYS: dict[str, dict[str, Any]] = {
    "chain": {"draft_n_max": 5},
    "sure ones": {"draft_n_max": 5, "draft_p_min": 0.2},
    "tree": {"draft": "tree", "draft_tree_depth": 3, "draft_tree_topk": 3, "draft_tree_tokens": 8},
    "auto": {"draft": "auto"},
    "streams": {"draft": "auto", "n_parallel": 2},
    "ngram": {"draft": "auto", "draft_sources": ("ngram",)},
    "draft_model": {"draft_model": LlamaPromptLookupDecoding(num_pred_tokens=4, max_ngram_size=1)},
}


class Reference:
    """llama.cpp's own grammar, which checks every drafted token."""

    has_fillers = False
    """Whether chains have one length in batches of streams, filled with tokens that no drafter suggests."""

    def __init__(self, llm: Eagle3Llama, grammar: str):
        vocab = lib.llama_model_get_vocab(llm.model)
        self.start = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        self.n_allowed = [0, 0]
        """Allowed tokens at the root of a draft, and after it."""
        self.n_forbidden = [0, 0]

    def look_at(self, step: Step) -> None:
        for scheduled in step.scheduled:
            draft = scheduled.draft
            if not draft.tokens:
                continue
            root = self._behind(self.start, scheduled.sequence.generated)
            samplers = {-1: root}
            for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
                if parent not in samplers:  # the node follows a forbidden one
                    continue
                if self.has_fillers and not draft.sources[i]:
                    continue
                data = (lib.llama_token_data * 1)((token, 0.0, 0.0))
                array = lib.llama_token_data_array(data, 1, -1, False)
                lib.llama_sampler_apply(samplers[parent], ctypes.byref(array))
                is_allowed = data[0].logit > -1e30
                if is_allowed:
                    samplers[i] = self._behind(samplers[parent], [token])
                (self.n_allowed if is_allowed else self.n_forbidden)[parent >= 0] += 1
            for sampler in samplers.values():
                lib.llama_sampler_free(sampler)

    @staticmethod
    def _behind(sampler: Any, tokens: Sequence[int]) -> Any:
        sampler = lib.llama_sampler_clone(sampler)
        for token in tokens:
            lib.llama_sampler_accept(sampler, token)
        return sampler


def run(
    llm: Eagle3Llama,
    options: dict[str, Any],
    seeds: Sequence[int] = (1, 2),
    max_tokens: int = N,
    prompt: list[int] | None = None,
) -> list[Text]:
    """Return texts that share their steps as far as the model has slots."""
    prompt = prompt or llm.tokenize(PROMPT)
    texts = [llm.engine.add(prompt, Sampling(**{"seed": i} | options), max_tokens=max_tokens) for i in seeds]
    finish(llm)
    assert [text.result.error for text in texts] == [None] * len(texts)
    return texts


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Reference]]:
    """Return a list; references in it check every draft before it is verified."""
    looking: list[Reference] = []
    verify = Verifier.verify

    def look_and_verify(self: Verifier, step: Step) -> None:
        for one in looking:
            one.look_at(step)
        verify(self, step)

    monkeypatch.setattr(Verifier, "verify", look_and_verify)
    yield looking
    for one in looking:
        lib.llama_sampler_free(one.start)


@pytest.fixture(scope="module")
def plain() -> dict[str, list[list[int]]]:
    """Return the text without drafts, for each way to sample."""
    with load(bundled_pair()[0], cpu_kernels="on") as llm:
        return {
            name: [text.generated for text in run(llm, {"grammar": JSON} | options)]
            for name, options in SAMPLINGS.items()
        }


def load_way(way: str, **options: Any) -> Eagle3Llama:
    """Load with our kernels: where ggml's are faster, a pass over several rows may part from one over one row."""
    target, head = bundled_pair()
    llm = load(target, None if way == "draft_model" else head, cpu_kernels="on", **WAYS[way] | options)
    if WAYS[way].get("draft") == "auto":
        cheap_rows(llm)
    return llm


@pytest.mark.parametrize("way", WAYS)
def test_nothing_forbidden_is_drafted(way: str, plain: dict[str, list[list[int]]], reference: list[Reference]) -> None:
    with load_way(way) as llm:
        reference.append(Reference(llm, JSON))
        reference[0].has_fillers = way == "streams"
        for name, options in SAMPLINGS.items():
            texts = run(llm, {"grammar": JSON} | options)
            assert [text.generated for text in texts] == plain[name]
    assert reference[0].n_forbidden == [0, 0]
    assert min(reference[0].n_allowed) > 0


def test_several_levels_in_one_graph(plain: dict[str, list[list[int]]], monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator, tokens after a token are searched once, also if the grammar leaves none."""
    monkeypatch.setattr(eagle3, "Eagle3Drafter", partial(eagle3.Eagle3Drafter, n_unroll=5))
    for way in ("chain", "sure ones", "auto"):
        with load_way(way) as llm:
            assert [drafter.n_unroll for drafter in llm.drafters] == [5]
            for name, options in SAMPLINGS.items():
                assert [text.generated for text in run(llm, {"grammar": JSON} | options)] == plain[name]
            for text in ("", "(1, 2", "import", "x = 'a"):  # the head knows few of these tokens
                run(llm, {"grammar": f'root ::= "{text}" [À-ɏ]+', "temperature": 0.0})


def test_without_the_lookahead_much_is(reference: list[Reference], monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tokens are forbidden then, so that the test above can fail; the look-ahead makes drafts better."""
    lengths = []
    with load_way("chain") as llm:
        for looks_ahead in (False, True):
            with monkeypatch.context() as patch:
                if not looks_ahead:
                    patch.setattr(SamplerChain, "lookahead", lambda _: None)
                reference[:] = [*reference, Reference(llm, JSON)][-1:]
                texts = run(llm, {"grammar": JSON, "temperature": 1.0}, range(6))
            n_forbidden, n_allowed = reference[0].n_forbidden[0], reference[0].n_allowed[0]
            assert n_forbidden == 0 if looks_ahead else n_forbidden > n_allowed / 2
            lengths.append(sum(x.result.stats.accepted for x in texts) / sum(x.result.stats.steps for x in texts))
    assert lengths[1] > 1.5 * lengths[0]


@pytest.mark.parametrize("kind", ["parallel", "block", "small", "mtp"])
def test_other_drafters(
    kind: str, tiny_target: Any, tmp_path_factory: pytest.TempPathFactory, reference: list[Reference]
) -> None:
    folder = tmp_path_factory.mktemp(kind)
    target: Any
    drafter: Any
    if kind == "parallel":
        target, drafter = tiny_target, write_head(folder / "head.gguf", tiny_target, **VARIANTS["p_eagle"])
    elif kind == "block":
        able = dflash.write_able(folder)
        target, drafter = able.target, able.drafter
    elif kind == "small":
        target, drafter = write_small_pair(folder, "llama", "llama")
    else:
        target, drafter = mtp.write_able(folder, "qwen35-mtp"), None
    grammar = 'root ::= ([a-mA-M] [0-9a-z ,.]+ "x"?)+'
    prompt = list(range(65, 85))
    for options in ({"temperature": 0.0}, {"temperature": 1.5}, {"temperature": 1.5, "samplers": SAMPLERS}):
        texts = []
        for mode in ({"draft": "chain", "draft_n_max": 0}, {"draft": "chain", "draft_n_max": 4}, WAYS["tree"]):
            with load(target, drafter, **mode) as llm:
                reference.append(Reference(llm, grammar))
                texts.append([x.generated for x in run(llm, {"grammar": grammar} | options, (1, 2), 16, prompt)])
                counted = reference.pop()
            assert counted.n_forbidden == [0, 0]
            assert (counted.n_allowed[0] > 0) == (mode.get("draft_n_max") != 0)
        assert texts[1:] == texts[:1] * 2


LAZY: dict[str, Any] = {"grammar": 'root ::= "import" " zzz" [a-z]{4} "\\n"', "grammar_lazy": True}


@pytest.mark.parametrize("samplers", [None, SAMPLERS])
def test_lazy_grammars_and_reasoning(samplers: Any) -> None:
    """A grammar that waits forbids nothing, a triggered one does, and reasoning is free."""
    with load_way("chain") as llm, load(bundled_pair()[0]) as plain:
        prompt = llm.tokenize(b"import os\n")

        def tokens(text: str) -> list[int]:
            return llm.tokenize(text.encode(), add_bos=False)

        reasoning = Reasoning(start=tokens("import"), ends=[tokens("@@")], forced=tokens("!@@"), budget=6)
        for more in ({"grammar_triggers": ["import"]}, {"grammar_triggers": ["zz"], "reasoning": reasoning}):
            for temperature in (0.0, 0.9):
                options = {"temperature": temperature, "samplers": samplers} | LAZY | more
                drafted = run(llm, options, (1,), 40, prompt)
                assert [x.generated for x in drafted] == [x.generated for x in run(plain, options, (1,), 40, prompt)]
                assert all(x.result.stats.drafted > 0 for x in drafted)
