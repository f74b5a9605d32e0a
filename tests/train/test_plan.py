"""The budget of a training: its division, its estimates, whether a run keeps to it, and the verdict."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from llama_cpp_eagle3.cli import main
from tiny import Target, write_target

torch = pytest.importorskip("torch")

from llama_cpp_eagle3_heads.train import plan as plan_module  # noqa: E402
from llama_cpp_eagle3_heads.train import rows, session, texts, trainer  # noqa: E402
from llama_cpp_eagle3_heads.train.data import Store  # noqa: E402
from llama_cpp_eagle3_heads.train.plan import Budget, Plan, Speeds, Work, best_epochs, describe, make_plan  # noqa: E402
from llama_cpp_eagle3_heads.train.verdict import verdict  # noqa: E402

SPEEDS = Speeds(prefill=500, answers=50, alone=20, training=200, n_parameters=10**7, memory=10**9)
WORK = Work(
    max_tokens=320, batch=4, n_parallel=16, n_prompts=None, n_measured=16, n_sides=3, n_evaluated=128, row_bytes=6000
)  # fmt: skip


def _seconds(plan: Plan, work: Work, speeds: Speeds) -> float:
    """Return the seconds of the plan by these speeds, added up in another way."""
    n_texts = plan.n_tokens_expected / work.max_tokens
    prompts = n_texts * (64 / speeds.prefill + (100 / speeds.answers if work.n_prompts is None else 0))
    answers = plan.n_tokens_expected / speeds.answers
    n_rows = plan.n_steps_expected * work.batch * work.max_tokens
    again = 0 if work.row_bytes else n_rows * (1 + 64 / work.max_tokens) / speeds.prefill
    measured = plan.n_measured * work.n_sides * (plan.n_evaluated / speeds.alone + 64 / speeds.prefill)
    return prompts + answers + n_rows / speeds.training + again + measured + 5 * work.n_sides


@pytest.mark.parametrize("minutes", [45, 60, 600])
@pytest.mark.parametrize("row_bytes", [0, 6000])
@pytest.mark.parametrize("n_prompts", [None, 40, 10**6])
def test_minutes_are_the_whole_run(minutes: float, row_bytes: int, n_prompts: int | None) -> None:
    """All parts together take the given time, whatever the files have."""
    work = replace(WORK, row_bytes=row_bytes, n_prompts=n_prompts)
    plan = make_plan(Budget(minutes), work, SPEEDS)
    assert _seconds(plan, work, SPEEDS) == pytest.approx(60 * minutes, rel=0.02)
    assert plan.seconds_evaluation <= 0.15 * 60 * minutes
    assert n_prompts is None or plan.n_tokens_expected <= n_prompts * 320
    plan.spent = plan.seconds_texts or 0
    rest = 60 * minutes - plan.spent - plan.seconds_evaluation
    assert plan.minutes_of_training == pytest.approx(rest / 60)


def test_tokens_are_a_budget() -> None:
    """There are as many answers as requested, read as often as pays."""
    plan = make_plan(Budget(tokens=100_000), WORK, SPEEDS)
    assert plan.tokens == plan.n_tokens_expected == 100_000
    assert plan.seconds_texts is None
    new = 1 / 50 + (64 / 500 + 100 / 50) / 320
    assert plan.steps == math.ceil(best_epochs(new, 1 / 200) * 100_000 / 1280)
    both = make_plan(Budget(minutes=600, tokens=10_000), WORK, SPEEDS)
    assert both.n_tokens_expected == 10_000
    assert _seconds(both, WORK, SPEEDS) == pytest.approx(36000, rel=0.02)


def test_steps_are_a_budget() -> None:
    """Steps give texts for three readings at any speed, unless tokens or minutes are given too."""
    for speeds in (SPEEDS, replace(SPEEDS, answers=1, training=1e4)):
        plan = make_plan(Budget(steps=300), WORK, speeds)
        assert (plan.steps, plan.tokens) == (300, 300 * 4 * 320 // 3)
    assert make_plan(Budget(steps=300, tokens=5000), WORK, SPEEDS).tokens == 5000


def test_best_epochs() -> None:
    """Free texts are read once, expensive ones often; in between the result is that of a search in small steps."""
    assert best_epochs(1e-9, 1.0) == 1
    assert best_epochs(1e9, 1.0) == 20

    def value(epochs: float, ratio: float) -> float:
        return (1 + 15.4 * (1 - math.exp((1 - epochs) / 15.4))) / (ratio + epochs)

    for ratio in (0.5, 2.0, 4.0, 8.0):
        best = max((i / 100 for i in range(100, 2001)), key=lambda epochs: value(epochs, ratio))
        assert abs(best_epochs(ratio, 1.0) - best) <= 0.5


def test_little_time() -> None:
    """A trial has fewer and shorter answers, prompts and measurements; a budget too small even for it is reported."""
    plan = make_plan(Budget(5), WORK, SPEEDS, setup=30)
    n_texts = max(4, min(16, plan.n_tokens_expected // 64))
    prompts = n_texts * (64 / 500 + 100 / 50)
    training = plan.n_steps_expected * 1280 / 200
    measured = 3 * (plan.n_measured * (plan.n_evaluated / 20 + 64 / 500) + 5)
    assert 30 + prompts + plan.n_tokens_expected / 50 + training + measured == pytest.approx(300, rel=0.05)
    with pytest.raises(ValueError, match=r"--minutes 0.5: this machine generates 50.0 tokens .* about [\d.]+ minutes"):
        make_plan(Budget(0.5), WORK, SPEEDS)
    try:
        make_plan(Budget(0.5), WORK, SPEEDS, setup=30)
    except ValueError as e:
        least = float(re.findall(r"trial takes about ([\d.]+) minutes", str(e))[0])
    assert make_plan(Budget(least + 0.1), WORK, SPEEDS, setup=30).n_steps_expected >= 1
    with pytest.raises(ValueError, match="--minutes"):
        make_plan(Budget(least - 0.3), WORK, SPEEDS, setup=30)


def test_what_is_said_before() -> None:
    """Time, memory and disk are reported beforehand."""
    told = describe(make_plan(Budget(60), WORK, SPEEDS), WORK, Path("x.work"))
    assert "estimate: 60.0 min in all" in told
    assert "memory              about 1.00 GB" in told
    n_tokens = int(re.findall(r"about ([\d,]+) tokens", told)[0].replace(",", ""))
    size = 24 * 10**7 + n_tokens * 1.2 * 6000
    assert f"disk                about {size / 1e9:.2f} GB in 'x.work', " in told
    assert "are a trial" not in describe(make_plan(Budget(600), WORK, SPEEDS), WORK, Path("x.work"))
    assert "are a trial" in describe(make_plan(Budget(45), WORK, SPEEDS), WORK, Path("x.work"))
    few = replace(WORK, n_prompts=20)
    assert "the 20 prompts are the limit" in describe(make_plan(Budget(60), few, SPEEDS), few, Path("x.work"))


VERDICTS = {
    "use this: 1.50 times plain (1.20 of plain with chains of 4, 1.50 with draft='auto')": {"chain": 12, "auto": 15},
    "use this: 1.50 times plain (1.50 of plain": {"chain": 15, "auto": 15, "before": 12.0},
    "do not use this, but the head of --init: 1.50 of plain": {"chain": 15, "auto": 15, "before": 20.0},
    "do not use this: 0.43 of plain with chains of 4, 0.95 with draft='auto'; at this rate about ": {
        "chain": 4.3, "auto": 9.5, "length": 1.1,
    },
    "do not use this: 0.20 of plain with chains of 4, 0.95 with draft='auto'; a step with such a chain takes 9.0": {
        "chain": 2, "auto": 9.5, "length": 1.8,
    },
    "no verdict": {"chain": 0, "auto": 0},
}  # fmt: skip


@pytest.mark.parametrize("said", VERDICTS)
def test_verdicts(said: str) -> None:
    given = {"length": 2.0, "n_max": 4, "hours": 1.0, "n_tokens": 50_000, "before": None, **VERDICTS[said]}
    assert verdict(10, **given).startswith(said)  # type: ignore[arg-type]


def test_hours_are_those_of_smollm2() -> None:
    """Along SmolLM2's growth, a head gets the hours of its next rows."""
    # 1.59 tokens a step after 52,343 tokens; chains cost 1.7 passes, so that 1.1 of plain needs 1.87
    told = verdict(10, 10 * 1.59 / 1.7, 9.9, length=1.59, n_max=4, hours=2.0, n_tokens=52_343)
    hours = 2.0 * 2 ** ((1.1 * 1.7 - 1.59) / 0.215)
    assert f"at this rate about {hours:.1f} hours would give 1.1 of plain (1.9 tokens a step instead of 1.59" in told
    young = verdict(10, 10 * 1.59 / 1.7, 9.9, length=1.59, n_max=4, hours=2.0, n_tokens=5_234)
    assert "days would give" in young or "about 49" in young or "about 3" in young
    assert young != told


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("plan") / "target.gguf", n_layer=7)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "plot", lambda entries, path: None)


def _train(target: Target, output: Path, *more: str | Path) -> int:
    small = ("-n", "24", "-c", "160", "-np", "4", "--draft-vocab", "64", "-t", "1", "--batch", "2")
    return main(["train", "-m", target.path, "-o", str(output), *small, *map(str, more)])


def _prompts(path: Path, n: int) -> Path:
    path.write_text("".join(f"what is {i} and {i * i % 17}?\n" for i in range(n)))
    return path


def test_a_run_keeps_to_its_minutes(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run measures speeds, estimates, keeps texts within their share of time, ends in time and gives a verdict."""
    monkeypatch.setattr(plan_module, "_LOAD_SECONDS", 1.0)  # so small a target loads fast
    output, work = tmp_path / "head.gguf", tmp_path / "head.gguf.work"
    assert _train(target, output, "-f", _prompts(tmp_path / "p.txt", 3000), "--minutes", "0.4") == 0
    told = capsys.readouterr().err
    order = [
        "measuring how fast",
        "estimate: 0.4 min in all",
        "answers:",
        "training:",
        "without a head:",
        "the run took",
    ]
    assert sorted(order, key=told.index) == order
    assert "use this: " in told  # or "do not use this: "
    took = float(re.findall(r"the run took ([\d.]+) minutes", told)[0])
    assert 0.1 < took < 0.7
    plan, store = Plan.load(work), Store(work)
    assert plan is not None
    assert plan.seconds_texts is not None
    assert plan.spent < plan.seconds_texts + 5
    assert len(store.unanswered()) > 0
    assert len(list((work / "rows").glob("*.safetensors"))) == len(store.texts)
    # more minutes give more texts, and a longer training of the same head
    n_before = len(store.texts)
    assert _train(target, output, "-f", tmp_path / "p.txt", "--minutes", "0.6", "--resume") == 0
    assert len(Store(work).texts) > n_before
    assert "measuring how fast" not in capsys.readouterr().err


def test_answers_are_cut_when_the_time_is_over(target: Target, tmp_path: Path) -> None:
    """Running answers are kept as far as they are, with their rows."""
    generator = rows.AnswerGenerator(Path(target.path), (2, 3, 4), 160, 4, 64, n_threads=1)
    prompts = [texts.Prompt(i, [1, 2, 3 + i], "file") for i in range(6)]
    try:
        n_steps = 0

        def is_over() -> bool:
            nonlocal n_steps
            n_steps += 1
            return n_steps >= 10

        cut = list(generator(prompts, 100, 1, is_over))
        whole = {sample.id: sample for sample in generator(prompts, 100, 1)}
        kept = generator.llm.engine.slots.cache.stats
        assert (kept.n_bytes, kept.n_prefixes) == (0, 0)  # no answer reads another one's prefix again
    finally:
        generator.close()
    assert {sample.id for sample in cut} == {0, 1, 2, 3}
    for sample in cut:
        n = len(sample.tokens)
        assert 3 < n == len(sample.rows) < len(whole[sample.id].tokens)
        assert sample.tokens.tolist() == whole[sample.id].tokens[:n].tolist()
        assert len(sample.top_ids) == n - sample.n_first


@pytest.mark.parametrize("where", ["answers", "training"])
def test_ctrl_c_names_resume(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    owner, name = {"answers": (Store, "add_text"), "training": (trainer.Trainer, "_batches")}[where]

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    output = tmp_path / "head.gguf"
    more = ("-f", _prompts(tmp_path / "p.txt", 30), "--tokens", "200", "--steps", "2")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        assert _train(target, output, *more) == 130
    assert f"interrupted: '{output}.work' keeps what was made, and the same command with --resume goes on" in (
        capsys.readouterr().err
    )
    assert _train(target, output, *more, "--resume") == 0


def test_resuming_keeps_the_plan(target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a budget the continued run's holds; nothing is measured or generated again."""
    output, work = tmp_path / "head.gguf", tmp_path / "head.gguf.work"
    more = ("-f", _prompts(tmp_path / "p.txt", 30), "--optimizer", "adamw", "--ttt-steps", "3")
    assert _train(target, output, *more, "--tokens", "200", "--steps", "3") == 0
    plan = Plan.load(work)
    n_texts = len(Store(work).texts)
    output.unlink()
    capsys.readouterr()
    assert _train(target, output, "-f", tmp_path / "p.txt", "--resume") == 0  # with its optimizer and its steps, too
    assert "measuring how fast" not in capsys.readouterr().err
    assert Plan.load(work) == plan
    assert len(Store(work).texts) == n_texts
    settings = json.loads((work / "settings.json").read_text())
    assert (settings["optimizer"], settings["ttt_steps"]) == ("adamw", 3)


def test_no_rows_are_kept(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If rows are switched off, or the disk has no room for them, the target evaluates the texts again."""
    more = ("-f", _prompts(tmp_path / "p.txt", 30), "--tokens", "200", "--steps", "2")
    assert _train(target, tmp_path / "a.gguf", *more, "--cache", "none") == 0
    assert not (tmp_path / "a.gguf.work" / "rows").exists()
    monkeypatch.setattr(texts, "_FREE_SHARE", 0.0)
    assert _train(target, tmp_path / "b.gguf", *more) == 0
    assert not list((tmp_path / "b.gguf.work" / "rows").glob("*.safetensors"))


def test_why_there_is_no_length(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`length` is null if no held-out text is greedy, and the log says so."""
    monkeypatch.setattr(rows, "TEMPERATURES", (1.0,))
    output = tmp_path / "head.gguf"
    assert _train(target, output, "-f", _prompts(tmp_path / "p.txt", 30), "--tokens", "200", "--steps", "2") == 0
    (entry,) = json.loads((tmp_path / "head.gguf.work" / "log.json").read_text())
    assert entry["length"] is None
    assert entry["why_no_length"].startswith("of 1 held-out texts none was generated at temperature 0")
