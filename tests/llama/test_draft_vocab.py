"""Drafters of large vocabularies, of which they draft a part: texts, and the tokens of that part."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arch_keys import keys_of
from assistants import write_able as write_assistant_pair
from drafting import draft_chain
from gguf_raw import ARRAY, F32, STR, parse, serialize
from llama_cpp_eagle3 import _core
from loading import is_tie, load, load_plain, prompts, take
from mtp import write_able as write_block
from random_arch import random_tensors, write_arch, write_random_arch
from small import ByHand, make_drafter, write_small_pair
from tiny import write_head, write_target

KERNELS = dict.fromkeys(_core.cpu_kernel_names(), 64)
pytestmark = pytest.mark.skipif(not KERNELS, reason="no kernel for this processor")

N_TOKENS = 40
N_TOGETHER = 16
"""The constant of csrc/kernels/limited_product.h."""
OURS = {"cpu_kernels": "on"}
CHAIN = {"draft": "chain", "draft_n_max": 4}
TREE = {"draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6}
SOURCES = ("simple", "mtp", "mtp3", "assistant")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocab")


@pytest.fixture(scope="module", params=SOURCES)
def pair(request: pytest.FixtureRequest, folder: Path) -> list[Any]:
    """Return a target and its drafter."""
    if request.param == "simple":
        return list(write_small_pair(folder))
    if request.param == "assistant":
        return list(write_assistant_pair(folder))
    return [write_block(folder, {"mtp": "qwen35-mtp", "mtp3": "mimo2-mtp3"}[request.param]), None]


@pytest.fixture
def drafter(folder: Path) -> Iterator[_core.SimpleDrafter]:
    made = make_drafter(write_random_arch(folder, "llama"), n_seq_max=2)
    made.use_cpu_kernels(KERNELS)
    yield made
    made.close()


def blocks_of(tokens: Any) -> set[int]:
    return {int(token) // N_TOGETHER for token in tokens}


def drafted_blocks(drafter: _core.SimpleDrafter, id_last: int = 0, seq_id: int = 0) -> set[int]:
    """Return the blocks whose logits are computed."""
    draft_chain(drafter, id_last, 1, seq_id=seq_id)
    logits = drafter.draft_logits
    assert not np.isnan(logits).any()
    return blocks_of(np.flatnonzero(np.isfinite(logits)))


@pytest.mark.parametrize(
    ("options", "n_parallel", "kv_unified"),
    [(CHAIN, 1, True), (CHAIN, 3, True), (CHAIN, 3, False), (TREE, 2, True)],
    ids=["chain", "pooled", "split", "tree"],
)
def test_texts_are_the_targets(pair: list[Any], options: dict, n_parallel: int, kv_unified: bool) -> None:
    target, draft = pair
    plain = load_plain(target)
    texts = prompts(4, seed=n_parallel)
    options = options | OURS | {"n_parallel": n_parallel, "kv_unified": kv_unified}
    drafted = []
    for n in (0, 32):
        with load(target, draft, draft_vocab=n, **options) as llm:
            (drafter,) = llm.drafters
            assert drafter.draft_vocab == n
            assert (", drafts 32 of " in llm.loaded.where) == (n > 0)
            outputs = llm.generate_batch(texts, max_tokens=N_TOKENS, temperature=0.0)
            for prompt, output in zip(texts, outputs, strict=True):
                is_tie(plain, prompt, take(plain, prompt, len(output.tokens)), output.tokens)
            assert llm.stats.accepted > 0
            drafted.append(llm.stats.accepted / llm.stats.drafted)
    # random texts have tokens of all blocks, so all are drafted soon
    assert drafted[1] > 0.5 * drafted[0]


def test_sampled_text_is_the_same(folder: Path) -> None:
    target, small = write_small_pair(folder)
    texts = []
    for n in (0, 32):
        with load(target, small, draft_vocab=n, **CHAIN, **OURS) as llm:
            outputs = llm.generate_batch(prompts(3, seed=9), max_tokens=N_TOKENS, temperature=1.0, seed=5)
            texts.append([output.tokens for output in outputs])
    assert texts[0] == texts[1]


def test_computed_logits_are_those_of_the_whole_vocabulary(folder: Path, drafter: _core.SimpleDrafter) -> None:
    hand = ByHand(write_random_arch(folder, "llama"))
    text = list(range(130, 150))
    drafter.process(None, text[:-1], 0)
    draft_chain(drafter, text[-1], 1)
    whole = drafter.draft_logits
    np.testing.assert_allclose(whole, hand.logits(text)[-1], atol=3e-4)
    drafter.truncate(0)
    assert drafter.limit_vocab(16)
    drafter.process(None, text[:-1], 0)
    draft_chain(drafter, text[-1], 1)
    limited = drafter.draft_logits
    is_computed = np.isfinite(limited)
    assert 0 < is_computed.sum() < len(whole)
    np.testing.assert_array_equal(limited[is_computed], whole[is_computed])
    assert np.isneginf(limited[~is_computed]).all()
    # probabilities are those among the drafted part
    drafter.begin([0], [text[-1]], 2)
    (first, _) = drafter.nodes
    p = np.exp(limited - limited.max())
    assert first[1] == limited.argmax()
    assert first[2] == pytest.approx(1.0 / p.sum(), rel=1e-3)
    assert drafter.limit_vocab(0)
    assert drafter.draft_vocab == 0
    draft_chain(drafter, text[-1], 1)
    np.testing.assert_array_equal(drafter.draft_logits, whole)
    hand.close()


def test_which_tokens_are_drafted(drafter: _core.SimpleDrafter) -> None:
    """The part has the first tokens, single characters, end tokens and those read in any sequence, no drafted ones."""
    assert drafter.limit_vocab(16)
    assert drafter.draft_vocab == 16
    base = drafted_blocks(drafter)
    n_vocab = len(drafter.draft_logits)
    assert base == {0, *blocks_of(range(ord("!"), ord("~") + 1)), (n_vocab - 1) // N_TOGETHER}
    drafter.process(None, [200, 140, 141], 0)
    assert drafted_blocks(drafter) == base | blocks_of([200, 140])
    assert drafted_blocks(drafter, seq_id=1) == base | blocks_of([200, 140])
    drafter.restart(0)
    drafter.process(None, [170], 0, 1)
    assert drafted_blocks(drafter, id_last=240) == base | blocks_of([200, 140, 170])


def test_tokens_of_earlier_answers_are_always_drafted(drafter: _core.SimpleDrafter) -> None:
    drafter.draft_always([200])  # without a limit all tokens are drafted
    assert drafter.limit_vocab(16)
    base = drafted_blocks(drafter)
    drafter.draft_always([200, 170, -1, 1 << 30])
    for _ in range(2 * 8192 // 128 + 1):
        drafter.restart(0, 1)
        drafter.process(None, [1] * 128, 0, 1, can_defer=True)
    assert drafted_blocks(drafter) == base | blocks_of([200, 170])


def test_learning_keeps_what_a_small_model_drafts(folder: Path, tmp_path: Path) -> None:
    """The next process drafts from the first token on what the answers of this one had twice."""
    target, small = write_small_pair(folder)
    options: Any = {"draft_vocab": 32, "learn_dir": tmp_path / "learn", **CHAIN, **OURS}
    with load(target, small, **options) as llm:
        (output,) = llm.generate_batch([[1, 2, 3]], max_tokens=64, temperature=0.0)
    often = {token for token in output.tokens if output.tokens.count(token) > 1}
    assert {block for block in blocks_of(often) if block >= 2}, "a text of the first tokens shows nothing"
    found = []
    for learns in (True, False):
        with load(target, small, **options | ({} if learns else {"learn_dir": None})) as llm:
            found.append(drafted_blocks(llm.drafters[0]))
    learned, plain = found
    assert learned == plain | blocks_of(often)


def test_what_was_read_long_ago_is_not_drafted(drafter: _core.SimpleDrafter) -> None:
    assert drafter.limit_vocab(16)
    base = drafted_blocks(drafter)
    drafter.process(None, [200], 0)
    for _ in range(2 * 8192 // 128):
        drafter.restart(0, 1)
        drafter.process(None, [1] * 128, 0, 1, can_defer=True)
    assert drafted_blocks(drafter) == base | blocks_of([200])
    drafter.process(None, [1], 1)
    assert drafted_blocks(drafter) == base


def test_a_text_of_other_tokens_has_all(folder: Path) -> None:
    """All tokens are drafted, as long as one in ten of the text was outside the part."""
    n_vocab = 1024
    tensors = random_tensors(write_random_arch(folder, "llama"))
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = np.resize(tensors[name], (n_vocab, tensors[name].shape[1]))
    path = write_arch(folder / "large.gguf", "llama", keys_of("llama") | {"vocab_size": n_vocab}, tensors)
    drafter = make_drafter(path, n_seq_max=2, n_ctx=1024)
    drafter.use_cpu_kernels(KERNELS)
    assert drafter.limit_vocab(64)
    n_blocks = n_vocab // N_TOGETHER
    others = range(320, n_vocab, N_TOGETHER)
    drafter.process(None, others[:26], 0)
    assert len(drafted_blocks(drafter)) < n_blocks
    drafter.process(None, others[26:28], 26)
    assert len(drafted_blocks(drafter)) == n_blocks
    assert len(drafted_blocks(drafter, seq_id=1)) < n_blocks
    drafter.begin([0, 1], [1, 1], 2)
    assert np.isfinite(drafter.draft_logits).all()  # logits of a pass for both sequences
    drafter.process(None, [1] * 20, 28)
    assert len(drafted_blocks(drafter)) < n_blocks
    drafter.restart(0)
    drafter.process(None, [1], 0)
    assert len(drafted_blocks(drafter)) < n_blocks
    drafter.close()


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_other_tokenizers(folder: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """SentencePiece numbers merges as byte pairs do; unigrams and others have no such order: all tokens are drafted."""
    paths = []
    for path in write_small_pair(folder):
        file = parse(Path(path).read_bytes())
        n = len(file.get("tokenizer.ggml.tokens"))
        file.set("tokenizer.ggml.model", STR, kind.encode())
        file.set("tokenizer.ggml.scores", ARRAY, [-float(i) for i in range(n)], F32)
        paths.append(str(folder / f"{kind}-{Path(path).name}"))
        Path(paths[-1]).write_bytes(serialize(file))
    plain = load_plain(paths[0])
    with caplog.at_level(logging.WARNING), load(*paths, draft_vocab=32, **CHAIN, **OURS) as llm:
        assert llm.drafters[0].draft_vocab == (32 if kind == "llama" else 0)
        for prompt in prompts(2, seed=3):
            is_tie(plain, prompt, take(plain, prompt, N_TOKENS), take(llm, prompt, N_TOKENS))
    assert ("drafts all of its tokens" in caplog.text) == (kind != "llama")


def test_where_the_product_is_not_ours_all_are_drafted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    target, small = write_small_pair(folder)
    with caplog.at_level(logging.WARNING), load(target, small, draft_vocab=32, cpu_kernels="off", **CHAIN) as llm:
        assert llm.drafters[0].draft_vocab == 0
    assert "draft_vocab=32: the small model drafts all of its tokens" in caplog.text


def test_a_head_drafts_its_own_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = write_target(tmp_path / "target.gguf")
    head = write_head(tmp_path / "head.gguf", target)
    with caplog.at_level(logging.WARNING), load(target, head, draft_vocab=32, **OURS) as llm:
        assert llm.drafters[0].draft_vocab == 0
    assert "quantize --draft-vocab" in caplog.text


def test_small_vocabularies_are_drafted_whole(folder: Path) -> None:
    target, small = write_small_pair(folder)
    with load(target, small, **CHAIN, **OURS) as llm:
        assert llm.drafters[0].draft_vocab == 0
    for n in (-1, 1 << 40):
        with pytest.raises(ValueError, match=r"expected draft_vocab in 0\.\."):
            load(target, small, draft_vocab=n)
