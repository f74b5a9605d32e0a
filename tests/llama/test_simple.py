"""Targets for which a small model of the same vocabulary drafts: texts, sequences, states, flags, errors."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arch_keys import keys_of
from llama_cpp_eagle3 import Eagle3Error, IncompatibleDraftError, ModelFileError
from llama_cpp_eagle3._core import SimpleDrafter
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.draft.costs import Costs, DraftCosts
from llama_cpp_eagle3.draft.kinds import simple
from llama_cpp_eagle3.draft.kinds.llama_context import N_SCRATCH, make_context
from loading import load, load_plain, prompts, take
from random_arch import random_tensors, write_arch, write_random_arch
from small import write_small_pair
from tiny import write_head, write_target

N_TOKENS = 40
CHAIN = {"draft": "chain", "draft_n_max": 4}
PAIRS = (("llama", "llama"), ("llama", "qwen3next"), ("qwen35", "gemma3"))
"""Targets and small models: both with attention, a small model with a state, and a target with a state."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small")


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest, folder: Path) -> list[str]:
    return write_small_pair(folder, *request.param)


def test_what_drafts(pair: list[str]) -> None:
    target, small = pair
    with load(target, small, **CHAIN) as llm:
        assert isinstance(llm.drafters[0], SimpleDrafter)
        assert llm.tap is None
        assert f"the small model '{small}'" in llm.loaded.description


def test_costs_are_measured(folder: Path) -> None:
    target, small = write_small_pair(folder)
    with load(target, small, draft="auto") as llm:
        llm.calibrate(0.3)
        target_costs, begin, step = (curve.measured for curve in llm.policy.costs)
        assert {1, 4} <= target_costs.keys()  # what is measured however long it takes; others as time is left
        assert {1, 16} <= begin.keys()
        assert 1 in step


def test_a_quantized_cache(pair: list[str]) -> None:
    """The small model's own K and V are in Q8_0, with flash attention, which alone reads such a V."""
    target, small = pair
    prompt = prompts(1)[0]
    with closing(load_plain(target)) as llm:
        expected = take(llm, prompt, N_TOKENS)
    with load(target, small, draft_type_k="q8_0", draft_type_v="q8_0", **CHAIN) as llm:
        assert take(llm, prompt, N_TOKENS) == expected
        assert llm.last_stats.accepted > N_TOKENS // 2


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    """Other vocabularies are refused before anything is loaded, with the first difference and both files."""
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
    """Nothing is drafted, and measuring costs raises an error with the reason."""
    target, _ = write_small_pair(folder)
    tensors = random_tensors(write_random_arch(folder, "llama"))
    tensors["output_norm.weight"] = np.full_like(tensors["output_norm.weight"], np.nan)
    keys = {**keys_of("llama"), "general.name": "nan"}  # costs are kept by headers: no other model has this one
    small = write_arch(folder / "nan.gguf", "llama", keys, tensors)
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
    with pytest.raises(ValueError, match="draft_target_layers is for heads"):
        load(target, small, draft_target_layers=[1])


def test_flags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-md takes a small model; --spec-type draft-simple works; doctor and inspect name it."""
    target, small = write_small_pair(folder)
    common = ["-p", "abc", "-n", "12", "-c", "256", "--temp", "0", "-t", "1", "--json", "-"]
    for more in ([], ["--spec-type", "draft-simple"]):
        arguments = ["speculative-simple", "-m", target, "-md", small, "--spec-draft-n-max", "3", "--baseline"]
        assert main([*arguments, *common, *more]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["drafted"] > 0
        assert report["baseline"]["drafted"] == 0
    assert main(["speculative-simple", "-m", target, "--spec-type", "draft-simple", *common]) != 0
    assert "--spec-type names draft-simple, but no small model is given as -md" in capsys.readouterr().err
    main(["doctor", "-m", target, "-md", small, "-t", "1"])
    out = capsys.readouterr().out
    assert f"small model '{small}': llama, 3 layers" in out
    assert "they fit" in out
    assert main(["inspect", small, "--target", target]) == 0
    out = capsys.readouterr().out
    assert "a small model (llama)" in out
    assert "fits" in out


def test_what_does_not_pay_is_not_asked(folder: Path, no_clock: None) -> None:
    """By measured costs, a small model as slow as the target drafts nothing, and a cheap one does."""
    target, small = write_small_pair(folder)
    (prompt,) = prompts(1, seed=8)
    flat = dict.fromkeys((1, 8, 32), 1000.0)
    with load(target, small, draft="auto", draft_sources=["simple"]) as llm:
        for cost, drafts in ((1000.0, False), (10.0, True)):
            llm.engine.drafting.learn(Costs(flat, (DraftCosts({1: cost}, {1: cost}),)).priced())
            text = take(llm, prompt, 100)
            assert (llm.last_stats.of("simple").drafted > 0) == drafts
    assert text == take(load_plain(target), prompt, 100)


@pytest.mark.parametrize("n_parallel", [1, 2])
@pytest.mark.parametrize("options", [CHAIN, {"draft": "tree"}], ids=["chain", "tree"])
def test_a_shorter_context(pair: list[str], options: dict[str, object], n_parallel: int) -> None:
    """A small model drafts as far as its own context reaches, which its memory limits; the text continues."""
    target, small = pair
    texts = prompts(n_parallel, seed=9)
    plain = load_plain(target)
    expected = [take(plain, prompt, 150) for prompt in texts]
    drafted = []
    for n_ctx in (None, 64):
        with load(target, small, n_ctx=512, n_parallel=n_parallel, draft_n_ctx=n_ctx, **options) as llm:
            assert [take(llm, prompt, 150) for prompt in texts] == expected
            drafted.append(llm.last_stats.of("simple").drafted)
            longest = max(texts, key=len) * 10
            assert take(llm, longest, 5)  # the prompt is longer than the part that the small model reads
            if n_ctx is not None:
                assert llm.last_stats.of("simple").drafted == 0
    assert 0 < drafted[1] < drafted[0]


def test_a_shorter_context_has_fewer_cells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, small = write_small_pair(folder)
    made = []

    def make(model: int, params: Any, *args: Any, **options: Any) -> int:
        made.append(int(params.n_ctx))
        return make_context(model, params, *args, **options)

    monkeypatch.setattr(simple, "make_context", make)
    for options in ({}, {"draft_n_ctx": 256}, {"draft_n_ctx": 256, "n_parallel": 2}, {"draft_n_ctx": 99999}):
        with load(target, small, n_ctx=8192, **options, **CHAIN):
            pass
    assert made == [8192 + N_SCRATCH, 256 + N_SCRATCH, 2 * 256, 8192 + N_SCRATCH]
    head = write_head(folder / "other.gguf", write_target(folder / "of.gguf"))
    with pytest.raises(ValueError, match="draft_n_ctx is for small models: a head has the target's context"):
        load(str(folder / "of.gguf"), head, draft_n_ctx=64)
    with pytest.raises(ValueError, match=r"expected draft_n_ctx in 1\.\."):
        load(target, small, draft_n_ctx=0)
