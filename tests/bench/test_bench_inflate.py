"""The inflated pair computes what the bundled one computes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arch_keys import keys_of
from inflate import inflate, inflate_target, layer_places, quantize_target
from llama_cpp_eagle3 import Eagle3Llama, models
from llama_cpp_eagle3.errors import Eagle3Error, IncompatibleDraftError
from llama_cpp_eagle3_heads.convert import quantize
from loading import bundled_pair, is_tie, load, load_plain, take
from random_arch import random_tensors, write_arch, write_random_arch
from random_model import Shape
from tiny import write_head, write_target

# all sizes grow: width, heads per K/V head, K/V heads, MLP, layers, both vocabularies
SHAPE = Shape(n_layer=12, n_embd=768, n_ff=1024, n_head=12, n_head_kv=4, n_vocab=5000, n_ff_dft=960, n_vocab_dft=3500)
N_EMBD, N_VOCAB = 256, 4096


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return a target, a head, and a head that knows nothing."""
    folder = tmp_path_factory.mktemp("inflated")
    paths = folder / "target.gguf", folder / "head.gguf", folder / "random.gguf"
    inflate(*bundled_pair(), SHAPE, paths[0], paths[1], random_head_out=paths[2])
    return paths


def watch(llm: Eagle3Llama) -> list[list[int]]:
    """Return a list to which all drafts are added from now on."""
    found: list[list[int]] = []
    policy = llm.policy

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(policy, name)

        def propose(self, *args: Any) -> Any:
            drafts = policy.propose(*args)
            found.extend(list(draft.tokens) for draft in drafts)
            return drafts

    llm.engine.drafting.policy = Watched()  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("options", [{"draft_n_max": 3}, {"draft_tree_depth": 3, "draft_tree_tokens": 6}])
def test_same_tokens_and_drafts(pair: tuple[Path, Path, Path], options: dict[str, int]) -> None:
    small, large = load(*bundled_pair(), **options), load(pair[0], pair[1], **options)
    plain = load_plain(bundled_pair()[0])
    drafts_small, drafts_large = watch(small), watch(large)
    n_same = 0
    for text in models.heldout_prompts()[:6]:
        prompt = small.tokenize(text.encode(), special=True)
        assert large.tokenize(text.encode(), special=True) == prompt
        drafts_small.clear()
        drafts_large.clear()
        expected, found = take(small, prompt, 40), take(large, prompt, 40)
        if not is_tie(plain, prompt, expected, found):
            n_same += 1
            # ties within a draft cost no more than that draft
            different = [a for a, b in zip(drafts_small, drafts_large, strict=False) if a != b]
            assert len(different) <= 1
    assert n_same >= 4
    for llm in (small, large, plain):
        llm.close()


def test_same_hidden_states_and_logits(pair: tuple[Path, Path, Path]) -> None:
    small, large = load(*bundled_pair()), load(pair[0], pair[1])
    prompt = small.tokenize(models.heldout_prompts()[7].encode(), special=True)
    rows = []
    for llm in (small, large):
        llm.eval(prompt)
        rows.append(np.array(llm.features))
    real, added = np.split(rows[1], [N_EMBD], axis=2)
    # the activations of F16 matrices are rounded to F16
    scale = np.abs(rows[0]).max(axis=2, keepdims=True)
    assert np.abs((real - rows[0]) / scale).max() < 2e-3
    assert np.array_equal(added[:, :, 0], np.full_like(added[:, :, 0], 2.0**-5))
    assert not added[:, :, 1:].any()

    logits = [np.array(llm.target.logits(-1)) for llm in (small, large)]
    assert np.abs(logits[1][:N_VOCAB] - logits[0]).max() < 1e-2
    assert logits[1][N_VOCAB:].max() < logits[0].min() - 100
    small.close()
    large.close()


def test_random_head_is_never_right(pair: tuple[Path, Path, Path]) -> None:
    llm, plain = load(pair[0], pair[2]), load_plain(pair[0])
    prompt = llm.tokenize(models.heldout_prompts()[0].encode(), special=True)
    expected, found = take(plain, prompt, 24), take(llm, prompt, 24)
    is_tie(plain, prompt, expected, found)
    assert llm.last_stats.drafted > 0
    assert llm.last_stats.draft_acceptance_rate < 0.05
    llm.close()
    plain.close()


def test_quantized_pair_still_agrees(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    quantize_target(pair[0], tmp_path / "target.gguf", "Q8_0", 1)
    quantize(pair[1], tmp_path / "head.gguf", "q8_0")
    assert (tmp_path / "target.gguf").stat().st_size < 0.6 * pair[0].stat().st_size
    llm = load(tmp_path / "target.gguf", tmp_path / "head.gguf")
    prompt = llm.tokenize(models.heldout_prompts()[0].encode(), special=True)
    take(llm, prompt, 40)
    assert llm.last_stats.mean_acceptance_length > 1.8
    llm.close()


def test_quantize_of_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"no")
    with pytest.raises(Eagle3Error, match=r"cannot quantize '.*no\.gguf' to Q4_0"):
        quantize_target(tmp_path / "no.gguf", tmp_path / "out.gguf", "Q4_0", 1)
    assert not (tmp_path / "out.gguf").exists()


def test_layer_places() -> None:
    assert layer_places(4, [1, 3], 7, [2, 5]) == [0, None, 1, 2, None, 3, None]
    with pytest.raises(Eagle3Error, match="leave 1 layers for 2"):
        layer_places(4, [1, 3], 7, [2, 3])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_embd": 256, "n_head": 4}, "a width of more than 256"),
        ({"n_head": 6}, "heads of 64 values"),
        ({"n_head_kv": 1}, "at least 2 K/V heads"),
        ({"n_head_kv": 12}, "at least 2 heads for each"),
        ({"n_ff": 512}, "an MLP of at least 704"),
        ({"n_vocab": 4000}, "at least 4096 tokens"),
        ({"n_layer": 9}, "expected boundaries"),
        ({"n_vocab_dft": 3000}, "too small or too large"),
    ],
)
def test_shapes_that_do_not_fit(change: dict[str, int], match: str, tmp_path: Path) -> None:
    shape = Shape(**vars(SHAPE) | change)
    with pytest.raises(Eagle3Error, match=match):
        inflate(*bundled_pair(), shape, tmp_path / "target.gguf", tmp_path / "head.gguf")


@pytest.mark.parametrize("variant", [{"norm_before_fc": True}, {"n_layer": 2}, {"own_output": False}])
def test_other_heads_are_refused(variant: dict[str, Any], tmp_path: Path) -> None:
    head = write_head(tmp_path / "other.gguf", write_target(tmp_path / "tiny.gguf"), **variant)
    with pytest.raises(IncompatibleDraftError, match="only plain EAGLE-3 heads"):
        inflate(bundled_pair()[0], head.path, SHAPE, tmp_path / "target.gguf", tmp_path / "head.gguf")
    assert not (tmp_path / "target.gguf").exists()


def test_a_target_alone_grows(tmp_path: Path) -> None:
    """One with biases, and without an output matrix of its own; layers that were added add nothing."""
    keys, all_tensors = keys_of("qwen2"), random_tensors(write_random_arch(tmp_path, "qwen2"))
    tensors = {n: t for n, t in all_tensors.items() if "scale" not in n and n not in ("output.bias", "output.weight")}
    small = write_arch(tmp_path / "small.gguf", "qwen2", keys, tensors)
    shape = Shape(
        n_layer=keys["block_count"] + 2,
        n_embd=2 * keys["embedding_length"],
        n_ff=keys["feed_forward_length"] + 32,
        n_head=2 * keys["attention.head_count"],
        n_head_kv=keys["attention.head_count_kv"],
        n_vocab=keys["vocab_size"],
        n_ff_dft=0,
        n_vocab_dft=0,
        arch="qwen2",
    )
    inflate_target(small, shape, tmp_path / "large.gguf")
    with pytest.raises(Eagle3Error, match=r"expected tensors of a plain qwen2, found blk\.0\.attn_k\.input_scale"):
        inflate_target(tmp_path / "qwen2.gguf", shape, tmp_path / "other.gguf")
    rows = []
    for path in (small, tmp_path / "large.gguf"):
        with closing(load_plain(path, logits_all=True)) as llm:
            llm.eval([1, 5, 2, 7, 3])
            rows.append(np.array(llm.scores[:5]))
    assert np.abs(rows[0]).max() > 1.0
    np.testing.assert_allclose(rows[1], rows[0], atol=2e-2 * np.abs(rows[0]).max())
