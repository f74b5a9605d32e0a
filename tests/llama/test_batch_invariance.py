"""Loading a model reports whether rows depend on their pass, why, and what changes that. Text that does not depend on
it is the same with drafts, beside others, after a cached prefix, in other processes and by other threads.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from inflate import quantize_target
from llama_cpp_eagle3 import Eagle3Llama, _core
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.model.batch_invariance import attends, describe, losses
from llama_cpp_eagle3.model.cpu_kernels import KernelChoice
from llama_cpp_eagle3.models import bundled_pair, heldout_prompts
from random_model import Shape, write_target
from tests.parity import drafted_texts

pytestmark = pytest.mark.skipif(not _core.cpu_kernel_names(), reason="no kernel for this processor")

INVARIANT = "batch invariant: a row's bits depend neither on other rows nor on threads"
FLASH = "use flash_attn=True (-fa on)"


@pytest.fixture(scope="module")
def target(tmp_path_factory: Any) -> str:
    path = tmp_path_factory.mktemp("invariance") / "target-q4_0.gguf"
    quantize_target(bundled_pair()[0], path, "Q4_0", 2)
    return str(path)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, INVARIANT),
        ({"cpu_kernels": "on", "type_k": "q8_0", "type_v": "q8_0"}, INVARIANT),
        (
            {"flash_attn": False},
            "batch invariant up to 64 rows: ggml computes in longer passes attention (20 in F16), since there is no "
            f"flash attention: {FLASH}",
        ),
        ({"flash_attn": False, "n_ubatch": 64}, INVARIANT),
        (
            {"flash_attn": False, "n_ubatch": 64, "type_k": "q8_0"},
            "not batch invariant: ggml computes attention (10 in Q8_0), since K in Q8_0 is read by flash attention "
            f"alone: {FLASH}",
        ),
        (
            {"cpu_kernels": "off"},
            "not batch invariant: ggml computes products with weights (70 in Q4_0, 1 in Q6_K), since cpu_kernels is "
            'off: use cpu_kernels="auto" (--cpu-kernels auto)',
        ),
    ],
)
def test_what_ggml_computes_is_said(
    target: str, caplog: pytest.LogCaptureFixture, options: dict[str, Any], expected: str
) -> None:
    with closing(Eagle3Llama(target, n_ctx=256, n_threads=1, **options)) as llm:
        assert llm.loaded.batch_invariance == expected
    assert expected in caplog.text


@pytest.mark.parametrize("name", ["Q1_0", "Q2_0", "TQ1_0", "TQ2_0", "IQ3_M"])
def test_types_of_few_bits(tmp_path: Path, name: str) -> None:
    """A row has the same bits in a pass as alone, with weights of the types that ggml repacks nowhere."""
    plain, path = tmp_path / "f16.gguf", tmp_path / f"{name}.gguf"
    write_target(plain, Shape(2, 256, 512, 4, 2, 300, 256, 256), "F16")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.pure, params.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}"), True, 1
    assert llama_cpp.llama_model_quantize(bytes(plain), bytes(path), ctypes.byref(params)) == 0
    tokens = list(range(40, 53))
    with closing(Eagle3Llama(str(path), n_ctx=64, n_threads=1, verbose=False, logits_all=True)) as llm:
        assert llm.loaded.batch_invariance == INVARIANT
        llm.eval(tokens)
        together = llm.scores[: len(tokens)].copy()
        llm.reset()
        for token in tokens:
            llm.eval([token])
        np.testing.assert_array_equal(llm.scores[: len(tokens)], together)


def test_doctor(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "-m", target, "-t", "1", "-c", "256", "-ctk", "q8_0", "-fa", "off"])
    out = capsys.readouterr().out
    assert "ggml computes attention (10 in Q8_0), since K in Q8_0 is read by flash attention alone" in out
    assert "flash_attn=True (-fa on)" in out
    main(["doctor", "-m", target, "-t", "1", "-c", "256"])
    assert "ggml computes" not in capsys.readouterr().out


def test_an_adapter_and_a_device() -> None:
    """The messages about adapters and devices are right, without such files and machines."""
    sides = {("products", "", "q4_0"): 9, ("products", "adapter", "f16"): 2, ("attention", "device", "f16"): 4}
    found = losses(sides, KernelChoice("on"))
    assert [str(loss) for loss in found] == [
        "products with weights (2 in F16), since they are of a LoRA adapter: use a file that the adapter is merged "
        "into",
        "attention (4 in F16), since the cache is on another device: use n_gpu_layers=0 (-ngl 0)",
    ]
    assert describe(sides, found).startswith("not batch invariant: ggml computes products")
    assert describe({}, []) == ""
    assert not attends(sides)
    assert not attends({})


def test_measured_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelChoice, "refused", ["q4_0x8/avx2", "q5_1/avx2"])
    choice = KernelChoice("auto")
    assert [choice.refuses(name) for name in ("q4_0", "q5_1", "q4_K", "q5_K", "q4_1")] == [True, True, *[False] * 3]
    sides = {
        ("products", "source", "q4_0"): 3,
        ("products", "source", "iq2_xxs"): 2,
        ("products", "rows", "q6_K"): 1,
        ("attention", "source", "f16"): 2,
    }
    assert [str(loss) for loss in losses(sides, choice)] == [
        'products with weights (3 in Q4_0), since it was measured to be faster: use cpu_kernels="on" '
        "(--cpu-kernels on)",
        "products with weights (2 in IQ2_XXS), since no kernel for this processor reads them",
        "products with weights (1 in Q6_K), since it was measured to be faster with so many rows: use "
        'cpu_kernels="on" (--cpu-kernels on)',
    ]


@pytest.mark.parametrize("setting", ["default", "-ctk q8_0 -ctv q8_0", "-fa off"])
def test_text_by_every_way(target: str, setting: str) -> None:
    """`tests/parity/drafted_texts.py` writes as many texts as requested."""
    args = argparse.Namespace(target=target, head=str(bundled_pair()[1]), n=12, tokens=12, threads=1, kernels="auto")
    assert drafted_texts.compare(args, setting) == 0


_CHILD = """
import hashlib, json, sys
from contextlib import closing
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.model import cpu_kernels

path, options, text, is_busy = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4] == "busy"
if is_busy:  # what is measured beside other programs
    cpu_kernels.time_cpu_kernels = lambda matrices, names, *_: {
        name: {1: (9.0, 1.0), 2: (1.0, 1.0), 4: (1.0, 1.0), 8: (1.0, 1.0), 16: (1.0, 1.0)} for name in names
    }
with closing(Eagle3Llama(path, n_ctx=512, verbose=False, logits_all=True, **options)) as llm:
    assert is_busy == ("machine was busy" in llm.loaded.cpu_kernels_used), llm.loaded.cpu_kernels_used
    tokens = list(text.encode())
    llm.eval(tokens)
    bits = hashlib.sha256(llm.scores[: len(tokens)].tobytes()).hexdigest()
    llm.reset()
    (result,) = llm.generate_batch([tokens], max_tokens=24, temperature=0.9, seed=3)
    print(json.dumps([bits, list(result.tokens), llm.prefix_stats.reused_tokens["disk"]]))
"""


def test_text_does_not_depend_on_the_process(tmp_path: Path) -> None:
    """The text is the same in another process, with other threads, a busy start, and another process's files."""
    path = tmp_path / "measured.gguf"  # of a size for which both sides are timed
    write_target(path, Shape(2, 256, 4096, 4, 2, 300, 256, 256), "Q4_0")
    prompt = heldout_prompts()[0][:150]  # a token for each byte: more rows than passes with drafts have

    def run(cache: str, how: str = "quiet", **options: Any) -> Any:
        env = os.environ | {"LLAMA_CPP_EAGLE3_CACHE": str(tmp_path / cache)}
        command = [sys.executable, "-c", _CHILD, str(path), json.dumps(options), prompt, how]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    folder = {"prefix_cache_dir": str(tmp_path / "prefixes")}
    bits, tokens, _ = run("busy", "busy", n_threads=2)
    assert run("busy", "busy", n_threads=1)[:2] == [bits, tokens]
    first = run("first", n_threads=1, cpu_kernels="on", **folder)
    assert first == [bits, tokens, 0]
    again = run("first", n_threads=2, cpu_kernels="on", **folder)
    assert again[:2] == [bits, tokens]
    assert again[2] > 64
    assert run("first", n_threads=1, cpu_kernels="off")[0] != bits  # the compared texts can differ
