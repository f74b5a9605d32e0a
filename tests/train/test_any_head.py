"""`train --init` with every supported kind of head: computed as in NumPy, exported unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from head_variants import LLAMA3, MLA, VARIANTS
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.errors import IncompatibleDraftError
from llama_cpp_eagle3_heads.convert import convert
from reference import ReferenceHead, run_target
from tiny import Target, write_head, write_target

torch = pytest.importorskip("torch")

from llama_cpp_eagle3_heads.train import trainer  # noqa: E402
from llama_cpp_eagle3_heads.train.acceptance import Acceptance  # noqa: E402
from llama_cpp_eagle3_heads.train.build import head_from_gguf, replace_draft_vocab, target_tensor  # noqa: E402
from llama_cpp_eagle3_heads.train.checkpoint import FORMS, export  # noqa: E402
from llama_cpp_eagle3_heads.train.data import Text  # noqa: E402
from llama_cpp_eagle3_heads.train.first_head import choose_tokens  # noqa: E402
from llama_cpp_eagle3_heads.train.job import Job  # noqa: E402
from llama_cpp_eagle3_heads.train.loss import Teacher, ttt_loss  # noqa: E402
from llama_cpp_eagle3_heads.train.packing import PackedTexts, pack  # noqa: E402
from llama_cpp_eagle3_heads.train.rows import Sample, half, top_probabilities  # noqa: E402

N_CTX, N_STEPS = 64, 4

TRAINED = VARIANTS | {
    "everything_1_layer": VARIANTS["everything"] | {"n_layer": 1},
    "mrope": {"rope_sections": (4, 2, 2, 0), "rope_interleaved": True},
    "mla_norm_before_residual": MLA | {"norm_before_residual": True, "own_embd": True},
    "p_eagle_everything": VARIANTS["everything"] | {"mask_token": 7},
    "rope_llama3_factors": {"rope_scaling": LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 8.0}},
}
FORM_LACKS = {name for name, v in TRAINED.items() if "kv_lora_rank" in v or not v.get("use_aux_hidden_state", True)}
"""Heads that speculators' form cannot express."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("any") / "target.gguf")


@pytest.mark.parametrize("variant", TRAINED.values(), ids=TRAINED.keys())
def test_it_computes_what_the_head_means(target: Target, tmp_path: Path, variant: dict[str, Any]) -> None:
    """Logits of all steps on a text are those of NumPy in float64, which does one row after the other."""
    tiny = write_head(tmp_path / "head.gguf", target, **variant)
    head = head_from_gguf(Path(tiny.path), Path(target.path), N_CTX, N_STEPS)
    rng = np.random.default_rng(3)
    tokens = rng.integers(5, target.n_vocab, 24).tolist()
    rows = run_target(target, tokens).rows(tiny.boundaries)
    first, anchors = 5, [6, 11, 18]
    with torch.no_grad():
        # a text of other tokens comes before it, and changes nothing
        ids, states = torch.tensor([*reversed(tokens), *tokens]), torch.from_numpy(np.vstack([rows, rows])).float()
        at = torch.tensor(anchors)
        texts = PackedTexts(ids, states, [len(tokens)] * 2, [2, first], [torch.tensor([3, 4]), at])
        found = []
        for i, (index, normed) in enumerate(head.steps(texts, N_STEPS)):
            n_before = len(tokens) - 1 - 2 if i == 0 else 2
            found.append(((index[n_before:] - len(tokens)).tolist(), head.logits(normed)[0, n_before:].numpy()))
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
@pytest.mark.parametrize("name", TRAINED)
def test_exported_it_is_the_same_head(target: Target, tmp_path: Path, name: str, form: str) -> None:
    """Exported and converted, the head is the same bit for bit, from only the checkpoint and `train`'s boundaries."""
    tiny = write_head(tmp_path / "head.gguf", target, **TRAINED[name])
    head = head_from_gguf(Path(tiny.path), Path(target.path), N_CTX, N_STEPS)
    if form == "speculators" and name in FORM_LACKS:
        with pytest.raises(ValueError, match="choose the form eagle"):
            export(head, tmp_path / "hf", form, "target")
        return
    # scaled rows leave no trace in the checkpoint
    head.scale_rows(torch.from_numpy(np.random.default_rng(1).normal(0.0, 30.0, (9, head.cfg.n_feat))).float())
    export(head, tmp_path / "hf", form, "target")
    boundaries = head.cfg.boundaries if head.cfg.has_fc else None
    path = convert(tmp_path / "hf", target.path, tmp_path / "again.gguf", outtype="f32", boundaries=boundaries).path
    head = head_from_gguf(Path(tiny.path), Path(target.path), N_CTX, N_STEPS)
    again = head_from_gguf(path, Path(target.path), N_CTX, N_STEPS)
    assert again.cfg == head.cfg
    expected, found = head.state_dict(), again.state_dict()
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        assert torch.equal(values, found[name]), name
    assert torch.equal(head.tok_embd, again.tok_embd)


def test_other_divisors(target: Target, tmp_path: Path) -> None:
    """The factors of a llama3 rotation are none of those that are tried."""
    scaling = LLAMA3 | {"low_freq_factor": 1.7}
    head = write_head(tmp_path / "head.gguf", target, rope_scaling=scaling)
    with pytest.raises(IncompatibleDraftError, match="rope_freqs"):
        head_from_gguf(Path(head.path), Path(target.path), N_CTX, N_STEPS)


def _command(target: Target, folder: Path) -> tuple[str, ...]:
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"what is {i} and {i * i % 17}?\n" for i in range(8)))
    common = ("train", "-m", target.path, "-f", str(prompts), "-n", "16", "-c", "96", "-t", "1", "--outtype", "f32")
    return (*common, "--ttt-steps", "2")


def test_what_makes_it_worse_is_not_kept(target: Target, tmp_path: Path) -> None:
    """The best head may be the initial one."""
    init, output = write_head(tmp_path / "init.gguf", target), tmp_path / "out.gguf"
    worse = ("--steps", "3", "--lr", "1000", "--draft-vocab", "keep")
    assert main([*_command(target, tmp_path), *worse, "--init", init.path, "-o", str(output)]) == 0
    log = json.loads((tmp_path / "out.gguf.work" / "log.json").read_text())
    assert [entry["step"] for entry in log] == [0, 3]
    assert log[0]["loss"] < log[1]["loss"]
    before, after = (head_from_gguf(Path(path), Path(target.path), 96, 4) for path in (init.path, output))
    for name, values in before.state_dict().items():
        assert torch.equal(values, after.state_dict()[name]), name


def test_the_best_head_has_the_most_tokens_a_step(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that drafts better than before is kept, though its loss is higher."""
    init, output = write_head(tmp_path / "init.gguf", target), tmp_path / "out.gguf"
    n_evaluated = 0

    def simulate(_: Any, __: Any, ___: int, found: Acceptance) -> None:
        nonlocal n_evaluated
        n_evaluated += 1
        found.n_drafts, found.n_accepted = 10, n_evaluated

    monkeypatch.setattr(trainer, "simulate_acceptance", simulate)
    steps = ("--steps", "3", "--lr", "1000", "--draft-vocab", "keep")
    assert main([*_command(target, tmp_path), *steps, "--init", init.path, "-o", str(output)]) == 0
    work = tmp_path / "out.gguf.work"
    log = json.loads((work / "log.json").read_text())
    assert log[0]["loss"] < log[1]["loss"]
    assert log[0]["length"] < log[1]["length"]
    assert torch.load(work / trainer.BEST, weights_only=True)["log"]["step"] == 3


def _sample(target: Target, boundaries: tuple[int, ...], number: int, n_tokens: int, n_prompt: int) -> Sample:
    tokens = np.random.default_rng(number).integers(5, target.n_vocab, n_tokens)
    run = run_target(target, tokens.tolist())
    top_ids, top_p = top_probabilities(run.logits[n_prompt - 1 :].astype(np.float32))
    return Sample(number, n_prompt, 0.0, tokens.astype(np.int32), half(run.rows(boundaries)), top_ids, top_p)


@pytest.mark.parametrize("name", ["plain", "layers_3", "kimi", "p_eagle", "sliding_window"])
def test_texts_do_not_see_each_other(target: Target, tmp_path: Path, name: str) -> None:
    """Packed texts have the mean of the losses that they have alone, and of the gradients."""
    tiny = write_head(tmp_path / "head.gguf", target, **VARIANTS[name])
    head = head_from_gguf(Path(tiny.path), Path(target.path), N_CTX, N_STEPS)
    teacher = Teacher(head.d2t, target.n_vocab)
    samples = [_sample(target, tiny.boundaries, *sizes) for sizes in ((1, 32, 5), (2, 20, 9), (3, 26, 1))]
    anchors = [torch.tensor(at) for at in ([4, 7, 20], [8, 11], [0, 3, 5, 9])]

    def gradients() -> dict[str, Any]:
        found = {key: p.grad for key, p in head.named_parameters() if p.requires_grad}
        head.zero_grad()
        return found

    alone, total = [], 0.0
    for sample, at in zip(samples, anchors, strict=True):
        loss, figures = ttt_loss(head, teacher, [sample], N_STEPS, [at])
        (loss / len(samples)).backward()
        alone.append(float(loss.detach()))
        total += figures.total
    expected = gradients()
    loss, figures = ttt_loss(head, teacher, samples, N_STEPS, anchors)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(sum(alone) / len(alone), rel=1e-6)
    assert figures.total == pytest.approx(total, rel=1e-6)
    assert figures.n_right == [27 + 11 + 25, 9, 9, 9][: len(figures.n_right)]
    for key, gradient in gradients().items():
        torch.testing.assert_close(gradient, expected[key], rtol=1e-4, atol=1e-6 * float(expected[key].abs().max()))


@pytest.mark.parametrize("name", ["plain", "p_eagle"])
def test_a_chain_has_no_loss_after_its_first_wrong_token(target: Target, tmp_path: Path, name: str) -> None:
    """The loss is what one chain after the other has, each up to its first wrong token."""
    tiny = write_head(tmp_path / "head.gguf", target, **VARIANTS[name])
    head = head_from_gguf(Path(tiny.path), Path(target.path), N_CTX, N_STEPS)
    sample, at = _sample(target, tiny.boundaries, 1, 40, 5), torch.tensor([6, 11, 18, 19, 30])
    with torch.no_grad():
        steps = [(i.tolist(), head.logits(x)[0].double()) for i, x in head.steps(pack([sample], [at], "cpu"), N_STEPS)]
    best = {}  # makes every third token of the head's first step right, and of the later steps those of other thirds
    for step, (index, logits) in enumerate(steps):
        best.update({i: int(head.d2t[row.argmax()]) for i, row in zip(index, logits, strict=True) if i % 3 == step % 3})
    for i, token in best.items():
        sample.top_ids[i - sample.n_first][0] = token
    ids, p, tokens, weight = Teacher(head.d2t, target.n_vocab)([sample])
    expected, n_reached = 0.0, 0
    chains = {int(anchor): True for anchor in at}
    for step, (index, logits) in enumerate(steps):
        q = logits.log_softmax(-1)
        for row, i in enumerate(index):
            anchor = i - 1 - step
            if step and not chains[anchor]:
                continue
            n_reached += step > 0
            each = -sum(float(p[i][k]) * float(q[row][ids[i][k]]) for k in range(len(p[i]))) * float(weight[i])
            expected += 0.8**step / len(index) * each
            if anchor in chains:
                chains[anchor] = int(head.d2t[logits[row].argmax()]) == int(tokens[i])
    assert 0 < n_reached < 3 * len(at)
    loss, _ = ttt_loss(head, Teacher(head.d2t, target.n_vocab), [sample], N_STEPS, [at])
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "name", ["layers_3", "mla_q_lora", "kimi", "no_fc", "p_eagle", "p_eagle_layers_4", "p_eagle_mla"]
)
def test_it_learns(target: Target, tmp_path: Path, name: str) -> None:
    """The head learns a repeated text; all of its parts but the embedding change."""
    tiny = write_head(tmp_path / "head.gguf", target, **VARIANTS[name])
    head = head_from_gguf(Path(tiny.path), Path(target.path), N_CTX, N_STEPS)
    sample = _sample(target, tiny.boundaries, 5, 32, 5)
    head.scale_rows(torch.from_numpy(sample.rows).float())
    before = {key: value.clone() for key, value in head.state_dict().items()}
    teacher, anchors = Teacher(head.d2t, target.n_vocab), torch.arange(4, 27)
    optimizer = torch.optim.AdamW([p for p in head.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(25):
        loss, of_step = ttt_loss(head, teacher, [sample], N_STEPS, [anchors])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(of_step.mean)
    assert losses[-1] < 0.6 * losses[0]
    same = {key for key, value in head.state_dict().items() if torch.equal(value, before[key])}
    assert same == {"d2t", "row_scale"}


@pytest.mark.parametrize(
    "name", ["qwen3_draft", "shared_output", "wider_than_target", "layers_2", "mla_q_lora", "no_fc", "p_eagle"]
)
def test_the_command_goes_on_from_it(
    target: Target, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The head learns, frozen parts stay, and the result drafts."""
    # the trainer's texts are a random model's, so the head must know all of its tokens
    variant = VARIANTS[name] | {"boundaries": (1, 2, 4)}
    init = write_head(tmp_path / "init.gguf", target, **variant)
    run = (*_command(target, tmp_path), "--steps", "2", "--draft-vocab", "keep", "--init", init.path)
    assert main([*run, "-o", str(tmp_path / "out.gguf")]) == 0
    before, after = (
        head_from_gguf(Path(path), Path(target.path), 96, 4) for path in (init.path, tmp_path / "out.gguf")
    )
    assert before.cfg == after.cfg
    assert torch.equal(before.tok_embd, after.tok_embd)
    # the last state, which need not be the best one
    learned = torch.load(tmp_path / "out.gguf.work" / trainer.STATE, weights_only=True)["head"]
    assert not torch.equal(before.state_dict()["layers.0.attn.o.weight"], learned["layers.0.attn.o.weight"])
    assert torch.equal(before.lm_head.weight, learned["lm_head.weight"]) == (name == "shared_output")
    told = capsys.readouterr().err
    assert "with the head of --init, chains of 4: " in told
    assert "mean acceptance length" in told.split("with the new head, chains of 4: ")[1]


def test_a_cache_is_of_its_boundaries(target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cache has the rows that one head reads, and is refused for another."""
    first, other = (
        write_head(tmp_path / f"{layers[-1]}.gguf", target, boundaries=layers).path for layers in ((1, 2, 4), (1, 2, 3))
    )
    run = (*_command(target, tmp_path), "--steps", "1", "--cache", str(tmp_path / "rows"), "--init")
    assert main([*run, first, "-o", str(tmp_path / "out.gguf")]) == 0
    assert main([*run, other, "-o", str(tmp_path / "other-out.gguf")]) == 2
    assert "other boundaries than [1, 2, 3]" in capsys.readouterr().err
    assert main([*run, first, "-o", str(tmp_path / "no.gguf"), "--layers", "1,2,3"]) == 2
    assert "--init: the head's file has" in capsys.readouterr().err


def test_a_form_without_words_for_it(target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The form is refused before anything is generated."""
    init = write_head(tmp_path / "init.gguf", target, **VARIANTS["mla"])
    run = (*_command(target, tmp_path), "--steps", "1", "--export-form", "speculators", "--init", init.path)
    assert main([*run, "-o", str(tmp_path / "out.gguf")]) == 2
    assert "choose the form eagle" in capsys.readouterr().err
    assert not (tmp_path / "out.gguf.work" / "texts.jsonl").exists()


def test_new_tokens_take_the_targets_rows(target: Target, tmp_path: Path) -> None:
    """If a head's lm_head is the target's times a matrix, a new token gets the target's row times that matrix.

    Tokens of both vocabularies keep their rows bit by bit, and all other weights stay.
    """
    init = write_head(tmp_path / "init.gguf", target, boundaries=(1, 2, 4))
    head = head_from_gguf(Path(init.path), Path(target.path), N_CTX, N_STEPS)
    torch.manual_seed(3)
    output = target_tensor(Path(target.path), "output.weight")
    assert output is not None
    matrix = torch.randn(output.shape[1], head.cfg.n_embd) / 8
    with torch.no_grad():
        head.lm_head.weight.copy_((output @ matrix)[head.d2t])
    d2t = torch.arange(30, 90)
    replaced = replace_draft_vocab(head, Path(target.path), d2t, N_STEPS)
    assert replaced.d2t.tolist() == d2t.tolist()
    torch.testing.assert_close(replaced.lm_head.weight, (output @ matrix)[d2t], rtol=1e-4, atol=1e-5)
    known = set(head.d2t.tolist()) & set(d2t.tolist())
    assert 0 < len(known) < len(d2t)
    for token in known:
        row, before = (h.lm_head.weight[h.d2t == token] for h in (replaced, head))
        assert torch.equal(row, before), token
    for name, values in head.state_dict().items():
        if name not in ("d2t", "lm_head.weight"):
            assert torch.equal(values, replaced.state_dict()[name]), name


def test_tokens_of_the_head_before_go_before_those_that_answers_have_once(target: Target, tmp_path: Path) -> None:
    """What answers have twice comes first, then what the head of --init drafted; what is there once is chance."""
    init = write_head(tmp_path / "init.gguf", target, boundaries=(1, 2, 4))
    head = head_from_gguf(Path(init.path), Path(target.path), N_CTX, N_STEPS)
    known = head.d2t.tolist()
    others = [token for token in range(head.cfg.n_vocab) if token not in known]
    once, twice = others[:8], others[-8:]
    text = Text(0, [1, *once, *twice, *twice, known[5]], 1, 0.0, "file")
    job = Job(Path(target.path), tmp_path / "out.gguf", init=Path(init.path), draft_vocab=len(known))
    job.folder.mkdir()
    found = choose_tokens(job, head, [text]).d2t.tolist()
    assert set(twice) <= set(found)
    assert not set(once) & set(found)
    assert known[5] in found
    assert len(set(found) & set(known)) == len(known) - len(twice)


def test_a_borrowed_lm_head_has_no_draft_vocabulary(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--draft-vocab is refused for a head that drafts with the target's lm_head."""
    init = write_head(tmp_path / "init.gguf", target, **VARIANTS["shared_output"] | {"boundaries": (1, 2, 4)})
    run = (*_command(target, tmp_path), "--steps", "1", "--init", init.path, "--draft-vocab", "16")
    assert main([*run, "-o", str(tmp_path / "out.gguf")]) == 2
    told = capsys.readouterr().err
    assert "has no lm_head of its own" in told
    assert "answers" not in told  # before hours of work
