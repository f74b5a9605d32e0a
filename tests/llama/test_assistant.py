"""Gemma 4 targets for which an assistant drafts on their own K/V: texts, sequences, states, flags, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters import Shape, check_adapter, write_lora
from arch_keys import arch_of, keys_of
from assistants import ROW, write_able, write_assistant
from llama_cpp_eagle3 import IncompatibleDraftError, ModelFileError
from llama_cpp_eagle3._core import AssistantDrafter
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.draft import costs
from llama_cpp_eagle3.engine import Sampling, Shift
from loading import is_tie, load, load_plain, prompts, take
from random_arch import random_tensors, write_arch, write_random_arch

N_TOKENS = 40
CHAIN = {"draft": "chain", "draft_n_max": 4}
TREE = {"draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("assistant")


@pytest.fixture(scope="module", params=["gemma4", "gemma4-a4b", "gemma4-shared"])
def pair(request: pytest.FixtureRequest, folder: Path) -> tuple[Path, Path]:
    return write_able(folder, request.param)


def test_what_drafts(pair: tuple[Path, Path]) -> None:
    target, assistant = pair
    with load(target, assistant, **CHAIN) as llm:
        assert isinstance(llm.drafters[0], AssistantDrafter)
        assert f"Gemma 4 assistant '{assistant}': 3 layers of width 32" in llm.loaded.description


@pytest.mark.parametrize("more", [{"swa_full": False}, {"flash_attn": True}], ids=["window", "flash"])
@pytest.mark.parametrize("kv_unified", [True, False], ids=["pooled", "split"])
def test_windows_and_flash_attention(pair: tuple[Path, Path], kv_unified: bool, more: dict) -> None:
    """Several sequences have plain llama_cpp's texts."""
    target, assistant = pair
    plain = load_plain(target, **more)
    texts = prompts(6, seed=1)
    with load(target, assistant, n_parallel=3, kv_unified=kv_unified, **CHAIN, **more) as llm:
        outputs = llm.generate_batch(texts, max_tokens=N_TOKENS, temperature=0.0)
        for prompt, output in zip(texts, outputs, strict=True):
            is_tie(plain, prompt, take(plain, prompt, len(output.tokens)), output.tokens)
        assert llm.stats.accepted > 0.4 * llm.stats.drafted > 0


def test_trees_of_a_batch(folder: Path) -> None:
    target, assistant = write_able(folder)
    plain = load_plain(target)
    texts = prompts(4, seed=5)
    with load(target, assistant, n_parallel=2, kv_unified=True, **TREE) as llm:
        outputs = llm.generate_batch(texts, max_tokens=N_TOKENS, temperature=0.0)
        for prompt, output in zip(texts, outputs, strict=True):
            is_tie(plain, prompt, take(plain, prompt, len(output.tokens)), output.tokens)
        assert llm.stats.accepted > 0.2 * llm.stats.drafted > 0


def test_costs_are_measured(folder: Path) -> None:
    """An assistant never has more than one row to evaluate, however many were processed."""
    with load(*write_able(folder), draft="auto") as llm:
        measured = costs.measure(llm.engine, seconds=0.1)
        (draft,) = measured.drafts
        assert [*draft.begin] == [1]
        assert draft.step[1] > 0


def test_an_adapter_of_the_target(folder: Path) -> None:
    """The target's text is that with the adapter; the assistant reads the target's K/V."""
    pair = write_able(folder)
    lora = write_lora(folder / "lora.gguf", Shape(), 4.0, "gemma4")
    check_adapter(pair, lora, "assistant", N_TOKENS, **CHAIN)


def test_a_shifted_context(folder: Path) -> None:
    """Tokens are dropped from the middle, and drafting continues."""
    target, assistant = write_able(folder)
    with load(target, assistant, n_ctx=128, **CHAIN) as llm:
        s = llm.engine.add(
            *prompts(1, length=(60, 61)), Sampling(temperature=0.0, ignore_eos=True), max_tokens=120, shift=Shift(4)
        )
        while not s.is_done:
            llm.engine.step()
        assert len(s.generated) == 120
        stats = s.result.stats.of("assistant")
        assert stats.accepted > 0.3 * stats.drafted > 0


def test_flags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, assistant = write_able(folder)
    common = ["-p", "abc", "-n", "12", "-c", "256", "--temp", "0", "-t", "1", "--json", "-", "--spec-draft-n-max", "3"]
    for more in ([], ["--spec-type", "draft-mtp"]):
        assert main(["speculative-simple", "-m", str(target), "-md", str(assistant), "--baseline", *common, *more]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["drafted"] > 0
        assert report["baseline"]["drafted"] == 0
    assert main(["inspect", str(assistant), "--target", str(target)]) == 0
    assert "a Gemma 4 assistant: it drafts on the target's own K/V" in capsys.readouterr().out
    assert main(["doctor", "-m", str(target), "-md", str(assistant), "-t", "1"]) == 0
    assert "Gemma 4 assistant" in capsys.readouterr().out


def test_an_assistant_of_another_target(folder: Path) -> None:
    """Such an assistant is refused by name before anything is loaded."""
    target, assistant = write_able(folder)
    with pytest.raises(IncompatibleDraftError, match="of the architecture gemma4, the target's is gemma3") as e:
        load(write_random_arch(folder, "gemma3"), assistant)
    assert f"'{assistant}'" in str(e.value)
    with pytest.raises(ModelFileError, match="is a Gemma 4 assistant, not a target"):
        load(assistant)
    tensors = random_tensors(write_assistant(folder))
    for name, (key, value, why) in {
        "heads": ("attention.head_count_kv", 1, "reads the K/V of the target's layer 1: expected 1 heads"),
        "width": ("embedding_length_out", 128, "reads hidden states of 128 values"),
    }.items():
        path = write_arch(folder / f"{name}.gguf", arch_of(ROW), keys_of(ROW) | {key: value}, tensors)
        with pytest.raises(IncompatibleDraftError, match=why):
            load(target, path)
    other = write_arch(
        folder / "full-full.gguf", "gemma4", keys_of("gemma4") | {"attention.sliding_window_pattern": [1, 0, 0]},
        random_tensors(write_random_arch(folder, "gemma4")),
    )  # fmt: skip
    with pytest.raises(IncompatibleDraftError, match="layer 1: expected 2 heads of 32 values and a window, found"):
        load(other, assistant)
