"""Targets that draft with the block for multi-token prediction in their own file: texts, sequences, states, errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adapters import Shape, check_adapter, write_lora
from arch_keys import arch_of, keys_of
from drafting import draft_chain
from gguf_raw import parse, serialize
from llama_cpp_eagle3 import Eagle3Llama, IncompatibleDraftError, ModelFileError
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.draft.kinds.mtp import has_block
from loading import OPTIONS, is_tie, load, load_plain, prompts, take
from mtp import split_block, write_able
from random_arch import random_tensors, write_arch, write_random_arch

N_TOKENS = 40
CHAIN = {"draft": "chain", "draft_n_max": 4}
TREE = {"draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6}
ROWS = ("glm4moe-mtp", "mimo2-mtp", "qwen35-mtp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mtp")


@pytest.fixture(scope="module", params=ROWS)
def path(request: pytest.FixtureRequest, folder: Path) -> Path:
    return write_able(folder, request.param)


@pytest.mark.parametrize(
    ("options", "kv_unified"), [(CHAIN, True), (CHAIN, False), (TREE, True)], ids=["chain", "split", "tree"]
)
@pytest.mark.parametrize("row", ["mimo2-mtp3", "step35-mtp3"])
def test_chained_blocks(folder: Path, row: str, options: dict, kv_unified: bool) -> None:
    path = write_able(folder, row)
    plain = load_plain(path)
    texts = prompts(4, seed=4)
    with load(path, n_parallel=2, kv_unified=kv_unified, **options) as llm:
        assert "(3 chained blocks)" in llm.loaded.description
        outputs = llm.generate_batch(texts, max_tokens=N_TOKENS, temperature=0.0)
        for prompt, output in zip(texts, outputs, strict=True):
            is_tie(plain, prompt, take(plain, prompt, len(output.tokens)), output.tokens)
        assert llm.stats.of("mtp").accepted > 0.1 * llm.stats.of("mtp").drafted > 0


def test_what_drafts(path: Path) -> None:
    with load(path, **CHAIN) as llm:
        assert "block for multi-token prediction" in llm.loaded.description


@pytest.mark.parametrize("row", ["mimo2-mtp", "mimo2-mtp3"])
def test_an_adapter_of_the_target(folder: Path, row: str) -> None:
    """The target's text is that with the adapter, which the block does not have."""
    path = write_able(folder, row)
    lora = write_lora(folder / f"{row}-lora.gguf", Shape(), 4.0, arch_of(row))
    check_adapter([path], lora, "mtp", N_TOKENS, **CHAIN)


def test_what_is_not_wanted_is_not_loaded(folder: Path) -> None:
    path = write_able(folder, "mimo2-mtp")
    for options in ({"draft_sources": ()}, {"draft_sources": ("ngram",), "draft": "auto"}, {"embedding": True}):
        with Eagle3Llama(str(path), **OPTIONS | options) as llm:
            assert not llm.drafters
            assert llm.tap is None


def test_a_file_without_a_block(folder: Path) -> None:
    path = write_random_arch(folder, "mimo2")
    assert not has_block(str(path))
    with load(path) as llm:
        assert not llm.drafters
    with pytest.raises(IncompatibleDraftError, match=r"no block for multi-token prediction \(key mimo2.nextn"):
        load(path, draft_sources=["mtp"])


def test_a_block_that_llama_cpp_cannot_run(folder: Path) -> None:
    """Such a block is an error if it was requested, else the target runs without it."""
    tensors = random_tensors(write_random_arch(folder, "glm4moe-mtp"))
    keys = keys_of("glm4moe-mtp") | {"rope.dimension_sections": [4, 4, 4, 4]}
    path = write_arch(folder / "sections.gguf", "glm4moe", keys, tensors)
    with load(path, **CHAIN) as llm:
        assert not llm.drafters
        assert llm.draft_sources == ("ngram", "grammar")
        (prompt,) = prompts(1)
        assert take(llm, prompt, 10) == take(load_plain(path), prompt, 10)
    with pytest.raises(ModelFileError, match="dimension_sections"):
        load(path, draft_sources=["mtp"])


@pytest.mark.parametrize("row", ["exaone-moe", "glm4", "nemotron_h", "deepseek4-mtp"])
def test_a_block_that_llama_cpp_has_no_graph_for(folder: Path, row: str) -> None:
    """llama.cpp's loader keeps the block; requested, it is an error by name. For deepseek4 it would divide by zero."""
    keys = keys_of(row) | {"nextn_predict_layers": 1, "attention.indexer.key_length": 128}
    tensors = random_tensors(write_random_arch(folder, row))
    n_layer = keys["block_count"] - 1
    tensors[f"blk.{n_layer}.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)
    path = write_arch(folder / f"{row}-unrun.gguf", arch_of(row), keys, tensors)
    assert not has_block(str(path))
    with pytest.raises(IncompatibleDraftError, match=r"loads the block of this architecture \(.*\), but cannot run it"):
        load(path, draft_sources=["mtp"])


def test_options_of_heads(folder: Path) -> None:
    path = write_able(folder, "mimo2-mtp")
    with pytest.raises(ValueError, match="draft_type, draft_target_layers and draft_device are for heads"):
        load(path, draft_sources=["mtp"], draft_type="q4_0")


@pytest.mark.parametrize("options", [CHAIN, TREE, {"draft": "auto"}], ids=["chain", "tree", "auto"])
@pytest.mark.parametrize("row", [*ROWS, "step35-mtp3"])
def test_a_block_in_a_file_of_its_own(folder: Path, row: str, options: dict) -> None:
    """The block's drafts are those of the block in the target's file, token for token; states of both fit both."""
    whole = write_able(folder, row)
    target, block = split_block(folder, whole, row)
    options = options | {"draft_type_k": 0, "draft_type_v": 0}
    with load(whole, **options) as own, load(target, block, **options) as apart:
        assert apart.draft_sources == ("mtp", "ngram", "grammar")
        assert f"prediction '{block}'" in apart.loaded.description
        for prompt in prompts(2):
            text = take(own, prompt, N_TOKENS)
            assert take(apart, prompt, N_TOKENS) == text
            assert text == take(load_plain(target), prompt, N_TOKENS)
        if own.draft == "auto":  # its drafts depend on the machine
            return
        assert apart.stats.by_source == own.stats.by_source
        assert apart.stats.of("mtp").accepted > 0
        apart.drafters[0].state_set(own.drafters[0].state_get())
        assert draft_chain(apart.drafters[0], 1, 3) == draft_chain(own.drafters[0], 1, 3)


def test_a_block_of_another_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write_able(folder, "mimo2-mtp")
    target, block = split_block(folder, whole, "mimo2-mtp")
    with pytest.raises(IncompatibleDraftError, match="architecture is mimo2, of the target glm4moe") as e:
        load(write_able(folder, "glm4moe-mtp"), block)
    assert f"'{block}'" in str(e.value)
    with pytest.raises(ModelFileError, match="block for multi-token prediction alone, not a target"):
        load(block)
    with pytest.raises(ValueError, match="'simple', but a block for multi-token prediction is given"):
        load(target, block, draft_sources=["simple"])
    with pytest.raises(IncompatibleDraftError, match="no block for multi-token prediction"):
        load(target, draft_sources=["mtp"])
    assert main(["inspect", str(block), "--target", str(target)]) == 0
    assert "a block for multi-token prediction (mimo2) in a file of its own" in capsys.readouterr().out
    common = ["-p", "abc", "-n", "12", "-c", "256", "--temp", "0", "-t", "1", "--json", "-", "--spec-draft-n-max", "3"]
    assert main(["speculative-simple", "-m", str(target), "-md", str(block), "--spec-type", "draft-mtp", *common]) == 0
    assert json.loads(capsys.readouterr().out)["drafted"] > 0


def test_flags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--spec-type draft-mtp, the default with a block, drafts; doctor names it, and a baseline drafts nothing."""
    path, without = write_able(folder, "mimo2-mtp"), write_random_arch(folder, "mimo2")
    common = ["-p", "abc", "-n", "12", "-c", "256", "--temp", "0", "-t", "1", "--json", "-"]
    for more in ([], ["--spec-type", "draft-mtp"]):
        assert (
            main(["speculative-simple", "-m", str(path), "--spec-draft-n-max", "3", "--baseline", *common, *more]) == 0
        )
        report = json.loads(capsys.readouterr().out)
        assert report["drafted"] > 0
        assert report["baseline"]["drafted"] == 0
    assert main(["speculative-simple", "-m", str(path), "--spec-type", "none", *common]) == 0
    assert json.loads(capsys.readouterr().out)["drafted"] == 0
    assert main(["speculative-simple", "-m", str(without), "--spec-type", "draft-mtp", *common]) != 0
    assert "has no block for multi-token prediction" in capsys.readouterr().err
    main(["doctor", "-m", str(path), "-t", "1"])
    assert "the block for multi-token prediction in the target's file drafts" in capsys.readouterr().out


def without_block(path: Path, out: Path, *, mend: bool = False) -> Path:
    """Write a file that announces its block and has no tensor of it. mend: it does not announce it either."""
    raw = parse(path.read_bytes())
    arch = raw.arch
    n, n_block = raw.get(f"{arch}.block_count"), raw.get(f"{arch}.nextn_predict_layers")
    gone = tuple(f"blk.{i}.".encode() for i in range(n - n_block, n))
    raw.tensors = [tensor for tensor in raw.tensors if not tensor.name.startswith(gone)]
    if mend:
        raw.find(f"{arch}.block_count").value = n - n_block
        raw.find(f"{arch}.nextn_predict_layers").value = 0
    out.write_bytes(serialize(raw))
    return out


@pytest.mark.parametrize("row", ["qwen35-mtp", "qwen3next-mtp", "deepseek4-mtp", "mimo2-mtp3", "bailingmoe3-mtp"])
def test_a_block_that_is_announced_and_not_there(
    row: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file loads, warns once, and gives the text of one that announces nothing."""
    path = write_random_arch(folder, row)
    gone = without_block(path, tmp_path / "gone.gguf")
    with load(gone) as llm:
        assert "mtp" not in llm.draft_sources
        text = take(llm, [1, 2, 3], 12)
    assert caplog.text.count("announces layers for multi-token prediction") == 1
    if row != "bailingmoe3-mtp":  # its arrays have a number for the block
        plain = load_plain(without_block(path, tmp_path / "mended.gguf", mend=True))
        assert text == take(plain, [1, 2, 3], 12)
        plain.close()
    with pytest.raises(IncompatibleDraftError, match=r"announces a block .* no tensor of it"):
        load(gone, draft_sources=("mtp",))


def test_a_small_model_without_the_block_that_it_announces(folder: Path, tmp_path: Path) -> None:
    path = write_random_arch(folder, "qwen35-mtp")
    gone = without_block(path, tmp_path / "gone.gguf")
    with load(path, gone, **CHAIN) as llm:
        assert llm.draft_sources[0] == "simple"
        take(llm, [1, 2, 3], 12)
        assert llm.stats.of("simple").drafted > 0


def test_a_file_that_llama_cpp_cannot_be_told_of(folder: Path, tmp_path: Path) -> None:
    gone = without_block(write_random_arch(folder, "nemotron_h_moe-mtp"), tmp_path / "gone.gguf")
    with pytest.raises(ModelFileError, match=r"announces layers for multi-token prediction .* with --no-nextn"):
        load(gone)
