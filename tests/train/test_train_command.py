"""`llama-cpp-eagle3 train` on a tiny random target: from the GGUF alone to a head that loads."""

from __future__ import annotations

import errno
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.cli import main
from tiny import Target, without_template, write_head, write_target

torch = pytest.importorskip("torch")

from llama_cpp_eagle3_heads.train import data, rows, session, texts, trainer  # noqa: E402
from llama_cpp_eagle3_heads.train.acceptance import Acceptance, simulate_acceptance  # noqa: E402
from llama_cpp_eagle3_heads.train.build import head_from_gguf  # noqa: E402
from llama_cpp_eagle3_heads.train.conversations import read_prompts  # noqa: E402
from llama_cpp_eagle3_heads.train.data import Store  # noqa: E402
from llama_cpp_eagle3_heads.train.plan import Plan, Speeds  # noqa: E402
from llama_cpp_eagle3_heads.train.rows import Extractor, Source  # noqa: E402

_SMALL = (
    *("--tokens", "300", "-n", "24", "-c", "160", "-np", "4", "--draft-vocab", "64", "-t", "1", "--outtype", "f32"),
    *("--batch", "2", "--ttt-steps", "2", "--eval-every", "3"),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Return a target with enough layers for the usual boundaries."""
    return write_target(tmp_path_factory.mktemp("train") / "target.gguf", n_layer=7)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of thirty questions."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("".join(f"what is {i} and {i * i % 17}?\n" for i in range(30)))
    return path


@pytest.fixture(autouse=True)
def draw(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Switch off pictures, which cost more than the training here; the result draws them."""
    real = session.plot
    monkeypatch.setattr(session, "plot", lambda log, path: None)
    return real


SPEEDS = Speeds(prefill=2000, answers=500, alone=500, training=2000, n_parameters=10**5, memory=10**8)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with an entry for each measurement of speeds, which are always these (test_plan.py measures)."""
    calls: list[int] = []

    def measure(*args: object) -> Speeds:
        calls.append(1)
        return SPEEDS

    monkeypatch.setattr(texts, "measure_speeds", measure)
    return calls


def _train(target: Target, output: Path, *more: str | Path) -> int:
    return main(["train", "-m", target.path, "-o", str(output), *_SMALL, *map(str, more)])


def _state(folder: Path) -> dict:
    return torch.load(folder / trainer.STATE, weights_only=True)


def test_a_head_from_prompts(
    target: Target,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    draw: Callable[..., None],
) -> None:
    """The head loads and drafts, its text is the target's, and the figures are printed."""
    monkeypatch.setattr(session, "plot", draw)
    output = tmp_path / "head.gguf"
    assert (
        _train(
            target, output, "-f", prompts, "--steps", "6", "--export", tmp_path / "hf", "--export-form", "speculators"
        )
        == 0
    )
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["speculators_model_type"] == "eagle3"
    told = capsys.readouterr().err
    assert "with the new head" in told
    assert "mean acceptance length" in told
    with Eagle3Llama(target.path, output, draft="chain", n_threads=1, verbose=False) as llm:
        found = llm("what is", max_tokens=20, temperature=0)["choices"][0]["text"]
        assert llm.last_stats.drafts > 0
    with Eagle3Llama(target.path, n_threads=1, verbose=False) as llm:
        assert found == llm("what is", max_tokens=20, temperature=0)["choices"][0]["text"]
    log = json.loads((tmp_path / "head.gguf.work" / "log.json").read_text())
    assert [entry["step"] for entry in log] == [3, 6]
    assert log[-1]["loss"] < log[0]["loss"] * 1.2
    assert (tmp_path / "head.gguf.work" / "training.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resuming_changes_no_bit(
    target: Target, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """A run that is interrupted in the middle of an epoch ends with the weights of an uninterrupted one."""
    whole, broken = tmp_path / "whole.gguf", tmp_path / "broken.gguf"
    run = ("-f", prompts, "--steps", "5", "--optimizer", optimizer)
    assert _train(target, whole, *run) == 0
    learn = trainer.Trainer.train_step

    def interrupted(self: trainer.Trainer, samples: Sequence) -> object:
        if self.step == 2:
            raise KeyboardInterrupt
        return learn(self, samples)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "train_step", interrupted)
        assert _train(target, broken, *run) == 130
    assert not broken.exists()
    assert _state(tmp_path / "broken.gguf.work")["step"] == 2
    assert _train(target, broken, *run, "--resume") == 0
    a, b = (_state(tmp_path / f"{name}.gguf.work") for name in ("whole", "broken"))
    assert a["step"] == b["step"] == 5
    for name, values in a["head"].items():
        assert torch.equal(values, b["head"][name]), name
    assert whole.read_bytes()[-4096:] == broken.read_bytes()[-4096:]


def test_generated_rows_are_those_of_a_pass(target: Target, prompts: Path, tmp_path: Path) -> None:
    """Rows saved while many answers were generated at once are those of one pass, except with flash attention."""
    output, cache = tmp_path / "head.gguf", tmp_path / "cache"
    assert _train(target, output, "-f", prompts, "--steps", "1", "--cache", cache) == 0
    texts = Store(tmp_path / "head.gguf.work").texts
    extractor = Extractor(Path(target.path), (2, 3, 4), 160, n_threads=1)
    source = Source(extractor, cache)
    for text in texts[:8]:
        kept, passed = source.get(text), extractor(text)
        assert kept.tokens.tolist() == text.tokens
        np.testing.assert_allclose(kept.rows.astype(float), passed.rows.astype(float), atol=0.1)
        np.testing.assert_allclose(kept.top_p.astype(float), passed.top_p.astype(float), atol=0.03)
        assert kept.top_p.shape == (len(text.tokens) - text.n_first, 64)
        if text.temperature == 0:
            greedy = kept.top_ids[:-1, 0].tolist()
            assert greedy == text.tokens[text.n_prompt :]
    extractor.close()


def test_it_goes_on_from_a_head(target: Target, prompts: Path, tmp_path: Path) -> None:
    """--init without learning gives the head back, from a GGUF and from the checkpoint that was exported from it."""
    first = tmp_path / "first.gguf"
    assert _train(target, first, "-f", prompts, "--steps", "2", "--export", tmp_path / "hf") == 0
    for name, init in (("gguf", first), ("hf", tmp_path / "hf")):
        again = tmp_path / f"{name}.gguf"
        more = ("--steps", "1", "--lr", "0", "--init", init)
        assert _train(target, again, "-f", prompts, *more, "--work", tmp_path / name) == 0
        heads = [head_from_gguf(path, Path(target.path), 160, 2).state_dict() for path in (first, again)]
        for key, values in heads[0].items():
            assert torch.equal(values, heads[1][key]), (name, key)


def test_a_head_gets_other_tokens(target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--init with --draft-vocab drafts the tokens of these answers; without it, their share is reported."""
    init = write_head(tmp_path / "init.gguf", target, boundaries=(1, 2, 4))
    assert init.d2t is not None
    lines = tmp_path / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"text": f"what is {i} and {i * i % 17}"}) + "\n" for i in range(30)))
    output = tmp_path / "out.gguf"
    run = ("-f", lines, "--init", init.path, "--steps", "2")
    assert _train(target, output, *run) == 0
    told = capsys.readouterr().err
    texts = Store(tmp_path / "out.gguf.work").texts
    counts = Counter(token for text in texts for token in text.tokens[text.n_prompt :])
    share = sum(counts[token] for token in init.d2t) / counts.total()
    assert f"draft vocabulary of --init: 96 tokens, {share:.2%} of the answers\n" in told
    d2t, known = head_from_gguf(output, Path(target.path), 160, 2).d2t.tolist(), set(map(int, init.d2t))
    wanted = {token: counts[token] + 1.5 * (token in known) for token in range(target.n_vocab)}
    assert d2t == sorted(sorted(wanted, key=lambda token: (-wanted[token], token))[:64])
    assert f"draft vocabulary: 64 tokens, {sum(counts[token] for token in d2t) / counts.total():.2%} of the" in told

    learned = head_from_gguf(output, Path(target.path), 160, 2).state_dict()
    assert _train(target, output, *run, "--resume") == 0
    again = head_from_gguf(output, Path(target.path), 160, 2).state_dict()
    assert all(torch.equal(values, again[name]) for name, values in learned.items())

    command = ["train", "-m", target.path, *map(str, run), "--tokens", "300", "-n", "24", "-c", "160", "-t", "1"]
    assert main([*command, "-o", str(tmp_path / "same.gguf"), "--ttt-steps", "2", "--batch", "2"]) == 0
    told = capsys.readouterr().err
    assert "of held-out answers the best 96 cover +" in told
    assert "it is replaced by these (--draft-vocab keep prevents that)" in told
    d2t = head_from_gguf(tmp_path / "same.gguf", Path(target.path), 160, 2).d2t.tolist()
    assert d2t != init.d2t.tolist()
    assert len(d2t) == 96
    more = ("-o", str(tmp_path / "kept.gguf"), "--ttt-steps", "2", "--batch", "2", "--draft-vocab", "keep")
    assert main([*command, *more]) == 0
    assert "draft vocabulary" not in capsys.readouterr().err
    assert head_from_gguf(tmp_path / "kept.gguf", Path(target.path), 160, 2).d2t.tolist() == init.d2t.tolist()


def test_a_target_makes_its_own_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without -f texts come from the model: it gets the beginning of a user's turn and completes it."""
    target = write_target(tmp_path / "ends.gguf", n_layer=7, eos_scale=1.0)
    monkeypatch.setattr(data, "_is_clean", lambda text: True)  # this model writes no words
    monkeypatch.setattr(texts, "_N_SELF", 24)
    output = tmp_path / "head.gguf"
    assert _train(target, output, "--steps", "1") == 0
    store = Store(tmp_path / "head.gguf.work")
    assert store.n_tokens >= 300
    assert {text.source for text in store.texts} == {"model"}
    assert len({tuple(prompt.tokens) for prompt in store.prompts}) == len(store.prompts)
    assert {prompt.tokens[0] for prompt in store.prompts} == {target.token_bos}


_CALL = {"name": "f", "arguments": "{}"}


def test_conversations_with_tools_and_images(target: Target, tmp_path: Path) -> None:
    """Tools are in the prompt, a tool's result may be the last turn; unreadable contents are left out."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": _CALL}]}
    result = {"role": "tool", "tool_call_id": "a", "content": "sunny"}
    asked, answer = {"role": "user", "content": "weather?"}, {"role": "assistant", "content": "It is sunny."}
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    lines = [{"messages": [asked, call, result, answer], "tools": tools}, {"messages": [image]}, {"messages": [asked]}]
    path = tmp_path / "traffic.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = list(read_prompts(path))
    assert found[0] == {"messages": [asked, call, result], "tools": tools}
    said: list[str] = []
    with Eagle3Llama(target.path, n_ctx=512, n_threads=1, verbose=False) as llm:
        prompts = data.file_prompts(llm, [path], 1000, said.append)
        templates = data.Templates(llm)
        expected = [templates.tokens([asked, call, result], tools=tools), templates.tokens([asked])]
        assert [prompt.tokens for prompt in prompts] == expected
    assert len(said) == 1
    assert "1 records are left out, or a part of them, the first one because: '" in said[0]
    assert "traffic.jsonl': image input is not supported" in said[0]


def test_a_standstill_does_not_count(
    target: Target, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the process is suspended in the middle, with --minutes it still trains as long as requested."""
    seconds = (i + 1000 * (i >= 30) for i in itertools.count())
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    output, work = tmp_path / "head.gguf", tmp_path / "head.gguf.work"
    assert _train(target, output, "-f", prompts, "--minutes", "1.2", "--eval-every", "20") == 0
    plan, step = Plan.load(work), _state(work)["step"]
    assert plan is not None
    assert 40 < step + step // 20 - 1 <= 60 * plan.minutes_of_training <= step + step // 20 + 1  # and evaluations
    assert "a step took 1001 s: the process stood still" in capsys.readouterr().err


def test_resuming_with_another_batch(target: Target, prompts: Path, tmp_path: Path) -> None:
    """The rest of the epoch is divided anew."""
    output = tmp_path / "head.gguf"
    assert _train(target, output, "-f", prompts, "--steps", "2", "--batch", "1") == 0
    assert _state(tmp_path / "head.gguf.work")["at"] == 2
    assert _train(target, output, "-f", prompts, "--steps", "6", "--batch", "4", "--resume") == 0
    assert _state(tmp_path / "head.gguf.work")["step"] == 6


def test_bad_input(target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each error is one line, with exit code 2, and nothing is written."""
    output = tmp_path / "head.gguf"
    same, bad, empty = tmp_path / "same.txt", tmp_path / "bad.jsonl", tmp_path / "empty.txt"
    same.write_text("hello\n" * 5)
    bad.write_text('{"prompt": "x"}\n{"question": 1}\n')
    empty.write_text("\n")
    long = tmp_path / "long.txt"
    long.write_text("word " * 500 + "\n")
    other = write_target(tmp_path / "other.gguf", n_embd=128, n_head=8)
    head = write_head(tmp_path / "other-head.gguf", other)
    good = tmp_path / "good.txt"
    good.write_text("".join(f"what is {i}?\n" for i in range(8)))
    cases: list[tuple[tuple[str | Path, ...], str]] = [
        (("-f", same), "all 5 prompts are the same"),
        (("-f", bad), "line 2"),
        (("-f", empty), "found no prompts"),
        (("-f", long), "longer than"),
        (("-f", tmp_path / "no.txt"), "no.txt"),
        (("-f", good, "--init", head.path), "trained for another model"),
        (("-f", good, "--layers", "2,3,99"), "99"),
        (("-f", good, "--resume"), "no training that was begun"),
        (("-f", good, "--tokens", "0"), "--tokens"),
        (("-f", good, "--minutes", "0"), "--minutes: expected more than 0, found 0"),
        (("-f", good, "--lr", "nan"), "--lr: expected a number of at least 0, found nan"),
        (("-f", good, "--layers", "2,x"), "--layers: expected numbers with commas"),
        (("-f", good, "--device", "abacus"), "--device: torch has no 'abacus' here"),
    ]
    for i, (more, said) in enumerate(cases):
        assert _train(target, output, *more, "--steps", "1", "--work", tmp_path / f"work{i}") == 2, more
        assert said in capsys.readouterr().err, more
        assert not output.exists()
    # refused input leaves nothing that disturbs the next attempt
    assert _train(target, output, "-f", good, "--steps", "1", "--work", tmp_path / "work0") == 0
    capsys.readouterr()
    assert _train(target, output, "-f", good, "--steps", "1", "--work", tmp_path / "work0") == 2
    assert "use --resume" in capsys.readouterr().err
    other_layers = ("--layers", "1,2,3", "--resume")
    assert _train(target, output, "-f", good, "--steps", "1", "--work", tmp_path / "work0", *other_layers) == 2
    assert "begun with other settings: layers [] instead of [1, 2, 3]" in capsys.readouterr().err


def test_no_number(target: Target, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A loss that is no number stops the training and keeps the head of the step before."""
    output = tmp_path / "head.gguf"
    real = trainer.ttt_loss

    def loss(head: object, *args: object) -> object:
        found, figures = real(head, *args)  # type: ignore[arg-type]
        if torch.is_grad_enabled() and not _broken:
            _broken.append(1)
        elif torch.is_grad_enabled():
            figures.total = float("nan")
        return found, figures

    _broken: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "ttt_loss", loss)
        assert _train(target, output, "-f", prompts, "--steps", "5") == 2
    assert "lower --lr" in capsys.readouterr().err
    state = _state(tmp_path / "head.gguf.work")
    assert state["step"] == 1
    assert all(bool(values.float().isfinite().all()) for values in state["head"].values())


@pytest.mark.parametrize("norms", [(), ("--eagle31",)], ids=str)
def test_simulated_acceptance_is_real(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norms: tuple[str, ...]
) -> None:
    """The engine accepts tokens of a head that knows its texts by heart where the simulation does."""
    monkeypatch.setattr(rows, "TEMPERATURES", (0.0,))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\nthree\nfour\nfive\n")
    output, cache = tmp_path / "head.gguf", tmp_path / "cache"
    more = ("--steps", "60", "--lr", "0.01", "--cache", cache, "--draft-vocab", "320")
    more += ("--tokens", "400", "--eval-every", "60")
    assert _train(target, output, "-f", prompts, *more, *norms) == 0
    head = head_from_gguf(output, Path(target.path), 160, 4)
    texts = Store(tmp_path / "head.gguf.work").texts
    extractor = Extractor(Path(target.path), (2, 3, 4), 160, n_threads=1)
    source = Source(extractor, cache)
    n_accepted = n_same = 0
    with Eagle3Llama(target.path, output, draft="chain", draft_n_max=2, n_threads=1, verbose=False) as llm:
        for text in texts:
            acceptance = Acceptance()
            simulate_acceptance(head, source.get(text), 2, acceptance)
            (result,) = llm.generate_batch([text.tokens[: text.n_prompt]], max_tokens=24, temperature=0)
            stats = result.stats
            if result.tokens[: len(text.tokens) - text.n_prompt] != text.tokens[text.n_prompt :]:
                continue  # flash attention chose the other one of two equal tokens
            n_same += 1
            # the simulation ends where its text has no room for a whole draft any more
            assert abs(stats.steps - acceptance.n_drafts) <= 2, (stats, acceptance)
            assert abs(stats.accepted - acceptance.n_accepted) <= 2
            n_accepted += acceptance.n_accepted
    extractor.close()
    assert n_same > len(texts) // 2
    assert n_accepted > 3 * n_same


def test_a_base_model_makes_its_own_prompts(tmp_path: Path, target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    """A model without a chat template continues from the beginning of a text."""
    path = without_template(target, tmp_path / "base.gguf").path
    output = tmp_path / "head.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "_is_clean", lambda text: True)
        patch.setattr(texts, "_N_SELF", 24)
        assert main(["train", "-m", path, "-o", str(output), *_SMALL, "--steps", "1"]) == 0
    prompts = Store(tmp_path / "head.gguf.work").prompts
    assert all(prompt.tokens[0] == target.token_bos and len(prompt.tokens) > 8 for prompt in prompts)


def test_what_is_left_out_is_said(target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log reports left-out prompts: long ones and duplicates among others."""
    path = tmp_path / "prompts.txt"
    path.write_text("word " * 500 + "\none\none\n" + "".join(f"question {i}\n" for i in range(6)))
    assert _train(target, tmp_path / "head.gguf", "-f", path, "--steps", "1", "--tokens", "100") == 0
    told = capsys.readouterr().err
    assert "1 prompts are longer than" in told
    assert "1 prompts come twice" in told


def test_a_full_disk(target: Target, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Earlier texts stay, and the run continues after them when there is room again."""
    output = tmp_path / "head.gguf"
    save, n_saved = trainer.torch.save, []

    def full(*args: object) -> None:
        n_saved.append(args)
        if len(n_saved) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.torch, "save", full)
        assert _train(target, output, "-f", prompts, "--steps", "9") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.part"))
    assert _train(target, output, "-f", prompts, "--steps", "9", "--resume") == 0
    assert output.exists()


@pytest.mark.parametrize("where", ["cache", "texts", "answers"])
def test_an_interruption_of_the_texts(
    target: Target, prompts: Path, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a full disk or Ctrl-C while texts are generated, whole lines stay, and --resume continues after them."""
    output, cache = tmp_path / "head.gguf", tmp_path / "cache"
    owner, name = {
        "cache": (rows, "save_file"),
        "texts": (data, "_append"),
        "answers": (rows.AnswerGenerator, "_sample"),
    }[where]
    real, calls = getattr(owner, name), []

    def failing(*args: object) -> object:
        calls.append(args)
        if len(calls) < 5:
            return real(*args)
        if where == "answers":
            raise KeyboardInterrupt
        if where == "texts":
            with Path(str(args[0])).open("a") as f:
                f.write('{"id": 3, "tok')
        raise OSError(errno.ENOSPC, "No space left on device")

    more = ("-f", prompts, "--steps", "2", "--cache", cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, failing)
        assert _train(target, output, *more) == (130 if where == "answers" else 2)
    assert not list(tmp_path.rglob("*.part"))
    n_before = len(Store(tmp_path / "head.gguf.work").texts)
    assert n_before > 2
    assert _train(target, output, *more, "--resume") == 0
    texts = Store(tmp_path / "head.gguf.work").texts
    assert len({text.id for text in texts}) == len(texts) > n_before
    assert output.exists()


def test_the_size_of_a_cache_is_said_before(
    target: Target, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The size is reported beforehand and is right; a disk that is too small is refused."""
    output, cache = tmp_path / "head.gguf", tmp_path / "cache"
    more = ("-f", prompts, "--steps", "1", "--cache", cache)
    with monkeypatch.context() as patch:
        patch.setattr(texts.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        assert _train(target, output, *more) == 2
    assert "would need" in capsys.readouterr().err
    assert not Store(tmp_path / "head.gguf.work").texts
    assert _train(target, output, *more) == 0
    told = capsys.readouterr().err
    assert 0 <= told.index("the cache in") < told.index("answers:")
    per_token = int(told.split(" bytes a token")[0].rpartition("(")[2])
    n_tokens = sum(len(text.tokens) for text in Store(tmp_path / "head.gguf.work").texts)
    there = sum(file.stat().st_size for file in cache.iterdir())
    # a text's prompt but its last row has no probabilities; a file has a header
    assert 0.6 * per_token * n_tokens < there < 1.2 * per_token * n_tokens


def test_bf16(target: Target, prompts: Path, tmp_path: Path) -> None:
    """Products in bf16 learn the same within their precision; the weights stay F32."""
    logs = {}
    for dtype in ("f32", "bf16"):
        work = tmp_path / dtype
        assert (
            _train(target, tmp_path / f"{dtype}.gguf", "-f", prompts, "--steps", "6", "--dtype", dtype, "--work", work)
            == 0
        )
        logs[dtype] = json.loads((work / "log.json").read_text())
        assert all(values.dtype == torch.float32 for name, values in _state(work)["head"].items() if name != "d2t")
    losses = [[entry["loss"] for entry in log] for log in logs.values()]
    assert losses[0] != losses[1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.02)


def test_patience(target: Target, prompts: Path, tmp_path: Path) -> None:
    """A run that does not get better ends, and keeps the best head."""
    output = tmp_path / "head.gguf"
    more = ("--steps", "60", "--lr", "0", "--patience", "2", "--eval-every", "3")
    assert _train(target, output, "-f", prompts, *more) == 0
    work = tmp_path / "head.gguf.work"
    assert [entry["step"] for entry in json.loads((work / "log.json").read_text())] == [3, 6, 9]
    assert torch.load(work / trainer.BEST, weights_only=True)["log"]["step"] == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("state.pt", b""),
        ("d2t.npy", b""),
        ("settings.json", b"null"),
        ("plan.json", b'{"a": 1}'),
        ("prompts.jsonl", b"null\n"),
        ("texts.jsonl", b"[]\n"),
    ],
)
def test_a_damaged_work_folder_names_its_file(
    target: Target, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: bytes
) -> None:
    """A crash may leave a file empty, or something else may write there."""
    output, work = tmp_path / "head.gguf", tmp_path / "head.gguf.work"
    assert _train(target, output, "-f", prompts, "--steps", "1") == 0
    (work / name).write_bytes(text)
    capsys.readouterr()
    assert _train(target, output, "-f", prompts, "--steps", "2", "--resume") == 2
    assert f"error: '{work / name}' is damaged: remove it" in capsys.readouterr().err


def test_damaged_rows_are_made_again(target: Target, prompts: Path, tmp_path: Path) -> None:
    output, cache = tmp_path / "head.gguf", tmp_path / "cache"
    assert _train(target, output, "-f", prompts, "--steps", "1", "--cache", cache) == 0
    text = Store(tmp_path / "head.gguf.work").texts[0]
    path = rows.cache_path(cache, text.id)
    path.write_bytes(b"")
    extractor = Extractor(Path(target.path), (2, 3, 4), 160, n_threads=1)
    assert Source(extractor, cache).get(text).tokens.tolist() == text.tokens
    assert path.stat().st_size > 0
    extractor.close()
