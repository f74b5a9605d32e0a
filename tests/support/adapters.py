"""LoRA adapters for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

from arch_keys import N_EMBD, N_LAYER
from loading import is_tie, load, load_plain, prompts, take


@dataclass(frozen=True)
class Shape:
    """Sizes of a random target of any architecture."""

    n_layer: int = N_LAYER
    n_embd: int = N_EMBD


def write_lora(path: Any, target: Any, scale: float = 8.0, arch: str = "llama") -> str:
    """Write a LoRA adapter for all output projections of a target with `n_layer` layers and `n_embd` values."""
    rng, rank = np.random.default_rng(0), 2
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", scale)
    for il in range(target.n_layer):
        name = f"blk.{il}.attn_output.weight"
        writer.add_tensor(f"{name}.lora_a", rng.normal(0, 0.3, (rank, target.n_embd)).astype(np.float32))
        writer.add_tensor(f"{name}.lora_b", rng.normal(0, 0.3, (target.n_embd, rank)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def write_factors(path: Any, arch: str, tensor: str, a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """Write an adapter of one tensor, whose factors have these shapes."""
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for name, shape in (("lora_a", a), ("lora_b", b)):
        writer.add_tensor(f"{tensor}.{name}", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def check_adapter(files: Sequence[Any], lora: str, source: str, n_tokens: int, **options: Any) -> None:
    """Check that the text with an adapter of the target is the target's own with it, and that some drafts are accepted.

    files: the target, and the drafter if it is not in the target's file.
    """
    plain, without = load_plain(files[0], lora_path=lora), load_plain(files[0])
    is_other = False
    with load(*files, lora_path=lora, **options) as llm:
        for prompt in prompts(3, seed=7):
            text = take(plain, prompt, n_tokens)
            is_tie(plain, prompt, text, take(llm, prompt, n_tokens))
            is_other = is_other or text != take(without, prompt, n_tokens)
        assert 0 < llm.stats.of(source).accepted < llm.stats.of(source).drafted
    assert is_other
