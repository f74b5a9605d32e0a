"""`train --init` with every kind of head of one layer behind an fc: computed as NumPy does, exported unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from head_variants import VARIANTS
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.convert import convert
from llama_cpp_eagle3.errors import IncompatibleDraftError
from reference import ReferenceHead, run_target
from tiny import Target, write_head, write_target

torch = pytest.importorskip("torch")

from llama_cpp_eagle3.train.build import head_from_gguf  # noqa: E402
from llama_cpp_eagle3.train.checkpoint import FORMS, export  # noqa: E402
from llama_cpp_eagle3.train.trainer import STATE  # noqa: E402

N_CTX, N_STEPS = 64, 4


def is_trained(variant: dict[str, Any]) -> bool:
    """Whether the trainer takes it; the others it refuses by name."""
    has_fc = variant.get("use_aux_hidden_state", True)
    return has_fc and variant.get("n_layer", 1) == 1 and not {"kv_lora_rank", "mask_token"} & set(variant)


TRAINED = {name: variant for name, variant in VARIANTS.items() if is_trained(variant)}
TRAINED["everything"] = VARIANTS["everything"] | {"n_layer": 1}
TRAINED["mrope"] = {"rope_sections": (4, 2, 2, 0), "rope_interleaved": True}
REFUSED = {
    "layers_2": "2 layers",
    "kimi": "multi-head latent attention",
    "p_eagle": "a mask token",
    "no_fc": "no fc",
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("any") / "target.gguf")


@pytest.mark.parametrize("variant", TRAINED.values(), ids=TRAINED.keys())
def test_it_computes_what_the_head_means(target: Target, tmp_path: Path, variant: dict[str, Any]) -> None:
    """Logits of all steps on a text, against NumPy in float64 which does one row after the other."""
    tiny = write_head(tmp_path / "head.gguf", target, **variant)
    head = head_from_gguf(Path(tiny.path), Path(target.path), N_CTX, N_STEPS)
    rng = np.random.default_rng(3)
    tokens = rng.integers(5, target.n_vocab, 24).tolist()
    rows = run_target(target, tokens).rows(tiny.boundaries)
    first, anchors = 5, [6, 11, 18]
    with torch.no_grad():
        ids, states = torch.tensor([tokens]), torch.from_numpy(rows).float()[None]
        found = [(at.tolist(), logits[0].numpy()) for at, logits in
                 head.steps(ids, states, N_STEPS, torch.tensor(anchors), first=first)]  # fmt: skip
    for k, p in enumerate(anchors):
        judge = ReferenceHead(tiny)
        judge.process(rows[: p + 1], tokens[: p + 1], 0)
        state, caches = judge.catch_up(tokens[p + 1])
        feedback = state
        for i, (at, logits) in enumerate(found):
            if i:
                state = judge.step(tokens[p + 1 + i], feedback, p + i, caches)
            expected, feedback = judge.outputs(state)
            row = p - first if i == 0 else k
            assert at[row] == p + 1 + i
            np.testing.assert_allclose(logits[row], expected[0], atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("variant", TRAINED.values(), ids=TRAINED.keys())
def test_exported_it_is_the_same_head(target: Target, tmp_path: Path, variant: dict[str, Any], form: str) -> None:
    """Bit for bit after a conversion that has the checkpoint, and the boundaries as `train` knows them."""
    tiny = write_head(tmp_path / "head.gguf", target, **variant)
    head = head_from_gguf(Path(tiny.path), Path(target.path), N_CTX, N_STEPS)
    export(head, tmp_path / "hf", form, "target")
    path = convert(
        tmp_path / "hf", target.path, tmp_path / "again.gguf", outtype="f32", boundaries=head.cfg.boundaries
    ).path
    again = head_from_gguf(path, Path(target.path), N_CTX, N_STEPS)
    assert again.cfg == head.cfg
    expected, found = head.state_dict(), again.state_dict()
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        assert torch.equal(values, found[name]), name
    assert torch.equal(head.tok_embd, again.tok_embd)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_trained(target: Target, tmp_path: Path, name: str) -> None:
    head = write_head(tmp_path / "head.gguf", target, **VARIANTS[name])
    with pytest.raises(IncompatibleDraftError, match=REFUSED[name]):
        head_from_gguf(Path(head.path), Path(target.path), N_CTX, N_STEPS)


def test_other_divisors(target: Target, tmp_path: Path) -> None:
    """Of a llama3 rotation whose factors are not the usual ones."""
    scaling = VARIANTS["rope_llama3"]["rope_scaling"] | {"low_freq_factor": 2.0}
    head = write_head(tmp_path / "head.gguf", target, rope_scaling=scaling)
    with pytest.raises(IncompatibleDraftError, match="rope_freqs"):
        head_from_gguf(Path(head.path), Path(target.path), N_CTX, N_STEPS)


def _command(target: Target, folder: Path) -> tuple[str, ...]:
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"what is {i} and {i * i % 17}?\n" for i in range(8)))
    common = ("train", "-m", target.path, "-f", str(prompts), "-n", "16", "-c", "96", "-t", "1", "--outtype", "f32")
    return (*common, "--ttt-steps", "2")


def test_what_makes_it_worse_is_not_kept(target: Target, tmp_path: Path) -> None:
    """The best head may be the one that it began with."""
    init, output = write_head(tmp_path / "init.gguf", target), tmp_path / "out.gguf"
    worse = ("--steps", "3", "--lr", "1000")
    assert main([*_command(target, tmp_path), *worse, "--init", init.path, "-o", str(output)]) == 0
    log = json.loads((tmp_path / "out.gguf.work" / "log.json").read_text())
    assert [entry["step"] for entry in log] == [0, 3]
    assert log[0]["loss"] < log[1]["loss"]
    before, after = (head_from_gguf(Path(path), Path(target.path), 96, 4) for path in (init.path, output))
    for name, values in before.state_dict().items():
        assert torch.equal(values, after.state_dict()[name]), name


@pytest.mark.parametrize("name", ["qwen3_draft", "speculators", "shared_output", "wider_than_target"])
def test_the_command_goes_on_from_it(
    target: Target, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It learns, and what is not to learn stays. The cache has the rows that this head reads, and says no to others."""
    # the trainer's texts are a random model's, so that the head has to know all of its tokens
    variant = VARIANTS[name] | {"boundaries": (1, 2, 4)}
    init = write_head(tmp_path / "init.gguf", target, **variant)
    run = (*_command(target, tmp_path), "--steps", "2", "--cache", str(tmp_path / "rows"), "--init", init.path)
    assert main([*run, "-o", str(tmp_path / "out.gguf")]) == 0
    before, after = (
        head_from_gguf(Path(path), Path(target.path), 96, 4) for path in (init.path, tmp_path / "out.gguf")
    )
    assert before.cfg == after.cfg
    assert torch.equal(before.tok_embd, after.tok_embd)
    # the last state, which need not be the best one
    learned = torch.load(tmp_path / "out.gguf.work" / STATE, weights_only=True)["head"]
    assert not torch.equal(before.attn.q.weight, learned["attn.q.weight"])
    assert torch.equal(before.lm_head.weight, learned["lm_head.weight"]) == (name == "shared_output")
    capsys.readouterr()
    other = write_head(tmp_path / "other.gguf", target, **VARIANTS[name] | {"boundaries": (1, 2, 3)})
    assert main([*run[:-1], other.path, "-o", str(tmp_path / "other-out.gguf")]) == 2
    assert "other boundaries than [1, 2, 3]" in capsys.readouterr().err
    assert main([*run, "-o", str(tmp_path / "no.gguf"), "--layers", "1,2,3"]) == 2
    assert "--init: the head's file has" in capsys.readouterr().err
