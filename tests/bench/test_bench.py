"""Tests of the parts of benchmarks. None is about speed."""

from __future__ import annotations

import pytest

import random_model
from comparison import peer_tools, runs
from comparison.figures import percent
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3.errors import Eagle3Error

# the end of the pinned llama-speculative-simple's log
LOG = """\
encoded   45 tokens in    0.054 seconds, speed:  836.151 t/s
decoded   25 tokens in    0.561 seconds, speed:   44.530 t/s

n_draft   = 4
n_predict = 25
n_drafted = 38
n_accept  = 15
accept    = 39.474%

draft:

spec common_specu: statistics     draft-eagle3: #calls(b,g,a) =    1     10     10, #gen drafts =     10, \
#acc drafts =     6, #gen tokens =     38, #acc tokens =     15, #mean acc len = 2.50, \
#acc rate/pos = (0.600, 0.500, 0.300, 0.100), dur(b,g,a) = 0.003, 20.500, 0.011 ms
"""


@pytest.mark.parametrize(
    ("shape", "ftype"),
    [("tiny", "F16"), ("tiny", "Q8_0"), ("tiny", "Q4_K_M"), ("tiny-qwen35", "Q4_0"), ("tiny-gpt-oss", "Q4_0")],
)
def test_random_pair_generates(tmp_path, shape, ftype):
    target, head = random_model.random_pair(tmp_path, shape, ftype, ftype)
    llm = runs.load(str(target), str(head), n_threads=1, n_ctx=128, draft="chain")
    prompt = llm.tokenize(b"def f(x):", special=True)
    run, tokens = runs.run_own(llm, prompt, 8)
    plain, expected = runs.run_own(runs.load(str(target), None, n_threads=1, n_ctx=128), prompt, 8)
    assert tokens == expected
    assert (run.tokens, plain.tokens, plain.drafted) == (7, 7, 0)
    assert run.drafted > 0
    assert run.t_draft > 0
    assert run.t_decode > run.t_verify + run.t_draft
    llm.close()


def test_random_pair_is_made_once(tmp_path):
    target, head = random_model.random_pair(tmp_path, "tiny", "Q8_0", "Q8_0")
    times = target.stat().st_mtime_ns, head.stat().st_mtime_ns
    random_model.random_pair(tmp_path, "tiny", "Q8_0", "Q8_0")
    assert (target.stat().st_mtime_ns, head.stat().st_mtime_ns) == times


def test_parse_peer():
    run = runs.parse_peer(LOG, {"t_steps_us": 4000})
    assert (run.tokens, run.steps, run.drafted, run.accepted) == (25, 10, 38, 15)
    assert run.per_position == [6, 5, 3, 1]
    assert run.acceptance_length == 2.5
    assert run.t_decode == 0.561
    assert run.t_draft == pytest.approx(0.004 + 0.020514)


def test_parse_peer_without_figures():
    with pytest.raises(Eagle3Error, match="printed no"):
        runs.parse_peer("nothing", {"t_steps_us": 0})


def test_runs_add_up():
    a = runs.Run(tokens=3, steps=2, drafted=4, accepted=1, per_position=[1], t_decode=1.0)
    b = runs.Run(tokens=5, steps=2, drafted=4, accepted=3, per_position=[2, 1], t_decode=1.0)
    both = runs.total([a, b])
    assert (both.tokens, both.steps, both.acceptance, both.per_position) == (8, 4, 0.5, [3, 1])
    assert both.tokens_per_second == 4.0
    assert both.rates == [0.75, 0.25]


def test_tools_of_a_folder(tmp_path, monkeypatch):
    for tool in peer_tools.TOOLS:
        (tmp_path / tool).touch()
    assert peer_tools.get_tools(tmp_path) == tmp_path
    monkeypatch.setenv(peer_tools.ENV_TOOLS, str(tmp_path))
    assert peer_tools.get_tools() == tmp_path
    (tmp_path / peer_tools.TOOLS[0]).unlink()
    with pytest.raises(FileNotFoundError, match=peer_tools.TOOLS[0]):
        peer_tools.get_tools()


def test_figures():
    assert Spread.of([3.0, 1.0, 2.0]).text() == "2.0 (1.0 - 3.0)"
    assert Spread.of([0.002]).text(0, 1e-3) == "2"
    assert percent(0.1234) == "12.3 %"
    assert table(["a", "b"], [["x", 1]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
