"""Targets for which a small model of the same vocabulary drafts: texts, sequences, states, flags, errors."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from arch_keys import keys_of
from llama_cpp_eagle3 import Eagle3Error, IncompatibleDraftError, ModelFileError
from llama_cpp_eagle3._core import SimpleDrafter
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.planning import Costs, DraftCosts, make_planner
from loading import load, load_plain, prompts, take
from random_arch import random_tensors, write_arch, write_random_arch
from small import write_small_pair
from tiny import write_head, write_target

N_TOKENS = 40
CHAIN = {"draft": "chain", "draft_n_max": 4}
PAIRS = (("llama", "llama"), ("llama", "qwen3next"), ("qwen35", "gemma3"))
"""Attention for attention, a state that drafts, and a state that is drafted for."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small")


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest, folder: Path) -> list[str]:
    return write_small_pair(folder, *request.param)


def test_what_drafts(pair: list[str]) -> None:
    target, small = pair
    with load(target, small, **CHAIN) as llm:
        assert isinstance(llm.drafter, SimpleDrafter)
        assert llm.tap is None
        assert f"the small model '{small}'" in llm.loaded.description


def test_costs_are_measured(folder: Path) -> None:
    target, small = write_small_pair(folder)
    with load(target, small, draft="auto") as llm:
        llm.calibrate(0.3)
        target_costs, begin, step = (curve.measured for curve in llm.planner.costs)
        assert {1, 2} <= target_costs.keys()
        assert {1, 2} <= begin.keys()
        assert 1 in step


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    """Before anything is loaded, with the first difference and both files."""
    target = str(write_target(tmp_path / "target.gguf").path)
    other = write_target(tmp_path / "other.gguf").path
    data = Path(other).read_bytes()
    for i in range(10):
        data = data.replace(b"<|unused_%d|>" % i, b"<|number_%d|>" % i)
    Path(other).write_bytes(data)
    with pytest.raises(IncompatibleDraftError) as e:
        load(target, other)
    assert f"'{other}'" in str(e.value)
    assert f"'{target}'" in str(e.value)
    assert "of 320 tokens differ, the first one: token" in str(e.value)


def test_other_sizes_and_kinds_are_refused(folder: Path) -> None:
    target, _ = write_small_pair(folder)
    keys = keys_of("llama") | {"vocab_size": 1000}
    tensors = random_tensors(write_random_arch(folder, "llama"))
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = np.resize(tensors[name], (1000, tensors[name].shape[1]))
    large = write_arch(folder / "large.gguf", "llama", keys, tensors)
    with pytest.raises(IncompatibleDraftError, match=r"a vocabulary of 1000 tokens, the target .* has [0-9]+"):
        load(target, large)
    encoder = write_arch(folder / "bert.gguf", "bert", keys_of("llama"), {"x": np.zeros(4, np.float32)})
    with pytest.raises(IncompatibleDraftError, match=r"\(bert\) does not generate text: it only encodes"):
        load(target, encoder)
    with pytest.raises(ModelFileError):
        load(target, folder / "none.gguf")


def test_a_small_model_whose_probabilities_are_no_numbers(folder: Path) -> None:
    """Nothing is drafted, and who wants it priced is told why that cannot be."""
    target, _ = write_small_pair(folder)
    tensors = random_tensors(write_random_arch(folder, "llama"))
    tensors["output_norm.weight"] = np.full_like(tensors["output_norm.weight"], np.nan)
    small = write_arch(folder / "nan.gguf", "llama", keys_of("llama"), tensors)
    prompt = prompts(1)[0]
    with closing(load_plain(target)) as llm:
        expected = take(llm, prompt, 8)
    with closing(load(target, small)) as llm:
        assert take(llm, prompt, 8) == expected
        assert llm.last_stats.drafted == 0
    with (
        closing(load(target, small, draft="auto")) as llm,
        pytest.raises(Eagle3Error, match="its probabilities are not numbers"),
    ):
        llm.calibrate()


def test_arguments_that_contradict_each_other(folder: Path, tiny_target) -> None:
    target, small = write_small_pair(folder)
    head = write_head(folder / "head.gguf", tiny_target)
    for sources, draft, found in (
        (["mtp"], small, "'mtp', but a small model is given"),
        (["eagle3"], small, "'eagle3', but a small model is given"),
        (["simple"], head, "'simple', but a head is given"),
        (["simple"], None, "'simple', but no small model is given"),
    ):
        with pytest.raises(ValueError, match=found):
            load(target, draft, draft_sources=sources)
    with pytest.raises(ValueError, match="draft_type and draft_target_layers are for heads"):
        load(target, small, draft_type="q4_0")


def test_flags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-md takes a small model; --spec-type draft-simple says so; doctor and inspect tell of it."""
    target, small = write_small_pair(folder)
    common = ["-p", "abc", "-n", "12", "-c", "256", "--temp", "0", "-t", "1", "--json", "-"]
    for more in ([], ["--spec-type", "draft-simple"]):
        arguments = ["speculative-simple", "-m", target, "-md", small, "--spec-draft-n-max", "3", "--baseline"]
        assert main([*arguments, *common, *more]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["drafted"] > 0
        assert report["baseline"]["drafted"] == 0
    assert main(["speculative-simple", "-m", target, "--spec-type", "draft-simple", *common]) != 0
    assert "no small model is given" in capsys.readouterr().err
    main(["doctor", "-m", target, "-md", small, "-t", "1"])
    out = capsys.readouterr().out
    assert f"small model '{small}': llama, 3 layers" in out
    assert "they fit" in out
    assert main(["inspect", small, "--target", target]) == 0
    out = capsys.readouterr().out
    assert "a small model (llama)" in out
    assert "fits" in out


def test_what_does_not_pay_is_not_asked(folder: Path, no_clock: None) -> None:
    """By measured costs: a small model that takes as long as the target drafts nothing, a cheap one does."""
    target, small = write_small_pair(folder)
    (prompt,) = prompts(1, seed=8)
    flat = dict.fromkeys((1, 8, 32), 1000.0)
    with load(target, small, draft="auto", draft_sources=["simple"]) as llm:
        for cost, drafts in ((1000.0, False), (10.0, True)):
            llm.engine.proposers.planner = make_planner(llm.engine, Costs(flat, (DraftCosts({1: cost}, {1: cost}),)))
            text = take(llm, prompt, 100)
            assert (llm.last_stats.of("simple").drafted > 0) == drafts
    assert text == take(load_plain(target), prompt, 100)
