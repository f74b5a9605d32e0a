"""The choice of kernels with cpu_kernels="auto": decided by times, measured once, stored, and logged."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3 import Eagle3Llama, _core
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.files.cache_dir import cache_dir
from llama_cpp_eagle3.model import cpu_kernels
from llama_cpp_eagle3.model.cpu_kernels import KernelChoice, decide
from random_model import Shape, write_target

KERNEL = next((name for name in _core.cpu_kernel_names() if name.startswith("q4_0x8/")), "")
needs_kernel = pytest.mark.skipif(not KERNEL, reason="no kernel for this processor")
SIZES = (1, 2, 4, 8, 16, 128, 512)


@pytest.mark.parametrize(
    ("times", "n_rows_max"),
    [
        (dict.fromkeys(SIZES, (1.0, 2.0)), 1 << 30),
        (dict.fromkeys(SIZES, (2.0, 1.0)), 0),
        # slower at one row, far faster at all others, and the other way round
        ({n: (1.1, 1.0) if n == 1 else (1.0, 3.0) for n in SIZES}, 1 << 30),
        ({n: (3.0, 1.0) if n == 1 else (0.9, 1.0) for n in SIZES}, 0),
        # a little slower, but with the same bits in all passes
        (dict.fromkeys(SIZES[:-2], (1.05, 1.0)), 1 << 30),
        (dict.fromkeys(SIZES[:-2], (1.15, 1.0)), 0),
        # prompts are ggml's from the size at which it is faster
        ({n: (1.0, 2.0) if n <= 16 else (2.0, 1.0) for n in SIZES}, 64),
        ({n: (1.0, 2.0) if n <= 128 else (2.0, 1.0) for n in SIZES}, 64),
        (dict.fromkeys(SIZES[:-1], (1.0, 2.0)), 1 << 30),
        # there was no time for more
        ({1: (1.0, 2.0), 2: (1.0, 2.0)}, 1 << 30),
    ],
)
def test_one_side_for_all_passes_of_up_to_64_rows(times: dict[int, tuple[float, float]], n_rows_max: int) -> None:
    assert decide(times) == n_rows_max


def test_only_the_first_kernel_of_a_format_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first kernel is slower than ggml's, the next one must not be used without a measurement."""
    names = ["q4_0x8/avx_vnni", "q4_0x8/avx2", "q4_0/avx_vnni", "q4_0/avx2", "f16/avx2"]
    monkeypatch.setattr(cpu_kernels, "cpu_kernel_names", lambda: names)
    assert KernelChoice("on").limits([], 1, print) == dict.fromkeys(
        ["q4_0x8/avx_vnni", "q4_0/avx_vnni", "f16/avx2"], 1 << 30
    )


@pytest.fixture(scope="module")
def target(tmp_path_factory: Any) -> str:
    path = tmp_path_factory.mktemp("choice") / "q4_0.gguf"
    write_target(path, Shape(4, 512, 1536, 8, 4, 4000, 512, 512), "Q4_0")
    return str(path)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure as on a quiet machine, whatever runs beside the tests."""
    monkeypatch.setattr(cpu_kernels.Contention, "share", 0.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path))
    return cache_dir() / "kernels"


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure again what a busy machine measured, as the next process does."""
    monkeypatch.setattr(cpu_kernels, "_measured", set())


def load(target: str, **options: Any) -> Eagle3Llama:
    return Eagle3Llama(target, n_ctx=64, n_threads=2, verbose=False, **options)


@needs_kernel
def test_measured_times(target: str) -> None:
    with closing(load(target, cpu_kernels="off")) as llm:
        matrices = _core.model_matrices(llm.model_address)
        times = _core.time_cpu_kernels(matrices, {KERNEL: 16}, 2, SIZES, 0.2)[KERNEL]
        assert list(times)[:2] == [1, 2]
        assert all(0 < t < 1e7 for pair in times.values() for t in pair)
        assert _core.time_cpu_kernels(matrices, {}, 2, SIZES, 0.2) == {}
        with pytest.raises(ValueError, match="positive number of threads"):
            _core.time_cpu_kernels(matrices, {KERNEL: 16}, 0, SIZES, 0.2)


@needs_kernel
@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (1.0, f"matrices by {KERNEL} (2.00 times as fast as ggml's)"),
        (4.0, f"ggml's own instead of {KERNEL} (0.50 times as fast as ggml's)"),
    ],
)
def test_what_is_faster_is_used_kept_and_said(
    target: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ours: float,
    said: str,
) -> None:
    asked = []

    def time(matrices: list[int], names: dict[str, int], *_: Any) -> dict[str, dict[int, tuple[float, float]]]:
        asked.append(list(names))
        return {name: dict.fromkeys(SIZES, (ours, 2.0)) for name in names}

    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", time)
    for _ in range(2):
        with closing(load(target)) as llm:
            assert said in llm.loaded.where
            assert said in llm.loaded.cpu_kernels_used
    assert asked.count([KERNEL]) == 1  # the second time it was known
    assert [path.suffix for path in folder.iterdir()].count(".json") >= 1
    with closing(load(target, cpu_kernels="on")) as llm:
        assert f"matrices by {KERNEL};" in llm.loaded.where + ";"
    with closing(load(target, cpu_kernels="off")) as llm:
        assert "cpu_kernels is off" in llm.loaded.where
    assert asked.count([KERNEL]) == 1
    main(["calibrate", target, "--seconds", "0.1", "-t", "2", "-c", "64"])
    out = capsys.readouterr().out
    assert "CPU kernels: " in out
    assert said in out
    assert asked.count([KERNEL]) == 2


@needs_kernel
@pytest.mark.parametrize(
    "times",
    [
        dict.fromkeys(SIZES, (1.0, 0.5)) | {1: (10.0, 0.5)},  # one row of ours takes ten times as long as two
        dict.fromkeys(SIZES, (1.0, 0.5)) | {8: (9.0, 0.5)},  # eight nine times as long as one
        dict.fromkeys(SIZES[:4], (1.0, 0.5)),
    ],
    ids=["one row", "eight rows", "too few"],
)
def test_a_busy_machine_does_not_decide(
    target: str, folder: Path, monkeypatch: pytest.MonkeyPatch, times: dict[int, tuple[float, float]]
) -> None:
    """Ours are used until a later start measures without load; then the choice is final."""
    found = iter([times, times, dict.fromkeys(SIZES, (4.0, 2.0))])
    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", lambda *_: {KERNEL: next(found)})
    said = f"matrices by {KERNEL} (not measured: the machine was busy: the next process measures it again)"
    for _ in range(2):
        for _ in range(2):  # the same process does not measure it again
            with closing(load(target)) as llm:
                assert said in llm.loaded.where
        another_process(monkeypatch)
    for _ in range(2):
        with closing(load(target)) as llm:
            assert f"ggml's own instead of {KERNEL} (0.50 times as fast as ggml's)" in llm.loaded.where
    with pytest.raises(StopIteration):
        next(found)


@needs_kernel
def test_long_times_of_ggml_are_believed(target: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As measured with Q6_K and AVX-512: ggml takes five times as long for 8 rows as for 4."""
    times = {1: (34, 33), 2: (35, 49), 4: (43, 79), 8: (63, 380), 16: (111, 351), 128: (803, 925), 512: (3199, 3316)}
    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", lambda *_: {KERNEL: times})
    with closing(load(target)) as llm:
        assert f"matrices by {KERNEL} (1.52 times as fast as ggml's)" in llm.loaded.where


@needs_kernel
def test_times_beside_other_programs_do_not_decide(target: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times may look like those of a quiet machine though each run waited for a processor."""
    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", lambda *_: {KERNEL: dict.fromkeys(SIZES, (4.0, 2.0))})
    for share, said in (
        (0.3, f"matrices by {KERNEL} (not measured: the machine was busy: the next process measures it again)"),
        (0.05, f"ggml's own instead of {KERNEL} (0.50 times as fast as ggml's)"),
        (0.3, f"ggml's own instead of {KERNEL} (0.50 times as fast as ggml's)"),
    ):
        monkeypatch.setattr(cpu_kernels.Contention, "share", share)
        with closing(load(target)) as llm:
            assert said in llm.loaded.where
        another_process(monkeypatch)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not say who waited")
@needs_kernel
def test_contention_of_the_threads_that_measure(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of OpenMP that wait for a processor count, though their team ends with the thread that measured."""
    monkeypatch.undo()
    n_threads = min(8 * (os.cpu_count() or 1), 512)  # ggml takes no more
    with closing(load(target, cpu_kernels="off")) as llm:
        matrices = _core.model_matrices(llm.model_address)
        (measured,) = cpu_kernels.measure(matrices, [KERNEL], n_threads, 0.2).values()
    assert measured.contention > cpu_kernels.CONTENTION_MAX
    assert measured.is_doubtful


@needs_kernel
@pytest.mark.parametrize(("slower", "n_rows_max"), [((KERNEL,), 64), ((), 1 << 30)])
def test_prompts_of_what_a_busy_machine_did_not_measure(
    target: str, folder: Path, monkeypatch: pytest.MonkeyPatch, slower: tuple[str, ...], n_rows_max: int
) -> None:
    """Prompts are ggml's if it was faster at other sizes."""
    monkeypatch.setattr(cpu_kernels, "_PROMPTS_OF_GGML", slower)
    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", lambda *_: {KERNEL: dict.fromkeys(SIZES[:4], (1.0, 0.5))})
    with closing(load(target, cpu_kernels="off")) as llm:
        matrices = _core.model_matrices(llm.model_address)
        assert KernelChoice("auto").limits(matrices, 2, print)[KERNEL] == n_rows_max
        assert KernelChoice("on").limits(matrices, 2, print)[KERNEL] == 1 << 30


@needs_kernel
def test_a_busy_process_leaves_what_another_decided(folder: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """If two processes measure at once, the values without load stay."""
    doubtful, quiet = dict.fromkeys(SIZES[:4], (1.0, 0.5)), dict.fromkeys(SIZES, (4.0, 2.0))
    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", lambda *_: {KERNEL: doubtful})
    load(target).close()
    another_process(monkeypatch)

    def time(matrices: list[int], *_: Any) -> dict[str, dict[int, tuple[float, float]]]:
        monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", lambda *_: {KERNEL: quiet})
        KernelChoice("auto").limits(matrices, 2, lambda text: None)  # the other process, meanwhile
        return {KERNEL: doubtful}

    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", time)
    with closing(load(target)) as llm:
        assert f"ggml's own instead of {KERNEL}" in llm.loaded.cpu_kernels_used


@needs_kernel
def test_the_side_depends_on_neither_threads_nor_model(
    target: str, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter([(4.0, 2.0), (1.0, 2.0), (1.0, 2.0)])
    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", lambda *_: {KERNEL: dict.fromkeys(SIZES, next(turns))})
    other = tmp_path / "other.gguf"
    write_target(other, Shape(2, 1024, 1536, 8, 4, 4000, 512, 512), "Q4_0")
    for path, n_threads in ((target, 2), (target, 1), (str(other), 2)):
        with closing(Eagle3Llama(path, n_ctx=64, n_threads=n_threads, verbose=False)) as llm:
            assert f"ggml's own instead of {KERNEL}" in llm.loaded.cpu_kernels_used


@needs_kernel
def test_the_first_of_two_processes_decides(target: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_running = 0

    def time(matrices: list[int], *_: Any) -> dict[str, dict[int, tuple[float, float]]]:
        nonlocal n_running
        n_running += 1
        if n_running == 2:
            return {KERNEL: dict.fromkeys(SIZES, (4.0, 2.0))}
        KernelChoice("auto").limits(matrices, 2, lambda text: None)  # the other process, meanwhile
        return {KERNEL: dict.fromkeys(SIZES, (1.0, 2.0))}

    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", time)
    with closing(load(target)) as llm:
        assert f"ggml's own instead of {KERNEL} (0.50 times" in llm.loaded.cpu_kernels_used
    assert [path.suffix for path in folder.iterdir()] == [".json"]


@needs_kernel
def test_what_cannot_be_kept_is_not_measured(target: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where the folder should be")
    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", lambda *_: pytest.fail("measured"))
    with closing(load(target)) as llm:
        assert f"matrices by {KERNEL} (not measured: what is measured cannot be kept in" in llm.loaded.where


@needs_kernel
def test_a_damaged_file_is_measured_again(target: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_asked = 0

    def time(matrices: list[int], names: dict[str, int], *_: Any) -> dict[str, dict[int, tuple[float, float]]]:
        nonlocal n_asked
        n_asked += 1
        return {name: dict.fromkeys(SIZES, (1.0, 2.0)) for name in names}

    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", time)
    load(target).close()
    (path,) = folder.glob("*.json")
    document = json.loads(path.read_text())
    spoilt = [
        "{",
        "[]",
        json.dumps(document | {"format": 0}),
        json.dumps(document | {"key": {}}),
        json.dumps(document | {"times": {"1": [0.0, 1.0]}}),
        json.dumps(document | {"times": {}}),
        json.dumps(document | {"contention": 2.0}),
    ]
    for text in spoilt:
        path.write_text(text)
        load(target).close()
    assert n_asked == 1 + len(spoilt)


@needs_kernel
def test_small_models_are_not_measured(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "time_cpu_kernels", lambda *_: pytest.fail("measured"))
    write_target(tmp_path / "small.gguf", Shape(3, 64, 128, 2, 2, 300, 64, 64), "Q4_0")
    with closing(load(str(tmp_path / "small.gguf"))) as llm:
        assert f"matrices by {KERNEL}" in llm.loaded.where


def test_off_limits_nothing() -> None:
    assert KernelChoice("off").limits([], 1, lambda text: None) == {}
