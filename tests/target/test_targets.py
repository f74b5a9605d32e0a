"""Every architecture that libllama knows, with a head: its features, its text, and its state after rejected tokens.

The results of these tests are the table in docs/targets.md; `EAGLE3_WRITE_DOCS=1` writes it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import numpy as np
import pytest

from arch_keys import OTHERS, ROWS, TARGETS, Arch
from drafting import draft_chain, draft_tree
from llama_cpp_eagle3 import Eagle3Llama, _core
from llama_cpp_eagle3._core import read_target
from llama_cpp_eagle3.engine.draft import Draft
from loading import Drafts, is_tie, load, load_plain, take
from lowlevel import LowLevel
from random_arch import all_archs, load_random_arch, random_tensors, write_random_arch
from targets_doc import Found, check_document
from tiny import write_head

N_MAX = 5
N_TOKENS = 24
TREE = {"draft_tree_depth": 4, "draft_tree_topk": 3, "draft_tree_tokens": 8}

# How much the logits of two contexts may differ that evaluated the same text differently, see difference(). They
# are equal except for rounding: chains give 2e-6 at most, trees 5e-5, because ggml's table for GELU has steps
TOLERANCE = 1e-4
GGML: dict[str, Any] = {"cpu_kernels": "off"}
"""Options of the tests for traces: with other sums, values that are stored in 16 bits would differ by more."""

FOUND: dict[str, Found] = {}


class Case:
    """A model, a head for it, and plain llama_cpp on the same file."""

    def __init__(self, folder: Path, name: str):
        self.name = name
        self.row: Arch = ROWS[name]
        self.path = write_random_arch(folder, name)
        self.info = read_target(str(self.path))
        assert not self.info.why_no_target
        n = self.info.n_layer
        self.boundaries = self.row.boundaries or (1, n - 1, n)
        self.rng = np.random.default_rng(1)

    @cached_property
    def plain(self) -> llama_cpp.Llama:
        return load_plain(self.path, logits_all=self.row.logits_all)

    @cached_property
    def llm(self) -> Eagle3Llama:
        return self.load(draft_n_max=N_MAX)

    def load(self, **options: Any) -> Eagle3Llama:
        info: Any = SimpleNamespace(
            arch=self.info.arch, n_embd=self.info.n_embd, n_vocab=self.info.n_vocab, n_layer=self.info.n_layer
        )
        head = write_head(self.path.with_suffix(".head"), info, boundaries=self.boundaries)
        return load(self.path, head, logits_all=self.row.logits_all, **options)

    def close(self) -> None:
        for made in ("plain", "llm"):
            if made in self.__dict__:
                getattr(self, made).close()

    def tokens(self, n: int) -> list[int]:
        """Return random tokens of text, without tokens that end it."""
        return self.rng.integers(0, 256, n).tolist()

    def now_and_then(self, llm: Eagle3Llama, context: list[int], rate: float) -> Callable[[int, int], Draft]:
        """Return a `_draft` that knows the text and errs at random, while the head drafts all the same."""

        def draft(id_last: int, n_room: int) -> Draft:
            n_max = min(llm.draft_n_max, n_room)
            draft_chain(llm.drafters[0], id_last, n_max)
            right = context[llm.n_tokens + 1 :][:n_max]
            return Draft.chain([t if self.rng.random() < rate else (t + 1) % 256 for t in right])

        return draft

    def in_a_tree(self, llm: Eagle3Llama, context: list[int], rate: float) -> Callable[[int, int], Draft]:
        """Return such a `_draft` with two tokens after each right one: a wrong one, then mostly the next right one."""

        def draft(id_last: int, n_room: int) -> Draft:
            draft_tree(llm.drafters[0], id_last, 2, 2, min(4, n_room))
            tokens, parents, last = [], [], -1
            for t in context[llm.n_tokens + 1 :][: min(TREE["draft_tree_depth"], n_room // 2)]:
                tokens += [(t + 1) % 256, t if self.rng.random() < rate else (t + 2) % 256]
                parents += [last, last]
                last = len(tokens) - 1
            return Draft(tokens, parents)

        return draft


@pytest.fixture(scope="module", params=sorted(ROWS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = Case(tmp_path_factory.mktemp("arch"), request.param)
    yield made
    made.close()


def found(case: Case) -> Found:
    return FOUND.setdefault(case.name, Found())


def decode(case: Case, boundaries: list[int], kind: str, tokens: list[int]) -> np.ndarray:
    """Return the rows of one batch that becomes several ubatches; snapshots need its last 5 tokens in one of them."""
    with LowLevel(load_random_arch(case.path.parent, case.name), boundaries, kind, n_ubatch=16, n_rs_seq=4) as low:
        low.target.decode(tokens, 0)
        return low.tap.rows


def kind_of(case: Case, b: int) -> str:
    return _core.FeatureTap([b], case.info.n_layer, case.info.n_embd, case.info.arch).kind


def test_features(case: Case) -> None:
    """Native and callback rows agree, every layer changes the stream, and its two ends are those of the weights."""
    n_layer, offered = case.info.n_layer, case.info.boundaries
    assert set(range(1, n_layer + 1)) <= set(offered)
    tokens = case.tokens(35)
    native = [b for b in offered if kind_of(case, b) == "native"]
    rows: dict[int, np.ndarray] = {}
    if native:
        decoded = decode(case, native, "native", tokens)
        rows |= {b: decoded[:, i] for i, b in enumerate(native)}
    if case.info.arch != "deepseek4":  # its layers pass on four streams, and only llama.cpp itself can give their mean
        decoded = decode(case, offered, "callback", tokens)
        for i, b in enumerate(offered):
            if b in rows:
                np.testing.assert_array_equal(rows[b], decoded[:, i], err_msg=f"boundary {b}")
            rows[b] = decoded[:, i]
    assert all(rows[b].shape == (35, case.info.n_embd) and np.isfinite(rows[b]).all() for b in offered)
    for b in offered[1:]:
        assert not np.array_equal(rows[b - 1], rows[b])
    check_ends(case, rows, tokens)
    below = [b for b in offered if b < n_layer]
    found(case).tap = "native" if set(below) <= set(native) else "callback"
    found(case).boundaries = offered
    found(case).n_layer = n_layer


def check_ends(case: Case, rows: dict[int, np.ndarray], tokens: list[int]) -> None:
    """Check that boundary 0 is made of the token embeddings, and n_layer + 1 is n_layer after the final norm."""
    tensors = random_tensors(case.path)
    if 0 in rows:
        embd = tensors["token_embd.weight"][tokens].astype(np.float64)
        if case.row.embd == "positions":
            embd = embd + tensors["position_embd.weight"][: len(tokens)]
        elif case.row.embd == "normed":
            embd /= np.sqrt((embd**2).mean(axis=1, keepdims=True))
        scale = (embd * rows[0]).sum() / (embd**2).sum()
        np.testing.assert_allclose(rows[0], embd * scale, rtol=1e-4, atol=1e-5)
    n_layer = case.info.n_layer
    if n_layer + 1 in rows and case.row.norm:
        x = rows[n_layer].astype(np.float64)
        weight = tensors.get(f"{case.row.norm}.weight", np.ones(1))
        bias = tensors.get(f"{case.row.norm}.bias", np.zeros(1))
        centred = x - x.mean(axis=1, keepdims=True)
        # the metadata does not tell which norm it is
        normed = (y / np.sqrt((y**2).mean(axis=1, keepdims=True) + 1e-5) * weight for y in (x, centred))
        candidates = [z for y in normed for z in (y, y + bias)]
        assert min(np.abs(y - rows[n_layer + 1]).max() for y in candidates) < 1e-4


def test_lossless(case: Case) -> None:
    """Chains of 1 to 5 leave the text unchanged, from a random head and from a draft that is sometimes right."""
    llm, prompt = case.llm, case.tokens(20)
    assert llm.draft == "chain"
    expected = take(case.plain, prompt, N_TOKENS + N_MAX + 1)
    for n_max in range(1, N_MAX + 1):
        llm.draft_n_max = n_max
        n_drafted, n_accepted = llm.stats.drafted, llm.stats.accepted
        assert not is_tie(case.plain, prompt, expected[:N_TOKENS], take(llm, prompt, N_TOKENS))
        assert llm.stats.drafted > n_drafted
        llm.engine.drafting.override = Drafts(case.now_and_then(llm, [*prompt, *expected], rate=0.6))
        assert not is_tie(case.plain, prompt, expected[:N_TOKENS], take(llm, prompt, N_TOKENS))
        assert llm.stats.accepted > n_accepted
        llm.engine.drafting.override = None
    found(case).lossless = True


def logits_after(llm: llama_cpp.Llama, tokens: list[int]) -> np.ndarray:
    """Return the logits after each of these tokens, which are evaluated one by one."""
    rows = []
    for token in tokens:
        llm.eval([token])
        logits = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
        rows.append(np.array(np.ctypeslib.as_array(logits, shape=(llm.n_vocab(),))))
    return np.stack(rows)


def fresh_logits(case: Case, context: list[int], tokens: list[int]) -> np.ndarray:
    case.plain.reset()
    case.plain.eval(context)
    return logits_after(case.plain, tokens)


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Return the root mean square of a - b, in units of the spread of b."""
    return float(np.sqrt(((a - b) ** 2).mean()) / b.std())


def check_no_trace(case: Case, llm: Eagle3Llama, draft: Callable[..., Any]) -> None:
    """Check that after steps with rejections the logits of 64 tokens are those of a context without these steps."""
    prompt = case.tokens(30)
    expected = take(case.plain, prompt, N_TOKENS + N_MAX + 1)
    llm.engine.drafting.override = Drafts(draft(llm, [*prompt, *expected], rate=0.5))
    n_rejected = llm.stats.drafted - llm.stats.accepted
    text = take(llm, prompt, N_TOKENS)
    llm.engine.drafting.override = None
    assert not is_tie(case.plain, prompt, expected[:N_TOKENS], text)
    assert llm.stats.drafted - llm.stats.accepted >= n_rejected + 3

    context = [*prompt, *text][: llm.n_tokens]
    assert llm.input_ids[: llm.n_tokens].tolist() == context
    after = case.tokens(64)
    logits = logits_after(llm, after)
    fresh = fresh_logits(case, context, after)
    assert difference(logits, fresh) <= TOLERANCE
    # the same comparison notices one changed token
    other = fresh_logits(case, [*context[:-1], (context[-1] + 1) % 256], after[:4])
    assert difference(other, fresh[:4]) > 20 * TOLERANCE


def test_no_trace(case: Case) -> None:
    """Rejected chains leave no trace, also if the cache of sliding windows holds only the window and a batch."""
    caches: list[dict[str, Any]] = [{}]
    if llama_cpp.llama_model_n_swa(case.llm._model.model) > 0:
        caches.append({"swa_full": False, "n_ubatch": 8})
    for cache in caches:
        with closing(case.load(draft_n_max=N_MAX, **GGML, **cache)) as llm:
            check_no_trace(case, llm, case.now_and_then)
    found(case).rollback = case.llm.target.rollback_kind
    found(case).no_trace = True


def test_trees(case: Case) -> None:
    """Trees leave no trace, from the head and from a draft mostly right in its second branch; or none are made."""
    with closing(case.load(**TREE, **GGML)) as llm:
        assert llm.draft == "tree"
        if llm.target.n_leaves_max == 1:
            assert llm.target.rollback_kind != "trim"
            found(case).draft = "chain"
            return
        prompt = case.tokens(20)
        expected = take(case.plain, prompt, N_TOKENS)
        assert not is_tie(case.plain, prompt, expected, take(llm, prompt, N_TOKENS))
        assert llm.stats.drafted > 2 * llm.stats.drafts
        check_no_trace(case, llm, case.in_a_tree)
    found(case).draft = "tree"


@pytest.mark.parametrize("arch", ["gemma3", "cohere2", "gpt-oss"])
def test_trees_do_not_fill_a_window_s_cache(tmp_path: Path, arch: str) -> None:
    """The leaves of trees would keep cells that have left the window, so trees become chains."""
    case = Case(tmp_path, arch)
    with closing(case.load(**TREE, swa_full=False, n_ubatch=16, n_ctx=1024)) as llm:
        prompt = case.tokens(20)
        assert len(take(llm, prompt, 1000, ignore_eos=True)) == 1000
        assert llm.target.n_leaves_max == 1
        assert llm.last_stats.drafted > 1000
    case.close()


def test_llama4_from_one_chunk_into_the_next(tmp_path: Path) -> None:
    """Llama 4 attends within chunks of 8192 tokens in three of four layers: steps cross the end of a chunk."""
    case = Case(tmp_path, "llama4")
    n_prompt = 8192 - 10
    prompt = case.tokens(n_prompt)
    options = {"n_ctx": 8448, "n_batch": 512}
    with closing(load_plain(case.path, **options)) as plain, closing(case.load(draft_n_max=N_MAX, **options)) as llm:
        expected = take(plain, prompt, N_TOKENS + N_MAX + 1)
        llm.engine.drafting.override = Drafts(case.now_and_then(llm, [*prompt, *expected], rate=0.7))
        text = take(llm, prompt, N_TOKENS)
        assert not is_tie(plain, prompt, expected[:N_TOKENS], text)
        assert 0 < llm.stats.accepted < llm.stats.drafted
        assert llm.n_tokens > 8192 + 5


def test_the_list_is_complete() -> None:
    assert sorted([*TARGETS, *OTHERS]) == sorted(all_archs())


def test_the_document() -> None:
    """docs/targets.md has the results, if all of the tests above have run."""
    if set(FOUND) != set(ROWS):
        pytest.skip("only some architectures were tested")
    check_document({arch: FOUND[arch] for arch in TARGETS}, OTHERS)
