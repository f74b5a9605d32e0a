"""Numbers that llama.cpp turns into memory cost no more than the context needs, in a process with limited memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.engine import SAMPLERS, Sampling

N_CTX = 256
INT_MAX = 2**31 - 1
BASE: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 0,
    "top_p": 0.9,
    "min_p": 0.02,
    "typical_p": 0.9,
    "repeat_penalty": 1.3,
    "frequency_penalty": 0.1,
    "dry_multiplier": 0.4,
    "dry_allowed_length": 1,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.1,
    "top_n_sigma": 3.0,
}
"""Options with which every token is drawn, so that each number has an effect."""
ENOUGH = {"top_k": 320, "min_keep": 320, "dry_allowed_length": N_CTX, "n_probs": 320} | dict.fromkeys(
    ("repeat_last_n", "dry_penalty_last_n"), N_CTX
)
"""Number -> the largest value with an effect, with 320 tokens in the vocabulary."""


def bound_memory() -> None:
    """Let this process have 2 GiB more than now; 2^31 tokens would take 8."""
    n_pages = int(Path("/proc/self/statm").read_text().split()[0])
    n_bytes = n_pages * resource.getpagesize() + (2 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


def python(model: str) -> None:
    from loading import load

    with closing(load(model, n_ctx=N_CTX)) as llm:
        prompt = list(range(1, 60)) * 2

        def draw(**options: Any) -> list[int]:
            sampling = Sampling(**{"seed": 3, **BASE, "samplers": SAMPLERS, **options})
            sequence = llm.engine.add(prompt, sampling=sampling, max_tokens=12)
            while llm.engine.has_work:
                llm.engine.step()
            return sequence.generated[:12]

        bound_memory()
        for name in ("top_k", "min_keep", "repeat_last_n", "dry_penalty_last_n", "dry_allowed_length"):
            for value in (INT_MAX, 2**31, 2**40):
                for more in ({}, {"logit_bias": {5: 0.5, 6: -1.0}}, {"samplers": None}):
                    assert draw(**{name: value}, **more) == draw(**{name: ENOUGH[name]}, **more), (name, value, more)
        # a top-k alone, of which the engine wants the best logits only
        alone = {"samplers": ("top_k", "temperature"), "repeat_penalty": 1.0, "frequency_penalty": 0.0}
        alone["logit_bias"] = {5: -1.0}
        assert draw(top_k=INT_MAX, **alone) == draw(top_k=320, **alone)
        llm.last_n_tokens_size = INT_MAX
        assert len(llm.create_completion(prompt, max_tokens=4, repeat_penalty=1.1)["choices"]) == 1


def server(model: str) -> None:
    from llama_cpp_eagle3.serve.jsons import LIMITS
    from serving import Running

    with Running(model, n_ctx=2 * N_CTX) as running:
        body = {**BASE, "prompt": list(range(1, 60)), "n_predict": 8, "seed": 3, "ignore_eos": True}
        bound_memory()
        for name in ("top_k", "min_keep", "repeat_last_n", "dry_penalty_last_n", "dry_allowed_length", "n_probs"):
            largest = LIMITS[name].largest if name in LIMITS else INT_MAX
            expected = running.ask("/completion", {**body, name: ENOUGH[name]})
            found = running.ask("/completion", {**body, name: largest})
            assert found["content"] == expected["content"], name
            assert found.get("completion_probabilities") == expected.get("completion_probabilities"), name
        for name in ("n_keep", "n_discard", "n_indent", "id_slot", "n_predict", "t_max_predict_ms"):
            assert "content" in running.ask("/completion", {**body, "n_predict": 8, name: INT_MAX}), name
        penalized = {"repeat_last_n": INT_MAX, "repeat_penalty": 1.1, "n_predict": 4}
        message = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
        assert running.post("/v1/chat/completions", {**message, **penalized}).status_code == 200
        assert running.post("/v1/completions", {"prompt": "a", **penalized}).status_code == 200


CASES: dict[str, Callable[[str], None]] = {"python": python, "server": server}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
@pytest.mark.parametrize("case", CASES)
def test_large_numbers(case: str, tiny_target: Any) -> None:
    path = os.pathsep.join(path for path in sys.path if path)
    result = subprocess.run(
        [sys.executable, __file__, case, str(tiny_target.path)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]


def test_what_is_needed_stays() -> None:
    """Numbers within the context's needs are kept, and negative ones have llama.cpp's meaning."""
    few = Sampling(top_k=7, min_keep=3, repeat_last_n=9, dry_penalty_last_n=8, dry_allowed_length=-2)
    assert few.within(N_CTX, 320) == few
    none = Sampling(top_k=-1, min_keep=-1, repeat_last_n=-1, dry_penalty_last_n=-1).within(N_CTX, 320)
    assert [none.top_k, none.min_keep, none.repeat_last_n, none.dry_penalty_last_n] == [0, 0, 0, 0]


if __name__ == "__main__":
    CASES[sys.argv[1]](sys.argv[2])
