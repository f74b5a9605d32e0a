"""Two drafters of one target, of files or its own block: texts, sequences, states, figures, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drafting import draft_chain
from joint import write_both, write_head_of
from llama_cpp_eagle3 import Eagle3Llama, IncompatibleDraftError, Stats
from llama_cpp_eagle3._core import Policy
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.draft.costs import load_costs
from llama_cpp_eagle3.engine import Drafters
from loading import cheap_rows, is_tie, load, load_plain, prompts, take
from random_arch import write_random_arch
from small import write_small_pair

pytestmark = pytest.mark.usefixtures("no_clock")  # else a slow machine decides what is drafted

N_TOKENS = 40
BOTH = ("eagle3", "mtp", "ngram")
CHAIN = {"draft": "chain", "draft_n_max": 4}
TREE = {"draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6}
ROWS = ("glm4moe-mtp", "mimo2-mtp", "qwen35-mtp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("several")


@pytest.fixture(scope="module", params=ROWS)
def files(request: pytest.FixtureRequest, folder: Path) -> tuple[str, str]:
    return write_both(folder, request.param)


@pytest.fixture(scope="module")
def three(folder: Path) -> tuple[str, list[str]]:
    """Return a target, and a head and a small model for it."""
    target, small = write_small_pair(folder)
    return target, [write_head_of(target, folder / "head.gguf"), small]


def asked(llm: Eagle3Llama) -> list[int]:
    """Return how often each drafter was asked."""
    assert llm.policy.is_measured
    found: list[int] = llm.policy.stats()["asked"]
    return found


@pytest.mark.parametrize("options", [CHAIN, TREE, {"draft": "auto"}], ids=["chain", "tree", "auto"])
@pytest.mark.parametrize("sources", [BOTH, ("mtp", "eagle3", "ngram")], ids=["head first", "block first"])
def test_greedy_text_is_that_of_plain_llama_cpp(files: tuple[str, str], sources: Any, options: Any) -> None:
    plain = load_plain(files[0])
    with load(*files, draft_sources=sources, **options) as llm:
        assert llm.draft_sources == sources
        assert len(llm.drafters) == 2
        assert "head '" in llm.loaded.description
        assert "the target's own block for multi-token prediction" in llm.loaded.description
        if llm.draft == "auto":
            cheap_rows(llm)  # both are asked, whatever their cost
        for prompt in prompts(3):
            is_tie(plain, prompt, take(plain, prompt, N_TOKENS), take(llm, prompt, N_TOKENS))
        figures = llm.stats.by_source
        if llm.draft == "auto":
            assert min(asked(llm)) > 0
            assert {"eagle3", "mtp"} <= figures.keys()
            assert sum(x.accepted for x in figures.values()) >= llm.stats.accepted > 0
        else:  # fixed settings are for the first drafter
            assert list(figures) == [sources[0]]
        assert "of mtp" in repr(llm.stats) or llm.draft != "auto"


@pytest.mark.parametrize("kv_unified", [True, False], ids=["pooled", "split"])
def test_sequences_of_a_batch(files: tuple[str, str], kv_unified: bool) -> None:
    """Some sequences are preempted if all share the cells."""
    plain = load_plain(files[0])
    texts = prompts(6, seed=1)
    n_ctx = 128 if kv_unified else 512
    with load(*files, n_parallel=3, kv_unified=kv_unified, n_ctx=n_ctx, draft="auto", draft_sources=BOTH) as llm:
        cheap_rows(llm)
        outputs = llm.generate_batch(texts, max_tokens=N_TOKENS, temperature=0.0)
        for prompt, output in zip(texts, outputs, strict=True):
            is_tie(plain, prompt, take(plain, prompt, len(output.tokens)), output.tokens)
        assert min(asked(llm)) > 0


def test_sampled_text_is_that_of_the_seed(files: tuple[str, str]) -> None:
    (prompt,) = prompts(1, seed=5)
    texts = []
    for sources in ((), BOTH):
        with load(*files, draft="auto", draft_sources=sources) as llm:
            cheap_rows(llm)
            llm.set_seed(7)
            texts.append(take(llm, prompt, N_TOKENS, temp=0.8))
            assert (llm.stats.accepted > 0) == bool(sources)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("options", [{"grammar": "root ::= [a-f]+"}, {}], ids=["grammar", "text"])
def test_going_back_copies_and_cancelled_texts(files: tuple[str, str], options: dict[str, str]) -> None:
    """With a prefix cache, shorter and changing prompts and an abandoned generator, the text stays plain's."""
    plain = load_plain(files[0])
    base = prompts(1, length=(60, 61), seed=6)[0]
    with load(*files, n_parallel=2, kv_unified=True, draft="auto", draft_sources=BOTH) as llm:
        cheap_rows(llm)
        for prompt in (base, base[:45], [*base[:45], 9, 8, 7], base, [*base[:30], 3]):
            stream = llm.generate([*prompt, 5], temp=0.0)
            next(stream)
            stream.close()
            is_tie(plain, prompt, take(plain, prompt, 20), take(llm, prompt, 20))
        together = llm.generate_batch([base, [*base[:50], 4]], max_tokens=12, temperature=0.0)
        for output, prompt in zip(together, (base, [*base[:50], 4]), strict=True):
            is_tie(plain, prompt, take(plain, prompt, len(output.tokens)), output.tokens)
        assert llm.drafters[0].n_past(0) == llm.drafters[1].n_past(0)


def test_each_drafts_as_if_it_were_alone(files: tuple[str, str]) -> None:
    """Drafts are bit for bit the same after rows that the tap gave for both, taken back, copied, saved and loaded."""
    options = {"draft_type_k": 0, "draft_type_v": 0, "n_parallel": 2, "kv_unified": True}
    text = prompts(1, length=(40, 41), seed=2)[0]
    with (
        load(*files, draft_sources=("eagle3", "mtp"), **options, **CHAIN) as llm,
        load(*files, draft_sources=("eagle3",), **options, **CHAIN) as head,
        load(files[0], draft_sources=("mtp",), **options, **CHAIN) as block,
    ):
        both, loaded = llm.drafters, (llm, head, block)
        alone = [head.drafters, block.drafters]
        assert llm.tap.boundaries == [*head.tap.boundaries, *block.tap.boundaries]

        def give(first: int, end: int, seq_id: int = 0) -> None:
            for x in loaded:
                x.target.decode(text[first:end], first, seq_id=seq_id)
                rows = (seq_id, first, text[first:end], list(range(end - first)), 0)
                x.drafters.process([rows])

        def same(seq_id: int, n: int) -> None:
            assert both.n_past(seq_id) == n
            for part, own in zip(both, alone, strict=True):
                assert part.n_past(seq_id) == own.n_past(seq_id) == n
                assert draft_chain(part, 7, 4, seq_id=seq_id) == draft_chain(own[0], 7, 4, seq_id=seq_id)

        give(0, 30)
        same(0, 30)
        n = both.truncate(20, 0)
        assert [own.truncate(20, 0) for own in alone] == [n, n]
        for x in loaded:
            x.target.truncate(n, 0)
        give(n, 33)
        same(0, 33)
        n = both.copy(0, 1, 25, False)
        assert [own.copy(0, 1, 25, False) for own in alone] == [n, n]
        for x in loaded:
            x.target.decode(text[:n], 0, seq_id=1)
        give(n, 40, 1)
        same(1, 40)
        state = both.state_get(1)
        both.restart(0, 0)
        both.state_set(state, 0)
        for part, own in zip(both, alone, strict=True):
            assert draft_chain(part, 7, 4) == draft_chain(own[0], 7, 4, seq_id=1)
        for bad in (b"", state[:-1], state + b"x", state[:100], b"\xff" * 64):
            with pytest.raises(ValueError, match="saved state of the draft is damaged"):
                both.state_set(bad, 0)
        broken = bytearray(state)
        broken[8:16] = bytes(8)  # the first drafter's own state
        with pytest.raises((ValueError, IncompatibleDraftError)):
            both.state_set(bytes(broken), 0)
        assert both.n_past(0) == both[0].n_past(0) == both[1].n_past(0) == 0


def test_rows_of_one_may_wait(files: tuple[str, str]) -> None:
    text = prompts(1, length=(40, 41))[0]
    with load(*files, draft_sources=("eagle3", "mtp"), **CHAIN) as llm:
        llm.target.decode(text, 0)
        for bits in (0, 1, 2, 3, -1):
            llm.drafters.restart(0, 0)
            llm.drafters.process([(0, 0, text, list(range(40)), bits)])
            expected = [40 if bits >> i & 1 else 1 for i in (0, 1)]
            assert [part.n_waiting() for part in llm.drafters] == expected


def test_states(files: tuple[str, str]) -> None:
    """A saved context continues with drafts of both, in another object too; other drafters' states are refused."""
    (prompt,) = prompts(1, seed=3)
    options: dict[str, Any] = {"draft": "auto", "draft_sources": BOTH}
    with load(*files, **options) as llm, load(*files, **options) as other, load(files[0]) as block:
        for each in (llm, other):
            cheap_rows(each)
        text = take(llm, prompt, N_TOKENS)
        llm.reset()
        llm.eval(prompt)
        state = llm.save_state()
        other.load_state(state)
        assert [part.n_past(0) for part in other.drafters] == [len(prompt)] * 2
        stream = other.generate(prompt, temp=0.0, reset=True)
        assert [next(stream) for _ in range(N_TOKENS)] == text
        stream.close()
        assert min(asked(other)) > 0
        with pytest.raises(IncompatibleDraftError, match="saved with another draft"):
            block.load_state(state)


def test_one_of_them_alone(files: tuple[str, str]) -> None:
    """The set of drafters can be changed, for a request too: the other one is not asked then, and can be again."""
    (prompt,) = prompts(1, seed=4)
    with load(*files, draft="auto", draft_sources=BOTH) as llm:
        cheap_rows(llm)
        for sources in (("mtp",), ("eagle3",)):
            llm.draft_sources = sources
            before = asked(llm)
            take(llm, prompt, N_TOKENS)
            more = [n - m for n, m in zip(asked(llm), before, strict=True)]
            assert more[("eagle3", "mtp").index(sources[0])] > 0
            assert min(more) == 0
            assert list(llm.last_stats.by_source) == list(sources)


def test_costs_of_both_are_measured_and_kept(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path))
    files = write_both(folder, "mimo2-mtp")
    with load(*files, draft="auto", draft_sources=BOTH) as llm:
        for _ in range(3):  # doubtful values of a busy machine are not stored
            llm.calibrate(0.3)
            costs = load_costs(llm.loaded.costs_key())
            if costs is not None:
                break
            llm.engine.drafting.policy = Policy(tuple(llm.drafters))
        assert costs is not None
        assert len(costs.drafts) == 2
        assert all(1 in draft.begin and 1 in draft.step for draft in costs.drafts)
        assert len(llm.policy.costs) == 5
    with load(*files, draft="auto", draft_sources=("mtp", "eagle3")) as llm:
        assert load_costs(llm.loaded.costs_key()) is None  # the order of the drafters counts
    with load(*files, draft="auto") as llm:
        assert load_costs(llm.loaded.costs_key()) is None


def test_a_head_in_another_type(folder: Path) -> None:
    """The block keeps its type."""
    files = write_both(folder, "mimo2-mtp")
    with load(*files, draft_sources=("mtp", "eagle3"), **CHAIN) as llm:
        (prompt,) = prompts(1)
        text = take(llm, prompt, 20)
        before = tuple(llm.drafters)
        llm.loaded.convert_draft(2)
        assert llm.drafters[0] is before[0]
        assert llm.drafters[1] is not before[1]
        assert take(llm, prompt, 20) == text
        with pytest.raises(Exception, match="the drafter is closed"):
            before[1].n_past()


def test_the_file_alone_is_the_default(files: tuple[str, str]) -> None:
    with load(*files) as llm:
        assert llm.draft_sources == ("eagle3", "ngram", "grammar")
        assert len(llm.drafters) == 1


def test_what_does_not_draft_together(folder: Path) -> None:
    files = write_both(folder, "mimo2-mtp")
    with pytest.raises(ValueError, match=r"names 'mtp', but a head is given as draft_model_path: name 'eagle3'"):
        load(*files, draft_sources=["mtp"])
    with pytest.raises(ValueError, match="names 'simple', but a head is given"):
        load(*files, draft_sources=["eagle3", "simple"])
    without = write_random_arch(folder, "mimo2")
    with pytest.raises(IncompatibleDraftError, match=r"no block for multi-token prediction \(key mimo2.nextn"):
        load(without, files[1], draft_sources=BOTH)
    with load(files[0]) as llm, load(files[0], n_ctx=256) as shorter:
        both = [llm.drafters[0], shorter.drafters[0]]
        with pytest.raises(ValueError, match=r"expected drafters of one size, found .*\[\(1, 256\), \(1, 512\)\]"):
            Drafters(both)
    with load(files[0]) as llm, load(*files) as head:
        head.eval([1, 2, 3])
        with pytest.raises(IncompatibleDraftError, match=r"it reads rows of .* at 1 boundaries, the tap has 0 of them"):
            llm.drafters[0].process(head.tap, [1, 2, 3], 0)


def test_flags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flag takes llama.cpp's list of names, in its order; doctor names both."""
    target, head = write_both(folder, "mimo2-mtp")
    files = ["-m", target, "-md", head, "--spec-type", "draft-mtp,draft-eagle3"]
    common = ["-p", "abc", "-n", "12", "-c", "256", "--temp", "0", "-t", "1", "--json", "-", "--spec-draft-n-max", "3"]
    assert main(["speculative-simple", *files, *common]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["by_source"]) == ["mtp"]
    main(["doctor", *files, "-t", "1"])
    out = capsys.readouterr().out
    assert f"head '{head}'" in out
    assert "and target's own block for multi-token prediction" in out
    assert "they fit" in out
    assert isinstance(Stats().by_source, dict)


def test_a_head_and_a_small_model(three: tuple[str, list[str]]) -> None:
    """Both draft in auto, in the order given; texts are those without them, and states go on in another object."""
    target, files = three
    plain = load_plain(target)
    for given in (files, tuple(map(Path, files[::-1]))):
        names = ("eagle3", "simple") if given is files else ("simple", "eagle3")
        with load(target, given[0], draft_model_path=given, draft="auto", n_parallel=3) as llm:
            assert llm.draft_sources == (*names, "ngram", "grammar")
            assert llm.draft_model_path == str(given[0])
            cheap_rows(llm)
            texts = prompts(4)
            outputs = llm.generate_batch(texts, max_tokens=N_TOKENS, temperature=0.0)
            for prompt, output in zip(texts, outputs, strict=True):
                is_tie(plain, prompt, take(plain, prompt, len(output.tokens)), output.tokens)
            assert min(asked(llm)) > 0
            assert set(names) <= llm.stats.by_source.keys()
            assert llm.stats.by_source["simple"].accepted > 0
            llm.reset()
            llm.eval(texts[0])
            state = llm.save_state()
    with load(target, files[1], draft_model_path=files[::-1], draft="auto", n_parallel=3) as other:
        cheap_rows(other)
        other.load_state(state)
        stream = other.generate(texts[0], temp=0.0, reset=True)
        assert [next(stream) for _ in outputs[0].tokens] == outputs[0].tokens
        stream.close()


def test_sampled_text_with_a_head_and_a_small_model(three: tuple[str, list[str]]) -> None:
    target, files = three
    texts = []
    for given in (None, files):
        with load(target, draft_model_path=given, draft="auto", draft_type_k=0, draft_type_v=0) as llm:
            cheap_rows(llm)
            outputs = llm.generate_batch(prompts(3, seed=5), max_tokens=N_TOKENS, temperature=0.8, seed=7)
            texts.append([output.tokens for output in outputs])
    assert texts[0] == texts[1]


def test_a_flag_for_each_of_them(
    three: tuple[str, list[str]], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """-md may be repeated; chains of a fixed length are the first one's, and the log says so."""
    target, (head, small) = three
    files = ["-m", target, "-md", small, "-md", head]
    common = ["-p", "abc", "-n", "12", "-c", "256", "--temp", "0", "-t", "1", "--json", "-", "--spec-draft-n-max", "3"]
    assert main(["speculative-simple", *files, *common]) == 0
    assert list(json.loads(capsys.readouterr().out)["by_source"]) == ["simple"]
    assert "chains and trees of a fixed size are the small model's: the head drafts in auto alone" in caplog.text
    main(["doctor", *files, "-t", "1"])
    out = capsys.readouterr().out
    assert f"head '{head}'" in out
    assert f"small model '{small}'" in out
    assert "they fit" in out
    assert main(["doctor", *files, "-md", small]) == 2
    assert "expected drafters of different kinds, found" in capsys.readouterr().out


@pytest.mark.parametrize("given", [5, [None], ["a.gguf", 3]])
def test_what_is_no_path(three: tuple[str, list[str]], given: Any) -> None:
    with pytest.raises(ValueError, match="expected draft_model_path to be a text or PathLike or a list"):
        Eagle3Llama(three[0], given)
