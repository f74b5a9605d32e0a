"""Conversations that continue in another process: they give the text and logits of a fresh evaluation.

On CPUs with kernels of ours, rows are bit for bit those of a pass alone, so both must be equal bit for bit.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inflate import quantize_target
from llama_cpp_eagle3 import Eagle3Llama, _core
from llama_cpp_eagle3.engine import Sampling, Sequence, prefix_cache
from llama_cpp_eagle3.files import fingerprint
from llama_cpp_eagle3.files.cache_dir import cache_dir
from llama_cpp_eagle3.files.prefix_file import read_prefix, write_prefix
from random_arch import write_random_arch
from tiny import write_head, write_perfect_pair, write_target

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "hybrid": ("qwen35", {}),
    "windows": ("gemma3", {"swa_full": True}),
    "windows-alone": ("gemma3", {"swa_full": False}),
}
OPENING = [100, 101, 102, 103]
needs_kernels = pytest.mark.skipif(not _core.cpu_kernel_names(), reason="no kernel for this processor")


def some(n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(30, 120) for _ in range(n)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Return (target, head) of each architecture; weights in F16, for which there is a kernel."""
    found = {}
    for arch in ("llama", "qwen35", "gemma3"):
        folder = tmp_path_factory.mktemp(arch)
        path = folder / "target.gguf"
        quantize_target(write_random_arch(folder, arch), path, "F16", 2)
        info = _core.read_target(str(path))
        target: Any = SimpleNamespace(
            path=str(path), arch=info.arch, n_embd=info.n_embd, n_vocab=info.n_vocab, n_layer=info.n_layer
        )
        write_head(folder / "head.gguf", target, boundaries=(1, info.n_layer - 1, info.n_layer))
        found[arch] = path, folder / "head.gguf"
    return found


def load(path: Path, head: Path | None = None, **options: Any) -> Eagle3Llama:
    defaults: dict[str, Any] = {"n_ctx": 2048, "n_batch": 64, "n_ubatch": 64, "n_threads": 1, "cpu_kernels": "on"}
    if head is not None:
        defaults |= {"draft_model_path": str(head), "draft": "chain", "draft_n_max": 3}
    return Eagle3Llama(str(path), verbose=False, **{**defaults, **options})


def run(llm: Eagle3Llama, parts: list[list[int]], n: int = 12) -> Sequence:
    """Answer a prompt of messages, the last of which is the beginning of the answer."""
    tokens = [token for part in parts for token in part]
    ends = [sum(map(len, parts[: i + 1])) for i in range(len(parts) - 1)]
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    sequence = llm.engine.add(tokens, sampling, max_tokens=n, boundaries=ends, logprobs=4)
    while not sequence.is_done:
        llm.engine.step()
    assert sequence.result.error is None
    return sequence


def check_fresh(llm: Eagle3Llama, sequence: Sequence) -> None:
    """Check that text and log-probabilities are those of an evaluation from the beginning, bit for bit."""
    llm.reset()
    expected = run(llm, [sequence.tokens[: sequence.n_prompt], []], len(sequence.generated))
    assert expected.n_cached == 0
    assert sequence.generated == expected.generated
    assert sequence.result.logprobs == expected.result.logprobs


@needs_kernels
@pytest.mark.parametrize("has_head", [False, True], ids=["alone", "head"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation(files: dict[str, tuple[Path, Path]], tmp_path: Path, kind: str, has_head: bool) -> None:
    """The process restarts after each turn, and the second answer has thoughts that the template drops.

    A whole cache of windows can be cut anywhere in a slot, but its saved part is usable at its end alone.
    """
    arch, options = KINDS[kind]
    path, head = files[arch]
    options = options | ({"head": head} if has_head else {})
    history = [some(150, 1)]
    with closing(load(path, **options, prefix_cache_bytes=0)) as fresh:
        for turn in range(4):
            history.append(some(40, 10 + turn))
            n_before = sum(map(len, history[:-1]))
            with closing(load(path, **options, prefix_cache_dir=tmp_path)) as llm:
                sequence = run(llm, [*history, OPENING], 30)
                check_fresh(fresh, sequence)
                stats = llm.prefix_stats
                serves = kind != "windows" or turn != 2
                if turn and serves:
                    n_dropped = 20 + len(OPENING) if turn == 2 else 1
                    assert sequence.n_cached >= n_before - n_dropped - 20
                    assert stats.reused_tokens == {"slot": 0, "host": 0, "disk": sequence.n_cached}
                # another conversation begins as this one did
                other = run(llm, [history[0], some(60, 20 + turn), OPENING])
                check_fresh(fresh, other)
                assert other.n_cached >= 150 - 1 or (kind == "windows" and turn)
            answer = sequence.generated[:-1]
            history.append([*OPENING, *(answer[10:] if turn == 1 else answer)])
    assert list(tmp_path.glob("*.prefix"))
    assert bool(list(tmp_path.glob("*.state"))) == (kind in ("hybrid", "windows-alone"))


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_slot_goes_back(files: dict[str, tuple[Path, Path]], tmp_path: Path, kind: str) -> None:
    """In another process as in this one, a slot goes back to the end of the messages before the last one."""
    (path, _), options = files[KINDS[kind][0]], KINDS[kind][1]
    history = [some(150, 1), some(40, 2), OPENING]
    edits = [[*history[:2], [*OPENING, 50, 51]], [history[0], some(40, 3), OPENING]]
    found = []
    with closing(load(path, **options, prefix_cache_bytes=0)) as fresh:
        for is_restored in (False, True):
            for edit in edits:
                with closing(load(path, **options)) as llm:
                    if is_restored:
                        llm.engine.restore_prefix(0, read_prefix(tmp_path / "slot")[1])
                    else:
                        run(llm, history, 30)
                        write_prefix(tmp_path / "slot", llm.loaded.maker, llm.engine.store_prefix(0))
                    sequence = run(llm, edit)
                    check_fresh(fresh, sequence)
                    found.append(sequence.n_cached)
    assert min(found[::2]) >= 190 - 1
    assert min(found[1::2]) >= 150 - 1


def test_the_drafter_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The drafter's rows come from the file too: drafts are as right as before.

    Another head's rows are left out, and those of other types.
    """
    target, head = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf")
    other = write_head(tmp_path / "other.gguf", target)
    cache = tmp_path / "cache"
    parts = [some(100, 1), OPENING]
    with closing(load(target.path, head.path, prefix_cache_dir=cache)) as llm:
        first = run(llm, parts, 30)
    parts = [parts[0], [*OPENING, *first.generated, 40], OPENING]
    with closing(load(target.path, head.path, prefix_cache_dir=cache)) as llm:
        second = run(llm, parts)
        stats = second.result.stats
        assert second.n_cached >= 130
        assert stats.drafted == stats.accepted > 0
    others: list[dict[str, Any]] = [
        {"head": other.path},
        {"head": head.path, "draft_type_k": 0, "draft_type_v": 30},
        {},
    ]
    for options in others:
        with closing(load(target.path, **options, prefix_cache_dir=cache)) as llm:
            again = run(llm, parts)
            assert again.n_cached >= 130
            assert again.generated == second.generated
    assert not caplog.messages


SETTINGS: dict[str, dict[str, Any]] = {
    "type_k": {"type_k": 8},
    "flash_attn": {"flash_attn": False},
    "kv_unified": {"n_parallel": 2, "kv_unified": False},
    "cpu_kernels": {"cpu_kernels": "off"},
    "rope": {"rope_freq_base": 20_000.0},
}


@needs_kernels
def test_other_settings_have_other_files(files: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    """Settings that change hidden states or their bytes each find their own files again, and none another's."""
    (path, _), (other, _) = files["llama"], files["qwen35"]
    parts = [some(100, 1), OPENING]
    loads = [(path, {}), *((path, options) for options in SETTINGS.values()), (other, {})]
    for n_found in (0, 100):
        for model, options in loads:
            with closing(load(model, **options, prefix_cache_dir=tmp_path)) as llm:
                assert (run(llm, parts).n_cached >= 90) == (n_found > 0), options
    assert len({name.name.split("-")[0] for name in tmp_path.iterdir()}) == len(loads)


def test_two_exports_of_one_size(tmp_path: Path) -> None:
    """Files that differ in the middle alone, as exports of one training do, have files of their own."""
    shape: dict[str, Any] = {"n_layer": 8, "n_embd": 128, "n_ff": 192}
    a = write_target(tmp_path / "a.gguf", **shape)
    name = "model.layers.2.self_attn.v_proj.weight"
    b = write_target(tmp_path / "b.gguf", **shape, weights={name: -a.weights[name]})
    assert Path(a.path).stat().st_size == Path(b.path).stat().st_size
    prompt = [some(150, 1), OPENING]
    texts = []
    for path, folder, n_found in ((a.path, "c", 0), (b.path, "d", 0), (b.path, "c", 0), (a.path, "c", 150)):
        with closing(load(Path(path), prefix_cache_dir=tmp_path / folder)) as llm:
            sequence = run(llm, prompt, 30)
            assert (sequence.n_cached >= 150) == (n_found > 0), path
            texts.append(sequence.generated)
    assert texts[1] == texts[2]
    assert texts[0] == texts[3] != texts[1]


def test_a_large_file_that_no_one_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading and answering do not wait for it; what is kept then is found after a restart, and serves meanwhile."""
    path, cache = write_target(tmp_path / "a.gguf").path, tmp_path / "cache"
    go, real = threading.Event(), fingerprint._read
    monkeypatch.setattr(fingerprint, "_N_QUICK", -1)
    monkeypatch.setattr(fingerprint, "_read", lambda *args: real(*args) if go.wait(60) else "")
    parts = [some(150, 1), OPENING]

    def begin_anew() -> Eagle3Llama:
        go.clear()
        monkeypatch.setattr(fingerprint, "_known", {})
        for file in (cache_dir() / "fingerprints").glob("*"):
            file.unlink()
        return load(Path(path), prefix_cache_dir=cache)

    with closing(begin_anew()) as llm:
        first = run(llm, parts)
        assert not list(cache.glob("*"))
        assert llm.engine.keep()
        go.set()
        llm.loaded.maker  # noqa: B018
        while not list(cache.glob("*.prefix")):
            llm.engine.keep()
    with closing(begin_anew()) as llm:
        second = run(llm, parts)  # the same text is in a slot now, and in a file
        go.set()
        assert llm.loaded.maker
        while not llm.prefix_stats.n_prefix_files:
            llm.engine.keep()
        third = run(llm, parts)
    assert [s.n_cached for s in (first, second)] == [0, 0]
    assert third.n_cached >= 150
    with closing(load(Path(path), prefix_cache_dir=cache)) as llm:
        assert llm.prefix_stats.n_prefix_files == 1
        fourth = run(llm, parts)
        assert llm.prefix_stats.reused_tokens["disk"] >= 150
    assert first.generated == second.generated == third.generated == fourth.generated


def test_a_folder_that_comes_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process ends while the model's file is read, or it cannot be read: one line says that nothing is kept."""
    path, cache = write_target(tmp_path / "a.gguf").path, tmp_path / "cache"
    go = threading.Event()

    def fail(*args: Any) -> str:
        go.wait(60)
        raise OSError("the disk is gone")

    monkeypatch.setattr(fingerprint, "_N_QUICK", -1)
    monkeypatch.setattr(fingerprint, "_read", fail)
    monkeypatch.setattr(prefix_cache, "_CLOSE_SECONDS", 0.0)
    for is_read in (False, True):
        monkeypatch.setattr(fingerprint, "_known", {})
        with closing(load(Path(path), prefix_cache_dir=cache)) as llm:
            run(llm, [some(100, 1), OPENING])
            if is_read:
                go.set()
                with pytest.raises(OSError, match="gone"):
                    llm.loaded.maker  # noqa: B018
                while llm.engine.keep():
                    pass
        go.set()
    assert not list(cache.glob("*"))
    assert ["not read to their end" in line for line in caplog.messages] == [True, False]
    assert "the disk is gone" in caplog.messages[1]


CHILD = """
import json, os, sys
from pathlib import Path
from contextlib import closing
from llama_cpp_eagle3.files.whole_file import whole_file
import llama_cpp_eagle3.files.prefix_file as prefix_file
from test_restarts import OPENING, load, run, some
path, folder, n_kill = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
n = 0
def replace(part, to, before=os.replace):
    global n
    n += 1
    if n == n_kill:
        os.kill(os.getpid(), 9)
    before(part, to)
os.replace = replace
llm = load(path, prefix_cache_dir=folder)
for i in range(2):
    print(json.dumps(run(llm, [some(150, 1), some(40, 10 + i), OPENING]).n_cached), flush=True)
    while llm.engine.keep():
        pass
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("n_kill", [0, 1, 2], ids=["idle", "first", "second"])
@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_killed(files: dict[str, tuple[Path, Path]], tmp_path: Path, arch: str, n_kill: int) -> None:
    """A process is killed while idle, or between the writing of a file and its rename: whole files are found."""
    path, _ = files[arch]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, path, tmp_path, str(n_kill)], capture_output=True, env=env, timeout=300
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    assert json.loads(child.stdout.splitlines()[0]) == 0
    assert bool(list(tmp_path.glob(".*.part"))) == (n_kill > 0)
    with closing(load(path, prefix_cache_bytes=0)) as fresh, closing(load(path, prefix_cache_dir=tmp_path)) as llm:
        sequence = run(llm, [some(150, 1), some(40, 10), OPENING])
        # the second file of the hybrid is a state, without which its prefix is usable at its end alone
        assert sequence.n_cached >= (0 if n_kill == 1 or (arch == "qwen35" and n_kill) else 190 - 1)
        check_fresh(fresh, sequence)


def test_two_at_once(files: dict[str, tuple[Path, Path]], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two processes write their files; a third one finds all. A file that one removes, the other evaluates again."""
    path, _ = files["llama"]
    talks = [[some(100, seed), OPENING] for seed in (1, 2)]
    with closing(load(path, prefix_cache_dir=tmp_path)) as a, closing(load(path, prefix_cache_dir=tmp_path)) as b:
        for llm, talk in ((a, talks[0]), (b, talks[1])):
            run(llm, talk)
    with closing(load(path, prefix_cache_dir=tmp_path)) as llm:
        assert llm.prefix_stats.n_prefix_files == 2
        for file in tmp_path.iterdir():
            file.unlink()
        assert [run(llm, talk).n_cached for talk in talks] == [0, 0]
    with closing(load(path, prefix_cache_dir=tmp_path)) as llm:
        assert all(run(llm, talk).n_cached >= 100 for talk in talks)
    assert not caplog.messages


LONG = {"kv_overrides": {"llama.rope.scaling.original_context_length": 768}}
EPSILON = "llama.attention.layer_norm_rms_epsilon"


@pytest.mark.parametrize(
    ("arch", "one", "other", "is_same"),
    [
        # from where on factors of RoPE for long contexts hold is in the file, an override, or its context's length
        ("phi3", {"n_ctx": 256}, {"n_ctx": 512}, True),
        ("phi3", {"n_ctx": 512}, {"n_ctx": 1024}, False),
        ("llama", {"n_ctx": 256}, {"n_ctx": 512}, True),
        ("llama", {"n_ctx": 768, **LONG}, {"n_ctx": 1024, **LONG}, False),
        # llama.cpp ignores an override of another type
        ("llama", {"kv_overrides": {EPSILON: 0.01}}, {"kv_overrides": {EPSILON: "0.01"}}, False),
        ("llama", {"kv_overrides": {EPSILON: 0.01}}, {"kv_overrides": {EPSILON: 0.01}}, True),
        ("llama", {}, {"env": "1"}, False),  # quantized keys and values are not rotated then
    ],
    ids=str,
)  # fmt: skip
def test_what_changes_states_is_in_the_key(
    arch: str,
    one: dict[str, Any],
    other: dict[str, Any],
    is_same: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_random_arch(tmp_path, arch)
    keys = set()
    for options in (one, other):
        monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", options.pop("env", ""))
        with closing(load(path, **{"n_ctx": 256, "cpu_kernels": "off", **options})) as llm:
            keys.add(llm.loaded.maker.key)
    assert len(keys) == (1 if is_same else 2)
