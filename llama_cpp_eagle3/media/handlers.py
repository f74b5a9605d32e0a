"""Makes llama_cpp's multimodal chat handlers decode through the engine.

A handler calls libmtmd through a module that it holds (`_mtmd_cpp`). That is replaced by one whose function for
decoding a chunk gives the rows to the engine if the context is that of an `Eagle3Llama`, so that drafters see them.
Encoders that the handler makes from then on have the same parameters as ours, and sounds are decoded by our decoder.
"""

from __future__ import annotations

import ctypes
import weakref
from types import ModuleType
from typing import Any, Protocol

import llama_cpp.llama_cpp as lib
import llama_cpp.mtmd_cpp as mtmd

from .._core import read_projector, tokenize
from ..engine.media import Media
from ..files.fingerprint import fingerprint
from .families import check_family
from .placeholders import find_placeholder
from .projector import context_params, make_media, sound_bitmap
from .sizes import is_sound


class Owner(Protocol):
    """The owner of a context, which decodes into it."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the context."""

    @property
    def model_address(self) -> int:
        """Address of the llama_model."""

    def check_projector(self, path: str) -> None:
        """Raise ModelFileError for a projector's file that llama.cpp would not survive with this model."""

    def eval_media(self, media: Media) -> None:
        """Decode an image after these tokens."""


_owners: weakref.WeakValueDictionary[int, Owner] = weakref.WeakValueDictionary()


class _Module(ModuleType):
    """llama_cpp.mtmd_cpp, with a decoder for our context."""

    def __init__(self, path: str):
        super().__init__(mtmd.__name__)
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(mtmd, name)

    def mtmd_context_params_default(self) -> Any:
        """The defaults, as `Projector` has them."""
        return context_params()

    def mtmd_helper_bitmap_init_from_buf(self, ctx: Any, buf: Any, length: int, *rest: Any) -> Any:
        """A file as a bitmap: sounds are decoded as `Projector` does."""
        data = bytes(memoryview(buf)[:length])
        if data and is_sound(data) and mtmd.mtmd_get_audio_sample_rate(ctx) > 0:
            return sound_bitmap(ctx, data, "the file")
        return mtmd.mtmd_helper_bitmap_init_from_buf(ctx, buf, length, *rest)

    def mtmd_helper_eval_chunk_single(
        self, ctx: Any, lctx: Any, chunk: Any, n_past: Any, seq_id: Any, n_batch: Any, logits_last: Any, new_n_past: Any
    ) -> int:
        """Decode a chunk, as the function of this name does."""
        owner = _owners.get(int(lctx))
        if owner is None or mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            return int(
                mtmd.mtmd_helper_eval_chunk_single(ctx, lctx, chunk, n_past, seq_id, n_batch, logits_last, new_n_past)
            )
        is_audio = mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_AUDIO
        types = read_projector(self._path)
        vocab = int(lib.llama_model_get_vocab(owner.model_address))
        placeholder, _ = find_placeholder(
            types[is_audio], is_audio, lambda text: tokenize(vocab, text.encode(), False, True)
        )
        key = f"{fingerprint(self._path)}:{owner.n_tokens}:".encode() + (mtmd.mtmd_input_chunk_get_id(chunk) or b"")
        n_embd_inp = int(lib.llama_model_n_embd_inp(owner.model_address))
        owner.eval_media(
            make_media(ctx, chunk, owner.n_tokens, placeholder, key, n_embd_inp, lambda encode: encode(ctx))
        )
        ctypes.cast(new_n_past, ctypes.POINTER(lib.llama_pos))[0] = owner.n_tokens
        return 0


def hook_handler(handler: Any, owner: Owner, context: int) -> None:
    """Let a chat handler decode through the owner of a context; other than multimodal handlers are not changed.

    Raises:
        ModelFileError: its projector's file is none, or belongs to another model.
    """
    # there is no public name for the module through which it calls
    if getattr(handler, "_mtmd_cpp", None) is None or not hasattr(handler, "clip_model_path"):
        return
    path = handler.clip_model_path
    owner.check_projector(path)
    check_family(path, read_projector(path), owner.model_address)
    _owners[context] = owner
    if not isinstance(handler._mtmd_cpp, _Module):
        handler._mtmd_cpp = _Module(path)
