"""Learning from a `--learn` folder: the gate, the swap, and going on after kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.draft.learn import Folder, Heads, Texts, learner, rounds
from llama_cpp_eagle3.draft.learn.rounds import divide, read_result
from loading import load
from serving import Running
from tiny import write_head, write_perfect_pair, write_target

torch = pytest.importorskip("torch")

from llama_cpp_eagle3_heads.train import learn as learning  # noqa: E402
from llama_cpp_eagle3_heads.train.acceptance import Acceptance  # noqa: E402
from llama_cpp_eagle3_heads.train.build import head_from_gguf  # noqa: E402
from llama_cpp_eagle3_heads.train.data import Text  # noqa: E402
from llama_cpp_eagle3_heads.train.gate import Verdict, compare, judge  # noqa: E402
from llama_cpp_eagle3_heads.train.rows import Extractor  # noqa: E402
from llama_cpp_eagle3_heads.train.trainer import split  # noqa: E402

N_THREADS = 1


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return a target with a head that knows nothing."""
    folder: Path = tmp_path_factory.mktemp("pair")
    target = write_target(folder / "target.gguf", n_layer=7)
    return target, write_head(folder / "head.gguf", target)


def keep(pair: Any, folder: Path, n: int = 12, **options: Any) -> None:
    """Keep n texts in a folder."""
    with closing(load(*pair, learn_dir=folder, n_parallel=4, **options)) as llm:
        prompts = [[1, 5 + i, 6, 7, 8 + i] for i in range(n)]
        llm.generate_batch(prompts, max_tokens=24, temperature=0, progress=False)


@pytest.fixture(scope="module")
def kept(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("kept") / "kept"
    keep(pair, folder)
    return folder


def test_the_newest_tenth_is_kept_out(kept: Path) -> None:
    """The newest tenth of the conversations judges a head, and the last gate's texts too: none of them is learned."""
    folder = Folder(kept)
    texts, heads = Texts(folder), Heads(folder)
    first = divide(texts, heads)
    assert (first.learned, first.gate, first.last_gate) == ([*range(9)], [9, 10, 11], [])
    heads.entries[0].gate = [10, 3]
    again = divide(texts, heads)
    assert (again.gate, again.last_gate) == ([9, 10, 11], [3])
    assert not {3, 9, 10, 11} & {*again.learned}


def _of(n_accepted: int, n_drafts: int = 100) -> Acceptance:
    return Acceptance(n_drafts, n_accepted)


def test_what_judges_a_training_was_in_none_before() -> None:
    """By its place in the list a text that one training read was held out in the next: the head knew it by heart."""

    def texts(numbers: list[int]) -> list[Text]:
        return [Text(number, [number, 1, 2, 3], 1, 0.0, "user") for number in numbers]

    first, held = split(texts(list(range(5, 45))), 8)
    later, held_later = split(texts([n for n in range(5, 45) if n % 7] + list(range(45, 80))), 8)
    assert {text.id for text in held_later}.isdisjoint(text.id for text in first)
    assert {text.id for text in held}.isdisjoint(text.id for text in later)
    assert (len(held), len(held_later)) == (5, 9)
    assert [len(part) for part in split(texts([1, 2, 3]), 8)] == [2, 1]
    assert [len(part) for part in split(texts([8, 16, 24]), 8)] == [2, 1]


def test_chance_does_not_pass() -> None:
    """A difference within its error is none, and so is one of too few texts."""
    assert str(compare([(_of(50), _of(80))] * 4)) == "1.80 tokens a step, 1.50 before, +-0.00"
    mixed = compare([(_of(50), _of(90)), (_of(90), _of(50)), (_of(50), _of(60)), (_of(60), _of(50))])
    assert mixed.error > 0.05
    assert abs(mixed.after - mixed.before) < mixed.error
    assert "of 3 texts" in compare([(_of(50), _of(80))] * 2).why
    assert compare([(Acceptance(), _of(50))] * 3).before == 1.0


def test_a_poisoned_head_is_refused(pair: Any, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head whose weights were spoiled in the training does not pass the gate; the same head does not either."""
    target, path = pair
    texts = Texts(Folder(kept))
    source = learning.KeptTexts(texts, None)
    samples = [source.get(source.text(number)) for number in texts.by_id]
    head, same = (head_from_gguf(Path(path.path), Path(target.path), 128, 4) for _ in range(2))
    assert "not better by more than chance" in judge(head, same, samples, [], 4).why
    # of which the drafts are simulated as told
    taught = head_from_gguf(Path(path.path), Path(target.path), 128, 4)
    answers = {id(taught): 1.0, id(head): 0.5, id(same): 0.2}

    def simulate(of: Any, sample: Any, n_max: int, found: Acceptance) -> None:
        found.n_drafts += 10
        found.n_accepted += int(20 * answers[id(of)]) + sample.id % 2

    monkeypatch.setattr("llama_cpp_eagle3_heads.train.gate.simulate_acceptance", simulate)
    assert judge(head, taught, samples, samples, 4).why == ""
    assert judge(head, same, samples, [], 4).why.startswith("it is not better by more than chance: 1.45")
    answers[id(taught)] = 1.0
    worse_before = judge(head, taught, samples[:4], _Worse(samples[4:], answers, taught), 4)
    assert "worse on the last gate's texts" in worse_before.why


def test_real_drafts_tell_a_poisoned_head(tmp_path: Path) -> None:
    """A head that is always right passes in the place of a spoiled one, never the other way round."""
    target, path = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf")
    keep((target, path), tmp_path / "kept")
    texts = Texts(Folder(tmp_path / "kept"))
    source = learning.KeptTexts(texts, None)
    samples = [source.get(source.text(number)) for number in texts.by_id]
    right, spoiled = (head_from_gguf(Path(path.path), Path(target.path), 128, 4) for _ in range(2))
    torch.manual_seed(0)
    with torch.no_grad():
        spoiled.lm_head.weight.normal_()
    verdict = judge(spoiled, right, samples, samples, 4)
    assert verdict.why == ""
    assert verdict.after > 3.0 > verdict.before + 1
    assert "not better by more than chance" in judge(right, spoiled, samples, [], 4).why


class _Worse(list[Any]):
    """Texts that a head is bad at: once they are read, so is the head."""

    def __init__(self, samples: Any, answers: dict[int, float], head: Any):
        super().__init__(samples)
        self._spoil = lambda: answers.update({id(head): 0.0})

    def __iter__(self) -> Any:
        self._spoil()
        return super().__iter__()


def test_rows_serve_as_the_target_does(pair: Any, kept: Path) -> None:
    """A sample of kept rows has the hidden states and best tokens of one that the target evaluates."""
    target, path = pair
    texts = Texts(Folder(kept))
    boundaries = list(Folder(kept).about()["key"]["boundaries"])
    extractor = Extractor(Path(target.path), boundaries, 256, n_threads=1, n_threads_batch=1, type_k=0, type_v=0)
    try:
        source = learning.KeptTexts(texts, extractor)
        for number in (0, 5):
            text = source.text(number)
            ours, theirs = source.get(text), extractor(text)
            n = len(ours.tokens)
            assert n >= len(text.tokens) - 1
            assert (abs(ours.rows.astype(float) - theirs.rows[:n].astype(float)) < 2e-3).all()
            known = ours.top_p[:, 0] > 0
            assert known.sum() == len(known) - 1
            assert (ours.top_ids[known, 0] == theirs.top_ids[: len(known)][known, 0]).all()
    finally:
        extractor.close()
    assert path


def test_from_texts_to_a_head_that_drafts(
    pair: Any, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that is killed goes on; the head that passes drafts after the next start, and at once in a server."""
    target, path = pair
    folder = Folder(kept)
    said: list[str] = []
    monkeypatch.setattr(learning, "log", said.append)
    monkeypatch.setattr(learning, "judge", lambda *a: Verdict("", 1.0, 1.5, 0.1))
    monkeypatch.setattr(learning, "choose_tokens", lambda job, head, texts: head)  # it keeps its tokens
    run = learning.Trainer.run

    def killed(self: Any) -> None:
        run(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(learning.Trainer, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        learning.learn(folder, 0.02, N_THREADS)
    assert read_result(folder) is None
    n_steps = torch.load(folder.round / "state.pt", weights_only=True)["step"]
    assert n_steps > 0
    monkeypatch.setattr(learning.Trainer, "run", run)
    means: list[tuple[Any, Any]] = []
    mean_head = learning.mean_head
    monkeypatch.setattr(learning, "mean_head", lambda *heads: means.append(heads[:2]) or mean_head(*heads))
    result = learning.learn(folder, 5.0, N_THREADS)
    ((before, learned),) = means
    assert before is not learned
    in_file = head_from_gguf(Path(path.path), Path(target.path), 128, 4).state_dict()
    assert all(torch.equal(before.state_dict()[name], values) for name, values in in_file.items())
    assert "going on with a training of 0.02 minutes" in said
    assert (result["state"], result["gate"], result["until"]) == ("used", [9, 10, 11], 11)
    heads = Heads(folder)
    entry = heads.take_in(result)
    assert (entry.version, entry.n_texts) == (1, 9)
    assert not folder.round.exists()
    prompts = [[1, 50, 60, 70]]
    options: Any = {"max_tokens": 40, "temperature": 0, "progress": False}
    with closing(load(target)) as llm:
        (plain,) = llm.generate_batch(prompts, **options)
    with closing(load(target, path, learn_dir=kept)) as llm:
        assert llm.draft_model_path == str(heads.path(1))
        use = llm.use_learned(0)
        stream = llm.generate_batch(prompts, stream=True, **options)
        found = [next(stream)[1] for _ in range(10)]
        llm.engine  # noqa: B018  a swap in the middle of a text, between two steps
        with llm._guard:
            use()
        found += [token for _, token, _ in stream]
        assert found[: len(plain.tokens)] == plain.tokens
        assert llm.draft_model_path == path.path
        assert llm.last_stats.drafts > 5
    assert json.loads((kept / "about.json").read_text())["head"] == path.path


def test_a_server_learns_by_itself(pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody asks, a process learns; requests stop it, and their text is the target's; then a gate decides."""
    monkeypatch.setattr(rounds, "N_ANSWER_MIN", 100)
    monkeypatch.setattr(rounds, "N_CONVERSATIONS_MIN", 10)
    monkeypatch.setattr(learner, "minutes_of", lambda *a: 0.02)
    monkeypatch.setattr(learner, "is_on_battery", lambda: False)
    kept = tmp_path / "kept"
    options = {"learn_idle_seconds": 0.2, "learn_share": 1.0}
    with Running(*pair, learn_dir=kept, options=options) as running:
        body = {"max_tokens": 24, "temperature": 0}
        texts = [running.ask("/v1/completions", {**body, "prompt": f"what is {i}?"}) for i in range(12)]
        found = running.server.learner
        assert found is not None
        deadline = time.monotonic() + 300
        was_stopped = False
        while len(found.heads.entries) < 2:
            assert time.monotonic() < deadline, found.state
            time.sleep(0.02)
            if found.state == "learns" and not was_stopped:
                again = running.ask("/v1/completions", {**body, "prompt": "what is 3?"})
                assert again["choices"][0]["text"] == texts[3]["choices"][0]["text"]
                was_stopped = True
        assert was_stopped
        entry = found.heads.entries[1]
        assert entry.state in ("used", "refused")
        assert (entry.state == "used") == (not entry.why)
        shown = running.client.get("/props").json()
        assert shown["learn"]["head"] == (entry.state == "used")
        assert shown["learn"]["seconds"] > 0
        again = running.ask("/v1/completions", {**body, "prompt": "what is 5?"})
        assert again["choices"][0]["text"] == texts[5]["choices"][0]["text"]


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the kernel does not group processes by session")
def test_it_learns_behind_all_sessions() -> None:
    """The lowest priority counts among the processes of a session alone, and the session shares with others first."""
    script = "from llama_cpp_eagle3_heads.train.learn import run_behind; run_behind(); "
    script += "import os; print(os.sched_getscheduler(0) == os.SCHED_IDLE, open('/proc/self/autogroup').read())"
    command = [sys.executable, "-c", script]
    pipe = subprocess.PIPE  # it ends with its input
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        found = process.stdout.readline().split()
        process.kill()
    assert (found[0], found[2:]) == ("True", ["nice", "19"])


def test_a_first_head(pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without a head: the target evaluates its texts again, and a head is made of nothing."""
    target, _ = pair
    kept = tmp_path / "kept"
    with closing(load(target, learn_dir=kept, n_parallel=4)) as llm:
        prompts = [[1, 5 + i, 6, 7, 8 + i] for i in range(40)]
        llm.generate_batch(prompts, max_tokens=24, temperature=0, progress=False)
    assert not list((kept / "rows").iterdir())
    evaluated: list[int] = []
    extract = learning.Extractor.__call__
    monkeypatch.setattr(
        learning.Extractor, "__call__", lambda self, text: evaluated.append(text.id) or extract(self, text)
    )
    result = learning.learn(Folder(kept), 0.02, N_THREADS)
    assert sorted(evaluated) == sorted({*evaluated})  # each once, however often it was read
    assert result["before"] == 1.0
    heads = Heads(Folder(kept))
    heads.take_in(result)
    if result["state"] == "used":
        with Eagle3Llama(target.path, learn_dir=kept, n_threads=1, n_ctx=256, verbose=False) as llm:
            assert llm.draft_model_path == str(heads.path(1))
