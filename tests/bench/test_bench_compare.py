"""benchmarks/compare.py: sides in turn, synthetic acceptance, llama-server, tables. No test is about speed."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import compare
import random_model
from comparison import bandwidth, peers, report, runs, settings, synthetic
from comparison.load import Load, load_own
from comparison.measure import Config, Result, Side, measure
from comparison.peers import PeerSetting
from comparison.server import Server
from comparison.settings import Setting
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.bench.report import Spread
from llama_cpp_eagle3.cli import bench
from llama_cpp_eagle3.cli.parser import Parser
from llama_cpp_eagle3.errors import Eagle3Error
from loading import bundled_pair, load_plain, take

NAMES = ["plain", "chain 2", "auto", "tree 3x2:5"]

# answers like llama-server's, with the fields that are read
FAKE_SERVER = """\
#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

n_asked = 0
n_max = int(sys.argv[sys.argv.index("--spec-draft-n-max") + 1])

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        text = "# HELP llamacpp:spec_decode_num_drafts_total x\\n"
        if n_asked:
            text += "llamacpp:spec_decode_num_drafts_total %d\\n" % (6 * n_asked)
            text += "llamacpp:spec_decode_num_draft_tokens_total %d\\n" % (12 * n_asked)
            text += "llamacpp:spec_decode_num_accepted_tokens_total %d\\n" % (5 * n_asked)
            for i, n in enumerate((4, 1)):
                name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
                text += '%s{{position="%d"}} %d\\n' % (name, i, n * n_asked)
        self.answer(text)

    def do_POST(self):
        global n_asked
        n_asked += 1
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["prompt"] == [1, 2, 3] and asked["n_predict"] == 12
        draw = [asked.get(name) for name in ("temperature", "seed", "samplers", "top_k")]
        assert draw in ([0, None, ["top_k"], 1], [0.8, 7, None, None])
        if asked.get("stream"):
            assert asked["ignore_eos"] and asked["return_tokens"]
            events = [{{"tokens": [7]}}] * 10 + [{{"tokens": [7, 8]}}, {{"tokens": [], "stop": True}}]
            return self.answer("".join("data: %s\\n\\n" % json.dumps(event) for event in events))
        times = {{"predicted_n": 12, "predicted_ms": 500.0, "prompt_ms": 20.0 if asked["cache_prompt"] else 40.0}}
        self.answer(json.dumps({{"timings": times, "stop_type": "eos" if n_asked % 2 else "limit"}}))

    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    target, head = random_model.random_pair(tmp_path_factory.mktemp("tiny"), "tiny", "F16", "F16")
    return str(target), str(head)


def config(pair: tuple[str, str], names: list[str], **changes: object) -> Config:
    options = {"texts": ["def f(x):", "class A"], "n_predict": 12, "n_runs": 2, "n_threads": 1, "n_ctx": 128}
    return Config(*pair, [peers.parse(name) for name in names], **options | changes)


def peer_of(folder: Path, script: str) -> runs.Peer:
    program = folder / "llama-server"
    program.write_text(script)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return runs.Peer(folder, None, "target.gguf", "head.gguf", 2)


def test_settings_have_names() -> None:
    for name in [*NAMES, "auto 5", "simple 3", "server 8"]:
        assert peers.parse(name).name == name
    assert peers.parse("simple 3").title == "llama-speculative-simple 3"
    for name in ("", "tree", "tree 3", "chain x", "fast"):
        with pytest.raises(ValueError, match=f"found {name!r}"):
            peers.parse(name)


def test_settings_of_flags() -> None:
    parser = Parser("compare.py", description=None)
    for module in (bench, settings, peers):
        module.add_arguments(parser)
    flags = ["--n-max", "1,4", "--tree-depth", "3,4", "--tree-topk", "2,2", "--tree-tokens", "6,8", "--source", "text"]
    found = settings.from_arguments(parser.parse_args(flags))
    names = ["plain", "auto", "text", "chain 1", "chain 4", "tree 3x2:6", "tree 4x2:8"]
    assert [s.name for s in found] == names
    assert [Setting.parse(name) for name in names] == found
    assert found[2].title == "auto, text alone"
    with pytest.raises(ValueError, match="as many"):
        settings.from_arguments(parser.parse_args(["--tree-depth", "3"]))
    with pytest.raises(ValueError, match="nothing"):
        settings.from_arguments(parser.parse_args(["--no-plain", "--no-auto", "--n-max", ""]))
    found = peers.from_arguments(parser.parse_args(["--n-max", "1,4", "--peer", "server", "--no-auto"]))
    assert [s.name for s in found] == ["plain", "chain 1", "chain 4", "server 1", "server 4"]
    found = peers.from_arguments(parser.parse_args(["--n-max", "2", "--peer", "ngram", "--no-auto"]))
    assert [s.title for s in found[2:]] == ["llama-server ngram-mod", "llama-server ngram-mod 2"]


def test_sides_take_turns(tiny_pair: tuple[str, str]) -> None:
    result = measure(config(tiny_pair, NAMES))
    assert [side.setting.name for side in result.sides] == NAMES
    assert result.n_different == 0
    for side in result.sides:
        assert [run.tokens for run in side.runs] == [22, 22]
        assert len(side.t_first) == 1
        assert all(0 < run.ideal_share < 1 for run in side.runs)
        assert all(run.n_bytes >= run.steps * bandwidth.weights_read(tiny_pair[0]) for run in side.runs)
    assert result.side("plain").runs[0].drafted == 0
    assert result.side("chain 2").runs[0].drafted > 0
    # a tree has more tokens than levels
    tree = result.side("tree 3x2:5").runs[0]
    assert tree.drafted > 3 * tree.steps
    assert Result.from_dict(json.loads(json.dumps(result.as_dict()))) == result


def test_sampled_text_is_the_same_for_all_sides(tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_own, found = runs.run_own, set()

    def kept(llm, prompt, n_predict, **options):  # type: ignore[no-untyped-def]
        run, tokens = run_own(llm, prompt, n_predict, **options)
        found.add((tuple(prompt), tuple(tokens)))
        return run, tokens

    monkeypatch.setattr("comparison.measure.run_own", kept)
    for n_texts, temperature in ((2, 0.0), (4, 2.0)):
        result = measure(config(tiny_pair, NAMES, temperature=temperature))
        assert result.n_different == 0
        assert len(found) == n_texts  # one more of each prompt
        assert ("greedy;" if temperature == 0.0 else "temperature 2;") in report.markdown(result)
        assert Result.from_dict(json.loads(json.dumps(result.as_dict()))) == result


def test_text_of_other_sides_is_compared(tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_own = runs.run_own

    def wrong(llm, prompt, n_predict, **options):  # type: ignore[no-untyped-def]
        run, tokens = run_own(llm, prompt, n_predict, **options)
        return run, tokens if not llm.drafters else [*tokens[:-1], tokens[-1] + 1]

    monkeypatch.setattr("comparison.measure.run_own", wrong)
    assert measure(config(tiny_pair, ["plain", "chain 2"], n_runs=1)).n_different == 2


def test_conditional_chances() -> None:
    assert synthetic.conditional([0.8, 0.4, 0.4, 0.0, 0.0]) == [0.8, 0.5, 1.0, 0.0, 0.0]
    for rates in ([], [0.5, 0.6], [1.2], [-0.1]):
        with pytest.raises(ValueError, match="never rise"):
            synthetic.conditional(rates)


@pytest.mark.parametrize("name", ["chain 3", "tree 3x2:6"])
def test_synthetic_acceptance_follows_its_odds(name: str) -> None:
    pair = tuple(map(str, bundled_pair()))
    result = measure(config(pair, [name], n_predict=350, n_runs=1, n_ctx=512, synthetic=[0.7, 0.5]))
    (run,) = result.side(name).runs
    first, second, third = run.rates
    assert run.steps > 250
    assert first == pytest.approx(0.7, abs=0.06)
    assert second == pytest.approx(0.5, abs=0.06)
    assert third == 0.0


@pytest.mark.parametrize(("rate", "length"), [(1.0, 3.0), (0.0, 1.0)])
def test_synthetic_acceptance_at_its_ends(tiny_pair: tuple[str, str], rate: float, length: float) -> None:
    result = measure(config(tiny_pair, ["chain 2"], synthetic=[rate, rate], n_predict=31))
    # the number of tokens may cut off the last draft of a run
    assert result.side("chain 2").runs[0].acceptance_length == pytest.approx(length, abs=0.1)


def test_synthetic_acceptance_keeps_off_the_normal_path(tiny_pair: tuple[str, str]) -> None:
    plain = load_plain(tiny_pair[0])
    expected = take(plain, [1, 2, 3], 12)
    llm = runs.load(*tiny_pair, n_threads=1, n_ctx=128, draft="chain")
    assert type(llm).__name__ == "Eagle3Llama"
    assert take(llm, [1, 2, 3], 12) == expected
    llm.close()
    plain.close()


def test_synthetic_acceptance_is_marked(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = measure(config(tiny_pair, ["plain", "chain 2"], synthetic=[0.5]))
    assert "SYNTHETIC ACCEPTANCE 0.5" in report.markdown(result)
    assert result.as_dict()["synthetic_acceptance"] == [0.5]
    report.plot(tmp_path / "plot.svg", [("tiny", result)])
    assert "SYNTHETIC ACCEPTANCE 0.5" in (tmp_path / "plot.svg").read_text()


def test_speculative_simple_has_no_synthetic_acceptance(tiny_pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="compare with llama-server"):
        measure(config(tiny_pair, ["simple 2"], synthetic=[0.5]))


def test_table() -> None:
    fast, slow = runs.Run(tokens=30, steps=10, t_decode=1.0), runs.Run(tokens=20, steps=20, t_decode=1.0)
    fast.drafted, fast.accepted, fast.per_position, fast.t_draft, fast.t_verify = 40, 20, [10, 8, 2], 0.2, 0.7
    fast.n_bytes = 3e9
    sides = [Side(Setting("plain"), [slow], [0.5]), Side(Setting("chain", 3), [fast], []), server_side()]
    text = report.markdown(Result(sides, 4, 64, 1, None, draft_type=2), bandwidth=12e9)
    chain = next(line for line in text.splitlines() if line.startswith("| chain 3"))
    values = ("chain 3", "30.0", "1.50", "3.00", "100 80 20", "", "20.00", "70.0", "3.0 (25 %)", "0.700")
    assert [cell.strip() for cell in chain.strip("|").split("|")] == list(values)
    server = next(line for line in text.splitlines() if line.startswith("| llama-server 3"))
    assert [cell.strip() for cell in server.strip("|").split("|")][-4:] == [""] * 4
    assert "different texts: 1" in text
    assert "Our sides converted the head to Q4_0." in text
    assert "SYNTHETIC" not in text


def server_side() -> Side:
    return Side(PeerSetting("server", 3), [runs.Run(tokens=25, steps=10, accepted=15, t_decode=1.0)], [0.4])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if sys.platform == "win32":
        pytest.skip("needs an executable script")
    with Server(peer_of(tmp_path, FAKE_SERVER.format(python=sys.executable)), 2) as running:
        yield running


def test_server(server: Server) -> None:
    for fresh, draw in ((True, {}), (False, {}), (True, {"temperature": 0.8, "seed": 7})):
        run = server.run([1, 2, 3], 12, fresh=fresh, **draw)
        assert (run.tokens, run.steps, run.drafted, run.accepted) == (11, 6, 12, 5)
        assert run.per_position == [4, 1]
        assert run.t_decode == 0.5
        assert run.t_prompt == (0.04 if fresh else 0.02)
    server.close()
    with pytest.raises(Eagle3Error, match="does not answer"):
        server.run([1, 2, 3], 12)


def test_server_with_many_clients(server: Server) -> None:
    server.n_parallel = 2
    found = server.run_many([[1, 2, 3]] * 4, 12)
    assert (found.tokens, found.drafted, found.accepted) == (4 * 12, 4 * 12, 4 * 5)
    assert found.seconds > found.seconds_decoding
    server.close()
    with pytest.raises(Eagle3Error, match="does not answer"):
        server.run_many([[1, 2, 3]], 12)


def test_plain_server_with_slots(tmp_path: Path) -> None:
    peer = runs.Peer(tmp_path, None, "t.gguf", "h.gguf", 2, n_ctx=256)
    command = Server.command(peer, 0, 1234, None, 4, "on")
    assert not {"-md", "--spec-type", "-ngld"} & set(command)
    values = [command[command.index(flag) + 1] for flag in ("-c", "-b", "-np", "-fa")]
    assert values == ["1024", "2048", "4", "on"]


def test_load_while_all_generate() -> None:
    load = Load.of(1.0, [[2.0, 3.0, 4.0, 5.0], [3.0, 4.0, 4.0, 4.5], [2.5, 3.5, 6.0]], 8, 4)
    assert load == Load(5.0, 11, 1.5, 5, 8, 4)
    assert (load.tokens_per_second, load.tokens_per_second_decoding) == (11 / 5, 5 / 1.5)
    assert (load + load).tokens_per_second_decoding == load.tokens_per_second_decoding
    assert load.acceptance_length == 11 / 7


def test_own_load() -> None:
    target, head = map(str, bundled_pair())
    with closing(
        Eagle3Llama(target, draft_model_path=head, n_ctx=256, n_parallel=2, draft_n_max=3, verbose=False)
    ) as llm:
        prompts = [llm.tokenize(text) for text in (b"def f(x):", b"class A", b"import")]
        found = load_own(llm, prompts, 12)
    assert found.tokens == 36
    assert 0 < found.tokens_decoding < 36 - 3
    assert 0 < found.seconds_decoding < found.seconds
    assert 0 < found.accepted < found.drafted
    assert found.acceptance_length > 1


def test_lines_are_plotted(tmp_path: Path) -> None:
    lines = {
        name: [(1, Spread(10.0, 9.0, 11.0, 3)), (4, Spread(20.0, 20.0, 20.0, 3))] for name in ("auto", "llama-server")
    }
    report.plot_lines(tmp_path / "lines.svg", [("one", lines), ("other", lines)], "prompts at once")
    text = (tmp_path / "lines.svg").read_text()
    assert all(word in text for word in ("auto", "llama-server", "other", "prompts at once"))


def test_curves_are_plotted(tmp_path: Path) -> None:
    curves = {name: [(0.0, 3.5), (0.8, 2.5)] for name in ("chain, gumbel", "chain, llama", "tree, gumbel")}
    report.plot_curves(tmp_path / "curves.svg", curves, "temperature", "mean acceptance length")
    text = (tmp_path / "curves.svg").read_text()
    assert all(word in text for word in (*curves, "temperature", "mean acceptance length"))


def test_server_that_ends(tmp_path: Path) -> None:
    with pytest.raises(Eagle3Error, match="does not answer:\nno such model"):
        Server(peer_of(tmp_path, "#!/bin/sh\necho no such model\nexit 1\n"), 2)


def test_server_gets_a_rate_for_every_token(tmp_path: Path) -> None:
    peer = runs.Peer(tmp_path, None, "t.gguf", "h.gguf", 2, n_gpu_layers=-1)
    command = Server.command(peer, 3, 1234, [0.7, 0.5])
    assert command[command.index("--spec-synth-rates") + 1] == "0.7,0.5,0.0"
    assert command[command.index("-ngl") + 1] == "999"
    assert "--spec-synth-rates" not in Server.command(peer, 3, 1234, None)


def test_weights_read(tmp_path: Path) -> None:
    target, head = map(str, bundled_pair())
    # the target's embedding is also its output; the head's d2t is not read
    assert 0 < Path(target).stat().st_size - bandwidth.weights_read(target) < 200_000
    with closing(Eagle3Llama(target, draft_model_path=head, n_ctx=64, verbose=False)) as llm:
        assert 0 < Path(head).stat().st_size - llm.drafters[0].n_bytes_read < 300_000
    target, _ = map(str, random_model.random_pair(tmp_path, "tiny-gpt-oss", "Q8_0", "Q8_0"))
    shape = random_model.SHAPES["tiny-gpt-oss"]
    n_experts = shape.n_layer * 3 * shape.n_ff * shape.n_embd * 4
    n_attention = shape.n_layer * shape.n_embd * (2 * shape.n_embd + 2 * shape.n_head_kv * shape.head_dim)
    n_matrices = n_experts + n_attention + shape.n_vocab * shape.n_embd
    assert bandwidth.weights_read(target) == pytest.approx(n_matrices * 34 / 32, rel=0.02)


def test_bandwidth_is_measured() -> None:
    assert 1e8 < bandwidth.read_bandwidth(1, n_mib=16, n_times=2) < 1e13


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundled_pair()
    (tmp_path / "prompts.json").write_text(json.dumps(["import os\n", "def main():"]))
    flags = ["-r", "1", "-n", "8", "-t", "1", "--n-max", "2", "--no-auto"]
    files = {flag: str(tmp_path / f"out{flag}") for flag in ("--json", "--markdown", "--plot")}
    flags += [part for pair in files.items() for part in pair]
    compare.main([*flags, "-f", str(tmp_path / "prompts.json")])
    assert Path(files["--plot"]).read_bytes()[:4] == b"\x89PNG"  # as without a suffix
    table = Path(files["--markdown"]).read_text()
    assert table.strip() in capsys.readouterr().out
    assert "2 prompts, 8 tokens each" in table
    document = json.loads(Path(files["--json"]).read_text())
    assert [side["name"] for side in document["sides"]] == ["plain", "chain 2"]
    assert document["synthetic_acceptance"] is None
    assert document["bytes_per_second"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tools", "nowhere", "--peer", "server", "--n-prompts", "1"], "nowhere"),
        (["--temp", "0.8", "--peer", "simple", "--n-prompts", "1"], "leave out --peer simple"),
        (["--replay", "a.jsonl", "-f", "b.txt"], "leave them out"),
    ],
)
def test_command_with_bad_input(flags: list[str], message: str) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        compare.main(flags)
