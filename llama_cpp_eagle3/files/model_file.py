"""llama.cpp's reasons for refusing a model's file, as errors."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import llama_cpp.llama_cpp as lib
from jinja2 import TemplateError

from .._core import LoadGuard, check_header, header_size, read_arch, read_projector, read_target, tensor_names, tokenize
from ..errors import Eagle3Error, ModelFileError
from ._trial_child import override_array
from .trial import try_file

_ADVICE = (
    "The file is damaged, or was made for another version of llama.cpp: fetch it again, or convert the model anew."
)


_LESS = ". Where memory is short take a smaller n_ctx, quantized type_k and type_v, or a smaller model"
BLOCKS = "layers for multi-token prediction (nextn_predict_layers)"
"""Layers that a file's header may announce and that may be missing."""
_log = logging.getLogger("llama_cpp_eagle3")
_OVERRIDE_SIZE = lib.llama_model_kv_override_value.val_str.size


def check_file(path: str, options: Mapping[str, Any], checked: bool, *, is_all: bool = False) -> None:
    """Check a model's header before llama.cpp reads it, with the keys that `options` and `mended_keys` replace.

    checked: load a file that this machine has not seen yet in a child process first. is_all: nothing loads it
    afterwards, so if llama.cpp refuses it there, that is an error too.

    Raises:
        ModelFileError: the file is missing, truncated, no GGUF, its numbers contradict each other, or llama.cpp does
            not survive it.
    """
    overrides = mended_keys(path) | (options.get("kv_overrides") or {})
    n_header = check_header(path, {k: v for k, v in overrides.items() if isinstance(v, (bool, int, float, str))})
    refused = try_file(path, n_header, {**options, "kv_overrides": overrides}) if checked else None
    if refused is not None and is_all:
        reason = _explain(refused.reason, path, refused.tensors)
        raise ModelFileError(f"'{path}': llama.cpp cannot load it: {reason}. {_advice(path)}")


def check_projector(path: str, model_path: str, options: Mapping[str, Any], checked: bool) -> None:
    """Check a projector of images or sounds for a model before libmtmd reads it: its keys, and types of its tensors.

    checked: load a pair that this machine has not seen yet in a child process first, and build its graphs.

    Raises:
        ModelFileError: it is no projector, its numbers contradict each other, or llama.cpp does not survive it.
    """
    read_projector(path)
    if checked:
        overrides = mended_keys(model_path) | (options.get("kv_overrides") or {})
        try_file(model_path, header_size(model_path), {**options, "kv_overrides": overrides}, path)


def mended_keys(path: str) -> dict[str, bool | int | float | str]:
    """Keys of a model's file with the values that llama.cpp needs, if its header announces layers that are missing.

    Empty for a file that cannot be read: loading it will say why.
    """
    try:
        return dict(read_target(path).keys_without_block)
    except ModelFileError:
        return {}


def kv_overrides(values: Mapping[str, bool | int | float | str]) -> Any:
    """An array of llama_model_kv_override, which ends with an empty key.

    Raises:
        ValueError: a text is too long for it, or a value has another type.
    """
    for key, value in values.items():
        is_text = isinstance(value, str) and len(value.encode()) < _OVERRIDE_SIZE
        if not is_text and not isinstance(value, (bool, int, float)):
            raise ValueError(
                f"kv_overrides: expected a bool, int, float or text of less than {_OVERRIDE_SIZE} bytes for {key!r}, "
                f"found {value!r}"
            )
    return override_array(lib, values)


_WRONG_NUMBER = "wrong number of tensors"
_N_NAMED = 8

# what some of llama.cpp's assertions mean, for users who do not know its code
_MEANINGS = {
    "is_swa_any()": "there are layers with a sliding window or there are none: keys *.attention.sliding_window and "
    "*.attention.sliding_window_pattern contradict what the architecture has",
    "n_embd_head == hparams.n_embd_head_k()": "heads must have keys as long as values (keys *.attention.key_length and "
    "value_length)",
    "n_embd_head == n_rot": "all values of a head must be rotated (keys *.rope.dimension_count and "
    "*.attention.key_length)",
    "ggml_can_mul_mat(a, b)": "a matrix has another shape than what it is multiplied with",
    "ggml_can_repeat(b, a)": "a vector has another length than what it is added to or multiplied with",
    "ggml_nelements(a) == ne": "a number of heads, or the size of one, does not fit the matrices",
    "mem_buffer != NULL": "there is no memory for it",
    "K cache type": "see type_k",
    "V cache type": "see type_v",
}


def _explain(reason: str, path: str, asked: Collection[str]) -> str:
    """A reason, with an explanation if it is one that we know. asked: tensors that llama.cpp has asked the file for."""
    if _WRONG_NUMBER in reason and (others := [name for name in tensor_names(path) if name not in asked]):
        named = ", ".join(f"'{name}'" for name in others[:_N_NAMED]) + (", ..." if len(others) > _N_NAMED else "")
        return f"its graph of '{read_arch(path)}' has no place for {len(others)} tensors of the file: {named}"
    return next((f"{reason} ({meaning})" for code, meaning in _MEANINGS.items() if code in reason), reason)


def _advice(path: str) -> str:
    """What to do with a file that llama.cpp does not load."""
    try:
        if read_target(path).n_layer_gone:
            return (
                f"The file announces {BLOCKS} that are not in it, and has numbers of each layer, so that llama.cpp "
                "cannot be told: convert the model anew, with these layers or with --no-nextn."
            )
    except ModelFileError:
        pass
    return _ADVICE


@contextmanager
def file_errors(path: str) -> Iterator[None]:
    """Raise errors of llama.cpp's loading with their reasons; assertions do not end the process.

    Raises:
        ModelFileError: llama.cpp refuses the file.
        ValueError: there is no memory for the model, or llama.cpp cannot make such a context.
    """
    with LoadGuard() as guard:
        try:
            yield
        except ModelFileError as e:
            if path in str(e):
                raise
            raise ModelFileError(f"'{path}': {e}") from e
        except Eagle3Error:
            raise
        except TemplateError as e:
            raise ModelFileError(
                f"'{path}': key 'tokenizer.chat_template' is no template that Jinja can read: {e}. {_ADVICE}"
            ) from e
        except UnicodeDecodeError as e:
            raise ModelFileError(f"'{path}': the text of a special token is no UTF-8: {e}. {_ADVICE}") from e
        except ValueError as e:
            if not guard.reason:
                raise
            reason = _explain(guard.reason, path, guard.tensors)
            is_full = ("mem_buffer != NULL" if guard.asserted else "alloc") in guard.reason  # the memory, not the file
            if not is_full and (guard.asserted or "load model" in str(e)):
                raise ModelFileError(f"'{path}': llama.cpp cannot load it: {reason}. {_advice(path)}") from e
            raise ValueError(f"{e}: {reason}{_LESS if is_full else ''}") from e
    for key in sorted(guard.ignored):
        _log.warning("kv_overrides (--override-kv): not used for key %s", key)


def guard_tokenizer(model: Any) -> None:
    """Let a `LlamaModel` raise an error if its vocabulary lacks what tokenizing needs, not end the process."""
    vocab = int(model.vocab)

    def checked(text: bytes, add_bos: bool, special: bool) -> list[int]:
        return tokenize(vocab, text, add_bos, special)

    model.tokenize = checked
