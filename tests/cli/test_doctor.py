"""`llama-cpp-eagle3 doctor`: each finding appears with its cause."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from arch_keys import keys_of
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.doctor import Finding, check_conversation, check_files, installation, pair_check, prospects
from llama_cpp_eagle3.draft.costs import Costs, DraftCosts, save_costs
from llama_cpp_eagle3.extras import install_command
from loading import load, path_of
from random_arch import write_random_arch
from tiny import write_perfect_pair, write_target

FLAGS = ["-t", "1", "-c", "256", "-fa", "off"]
ALL = {"AVX", "AVX2", "FMA", "F16C", "BMI2"}
judge_build = installation.judge_build
CHEAP = Costs({1: 100.0, 2: 100.0, 4: 104.0, 9: 120.0}, (DraftCosts({1: 5.0, 4: 5.0}, {1: 5.0}),))
DEAR = Costs({1: 100.0, 2: 199.0, 4: 390.0, 9: 880.0}, (DraftCosts({1: 50.0, 4: 50.0}, {1: 50.0}),))


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


@pytest.fixture(autouse=True)
def fine_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the findings of the machine that runs the tests."""
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(installation, "judge_build", lambda *_: [])
    monkeypatch.setattr(installation, "find_gpus", list)
    monkeypatch.setattr(installation, "built_backends", set)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("doctor")
    return [path_of(file) for file in write_perfect_pair(folder / "target.gguf", folder / "head.gguf")]


def run(capsys: pytest.CaptureFixture[str], *flags: Any) -> tuple[int, str]:
    status = main(["doctor", *map(str, flags), *FLAGS])
    return status, capsys.readouterr().out


def test_machine_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    status, out = run(capsys)
    assert status == 0
    assert "llama-cpp-python 0.3.36" in out
    assert "threads by default" in out
    assert "pair" not in out
    monkeypatch.setattr(installation, "cpu_quota", lambda: 1.5)
    assert "of which this container may use 1.5" in run(capsys)[1]


@pytest.mark.parametrize(
    ("features", "flags", "compilers", "buffer_types", "expected"),
    [
        (ALL, {"avx2", "fma"}, {"GCC 12.2.0"}, {"CPU_REPACK"}, ["ok"]),
        (ALL, set(), set(), set(), ["ok"]),
        ({*ALL, "AMX_INT8"}, set(), {"GCC 12.2.0"}, {"AMX", "CPU_REPACK"}, ["ok", "warning"]),
        (ALL, set(), {"GCC 12.2.0"}, {"AMX", "CPU_REPACK"}, ["ok", "warning"]),
        # compiled without AMX, except the C file that reports the features
        ({*ALL, "AMX_INT8"}, set(), {"GCC 12.2.0"}, {"CPU_REPACK"}, ["ok"]),
        ({*ALL, "AMX_INT8"}, set(), {"GCC 12.4.0"}, {"AMX"}, ["ok"]),
        ({"SSE3"}, {"avx", "avx2"}, set(), set(), ["ok", "warning"]),
        (ALL, {"avx2", "avx512f"}, set(), set(), ["ok", "note"]),
    ],
)
def test_builds(
    features: set[str], flags: set[str], compilers: set[str], buffer_types: set[str], expected: list[str]
) -> None:
    findings = judge_build(features, flags, compilers, buffer_types)
    assert levels(findings) == expected
    assert all(finding.advice for finding in findings if finding.level != "ok")
    assert ("AMX_INT8" in findings[0].text) == ("AMX" in buffer_types)


def test_cache_folder(tmp_path: Path) -> None:
    assert levels(installation.cache_folder(tmp_path / "new")) == ["ok"]
    (tmp_path / "file").write_text("")
    assert levels(installation.cache_folder(tmp_path / "file")) == ["warning"]


def test_huge_pages(tmp_path: Path) -> None:
    assert installation.huge_pages(tmp_path / "none") == []  # another system
    setting = tmp_path / "enabled"
    for text, level in (("always madvise [never]\n", "note"), ("always [madvise] never\n", "ok")):
        setting.write_text(text)
        (found,) = installation.huge_pages(setting)
        assert found.level == level


def test_missing_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    find = installation.importlib.util.find_spec
    monkeypatch.setattr(
        installation.importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name)
    )
    assert any(f.advice == install_command("serve") for f in installation.software())


def test_files(files: list[str], tmp_path: Path) -> None:
    assert levels(check_files(files[0], files[1:])) == ["ok", "ok", "ok"]
    assert levels(check_files(files[0], [])) == ["ok", "note"]
    other = path_of(write_target(tmp_path / "other.gguf", n_embd=96))
    for target, head, expected in (
        (files[1], None, "is an EAGLE-3 head"),
        (other, files[1], "96"),
        (str(tmp_path / "none.gguf"), files[1], "none.gguf"),
    ):
        (finding,) = check_files(target, [head] if head else [])
        assert finding.level == "error"
        assert expected in finding.text


def test_sizes(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        (tmp_path / f"big[1]-{i:05}-of-00003.gguf").write_bytes(bytes(i))
    (tmp_path / "big[1]-00001-of-00002.gguf").write_bytes(bytes(9))
    assert pair_check.size_of(str(tmp_path / "big[1]-00001-of-00003.gguf")) == 6
    assert pair_check.size_of(str(tmp_path / "big[1]-00002-of-00003.gguf")) == 2


def test_memory() -> None:
    assert levels(pair_check.judge_memory(10, 9, None)) == ["warning"]
    assert (
        pair_check.judge_memory(10, 10, None)
        == pair_check.judge_memory(10, None, None)
        == pair_check.judge_memory(10, 9, 10)
        == []
    )
    (full,) = pair_check.judge_memory(10, 90, 9)
    assert full.level == "warning"
    assert "-ngl N" in full.advice


def test_prospects() -> None:
    cheap = prospects(CHEAP)
    assert [p.acceptance for p in cheap] == [0.5, 0.6, 0.7, 0.8, 0.9]
    assert all(a.speedup < b.speedup for a, b in itertools.pairwise(cheap))
    # by hand: 3 drafted at 50 % give 1.875 tokens for 104 + 5 + 2 * 5
    assert cheap[0].speedup == pytest.approx(1.875 / 1.19)
    assert [(p.n_draft, p.speedup) for p in prospects(DEAR)] == [(0, 1.0)] * 5


def test_pair(files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from llama_cpp_eagle3.cli import doctor

    keys = []
    load = doctor.load_costs
    monkeypatch.setattr(doctor, "load_costs", lambda key: keys.append(key) or load(key))
    status, out = run(capsys, "-m", files[0], "-md", files[1], "--spec-draft-type", "q8_0")
    assert status == 0
    assert re.search(r"target on CPU; head on CPU; 1 CPU threads; (.*\bby \w+/|ggml's own kernels alone: )", out)
    assert "; head converted to q8_0" in out
    keys.clear()
    status, out = run(capsys, "-m", files[0], "-md", files[1])
    assert status == 0
    assert "was not measured yet" in out
    # saved costs are judged
    save_costs(keys[0], CHEAP)
    status, out = run(capsys, "-m", files[0], "-md", files[1])
    assert status == 0
    assert "90 %" in out
    save_costs(keys[0], DEAR)
    status, out = run(capsys, "-m", files[0], "-md", files[1])
    assert status == 1
    assert "drafting does not pay here" in out
    assert "4 rows takes 3.9 times as long" in out


def test_measured(files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from llama_cpp_eagle3.cli import doctor

    monkeypatch.setattr(doctor, "measure_types", lambda *_: CHEAP)
    flags = ["--measure", "-m", files[0], "-md", files[1], "-n", 40, "--spec-draft-n-max", 3]
    status, out = run(capsys, *flags)
    assert status in (0, 1)
    assert "40 tokens: " in out
    assert "100 % accepted" in out
    monkeypatch.setattr(
        doctor, "measure_types", lambda *_: Costs({1: 100.0, 2: 900.0}, (DraftCosts({1: 5.0}, {1: 5.0}),))
    )
    status, out = run(capsys, *flags)
    assert status == 1
    assert "something else ran" in out


def test_trial_findings() -> None:
    trial = pair_check.Trial(40, 100.0, 200.0, 0.8, 3.0, "")
    assert levels(pair_check.judge_trial(trial)) == ["ok"]
    assert "2.00 times as fast" in pair_check.judge_trial(trial)[0].text
    assert levels(pair_check.judge_trial(pair_check.Trial(40, 100.0, 50.0, 0.1, 1.1, ""))) == ["note"]
    assert levels(pair_check.judge_trial(pair_check.Trial(0, None, None, 0.0, 1.0, ""))) == ["note"]
    assert (
        "nothing was drafted: costs" in pair_check.judge_trial(pair_check.Trial(9, 1.0, 1.0, 0.0, 1.0, "costs"))[0].text
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [(["-m", "none.gguf"], "none.gguf"), (["-md", "head.gguf"], "needs a target"), (["-m", "a", "-hf", "b/c"], "once")],
)
def test_errors(capsys: pytest.CaptureFixture[str], flags: list[str], expected: str) -> None:
    status, out = run(capsys, *flags)
    assert status == 2
    assert expected in out


def test_what_cannot_be_loaded(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "-m", files[0], "-md", files[1], "-devd", "NONE7")
    assert status == 2
    assert "loading it fails" in out
    assert "NONE7" in out


def test_what_a_conversation_costs(tmp_path: Path) -> None:
    """A token has the bytes of K and V of all layers, in F16; a hybrid has states too."""
    with load(write_random_arch(tmp_path, "llama"), n_ctx=256, type_k=1, type_v=1) as llm:
        kept, took = check_conversation(llm.engine, measure=True)
        keys = keys_of("llama")
        width = keys["attention.head_count_kv"] * keys["embedding_length"] // keys["attention.head_count"]
        expected = 2 * 2 * keys["block_count"] * width
        found = re.match(
            r"a conversation takes (\d+) bytes a token; ([\d.]+) GiB of host memory hold ([\d,]+)", kept.text
        )
        assert found is not None
        assert expected <= int(found[1]) <= expected + 16  # at most 16 bytes more, of a cell
        n_bytes = llm.prefix_stats.n_bytes_max
        assert float(found[2]) == pytest.approx(n_bytes / 2**30, abs=0.05)
        assert int(found[3].replace(",", "")) == pytest.approx(n_bytes / int(found[1]), rel=0.02)
        assert "to evaluate 1,000 tokens of it again takes" in took.text
        assert llm.engine.slots.cache.stats.n_prefixes == 0
    with load(write_random_arch(tmp_path, "qwen35"), n_ctx=256, prefix_cache_bytes=1000) as llm:
        kept, small = check_conversation(llm.engine, measure=False)
        assert "KiB for each state that it can go back to, 32 at most" in kept.text
        assert "less than one of 256 tokens" in small.text


@pytest.mark.parametrize("measured", [False, True])
def test_a_target_without_a_drafter(
    measured: bool, files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N-grams draft: it names the small model of the family, and with --measure what drafts bring."""
    from llama_cpp_eagle3.cli import doctor
    from llama_cpp_eagle3.draft import siblings

    small = siblings.Sibling("Tiny", "Tiny-0.1B", "me/Small", "MIT", ("llama",), "tiny", 320, 1000)
    monkeypatch.setattr(siblings, "SIBLINGS", (small,))
    monkeypatch.setattr(doctor, "measure_types", lambda *_: Costs(CHEAP.target))
    status, out = run(capsys, "-m", files[0], "-n", 8, *(["--measure"] if measured else []))
    assert status == 0
    assert "n-grams alone draft here" in out
    assert "-> its family's small model, Tiny-0.1B, would draft too: -hfd auto fetches it (computed: " in out
    if measured:
        assert "90 %" in out
        assert re.search(r"Tiny-0\.1B \(-hfd auto\) would bring \d\.\d times plain decoding by these costs", out)
        assert "8 tokens: " in out
