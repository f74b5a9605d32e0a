"""Which language models a type of projector is made for: llama.cpp itself compares their widths alone."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import llama_cpp.llama_cpp as lib

from ..errors import ModelFileError

_QWEN3VL = ("qwen3vl", "qwen3vlmoe")
_LFM2 = ("lfm2", "lfm2moe")
_GRANITE = ("granite", "granitemoe", "granitehybrid", "granite_swa", "graniteswitch")
_DEEPSEEK_OCR = ("deepseek2-ocr", "deepseek2")

_ARCHITECTURES: dict[str, tuple[str, ...]] = {
    # what llama.cpp's converter makes of the text beside such a projector, with names that older ones gave
    "qwen2vl_merger": ("qwen2vl", "llama"),  # the second one is Sarashina 2.2 Vision
    "qwen2.5vl_merger": ("qwen2vl",),
    "qwen2.5o": ("qwen2vl",),
    "qwen3vl_merger": (*_QWEN3VL, "qwen35", "qwen35moe", "qwen4exp"),
    "ling3vl": ("bailingmoe3",),
    "step3vl": ("qwen3", "step35"),
    "gemma3": ("gemma3",),
    "gemma3nv": ("gemma3n",),
    "gemma3na": ("gemma3n",),
    "gemma4v": ("gemma4",),
    "gemma4a": ("gemma4",),
    "gemma4uv": ("gemma4",),
    "gemma4ua": ("gemma4",),
    "phi4": ("phi3",),
    "llama4": ("llama4",),
    "lfm2": _LFM2,
    "lfm2a": _LFM2,
    "kimivl": ("deepseek2",),
    "paddleocr": ("paddleocr",),
    "cogvlm": ("cogvlm",),
    "janus_pro": ("llama",),
    "dots_ocr": ("qwen2",),
    "dots3note_v": ("dots3note",),
    "dots3note_a": ("dots3note",),
    "deepseekocr": _DEEPSEEK_OCR,
    "deepseekocr2": _DEEPSEEK_OCR,
    "deepseek4v": ("deepseek4",),
    "glm4v": ("glm4", "glm4moe"),
    "glm5v": ("glm5-next",),
    "youtuvl": ("deepseek2",),
    "exaone4_5": ("exaone4",),
    "hunyuanvl": ("hunyuan_vl", "hunyuan-dense"),
    "minicpmv4_6": ("qwen35",),
    "mimovl": ("mimo2",),
    "mimo_audio": ("mimo2",),
    "minimax_m3": ("minimax-m3",),
    "muse-glimmer": ("muse-glimmer",),
    "granite4_vision": _GRANITE,
    "granite_speech": _GRANITE,
    "qwen2a": ("qwen2", "qwen2vl"),
    "qwen3a": _QWEN3VL,
    "voxtral": ("llama", "mistral3"),
    "musicflamingo": ("qwen2",),
}
_OF_THESE_ALONE = frozenset(
    ("qwen2vl", *_QWEN3VL, "deepseek2-ocr", "hunyuan_vl", "paddleocr", "cogvlm")
)  # nothing but models with such a projector is converted to them


def check_family(path: str, types: Iterable[str], model: int) -> None:
    """Refuse a projector that is made for another kind of language model.

    Types that take any text model (`mlp`, `pixtral`, `internvl`, `idefics3`, `ultravox` and the like) pass beside every
    architecture that is converted for text alone too, types that the table does not know beside all but those.
    A projector of another model of the same type, architecture and width is not noticed: no entry of the files tells
    them apart.

    types: of the projector, by clip.*.projector_type; empty ones are passed over. model: address of the llama_model.

    Raises:
        ModelFileError: it is made for another one.
    """
    arch = _architecture(model)
    for projector in filter(None, types):
        expected = _ARCHITECTURES.get(projector)
        if arch in expected if expected else arch not in _OF_THESE_ALONE:
            continue
        takes = f"made for {' or '.join(expected)}" if expected else "made for others"
        raise ModelFileError(
            f"'{path}': expected a projector for a model of architecture '{arch}', found one of type '{projector}', "
            f"which is {takes}: give the mmproj file that was converted from the same checkpoint as the model"
        )


def _architecture(model: int) -> str:
    buffer = ctypes.create_string_buffer(64)
    n = int(lib.llama_model_meta_val_str(model, b"general.architecture", buffer, len(buffer)))
    return buffer.value.decode() if n >= 0 else ""
