"""Targets with several residual streams, for which no head can draft: a small model and n-grams draft for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from arch_keys import STREAMS
from llama_cpp_eagle3 import IncompatibleDraftError
from llama_cpp_eagle3._core import read_target
from loading import is_tie, load, load_plain, prompts, take
from random_arch import write_random_arch
from tiny import write_head

N_TOKENS = 32
CHAIN = {"draft": "chain", "draft_n_max": 4}
TREE = {"draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@pytest.fixture(scope="module", params=sorted(STREAMS))
def path(request: pytest.FixtureRequest, folder: Path) -> Path:
    return write_random_arch(folder, request.param)


@pytest.mark.parametrize("options", [CHAIN, TREE], ids=["chain", "tree"])
def test_a_small_model_drafts(folder: Path, path: Path, options: dict) -> None:
    """With small models that are always right or hardly ever, the text is plain llama.cpp's."""
    plain = load_plain(path)
    for small, is_right in ((path, True), (write_random_arch(folder, "llama"), False)):
        with load(path, small, **options) as llm:
            assert llm.draft_sources == ("simple", "ngram", "grammar")
            for prompt in prompts(2):
                is_tie(plain, prompt, take(plain, prompt, N_TOKENS), take(llm, prompt, N_TOKENS))
            accepted, drafted = llm.stats.accepted, llm.stats.drafted
            if is_right:
                assert accepted > (0.8 if llm.draft == "chain" or llm.target.n_leaves_max == 1 else 0.3) * drafted > 0
            else:
                assert accepted < 0.5 * drafted


def test_sequences_and_ngrams(path: Path) -> None:
    """Several sequences run at once, with texts that repeat themselves."""
    plain = load_plain(path)
    texts = [prompt * 3 for prompt in prompts(3, length=(8, 12), seed=1)]
    with load(path, path, n_parallel=3, **CHAIN) as llm, load(path, draft="auto") as text_only:
        assert text_only.draft_sources == ("ngram", "grammar")
        outputs = llm.generate_batch(texts, max_tokens=N_TOKENS, temperature=0.0)
        for prompt, output in zip(texts, outputs, strict=True):
            expected = take(plain, prompt, len(output.tokens))
            is_tie(plain, prompt, expected, output.tokens)
            is_tie(plain, prompt, expected, take(text_only, prompt, len(expected)))
        assert llm.stats.accepted > 0.8 * llm.stats.drafted > 0


def test_a_head_is_refused(folder: Path, path: Path, tiny_target) -> None:
    info = read_target(str(path))
    assert "several streams" in info.why_no_target
    assert not info.why_no_text
    with pytest.raises(IncompatibleDraftError, match="several streams"):
        load(path, write_head(folder / "head.gguf", tiny_target))
