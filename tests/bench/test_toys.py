"""Toys of other architectures compute what the bundled target computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from llama_cpp_eagle3 import Eagle3Llama, models
from llama_cpp_eagle3_heads.train.model import Block, Config, Llama
from loading import bundled_pair
from random_model import Shape
from toys import files, modules

SHAPE = Shape(12, 512, 768, 8, 4, 4500, 0, 0)
HYBRID = Shape(12, 512, 768, 8, 4, 4500, 0, 0, "qwen35", 64 + 256)
_LAYER = {"attn.q": (256, 256), "attn.k": (128, 256), "attn.v": (128, 256), "attn.o": (256, 256)}
_LAYER |= {
    "ffn.gate": (704, 256),
    "ffn.up": (704, 256),
    "ffn.down": (256, 704),
    "attn_norm": (256,),
    "ffn_norm": (256,),
}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return a block and a block drafter with random weights."""
    rng = np.random.default_rng(3)

    def random(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        return {
            f"{name}.weight": (rng.normal(0.0, shape[-1] ** -0.5, shape) if len(shape) > 1 else np.ones(shape)).astype(
                "f4"
            )
            for name, shape in shapes.items()
        }

    block = {f"block.{name}": shape for name, shape in _LAYER.items()}
    block |= {"eh_proj": (256, 512), "enorm": (256,), "hnorm": (256,)}
    np.savez(tmp_path / "mtp.npz", sharpness=np.ones(1, np.float32), **random(block))
    layer = _LAYER | {"attn.q_norm": (64,), "attn.k_norm": (64,)}
    drafter = {f"blocks.0.{name}": shape for name, shape in layer.items()}
    np.savez(tmp_path / "dflash.npz", **random(drafter | {"fc": (256, 768), "fc_norm": (256,), "norm": (256,)}))
    return tmp_path


def text_of(path: Path, **options: object) -> list[list[int]]:
    """Return the texts that a target generates."""
    with Eagle3Llama(str(path), n_ctx=256, n_threads=1, verbose=False, **options) as llm:
        found = []
        for text in models.heldout_prompts()[:3]:
            generator = llm.generate(llm.tokenize(text.encode())[:32], temp=0.0)
            found.append([next(generator) for _ in range(24)])
            generator.close()
        return found


@pytest.mark.parametrize("kind", ["mtp", "hybrid"])
def test_same_text(weights: Path, kind: str) -> None:
    path = weights / "target.gguf"
    if kind == "mtp":
        files.write_mimo(weights, path, SHAPE, "f16")
    else:
        files.write_hybrid(weights, path, HYBRID, "f16", recurrent=0.0)
    text = text_of(bundled_pair()[0], draft_sources=())
    assert text_of(path, draft_sources=()) == text
    assert text_of(path, draft_sources=("mtp",), draft="chain", draft_n_max=2) == text


def test_recurrent_layers_add_something(weights: Path) -> None:
    """The recurrent layers change the text: else measurements with them would not show a wrong state."""
    path = weights / "target.gguf"
    files.write_hybrid(weights, path, HYBRID, "f16", recurrent=1.0)
    assert text_of(path, draft_sources=()) != text_of(bundled_pair()[0], draft_sources=())


def test_a_block_drafter_is_one_of_its_target(weights: Path) -> None:
    path, useless = weights / "drafter.gguf", weights / "useless.gguf"
    files.write_dflash(weights, path, Shape(10, 512, 768, 8, 4, 4096, 0, 0))
    files.write_useless(path, useless)
    assert path.stat().st_size == useless.stat().st_size
    assert path.read_bytes() != useless.read_bytes()


def test_what_a_toy_sees() -> None:
    """Steps of a block, and rows of a block drafter, depend only on the tokens before their anchor."""
    torch.manual_seed(0)
    target = Llama(Config(n_vocab=32, n_ctx=32, n_embd=16, n_layer=3, n_head=2, n_head_kv=1, n_ff=24))
    tokens, anchors = torch.randint(32, (2, 20)), torch.tensor([3, 7])
    states = target.hidden(tokens)
    block = modules.MtpBlock(target, n_steps=3)
    drafter = modules.BlockDrafter(target, boundaries=(0, 1, 3), n_layer=2, block_size=4, mask_token=1)
    for part in (block, drafter):
        for layer in part.modules():
            if isinstance(layer, Block):  # the layers add nothing at first
                torch.nn.init.normal_(layer.attn.o.weight)
                torch.nn.init.normal_(layer.ffn.down.weight)

    def drafted(rows: list[torch.Tensor]) -> list[torch.Tensor]:
        found = [
            logits[:, anchors] if i == 0 else logits
            for i, (_, logits) in enumerate(block.steps(tokens, rows[-1], 3, anchors))
        ]
        return [*found, drafter(tokens, torch.cat([rows[b] for b in (0, 1, 3)], dim=-1), anchors)]

    plain = drafted(states)
    assert [tuple(x.shape) for x in plain] == [(2, 2, 32)] * 3 + [(2, 2, 3, 32)]
    for first, same in ((8, True), (2, False)):
        others = drafted([torch.cat([x[:, :first], x[:, first:] + 1.0], dim=1) for x in states])
        for x, y in zip(plain, others, strict=True):
            assert torch.equal(x, y) == same
