"""Which token a head gets in place of an image's row: the one that the model's own processor repeats there."""

from __future__ import annotations

from collections.abc import Callable

_BY_PROJECTOR = {
    # images
    "llama4": ("<|patch|>",),
    "qwen2vl_merger": ("<|image_pad|>",),
    "qwen2.5vl_merger": ("<|image_pad|>",),
    "qwen3vl_merger": ("<|image_pad|>",),
    "gemma3": ("<image_soft_token>",),
    "gemma3nv": ("<image_soft_token>",),
    "gemma4v": ("<|image|>",),
    "gemma4uv": ("<|image|>",),
    "pixtral": ("[IMG]",),
    "internvl": ("<IMG_CONTEXT>",),
    "mlp": ("<image>",),
    "idefics3": ("<image>",),
    "lfm2": ("<image>",),
    "glm4v": ("<|image|>",),
    "kimivl": ("<|media_pad|>",),
    "kimik25": ("<|media_pad|>",),
    "janus_pro": ("<image_placeholder>",),
    "step3vl": ("<im_patch>",),
    "dots_ocr": ("<|imgpad|>",),
    "paddleocr": ("<|IMAGE_PLACEHOLDER|>",),
    "phi4": ("<|endoftext10|>",),
    # sounds
    "qwen2a": ("<|AUDIO|>",),
    "qwen2.5o": ("<|AUDIO|>",),
    "qwen3a": ("<|audio_pad|>",),
    "ultravox": ("<|audio|>",),
    "voxtral": ("[AUDIO]",),
    "gemma3na": ("<audio_soft_token>",),
    "gemma4a": ("<|audio|>",),
}
_IMAGES = ("<|image_pad|>", "<image_soft_token>", "<|image|>", "<image>", "[IMG]", "<|patch|>", "<IMG_CONTEXT>")
_SOUNDS = ("<|audio_pad|>", "<audio_soft_token>", "<|audio|>", "<|AUDIO|>", "[AUDIO]", "<audio>")


def find_placeholder(projector: str, is_audio: bool, tokenize: Callable[[str], list[int]]) -> tuple[int, str]:
    """The token, and the reason for it. projector: its type in the mmproj file."""
    kind = "sounds" if is_audio else "images"
    for text in _BY_PROJECTOR.get(projector, ()):
        tokens = tokenize(text)
        if len(tokens) == 1:
            return tokens[0], f"{text!r}, by the projector '{projector}'"
    for text in _SOUNDS if is_audio else _IMAGES:
        tokens = tokenize(text)
        if len(tokens) == 1:
            return tokens[0], f"{text!r}, the vocabulary's token for {kind}"
    return 0, f"token 0, for neither the projector '{projector}' nor the vocabulary has a placeholder for {kind}"
