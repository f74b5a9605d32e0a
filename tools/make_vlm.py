"""Make the models of tests/support/vlm: `python tools/make_vlm.py <vendor/llama.cpp of the sdist> [name ...]`.

Write random tiny multimodal models of transformers, converted by llama.cpp's converter to a model and an mmproj file,
and transformers' results for a prompt with an image or a sound: hidden states of all boundaries, and logits. This needs
the packages of the test extra. The files are in the repository, so that tests need neither torch nor the converter.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the converter's own gguf, before transformers imports another one
    sys.path[1:1] = [f"{sys.argv[1]}/gguf-py", sys.argv[1]]

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

OUT = Path(__file__).resolve().parents[1] / "tests" / "support" / "vlm"
N_BYTES = 256
VOCAB = 320
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %} It is a"
)
MEAN = STD = [0.5, 0.5, 0.5]


@dataclass
class Case:
    """A model and its prompt, as transformers takes it."""

    model: Any
    image_token: str
    specials: list[str]
    rows: int
    processor: dict[str, Any]
    inputs: Callable[[np.ndarray], dict[str, Any]]
    media: np.ndarray
    begin: list[str] = field(default_factory=list)
    end: list[str] = field(default_factory=list)


def byte_tokens() -> list[str]:
    """Return GPT-2's names of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, n = {}, 0
    for b in range(256):
        names[b] = chr(b) if b in printable else chr(256 + n)
        n += b not in printable
    return [names[b] for b in range(256)]


def image(width: int, height: int) -> np.ndarray:
    """Return a picture, uint8 (height, width, 3)."""
    rng = np.random.default_rng(5)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / rng.uniform(5, 20) + y / rng.uniform(5, 20)) for _ in range(3)]
    return (127.5 + 120 * np.stack(waves, -1)).astype(np.uint8)


def pixels(picture: np.ndarray) -> torch.Tensor:
    """Normalize a picture as a model's processor does, float32 (3, height, width)."""
    return torch.from_numpy(((picture / 255.0 - 0.5) / 0.5).transpose(2, 0, 1)).float()


def text_config(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **more,
    }


def qwen_inputs(picture: Any, p: int, image_token_id: int, ids: np.ndarray) -> dict[str, Any]:
    """Return the input of Qwen's vision models: patches of p pixels, two by two, each as two frames."""
    x, m = pixels(picture), 2
    gh, gw = x.shape[1] // p, x.shape[2] // p
    x = x[None].repeat(2, 1, 1, 1)
    x = x.reshape(1, 2, 3, gh // m, m, p, gw // m, m, p)
    x = x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(gh * gw, -1)
    types = torch.from_numpy((ids == image_token_id).astype(np.int64))[None]
    return {"pixel_values": x, "image_grid_thw": torch.tensor([[1, gh, gw]]), "mm_token_type_ids": types}


def qwen25vl() -> Case:
    specials = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    ids = {s: N_BYTES + i for i, s in enumerate(specials)}
    config = transformers.Qwen2_5_VLConfig(
        text_config=text_config(
            num_attention_heads=2, num_key_value_heads=1,
            rope_parameters={"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
        ),
        vision_config={
            "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
            "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
            "fullatt_block_indexes": [2], "hidden_act": "silu",
        },
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        tie_word_embeddings=False,
    )  # fmt: skip
    picture = image(140, 112)

    return Case(
        transformers.Qwen2_5_VLForConditionalGeneration(config), "<|image_pad|>", specials, 20,
        {"min_pixels": 28 * 28, "max_pixels": 1 << 20, "image_mean": MEAN, "image_std": STD},
        partial(qwen_inputs, picture, 14, config.image_token_id), picture, ["<|vision_start|>"], ["<|vision_end|>"],
    )  # fmt: skip


def qwen3vl() -> Case:
    """Make a model whose first two layers add rows of the picture's own (deepstack)."""
    specials = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    ids = {s: N_BYTES + i for i, s in enumerate(specials)}
    config = transformers.Qwen3VLConfig(
        text_config=text_config(
            num_attention_heads=2, num_key_value_heads=1,
            rope_parameters={
                "rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True, "rope_theta": 10000.0
            },
        ),
        vision_config={
            "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1], "hidden_act": "gelu_pytorch_tanh",
        },
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        tie_word_embeddings=False,
    )  # fmt: skip
    picture = image(160, 128)

    return Case(
        transformers.Qwen3VLForConditionalGeneration(config), "<|image_pad|>", specials, 20,
        {"size": {"shortest_edge": 32 * 32, "longest_edge": 1 << 20}, "image_mean": MEAN, "image_std": STD},
        partial(qwen_inputs, picture, 16, config.image_token_id), picture, ["<|vision_start|>"], ["<|vision_end|>"],
    )  # fmt: skip


def gemma3() -> Case:
    specials = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    ids = {s: N_BYTES + i for i, s in enumerate(specials)}
    config = transformers.Gemma3Config(
        text_config=text_config(
            sliding_window=16, layer_types=["sliding_attention"] * 4,  # in llama.cpp every sixth layer is full
            query_pre_attn_scalar=32, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
        ),
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
            "image_size": 112, "patch_size": 14, "hidden_act": "gelu_pytorch_tanh", "vision_use_head": False,
        },
        mm_tokens_per_image=16,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
        tie_word_embeddings=True,
    )  # fmt: skip
    picture = image(112, 112)

    def inputs(ids: np.ndarray) -> dict[str, Any]:
        types = torch.from_numpy((ids == config.image_token_index).astype(np.int64))[None]
        return {"pixel_values": pixels(picture)[None], "token_type_ids": types}

    return Case(
        transformers.Gemma3ForConditionalGeneration(config), "<image_soft_token>", specials, 16,
        {"image_seq_length": 16, "image_mean": MEAN, "image_std": STD},
        inputs, picture, ["<start_of_image>"], ["<end_of_image>"],
    )  # fmt: skip


def pixtral() -> Case:
    specials = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    ids = {s: N_BYTES + i for i, s in enumerate(specials)}
    config = transformers.LlavaConfig(
        text_config={"model_type": "mistral", **text_config(sliding_window=None)},
        vision_config={
            "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 2, "head_dim": 16, "image_size": 112, "patch_size": 14, "hidden_act": "silu",
        },
        image_token_index=ids["[IMG]"], vision_feature_layer=-1, vision_feature_select_strategy="full",
        projector_hidden_act="gelu",
    )  # fmt: skip
    picture = image(70, 56)

    def inputs(ids: np.ndarray) -> dict[str, Any]:
        return {"pixel_values": pixels(picture)[None], "image_sizes": torch.tensor([[56, 70]])}

    return Case(
        transformers.LlavaForConditionalGeneration(config), "[IMG]", specials, 4 * 6 - 1,
        {"image_mean": MEAN, "image_std": STD}, inputs, picture, [], ["[IMG_END]"],
    )  # fmt: skip


def llama4() -> Case:
    specials = ["<|image_start|>", "<|image_end|>", "<|image|>", "<|patch|>", "<|tile_x_separator|>",
                "<|tile_y_separator|>"]  # fmt: skip
    ids = {s: N_BYTES + i for i, s in enumerate(specials)}
    config = transformers.Llama4Config(
        text_config=text_config(
            intermediate_size_mlp=96, num_local_experts=2, num_experts_per_tok=1, interleave_moe_layer_step=2,
            attention_chunk_size=8192, use_qk_norm=True, attn_temperature_tuning=True, moe_layers=[1, 3],
        ),
        vision_config={
            "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2,
            "image_size": 112, "patch_size": 14, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 64,
            "projector_output_dim": 64, "vision_output_dim": 64, "hidden_act": "gelu",
        },
        boi_token_index=ids["<|image_start|>"], eoi_token_index=ids["<|image_end|>"],
        image_token_index=ids["<|patch|>"],
    )  # fmt: skip
    picture = image(112, 112)

    def inputs(ids: np.ndarray) -> dict[str, Any]:
        return {"pixel_values": pixels(picture)[None]}

    return Case(
        transformers.Llama4ForConditionalGeneration(config), "<|patch|>", specials, 16,
        {"image_mean": MEAN, "image_std": STD}, inputs, picture, ["<|image_start|>"], ["<|image_end|>"],
    )  # fmt: skip


def qwen2audio() -> Case:
    specials = ["<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>"]
    ids = {s: N_BYTES + i for i, s in enumerate(specials)}
    config = transformers.Qwen2AudioConfig(
        text_config={"model_type": "qwen2", **text_config(num_attention_heads=2, num_key_value_heads=1)},
        audio_config={
            "model_type": "qwen2_audio_encoder", "d_model": 32, "encoder_layers": 3, "encoder_attention_heads": 2,
            "encoder_ffn_dim": 48, "num_mel_bins": 128, "max_source_positions": 1500,
        },
        audio_token_index=ids["<|AUDIO|>"],
    )  # fmt: skip
    t = np.arange(16000) / 16000
    sound = (0.3 * np.sin(2 * np.pi * (300 + 500 * t) * t)).astype(np.float32)

    def inputs(ids: np.ndarray) -> dict[str, Any]:
        extract = transformers.WhisperFeatureExtractor(feature_size=128)
        found = extract(sound, sampling_rate=16000, return_tensors="pt", padding="max_length")
        return {
            "input_features": found["input_features"],
            "feature_attention_mask": torch.ones(1, 3000, dtype=torch.long),
        }

    return Case(
        transformers.Qwen2AudioForConditionalGeneration(config), "<|AUDIO|>", specials, 750,
        {"feature_size": 128}, inputs, sound, ["<|audio_bos|>"], ["<|audio_eos|>"],
    )  # fmt: skip


CASES = {f.__name__: f for f in (qwen25vl, qwen3vl, gemma3, pixtral, llama4, qwen2audio)}


def randomize(model: torch.nn.Module) -> None:
    """Set weights large enough that attended rows change the result, and exact in F16."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1 or "embed" in name:
                scale = 0.5 if "embed_tokens" in name else 1.6 / p[0].numel() ** 0.5
                p.copy_(torch.randn(p.shape, generator=generator) * scale)
            elif "norm" in name or "ln" in name:
                base = 0.0 if type(model).__name__.startswith("Gemma3") and p.mean().abs() < 0.5 else 1.0
                p.copy_(base + 0.2 * torch.randn(p.shape, generator=generator))
                if name.endswith("bias"):
                    p.sub_(base)
            else:
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))
            p.copy_(p.half().float())


def save(case: Case, folder: Path) -> None:
    case.model.save_pretrained(folder)
    if isinstance(case.model, transformers.Gemma3ForConditionalGeneration):  # rename tensors as the converter expects
        path = folder / "model.safetensors"
        tensors = {n.replace("vision_tower.", "vision_tower.vision_model."): t for n, t in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})
    (folder / "preprocessor_config.json").write_text(json.dumps(case.processor))
    added = [{"id": N_BYTES + i, "content": s} for i, s in enumerate(case.specials)]
    vocab = {str(i): i for i in range(VOCAB - len(added))}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": added}))
    (folder / "tokenizer_config.json").write_text(json.dumps({}))


def convert(source: Path, case: Case, folder: Path, out: Path, mmproj: bool) -> None:
    """Convert as the converter's main does, with a vocabulary of bytes."""
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(folder, False)
    kind = ModelType.MMPROJ if mmproj else ModelType.TEXT
    cls = get_model_class(get_model_architecture(hparams, kind), mmproj=mmproj)

    def set_vocab(self) -> None:
        tokens = [*byte_tokens(), *case.specials]
        types = [1] * N_BYTES + [3] * len(case.specials)
        n_left = VOCAB - len(tokens)
        self.gguf_writer.add_tokenizer_model("gpt2")
        self.gguf_writer.add_tokenizer_pre("gpt-2")
        self.gguf_writer.add_token_list(tokens + [f"<unused{i}>" for i in range(n_left)])
        self.gguf_writer.add_token_types(types + [5] * n_left)
        self.gguf_writer.add_token_merges(["a b"])
        self.gguf_writer.add_bos_token_id(1)
        self.gguf_writer.add_eos_token_id(VOCAB - 1)
        self.gguf_writer.add_add_bos_token(False)
        self.gguf_writer.add_chat_template(CHAT_TEMPLATE)

    with torch.inference_mode():
        if not mmproj:
            cls.set_vocab = set_vocab
        model = cls(folder, gguf.LlamaFileType.MOSTLY_F16, out)
        if mmproj and "[IMG_BREAK]" in case.specials:  # the converter looks for the function under an older name
            embd = case.model.get_input_embeddings().weight[N_BYTES + case.specials.index("[IMG_BREAK]")]
            model.gguf_writer.add_tensor("v.token_embd.img_break", embd.detach().numpy().astype(np.float32))
        if mmproj and "<|patch|>" in case.specials:  # Gemma 4 took this name from Llama 4, whose graph expects ln2
            key = gguf.MODEL_TENSOR.V_ENC_POST_ATTN_NORM
            for i in range(case.model.config.vision_config.num_hidden_layers):
                name = gguf.TENSOR_NAMES[key].format(bid=i)
                model.tensor_map.mapping[f"vision_model.model.layers.{i}.post_attention_layernorm"] = (key, name)
        model.write()


def reference(case: Case, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return boundaries (n_tokens, n_layer + 1, n_embd), logits (n_tokens, n_vocab), further rows of the image."""
    model = case.model.eval()
    text = model.get_submodule("model.language_model") if hasattr(model, "model") else model.language_model
    text = getattr(text, "model", text)
    inputs: list[torch.Tensor] = []  # the inputs of each layer and of the final norm

    def keep(_: torch.nn.Module, args: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> None:
        inputs.append(args[0] if args else named["hidden_states"])

    handles = [m.register_forward_pre_hook(keep, with_kwargs=True) for m in (*text.layers, text.norm)]
    further: list[torch.Tensor] = []
    if hasattr(getattr(model.config, "vision_config", None), "deepstack_visual_indexes"):
        handles.append(
            model.model.visual.register_forward_hook(lambda _, args, out: further.extend(out.deepstack_features))
        )
    with torch.no_grad():
        found = model(
            input_ids=torch.from_numpy(ids)[None],
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            use_cache=False,
            **case.inputs(ids),
        )
    for handle in handles:
        handle.remove()
    states = torch.stack(inputs, dim=2)[0]
    made = {"states": states.half().numpy(), "logits": found.logits[0, -9:].float().numpy()}
    if further:
        made["further"] = torch.cat(further, 1).half().numpy()
    return made


def make(name: str, source: Path) -> None:
    torch.manual_seed(3)
    case = CASES[name]()
    case.model.config._attn_implementation = "eager"
    for module in case.model.modules():
        if hasattr(module, "config") and hasattr(module.config, "_attn_implementation"):
            module.config._attn_implementation = "eager"
    randomize(case.model)
    special = {s: N_BYTES + i for i, s in enumerate(case.specials)}
    before, after = b"What is this? ", b" It is a"
    byte_ids = {b: i for i, b in enumerate(range(256))}
    ids = [byte_ids[b] for b in before] + [special[s] for s in case.begin]
    first = len(ids)
    rows = [special[case.image_token]] * case.rows
    if name == "pixtral":
        rows = [special["[IMG]" if i % 6 < 5 else "[IMG_BREAK]"] for i in range(case.rows)]
    ids += rows + [special[s] for s in case.end] + [byte_ids[b] for b in after]
    ids = np.array(ids, dtype=np.int64)
    made = reference(case, ids)
    with tempfile.TemporaryDirectory() as folder:
        save(case, Path(folder))
        convert(source, case, Path(folder), OUT / f"{name}.gguf", False)
        convert(source, case, Path(folder), OUT / f"{name}-mmproj.gguf", True)
    np.savez_compressed(
        OUT / f"{name}.npz", ids=ids.astype(np.int32), first=first, media=case.media, **made,
    )  # fmt: skip
    print(name, "rows", case.rows, "states", made["states"].shape, [p.stat().st_size for p in OUT.glob(f"{name}*")])


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for chosen in sys.argv[2:] or CASES:
        make(chosen, Path(sys.argv[1]))
