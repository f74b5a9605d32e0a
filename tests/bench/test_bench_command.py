"""`llama-cpp-eagle3 bench`: sides in turn, figures, tables. No test is about speed."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import random_model
from llama_cpp_eagle3 import Eagle3Llama, cli
from llama_cpp_eagle3.bench import compare
from llama_cpp_eagle3.bench.compare import Config, Result, Side, context_size
from llama_cpp_eagle3.bench.report import for_terminal, markdown
from llama_cpp_eagle3.cli import bench
from llama_cpp_eagle3.cli.parser import Parser
from llama_cpp_eagle3.engine.stats import Stats
from loading import bundled_pair, load_plain, take

PLAIN, AUTO = ("plain", 0), ("auto", 0)
SETTINGS = [PLAIN, ("chain", 2), AUTO, ("chain", 4)]


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    target, head = random_model.random_pair(tmp_path_factory.mktemp("tiny"), "tiny", "F16", "F16")
    return str(target), str(head)


def config(pair: tuple[str, str], settings: list[tuple[str, int]], **changes: Any) -> Config:
    options = {"n_threads": 1, "n_ctx": changes.pop("n_ctx", 128)}
    texts = changes.pop("texts", ["def f(x):", "class A"])
    asked = {"n_predict": 12, "n_runs": 2, "n_fresh": 1} | changes
    return Config(*pair, settings, texts, options, ("eagle3", "ngram"), **asked)


def run(config: Config) -> Result:
    return compare.compare(config, lambda text: None)


def test_turns() -> None:
    """Sides run prompt by prompt; each run begins with another side, and the first one evaluates its prompts anew."""
    a, b = "ab"
    found = list(compare.turns([a, b], n_prompts=2, n_runs=2, n_fresh=1))
    first = [(a, 0, 0, True), (b, 0, 0, True), (b, 0, 1, False), (a, 0, 1, False)]
    assert found == [*first, *((s, 1, i, False) for s, _, i, _ in first)]


def test_it_says_how_long_it_takes(tiny_pair: tuple[str, str]) -> None:
    """As soon as each side had a turn; without files it takes a few prompts."""
    said: list[str] = []
    compare.compare(config(tiny_pair, [PLAIN, AUTO]), said.append)
    assert [bool(re.search(r"; \d+ s left$", line)) for line in said] == [False] * 3 + [True] * 6
    parser = Parser("bench")
    bench.add_arguments(parser)
    for flags, n in (([], 8), (["--n-prompts", "30"], 30), (["-f", __file__], 1)):
        assert len(bench.read(parser.parse_args(["-m", tiny_pair[0], *flags]))[2]) == n


def test_the_context_holds_what_is_measured(tiny_pair: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """Long prompts get a context that holds them and their answers; a requested one that is too small is refused."""
    texts = ["def f(x):", "def f(x): return x " * 60]
    with closing(Eagle3Llama(tiny_pair[0], n_ctx=64, verbose=False)) as llm:
        n_longest = len(llm.tokenize(texts[1].encode(), special=True))
    capfd.readouterr()
    n_ctx = context_size(tiny_pair[0], texts, 12, 0)
    assert capfd.readouterr().err == ""
    assert n_longest + 12 > 512
    assert n_ctx == -(-(n_longest + 12 + 64) // 256) * 256
    assert context_size(tiny_pair[0], texts[:1], 12, 0) == 512
    result = run(config(tiny_pair, [PLAIN, AUTO, ("chain", 2)], texts=texts, n_ctx=0))
    assert [side.stats.tokens for side in result.sides] == [2 * 2 * 12] * 3
    with pytest.raises(ValueError, match=f"the longest prompt has {n_longest} tokens .* 12, the context 128: give a"):
        run(config(tiny_pair, [PLAIN], texts=texts))


def test_sides_take_turns(tiny_pair: tuple[str, str]) -> None:
    result = run(config(tiny_pair, SETTINGS))
    assert [side.name for side in result.sides] == ["plain", "chain 2", "auto", "chain 4"]
    assert result.n_different == 0
    for side in result.sides:
        assert side.stats.tokens == 2 * 2 * 12
        assert len(side.tokens_per_second) == 2
        assert len(side.t_first) == 1
        assert min(*side.tokens_per_second, *side.t_first) > 0
    plain, two, _, four = result.sides
    assert plain.stats.drafted == 0
    assert 0 < two.stats.drafted <= 2 * two.stats.steps
    assert two.stats.drafted / two.stats.steps < four.stats.drafted / four.stats.steps


def test_no_side_is_bounded_by_another_one(tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With "auto" as many tokens may be drafted as without the chains of another side."""
    generate, lengths = compare.generate, []

    def kept(llm: Any, *args: Any, **options: Any) -> Any:
        lengths.append((llm.draft, llm.draft_n_max))
        return generate(llm, *args, **options)

    monkeypatch.setattr(compare, "generate", kept)
    run(config(tiny_pair, [("chain", 2), AUTO, ("chain", 3)], texts=["a"], n_runs=1))
    with closing(compare.load(*tiny_pair, 1, n_ctx=128)) as llm:
        assert (llm.draft, llm.draft_n_max > 3) == ("auto", True)
        assert set(lengths) == {("chain", 2), ("auto", llm.draft_n_max), ("chain", 3)}


def test_what_is_generated_is_the_targets_own_text(tiny_pair: tuple[str, str]) -> None:
    with closing(load_plain(tiny_pair[0])) as plain, closing(compare.load(*tiny_pair, 1, n_ctx=128)) as llm:
        expected = take(plain, [1, 2, 3], 12)
        for fresh in (True, False):
            timed = compare.generate(llm, [1, 2, 3], 12, fresh=fresh)
            assert timed.tokens == expected
            assert timed.seconds > 0


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_sampled_text_is_the_same_for_all_sides(
    tiny_pair: tuple[str, str], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, found = compare.generate, set()

    def kept(llm: Any, prompt: Any, *args: Any, **options: Any) -> Any:
        timed = generate(llm, prompt, *args, **options)
        found.add((tuple(prompt), tuple(timed.tokens)))
        return timed

    monkeypatch.setattr(compare, "generate", kept)
    asked = config(tiny_pair, SETTINGS, temperature=temperature)
    result = run(asked)
    assert result.n_different == 0
    assert len(found) == 2
    assert ("greedy;" if temperature == 0.0 else "temperature 2;") in markdown(asked, result)


def test_text_of_other_sides_is_compared(tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    generate = compare.generate

    def wrong(llm: Any, *args: Any, **options: Any) -> Any:
        timed = generate(llm, *args, **options)
        if llm.drafters:
            timed.tokens[-1] += 1
        return timed

    monkeypatch.setattr(compare, "generate", wrong)
    assert run(config(tiny_pair, [PLAIN, ("chain", 2)], n_runs=1)).n_different == 2


def test_table() -> None:
    plain = Side("plain", [20.0], Stats(tokens=21, steps=20, verify_ns=10**9), [0.5])
    stats = Stats(tokens=31, steps=10, drafted=40, accepted=20, draft_ns=2 * 10**8, verify_ns=7 * 10**8)
    stats.accepted_per_position = [10, 8, 2]
    asked = config(("a.gguf", "b.gguf"), [PLAIN], n_runs=3)
    text = markdown(asked, Result([plain, Side("chain 3", [31.0, 30.0, 29.0], stats)], 1, 2, "avx2"))
    chain = next(line for line in text.splitlines() if line.startswith("| chain 3"))
    values = ["chain 3", "30.0 (29.0 - 31.0)", "1.50", "3.00", "100 80 20", "", "20.00", "70.0"]
    assert [cell.strip() for cell in chain.strip("|").split("|")] == values
    assert "| plain | 20.0 | 1.00 | 1.00 |  | 500 |  | 50.0 |" in text
    for part in ("different texts: 1.", "2 prompts, 12 tokens each", "converted to q4_0.", "CPU kernels: avx2."):
        assert part in text

    lines = for_terminal(
        asked, Result([plain, Side("chain 3", [31.0, 30.0, 29.0], stats)], 1, 2, "avx2"), 60
    ).splitlines()
    assert lines[0].split() == ["plain", "chain", "3"]
    assert lines[1].split() == ["tokens/s", "20.0", *values[1].split()]
    assert max(map(len, lines)) <= 60
    assert " ".join(lines).endswith("CPU kernels: avx2.")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundled_pair()
    (tmp_path / "prompts.json").write_text(json.dumps(["import os\n", "def main():"]))
    flags = ["-r", "1", "-n", "8", "-t", "1", "--n-max", "2", "--no-auto"]
    path, reader = tmp_path / "out.json", tmp_path / "reader"
    path.write_text("old")  # a reader may have opened the old file
    reader.hardlink_to(path)
    assert cli.main(["bench", *flags, "--json", str(path), "-f", str(tmp_path / "prompts.json")]) == 0
    assert reader.read_text() == "old"
    text = capsys.readouterr().out
    assert "2 prompts, 8 tokens each" in text
    document = json.loads(path.read_text())
    assert [side["name"] for side in document["sides"]] == ["plain", "chain 2"]
    assert document["texts"] == 2
    assert document["machine"] in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-m", "a.gguf"], "a.gguf"),
        (["-m", "a.gguf", "--n-max", "3"], "chains of a fixed length are a drafter's with weights"),
        (["-m", "a.gguf", "--spec-type", "none"], "leave --spec-type none out"),
        (["-m", "a.gguf", "-md", "b.gguf", "-r", "1"], "a.gguf"),
        (["-r", "0"], "at least 1"),
        (["--no-plain", "--no-auto", "--n-max", ""], "nothing to run"),
        (["-f", "no.txt"], "no.txt"),
        (["--temp", "-1"], "--temp of at least 0, found -1"),
        (["--temp", "nan"], "--temp of at least 0, found nan"),
    ],
)
def test_command_with_bad_input(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "calibrate", "speculative-simple"])
def test_commands_without_a_drafter(command: str, tiny_target: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """N-grams draft, and one line says what a drafter with weights would add."""
    more = {"bench": ["-n", "6", "-r", "1", "--n-prompts", "1", "-c", "2048"], "calibrate": ["--seconds", "0.1"]}
    flags = more.get(command, ["-p", "the self", "-n", "6", "--baseline"])
    assert cli.main([command, "-m", tiny_target.path, "-t", "1", *flags]) in (0, 1)  # 1: the machine is busy
    out = "".join(capsys.readouterr())
    assert "n-grams draft" in out
    assert "no small model of its family is known (docs/pairs.md); a head that was trained for it" in out
    assert ("| auto |" in out) == (command == "bench")
    assert ("times as fast" in out) == (command == "speculative-simple")
