"""A multimodal projector: libmtmd's context, and prompts with images for the engine."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import llama_cpp.llama_cpp as lib
import llama_cpp.mtmd_cpp as mtmd
import numpy as np
import numpy.typing as npt
from llama_cpp import Llama

from .._core import BLANK_LEAVES, LoadGuard, decode_sound, read_projector, tokenize, with_stack_for
from ..engine.media import Media, Rows, media_tokens
from ..errors import Eagle3Error, ModelFileError
from ..files.fingerprint import Stamps, fingerprint, once_fingerprinted
from ..guard import closed_error
from .families import check_family
from .limits import N_SAMPLES_MAX, MediaError
from .placeholders import find_placeholder
from .sizes import check_files, is_sound

_log = logging.getLogger("llama_cpp_eagle3")
_ERROR, _CONTINUED = 4, 5  # of ggml's log levels


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text with images, ready for `Engine.add`."""

    tokens: list[int]
    """Rows of images have negative ones."""
    media: list[Media]


class _Log:
    """libmtmd's log, which is the only place where it gives reasons for errors."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._callback = lib.llama_log_callback(self._on_log)
        self._is_set = False

    def install(self) -> None:
        """Start to collect libmtmd's log."""
        if not self._is_set:
            mtmd.mtmd_helper_log_set(self._callback, None)
            self._is_set = True

    def begin(self) -> None:
        """Clear the lines of this thread."""
        self._local.errors = []

    @property
    def reason(self) -> str:
        """The errors since, on this thread."""
        return "; ".join(getattr(self._local, "errors", ()))

    def _on_log(self, level: int, text: bytes, _: Any) -> None:
        message = text.decode("utf-8", errors="replace").strip()
        if level == _ERROR and message:
            self._local.errors = [*getattr(self._local, "errors", []), message][-3:]
        if message and level != _CONTINUED:
            _log.debug("libmtmd: %s", message)


_mtmd_log = _Log()


class Projector:
    """Makes embeddings of images or sounds for a model. Any thread may call `prompt`, one thread `Media.encode`."""

    def __init__(
        self,
        path: str,
        model: int,
        *,
        n_threads: int,
        use_gpu: bool = True,
        flash_attn: bool = False,
        placeholder: int | str | None = None,
    ):
        """Load an mmproj file for a model.

        Args:
            path: GGUF file of the projector.
            model: address of the loaded llama_model, which must outlive this.
            n_threads: CPU threads that encode.
            use_gpu: encode on an accelerator, if there is one.
            flash_attn: with flash attention.
            placeholder: token, or its text, that a head gets in place of each row; None = by `find_placeholder`.

        Raises:
            ModelFileError: the file is missing, no projector, or belongs to another model.
            ValueError: the placeholder is no token.
        """
        self.path = path
        self.types = read_projector(path)
        check_family(path, self.types, model)
        stamps = Stamps([path])
        self._vocab = int(lib.llama_model_get_vocab(model))
        self._n_embd_inp = int(lib.llama_model_n_embd_inp(model))
        self._lock = threading.Lock()
        self._marker = f"<__media_{secrets.token_hex(8)}__>"
        self._ctx: Any = None
        self.placeholders = {
            is_audio: self._placeholder(kind, is_audio, placeholder)
            for kind, is_audio in zip(self.types, (False, True), strict=True)
            if kind
        }
        """The token that stands for sounds (True) and for images (False), and why that one."""
        params = context_params()
        params.use_gpu, params.print_timings, params.warmup = use_gpu, False, False
        params.n_threads = n_threads
        marker = self._marker.encode()
        params.media_marker = marker
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attn else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        _mtmd_log.install()
        _mtmd_log.begin()
        with LoadGuard() as guard:
            self._ctx = mtmd.mtmd_init_from_file(os.fsencode(path), model, params)
        if not self._ctx:
            reason = _mtmd_log.reason or guard.reason or "llama.cpp gives no reason"
            raise ModelFileError(f"'{path}': cannot be loaded as this model's projector: {reason}")
        # with another projector the same image has other rows
        self._file = once_fingerprinted([path], partial(_identify, path, stamps))

    @property
    def marker(self) -> str:
        """Marks an image in the text of a prompt; random, so that no user's text contains it."""
        return self._marker

    @property
    def takes_images(self) -> bool:
        """Whether it is for images."""
        return bool(self.types[0])

    @property
    def takes_sounds(self) -> bool:
        """Whether it is for sounds."""
        return bool(self.types[1])

    def describe(self) -> str:
        """One line about the loaded projector."""
        kinds = {False: "images", True: "sounds"}
        tokens = [f"{kinds[k]} stand for the head as {t} ({why})" for k, (t, why) in self.placeholders.items()]
        return f"projector '{self.path}' ({', '.join(filter(None, self.types))}): {'; '.join(tokens)}"

    def prompt(self, text: str, files: Sequence[bytes], *, add_special: bool = True) -> Prompt:
        """Tokens of a text in which `marker` stands for each of the files.

        Raises:
            MediaError: a file cannot be used, or there is not one for each marker.
        """
        ctx = self._context()
        bitmaps: list[Any] = []
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            check_files(files)
            n_samples = 0
            for i, data in enumerate(files):
                bitmaps.append(self._bitmap(ctx, data, i, N_SAMPLES_MAX - n_samples))
                if is_sound(data):
                    n_samples += mtmd.mtmd_bitmap_get_nx(bitmaps[-1])
            array = (mtmd.mtmd_bitmap_p_ctypes * len(bitmaps))(*bitmaps)
            data = text.encode()
            given = mtmd.mtmd_input_text()
            given.text, given.text_len, given.add_special, given.parse_special = data, len(data), add_special, True

            def run() -> None:
                _mtmd_log.begin()
                with LoadGuard() as guard:
                    result = mtmd.mtmd_tokenize(ctx, chunks, ctypes.byref(given), array, len(bitmaps))
                if result != 0:
                    raise MediaError(_mtmd_log.reason or guard.reason or f"mtmd_tokenize failed with {result}")

            with_stack_for(data, run)
            return self._prompt(chunks)
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            for bitmap in bitmaps:
                mtmd.mtmd_bitmap_free(bitmap)

    def close(self) -> None:
        """Free the projector; later calls for rows raise an error."""
        with self._lock:
            if self._ctx:
                mtmd.mtmd_free(self._ctx)
                self._ctx = None

    def _context(self) -> Any:
        if not self._ctx:
            raise closed_error(type(self).__name__)
        return self._ctx

    def _placeholder(self, kind: str, is_audio: bool, asked: int | str | None) -> tuple[int, str]:
        if asked is None:
            return find_placeholder(kind, is_audio, lambda text: tokenize(self._vocab, text.encode(), False, True))
        if isinstance(asked, int):
            tokens = [asked] if 0 <= asked < lib.llama_vocab_n_tokens(self._vocab) else []
        else:
            tokens = tokenize(self._vocab, asked.encode(), False, True)
        if len(tokens) != 1:
            raise ValueError(f"media_placeholder: expected one token of the vocabulary, found {asked!r}")
        return tokens[0], "as asked for"

    def _bitmap(self, ctx: Any, data: bytes, i: int, n_samples_max: int) -> Any:
        name = f"media file {i + 1}"
        if not (self.takes_sounds if is_sound(data) else self.takes_images):
            kind = "a sound" if is_sound(data) else "an image"
            raise MediaError(f"{name} is {kind}, which '{self.path}' does not take")
        if is_sound(data):
            return sound_bitmap(ctx, data, name, n_samples_max)
        options = mtmd.mtmd_helper_init_opt_default()
        options.video_params.ffmpeg_bin_dir = os.devnull.encode()  # run no program for damaged files
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(ctx, buffer, len(data), False, options)
        if not bitmap:
            raise MediaError(f"{name} cannot be decoded: it is damaged")
        return bitmap

    def _prompt(self, chunks: Any) -> Prompt:
        tokens: list[int] = []
        media: list[Media] = []
        for i in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, i)
            if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                tokens += text_tokens(chunk)
                continue
            is_audio = mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_AUDIO
            # parts of one image have its id, and differ in their index
            key = f"{self._file.result()}:{len(media)}:".encode() + mtmd.mtmd_input_chunk_get_id(chunk)
            made = make_media(
                self._context(),
                chunk,
                len(tokens),
                self.placeholders[is_audio][0],
                key,
                self._n_embd_inp,
                self._encoding,
            )
            media.append(made)
            tokens += made.tokens
        return Prompt(tokens, media)

    def _encoding(self, encode: Callable[[Any], Rows]) -> Rows:
        with self._lock:
            return encode(self._context())


def open_projector(llm: Llama, path: str | os.PathLike[str], placeholder: int | str | None) -> Projector:
    """Load the projector of a loaded model, to encode with as many threads and on the same kind of device.

    Raises:
        ModelFileError, ValueError: see `Projector`.
    """
    return Projector(
        os.path.expanduser(os.fspath(path)),
        int(llm.model),
        n_threads=llm.n_threads_batch,
        use_gpu=llm.model_params.n_gpu_layers != 0,
        flash_attn=llm.context_params.flash_attn_type == lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        placeholder=placeholder,
    )


def _identify(path: str, stamps: Stamps) -> str:
    """What identifies a loaded projector in prefixes; of a file that is another by now, something that no other has."""
    try:
        found = fingerprint(path)
        stamps.check()
    except (OSError, ModelFileError) as e:
        _log.warning("prefixes with images are found again by this process alone: %s", e)
        return secrets.token_hex(32)
    return found


def context_params() -> Any:
    """libmtmd's defaults, with zeros in memory that an encoder reads and never writes."""
    params = mtmd.mtmd_context_params_default()
    params.cb_eval = lib.ggml_backend_sched_eval_callback(BLANK_LEAVES)
    return params


def sound_bitmap(ctx: Any, data: bytes, name: str, n_samples_max: int = N_SAMPLES_MAX) -> Any:
    """A sound's file as libmtmd's bitmap, by our decoder: libmtmd's ends the process if a header claims 2^36 samples.

    Raises:
        MediaError: the file cannot be decoded, or is too long.
    """
    try:
        samples = decode_sound(data, mtmd.mtmd_get_audio_sample_rate(ctx), n_samples_max)
    except ValueError as e:
        raise MediaError(f"{name} {e}") from None
    bitmap = mtmd.mtmd_bitmap_init_from_audio(len(samples), samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float)))
    mtmd.mtmd_bitmap_set_id(bitmap, hashlib.sha256(data).hexdigest().encode())  # as libmtmd does
    return bitmap


def text_tokens(chunk: Any) -> list[int]:
    """Tokens of a chunk of text."""
    n = ctypes.c_size_t()
    pointer = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
    return pointer[: n.value] if n.value else []


def make_media(
    ctx: Any,
    chunk: Any,
    first: int,
    placeholder: int,
    key: bytes,
    n_embd_inp: int,
    run: Callable[[Callable[[Any], Rows]], Rows],
) -> Media:
    """A copy of libmtmd's chunk of an image or a sound, for the engine.

    first: index of its first token in the prompt. placeholder: the token that a head gets in place of each row.
    key: identifies it. run: calls a function with the mtmd_context while no other thread encodes.
    """
    n_rows = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
    own = mtmd.mtmd_input_chunk_copy(chunk)

    def compute(ctx: Any) -> Rows:
        _mtmd_log.begin()
        with LoadGuard(computes=True) as guard:
            status = mtmd.mtmd_encode_chunk(ctx, own)
        if status != 0:
            reason = guard.reason or _mtmd_log.reason or "llama.cpp gives no reason"
            raise Eagle3Error(f"an image could not be encoded: {reason}")
        values: Rows = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(ctx), shape=(n_rows, n_embd_inp)).copy()
        if not np.isfinite(values).all():
            raise Eagle3Error("an image was encoded to values that are no numbers: is the mmproj file damaged?")
        return values

    is_2d = mtmd.mtmd_decode_use_mrope(ctx) and (
        mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE
    )

    def positions(pos_0: int) -> npt.NDArray[np.intc]:
        tokens = mtmd.mtmd_input_chunk_get_tokens_image(own)
        found = [mtmd.mtmd_image_tokens_get_decoder_pos(tokens, pos_0, i) for i in range(n_rows)]
        return np.array([[getattr(p, axis) for p in found] for axis in "tyxz"], dtype=np.intc)

    media = Media(
        first,
        media_tokens(key, n_rows),
        placeholder,
        lambda: run(compute),
        n_pos=int(mtmd.mtmd_input_chunk_get_n_pos(chunk)),
        positions=positions if is_2d else None,
        causal=not mtmd.mtmd_decode_use_non_causal(ctx, chunk),
    )
    weakref.finalize(media, mtmd.mtmd_input_chunk_free, own)
    return media
