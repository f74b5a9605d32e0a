"""The small model of each family: found by the target's header, and what it is computed to bring."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import siblings as page
from gguf_raw import STR, parse, serialize
from llama_cpp_eagle3._core import has_nearly, read_target
from llama_cpp_eagle3.draft.siblings import SIBLINGS, Sibling, advice, find_sibling, is_family


def target(arch: str, name: str, n_vocab: int) -> Any:
    return SimpleNamespace(arch=arch, name=name, n_vocab=n_vocab)


@pytest.mark.parametrize(
    ("arch", "name", "n_vocab", "found"),
    [
        ("qwen2", "Qwen2.5 7B Instruct", 152064, "Qwen2.5-0.5B-Instruct"),
        ("qwen2", "qwen2.5-3b-instruct", 151936, "Qwen2.5-0.5B-Instruct"),
        ("qwen2", "Qwen2.5 Coder 14B Instruct GGUF", 152064, "Qwen2.5-Coder-0.5B-Instruct"),
        ("qwen2", "qwen2.5-coder-1.5b-instruct", 151936, "Qwen2.5-Coder-0.5B-Instruct"),
        ("qwen3", "Qwen3-8B", 151936, "Qwen3-0.6B"),
        ("qwen3", "Qwen3-4B-Instruct-2507", 151936, "Qwen3-0.6B"),
        ("qwen35", "Qwen3.5 9B", 248320, "Qwen3.5-0.8B"),
        ("llama", "Meta Llama 3.1 8B Instruct", 128256, "Llama-3.2-1B-Instruct"),
        ("llama", "DeepSeek R1 Distill Llama 8B", 128256, "Llama-3.2-1B-Instruct"),
        ("gemma3", "Gemma-3-4B-It", 262208, "gemma-3-270m-it"),
        ("llama", "SmolLM2 1.7B Instruct", 49152, "SmolLM2-135M-Instruct"),
        ("granitehybrid", "Granite 4.0 H Micro", 100352, "granite-4.0-350m"),
        ("lfm2", "LFM2 2.6B", 65536, "LFM2-350M"),
        ("llama", "Mistral Small 3.2 24B Instruct 2506", 131072, "Mistral-Small-3.1-DRAFT-0.5B"),
        ("mistral3", "Devstral Small 2 24B", 131072, "Mistral-Small-3.1-DRAFT-0.5B"),
        ("llama", "Mistral 7B Instruct v0.3", 32768, None),  # another tokenizer
        ("llama", "Llama 2 7B Chat", 32000, None),
        ("qwen2", "QwQ 32B", 152064, None),
        ("phi3", "Phi 3 Mini", 32064, None),
    ],
)
def test_families(arch: str, name: str, n_vocab: int, found: str | None) -> None:
    sibling = find_sibling(target(arch, name, n_vocab))
    assert (sibling.title if sibling else None) == found


@pytest.mark.parametrize(
    ("large", "small", "is_one"),
    [
        (("qwen2", "Qwen2.5 7B Instruct", 152064), ("qwen2", "any name", 151936), True),
        (("qwen3moe", "Qwen3 30B A3B", 151936), ("qwen3", "Qwen3 0.6B", 151936), True),
        (("mistral3", "Devstral Small 2 24B", 131072), ("llama", "Mistral Small 3.1 DRAFT 0.5B", 131072), True),
        (("qwen3moe", "Qwen3 30B A3B", 151936), ("qwen2", "Qwen2.5 0.5B Instruct", 151936), False),
        (("phi3", "Phi 3 Mini", 32064), ("llama", "TinyLlama", 32000), False),
    ],
)
def test_a_model_is_of_the_family(large: Any, small: Any, is_one: bool) -> None:
    assert is_family(target(*large), target(*small)) == is_one


@pytest.mark.parametrize(
    ("n_small", "n_large"),
    [(151936, 152064), (262144, 262208), (49152, 49155)],  # Qwen2.5 from 7B on, Gemma 3 from 4B on, Granite 3
)
def test_last_tokens_may_be_missing(n_small: int, n_large: int) -> None:
    """Larger models of a family have some more, unused tokens at the end."""
    assert has_nearly(n_small, n_large)
    assert has_nearly(n_large, n_small)
    assert not has_nearly(n_small, 2 * n_large)


def test_of_a_file(tiny_target: Any, tmp_path: Path) -> None:
    """The header's `general.name` and tokens count."""
    raw = parse(Path(tiny_target.path).read_bytes())
    raw.set("general.name", STR, b"SmolLM2 1.7B")
    path = tmp_path / "renamed.gguf"
    path.write_bytes(serialize(raw))
    assert find_sibling(read_target(str(path))) is None  # it has another number of tokens


def made(n_bytes: int, acceptance: float) -> Sibling:
    return Sibling("F", "small", "me/small", "MIT", ("llama",), "f", 100, n_bytes, acceptance)


def test_what_it_brings() -> None:
    # by hand: 3 drafted at 50 % give 1.875 tokens; four rows take 1.2 passes, and each draft 0.12 of one
    found = made(10, 0.5).brings(100)
    speeds = [sum(0.5**k for k in range(n + 1)) / (1.0 + 0.2 / 3 * n + 0.12 * n) for n in range(1, 9)]
    assert found.speedup == pytest.approx(max(speeds))
    assert found.n_draft == 1 + speeds.index(max(speeds))
    assert speeds[2] == pytest.approx(1.875 / 1.56)
    # by measured passes: where rows cost nothing more is drafted
    free = made(10, 0.5).brings(100, lambda _: 1.0)
    assert free.speedup > found.speedup
    # a small model that is as large as its target
    assert made(100, 0.9).brings(100).n_draft == 0


def test_advice() -> None:
    large = advice(target("qwen2", "Qwen2.5 7B Instruct", 152064), 4_700_000_000)
    assert "Qwen2.5-0.5B-Instruct, would draft too: -hfd auto fetches it (computed: 1." in large
    assert "60 % of the tokens are accepted" in large
    small = advice(target("qwen2", "Qwen2.5 0.5B Instruct", 151936), 400_000_000)
    assert "too small to gain by it" in small
    assert "a mixture of experts gains less" in advice(target("qwen3moe", "Qwen3 30B A3B", 151936), 1 << 34)
    assert advice(target("phi3", "Phi", 32064), 1).startswith("no small model of its family is known")


def test_the_page_is_current() -> None:
    text = page.DOCUMENT.read_text(encoding="utf-8")
    assert page.document(text) == text, "run python tools/siblings.py"
    assert all(sibling.repo in text for sibling in SIBLINGS)
