"""`draft="auto"`: drafts follow measured costs, and the output is the target's own."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from head_variants import MLA
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.files.cache_dir import cache_dir
from loading import bundled_pair, is_tie, load, load_plain, prompts, take
from recurrent_pairs import write_pair
from tiny import write_perfect_pair


@pytest.fixture(scope="module", params=["random", "perfect", "p_eagle", "mla", "bundled", "qwen35", "qwen3next"])
def pair(request: Any, tmp_path_factory: Any, tiny_target: Any, tiny_head: Any, perfect_pair: Any) -> tuple[Any, Any]:
    match request.param:
        case "random":
            return tiny_target, tiny_head
        case "perfect":
            return tuple(perfect_pair)
        case "p_eagle" | "mla":
            # the one is right about the first token only, the other about all
            options = {"mask_token": 5} if request.param == "p_eagle" else MLA | {"v_head_dim": 16}
            folder = tmp_path_factory.mktemp(request.param)
            return write_perfect_pair(folder / "target.gguf", folder / "head.gguf", **options)
        case "bundled":
            return bundled_pair()
        case arch:
            return write_pair(tmp_path_factory.mktemp(arch), arch)


def test_lossless(pair: Any) -> None:
    with closing(load_plain(pair[0])) as plain, closing(load(*pair, draft="auto")) as llm:
        texts = prompts(12, min(128, plain.n_vocab()))
        expected = [take(plain, text, 80) for text in texts]
        found = [take(llm, text, 80) for text in texts]
        assert sum(is_tie(plain, *texts) for texts in zip(texts, expected, found, strict=True)) <= 1
        stats = llm.policy.stats()
        assert stats["steps"] >= llm.stats.steps - len(texts)  # steps whose tokens the consumer left do not count
        # and one after the other, in other modes
        for mode in ("chain", "auto", "tree", "auto"):
            llm.draft = mode
            assert not is_tie(plain, texts[0], expected[0], take(llm, texts[0], 80))


@pytest.mark.parametrize("options", [{"temp": 0.8}, {"temp": 1.0, "repeat_penalty": 1.2}], ids=str)
def test_same_seed_same_text(tiny_target: Any, tiny_head: Any, options: dict[str, Any]) -> None:
    auto = load(tiny_target, tiny_head, draft="auto", rng="llama")
    with closing(load_plain(tiny_target)) as plain, closing(auto) as llm:
        for seed, prompt in enumerate(prompts(10, seed=7)):
            plain.set_seed(seed)
            llm.set_seed(seed)
            assert take(plain, prompt, 64, **options) == take(llm, prompt, 64, **options)


def test_auto_is_the_default(tiny_target: Any, tiny_head: Any) -> None:
    options = {"draft_model_path": tiny_head.path, "n_ctx": 256, "verbose": False}
    for given, mode in (
        ({}, "auto"),
        ({"draft_n_max": 2}, "chain"),
        ({"draft_p_min": 0.5}, "chain"),
        ({"draft_tree_topk": 2}, "tree"),
        ({"draft_n_max": 2, "draft": "auto"}, "auto"),
    ):
        with closing(Eagle3Llama(tiny_target.path, **options, **given)) as llm:
            assert llm.draft == mode
            assert not llm.policy.is_measured


def test_measured_once(tiny_target: Any, tiny_head: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path))
    # what is measured on a busy machine is measured again
    monkeypatch.setattr("llama_cpp_eagle3.draft.costs.timing.Contention.share", 0.0)
    assert cache_dir() == tmp_path
    with closing(load(tiny_target, tiny_head, draft="auto")) as llm:
        # nothing is measured after text in the context: three tokens are drafted until then
        llm.eval([1, 2, 3])
        with closing(llm.generate([4], temp=0.0, reset=False)) as stream:
            next(stream)
            next(stream)
        assert not llm.policy.is_measured
        assert llm.last_stats.drafts == 1
        llm.reset()
        take(llm, [1, 2, 3], 10)
        (file,) = tmp_path.rglob("*.json")
        assert "1" in json.loads(file.read_text())["target"]["curve"]
        before = file.stat().st_mtime_ns
    with closing(load(tiny_target, tiny_head, draft="auto")) as llm:
        llm.eval([1, 2, 3])
        take(llm, [1, 2, 3, 4], 10)  # from the file, on any context
        assert llm.policy.is_measured
        assert file.stat().st_mtime_ns == before


def test_bad_mode(tiny_target: Any, tiny_head: Any) -> None:
    with pytest.raises(ValueError, match="expected draft to be one of auto, chain, tree or None, found 'best'"):
        load(tiny_target, tiny_head, draft="best")
    for name in ("draft_tree_depth", "draft_tree_topk"):
        with pytest.raises(ValueError, match=rf"expected {name} in 1\.\.2147483647, found 0"):
            load(tiny_target, tiny_head, **{name: 0})
    with pytest.raises(ValueError, match="expected draft_tree_depth <= draft_tree_tokens, found"):
        load(tiny_target, tiny_head, draft_tree_depth=9, draft_tree_tokens=3)
    with pytest.raises(ValueError, match="draft_tree_tokens=40 needs batches of 41 tokens"):
        load(tiny_target, tiny_head, draft_tree_tokens=40, n_batch=32)
