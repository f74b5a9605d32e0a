"""Tests of the tasks of benchmarks/tasks.py: the requests of their files, and the tables of answers."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from llama_cpp_eagle3 import models

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # for the benchmarks' common module
tasks = importlib.import_module("tasks")
sides = importlib.import_module("task_sides")
ARGS = argparse.Namespace(first=None, temp=0.0, n_predict=384, clients=1)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_requests(task: str) -> None:
    groups = tasks.requests_of(task, 3, ARGS)
    assert len(groups) == {"agent": 1, "fim": 40, "typing": 40}.get(task, len(groups))
    for asked in (asked for group in groups for asked in group):
        json.dumps(asked.body)
        if task in ("fim", "typing"):
            assert "\n" not in asked.body["prompt"]
            assert asked.body["prompt"].strip()
            assert asked.body["input_suffix"].startswith("\n")
            assert asked.body["input_extra"][0]["filename"] == "round3.txt"
        else:
            assert asked.body["messages"][0] == {"role": "system", "content": "Round 3. Be helpful."}
            assert asked.body["messages"][-1]["role"] in ("user", "tool")


def test_an_agents_turns_have_all_before_them() -> None:
    (turns,) = tasks.requests_of("agent", 0, ARGS)
    assert len(turns) >= 8
    for before, after in pairwise(turns):
        n = len(before.body["messages"])
        assert after.body["messages"][:n] == before.body["messages"]
        assert after.body["messages"][n]["role"] == "assistant"


def test_each_character_cancels_the_one_before() -> None:
    for first, second, last in tasks.requests_of("typing", 0, ARGS):
        assert first.is_cancelled
        assert second.is_cancelled
        assert not last.is_cancelled
        assert last.body["prompt"][:-1] == second.body["prompt"]
        assert second.body["prompt"][:-1] == first.body["prompt"]
        assert first.body["input_suffix"] == last.body["input_suffix"]


def test_table() -> None:
    def turn(i: int, seconds: float, tokens: int, accepted: int) -> object:
        answer = tasks.Answer(1, tokens, accepted, 100, 40, t_first=1.0, t_whole=seconds)
        return tasks.Turn(i, 0, seconds, answer)

    sides = {
        "plain": [turn(0, 5.0, 21, 0), turn(1, 3.0, 21, 0)],
        "auto": [turn(0, 2.5, 21, 14), turn(1, 2.0, 21, 14)],
    }
    lines = [line.split(" | ") for line in tasks.report("edits", sides).splitlines()]
    assert lines[0][0] == "| edits, 1 answers, 2 rounds"
    assert lines[2][1] == "7.5 (5.0 - 10.0)"  # 20 tokens in 4 and in 2 s after the first one
    assert lines[3][3] == "2.25 (2.00 - 2.50)"
    assert lines[3][4] == "1.75 (1.50 - 2.00)"  # ratios of the same turns
    assert lines[3][5:7] == ["3.00", "40 %"]


def test_sides() -> None:
    args = argparse.Namespace(ctx_size=4096, clients=2, threads=2, tools=None)
    with pytest.raises(ValueError, match=r"expected one of plain, auto, .*, found 'eagle'"):
        sides.command_of("eagle", "m.gguf", "d.gguf", args)
    command = sides.command_of("auto-ngram", "m.gguf", "d.gguf", args)
    assert command[-2:] == ["--spec-type", "ngram-simple"]
    assert command[command.index("-c") + 1] == "8192"
    command = sides.command_of("auto=other.gguf", "m.gguf", "d.gguf", args)
    assert command[-2:] == ["-md", "other.gguf"]
    assert tasks.different({"plain": ["a"], "auto": ["b"], "llama-server": ["c"]}) == {"auto": 1}
    assert tasks.different({"plain": ["a"], "auto": ["a"]}) == {}


@pytest.mark.parametrize(
    ("types", "flags"),
    [
        ("ngram-simple", "--spec-type ngram-simple"),
        ("ngram-map-k4v@8", "--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-m 8"),
        ("ngram-mod@16", "--spec-type ngram-mod --spec-ngram-mod-n-max 16 --spec-ngram-mod-n-min 1"),
        ("draft-simple@3", "--spec-type draft-simple -md HEAD --spec-draft-n-max 3"),
        ("draft", "--spec-type draft-eagle3 -md HEAD"),
        (
            "ngram-mod@16+draft@3",
            "--spec-type ngram-mod,draft-eagle3 -md HEAD --spec-ngram-mod-n-max 16 --spec-ngram-mod-n-min 1 "
            "--spec-draft-n-max 3",
        ),
    ],
)
def test_types_of_llama_server(types: str, flags: str) -> None:
    head = str(models.bundled_pair()[1])
    assert sides.spec_flags(types, head) == [head if flag == "HEAD" else flag for flag in flags.split()]


def test_the_best_of_llama_server() -> None:
    """The best side is found task by task, by the time of whole answers."""

    def turns(*seconds: float) -> list[object]:
        return [tasks.Turn(i, 0, t, sides.Answer(1, 20, 0, t_whole=t)) for i, t in enumerate(seconds)]

    found = {
        "edits": {
            "plain": turns(4, 6),
            "auto": turns(2, 2),
            "llama-server": turns(9, 9),
            "llama-server:b": turns(4, 8),
        },
        "json": {"plain": turns(4, 6), "auto": turns(4, 4), "llama-server": turns(5, 5), "llama-server:b": turns(6, 6)},
    }
    _, _, edits, of_json = (line.strip("| ").split(" | ") for line in tasks.summary(found).splitlines())
    assert edits == ["edits", "2", "5.00", "2.00", "6.00 (b)", "3.00"]
    assert of_json == ["json", "2", "5.00", "4.00", "5.00 (plain)", "1.25"]
    assert "best" not in tasks.summary({"edits": {"plain": turns(1.0)}})


def test_nothing_learned_from_the_questions() -> None:
    """No six words in a row of *questions* are in what heads learned from, or in another set that prices were tuned to.

    Rules make prompts of parts of sentences, so these are compared part by part.
    """
    folder = Path(tasks.__file__).parent
    learned = [path for path in (folder / "replay").iterdir() if path.suffix in (".jsonl", ".txt", ".json")]
    learned += [path for path in (folder / "tasks").iterdir() if path.name != "questions.jsonl"]
    learned += [folder / "head_prompts.py", folder / "code_prompts.py"]
    known = set().union(*(sixes(path.read_text(encoding="utf-8")) for path in learned))
    asked = [group[0].body["messages"][-1]["content"] for group in tasks.requests_of("questions", 0, ARGS)]
    assert len(asked) == len(set(asked)) == 40
    for text in asked:
        assert not (sixes(text) & known), text


def sixes(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + 6]) for i in range(len(words) - 5)}
