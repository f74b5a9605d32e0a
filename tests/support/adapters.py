"""LoRA adapters for tests."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np


def write_lora(path: Any, target: Any, scale: float = 8.0) -> str:
    """A LoRA adapter for all output projections."""
    rng, rank = np.random.default_rng(0), 2
    writer = gguf.GGUFWriter(str(path), "llama")
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
