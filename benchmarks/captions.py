"""Train a small captioning model and its head, and measure how much the head gains from images in its cache.

    python benchmarks/captions.py train WORK SOURCE     SOURCE: vendor/llama.cpp of llama-cpp-python's sdist
    python benchmarks/captions.py head WORK --minutes 2
    python benchmarks/captions.py measure WORK --pictures 100

The pictures are grids of 4 x 4 digits in random colours and places, the captions read them. Target: a Llama with a
Pixtral encoder in front, about a million parameters, trained from scratch; head: by llama_cpp_eagle3_heads.train, on
rows that the package's own tap takes from the converted target, image rows too. Both fit one CPU core and 15 minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from llama_cpp_eagle3.engine.stats import Stats

CELL, N_SIDE = 14, 4
SPECIAL = ["<s>", "</s>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
TEXT = "\n Read:0123456789"
VOCAB = [*SPECIAL, *TEXT]
N_ROWS = N_SIDE * (N_SIDE + 1) - 1
QUESTION = "Read:\n"
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}" + QUESTION
)
FONT = [
    "0111010001100011000110001100010111000000",
    "0010001100001000010000100001000111000000",
    "0111010001000010001000100010001111100000",
    "1111100010001000001000001100010111000000",
    "0001000110010101001011111000100001000000",
    "1111110000111100000100001100010111000000",
    "0011001000100001111010001100010111000000",
    "1111100001000100010001000010000100000000",
    "0111010001100010111010001100010111000000",
    "0111010001100010111100001000100110000000",
]


def ids_of(text: str) -> list[int]:
    """Return a text's tokens: one for each character."""
    return [VOCAB.index(c) for c in text]


def picture(rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Return digits in a grid, uint8 (56, 56, 3), and their caption."""
    digits = rng.integers(0, 10, (N_SIDE, N_SIDE))
    out = np.empty((N_SIDE * CELL, N_SIDE * CELL, 3))
    for y in range(N_SIDE):
        for x in range(N_SIDE):
            ground, ink = rng.integers(0, 60, 3), rng.integers(160, 256, 3)
            glyph = np.array([int(c) for c in FONT[digits[y, x]]]).reshape(8, 5)[:7]
            cell = np.tile(ground, (CELL, CELL, 1)).astype(float)
            dy, dx = rng.integers(3, 5), rng.integers(4, 6)
            cell[dy : dy + 7, dx : dx + 5][glyph > 0] = ink
            out[y * CELL : (y + 1) * CELL, x * CELL : (x + 1) * CELL] = cell
    out += rng.normal(0, 8, out.shape)
    caption = "".join("".join(map(str, row)) + "\n" for row in digits)
    return np.clip(out, 0, 255).astype(np.uint8), caption


def train(work: Path, minutes: float) -> None:
    """Train the target, convert it, write rows and train the head."""
    import torch
    import transformers
    from torch import nn
    from torch.nn import functional as F

    from llama_cpp_eagle3_heads.train import export
    from llama_cpp_eagle3_heads.train.model import Llama

    torch.manual_seed(1)
    torch.set_num_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    cfg = config()
    vision_config = transformers.PixtralVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=2, head_dim=32,
        image_size=N_SIDE * CELL, patch_size=CELL, hidden_act="silu",
    )  # fmt: skip
    llava = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            text_config={
                "model_type": "mistral", "vocab_size": len(VOCAB), "hidden_size": cfg.n_embd, "num_hidden_layers": 1,
                "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            },
            vision_config=vision_config, image_token_index=VOCAB.index("[IMG]"), vision_feature_layer=-1,
            vision_feature_select_strategy="full", projector_hidden_act="gelu",
        )
    )  # fmt: skip
    tower, projector = llava.model.vision_tower, llava.model.multi_modal_projector
    for module in (*tower.modules(), *projector.modules()):
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=(module.weight[0].numel()) ** -0.5)
    text = Llama(cfg)
    parameters = [*tower.parameters(), *projector.parameters(), *text.parameters()]
    print(f"{sum(p.numel() for p in parameters)} parameters", flush=True)
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    break_id = VOCAB.index("[IMG_BREAK]")

    def embed(pictures: np.ndarray, tokens: torch.Tensor) -> torch.Tensor:
        """Embed <s>, the pictures with breaks between their rows, and the text after them."""
        x = torch.from_numpy((pictures / 255.0 - 0.5) / 0.5).permute(0, 3, 1, 2).float()
        n, size = len(x), N_SIDE * CELL
        rows = tower(x, image_sizes=torch.tensor([[size, size]] * n)).last_hidden_state
        rows = projector(rows).reshape(n, N_SIDE, N_SIDE, cfg.n_embd)
        breaks = text.tok_embd.weight[break_id].expand(n, N_SIDE, 1, cfg.n_embd)
        rows = torch.cat((rows, breaks), 2).reshape(n, -1, cfg.n_embd)[:, :N_ROWS]
        embd = text.tok_embd(tokens)
        return torch.cat((embd[:, :1], rows, embd[:, 1:]), 1)

    def logits(x: torch.Tensor) -> torch.Tensor:
        cos, sin = text.cos[: x.shape[1]], text.sin[: x.shape[1]]
        for block in text.blocks:
            x = block(x, cos, sin)
        return text.head(x)

    rng = np.random.default_rng(1)
    begin = [VOCAB.index("<s>"), VOCAB.index("[IMG_END]"), *ids_of(QUESTION)]
    start, step, n_batch = time.monotonic(), 0, 32
    first = len(begin) - 1 + N_ROWS  # this row's logits predict the caption's first token
    while (share := (time.monotonic() - start) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, step / 50) * max(0.02, 1 - share)
        made = [picture(rng) for _ in range(n_batch)]
        tokens = torch.tensor([begin + ids_of(c) + [VOCAB.index("</s>")] for _, c in made])
        whole = logits(embed(np.stack([p for p, _ in made]), tokens[:, :-1]))
        out = whole[:, first:]
        loss = F.cross_entropy(out.flatten(0, 1), tokens[:, len(begin) :].flatten())
        # each row of the picture predicts its digit too: so the encoder learns to read before the text learns to look
        named = tokens[:, len(begin) : len(begin) + N_ROWS]
        loss = loss + F.cross_entropy(whole[:, 1 : 1 + N_ROWS].flatten(0, 1), named.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            right = (out.argmax(-1) == tokens[:, len(begin) :]).float().mean()
            print(f"step {step} {time.monotonic() - start:.0f} s loss {loss:.4f} right {right:.3f}", flush=True)

    # our exporter writes the target's file, llama.cpp's converter the encoder's
    vocab = {t.replace("\n", "\u010a").replace(" ", "\u0120"): i for i, t in enumerate(VOCAB)}
    added = [{"id": i, "content": t} for i, t in enumerate(SPECIAL)]
    tokenizer = work / "tokenizer.json"
    tokenizer.write_text(json.dumps({"model": {"vocab": vocab, "merges": ["R e"]}, "added_tokens": added}))
    torch.save(text.state_dict(), work / "target.pt")
    export.write_target(text, tokenizer, work / "captions.gguf", about())
    folder = work / "hf"
    shutil.rmtree(folder, ignore_errors=True)
    llava.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    shutil.copy(tokenizer, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text("{}")
    convert(work)


def convert(work: Path) -> None:
    """Convert the encoder with llama.cpp's converter."""
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(work / "hf", False)
    cls = get_model_class(get_model_architecture(hparams, ModelType.MMPROJ), mmproj=True)
    with torch.inference_mode():
        model = cls(work / "hf", gguf.LlamaFileType.MOSTLY_F16, work / "captions-mmproj.gguf")
        embd = torch.load(work / "target.pt", weights_only=True)["tok_embd.weight"]
        # the converter looks for this function under an older name
        model.gguf_writer.add_tensor("v.token_embd.img_break", embd[VOCAB.index("[IMG_BREAK]")].numpy())
        model.write()


def about() -> Any:
    """Return the metadata of the files."""
    from llama_cpp_eagle3_heads.train.export import About

    target = "tiny model that reads grids of digits, with a Pixtral encoder"
    return About("captions", target, "MIT", CHAT_TEMPLATE)


def config() -> Any:
    """Return the target's configuration."""
    from llama_cpp_eagle3_heads.train.model import Config

    return Config(n_vocab=len(VOCAB), n_ctx=128, n_embd=128, n_layer=6, n_head=4, n_head_kv=2, n_ff=256)


def png(pixels: np.ndarray) -> bytes:
    """Return a PNG file of uint8 (height, width, 3)."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"".join(b"\0" + row.tobytes() for row in pixels))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def load(work: Path, head: str | None, **options: Any) -> Any:
    """Load the pair, with the projector."""
    from llama_cpp_eagle3 import Eagle3Llama

    return Eagle3Llama(
        str(work / "captions.gguf"), head and str(work / head), mmproj_path=str(work / "captions-mmproj.gguf"),
        n_ctx=128, n_threads=1, verbose=False, **options,
    )  # fmt: skip


def train_head(work: Path, n_pictures: int, minutes: float) -> None:
    """Write rows, image rows too, from the package's own tap as a cache of the package's trainer, and train on them."""
    import torch
    from torch.nn import functional as F

    from llama_cpp_eagle3_heads.convert import convert as convert_head
    from llama_cpp_eagle3_heads.train import build, checkpoint, rows, trainer
    from llama_cpp_eagle3_heads.train.data import Text

    torch.manual_seed(2)
    torch.set_num_threads(1)
    target, folder = work / "captions.gguf", work / "head"
    cfg = build.target_config(target, 128, (1, 3, 5))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # the normed last boundary times the embedding, which is tied, gives the target's logits
    embedding, norm = (build.target_tensor(target, f"{name}.weight") for name in ("token_embd", "output_norm"))
    assert embedding is not None
    assert norm is not None
    rng = np.random.default_rng(2)
    texts = []
    with load(work, None, draft_target_layers=[*cfg.boundaries, cfg.n_layer_tgt]) as llm:
        for i in range(n_pictures):
            pixels, caption = picture(rng)
            prompt = llm.projector.prompt(f"<s>{llm.projector.marker}{QUESTION}{caption}</s>", [png(pixels)])
            media = prompt.media[0]
            llm.reset()
            parts = []
            for tokens in (prompt.tokens[: media.first], media, prompt.tokens[media.end :]):
                llm.eval_media(tokens) if tokens is media else llm.eval(tokens)
                parts.append(np.array(llm.features))
            states = np.concatenate(parts)
            last = torch.from_numpy(states[:, -1]).float()
            logits = F.rms_norm(last, last.shape[-1:], norm, cfg.rms_eps) @ embedding.T
            tokens = [t if t >= 0 else media.placeholder for t in prompt.tokens]
            ids = np.array(tokens, dtype=np.int32)
            top = rows.top_probabilities(logits.numpy())
            rows.Sample(i, 1, 0.0, ids, rows.half(states[:, :-1]), *top).save(rows.cache_path(folder, i))
            texts.append(Text(i, tokens, 1, 0.0, "file"))
    n_steps = 6
    head = build.fresh_head(target, cfg, torch.arange(cfg.n_vocab), n_steps)
    settings = trainer.Settings(minutes=minutes, lr=2e-3, batch=16, ttt_steps=n_steps, seed=2)
    trained = trainer.Trainer(head, rows.Source(None, folder), texts, folder, settings)
    trained.run()
    trained.load_best()
    checkpoint.export(head, folder / "hf")
    convert_head(folder / "hf", target, work / "captions-eagle3.gguf", outtype="f16")


def measure(work: Path, n_pictures: int) -> dict[str, Any]:
    """Caption new pictures; return acceptance with the drafter's cache filled, and with holes for the images."""
    rng = np.random.default_rng(3)
    found: dict[str, Any] = {"pictures": n_pictures}
    with load(work, "captions-eagle3.gguf", draft="chain", draft_n_max=5) as llm:
        pictures = [picture(rng) for _ in range(n_pictures)]
        for name in ("filled", "with holes"):
            stats, n_right = Stats(), 0
            for pixels, caption in pictures:
                prompt = llm.projector.prompt(f"<s>{llm.projector.marker}{QUESTION}", [png(pixels)])
                media = prompt.media[0]
                llm.reset()
                llm.eval(prompt.tokens[: media.first])
                llm.eval_media(media)
                if name == "with holes":
                    llm.drafters[0].restart(llm.n_tokens)
                text = b""
                for token in llm.generate(prompt.tokens, temp=0):
                    if token in llm.engine.vocab.eog or len(text) > 60:
                        break
                    text += llm.detokenize([token])
                n_right += text.decode() == caption
                stats += llm.last_stats
            found[name] = {
                "mean_acceptance_length": round(stats.mean_acceptance_length, 3),
                "acceptance_rate": round(stats.draft_acceptance_rate, 3),
                "captions_right": n_right,
            }
    print(json.dumps(found, indent=2))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["train", "convert", "head", "measure"])
    parser.add_argument("work", type=Path)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--pictures", type=int, default=1000)
    arguments = parser.parse_args()
    if arguments.source is not None:
        sys.path[1:1] = [str(arguments.source / "gguf-py"), str(arguments.source)]
    if arguments.command == "train":
        train(arguments.work, arguments.minutes)
    elif arguments.command == "convert":
        convert(arguments.work)
    elif arguments.command == "head":
        train_head(arguments.work, arguments.pictures, arguments.minutes)
    else:
        measure(arguments.work, arguments.pictures)
