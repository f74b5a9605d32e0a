"""llama.cpp's reasons for refusing a model's file, as errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import llama_cpp.llama_cpp as lib
from jinja2 import TemplateError

from .._core import LoadGuard, check_header, read_target, tokenize
from ..errors import Eagle3Error, ModelFileError
from .trial import try_file

_ADVICE = (
    "The file is damaged, or was made for another version of llama.cpp: fetch it again, or convert the model anew."
)


BLOCKS = "layers for multi-token prediction (nextn_predict_layers)"
"""What a file may announce and lack."""
_OVERRIDE_SIZE = lib.llama_model_kv_override_value.val_str.size


def check_file(path: str, options: Mapping[str, Any], checked: bool, *, is_all: bool = False) -> None:
    """Check a model's header before llama.cpp sees it, with what `options` and `mended_keys` put in place of keys.

    checked: load what this machine has not seen yet in a process of its own first. is_all: nothing loads it
    afterwards, so that what llama.cpp refuses there is an error too.

    Raises:
        ModelFileError: the file is missing, truncated, no GGUF, its numbers contradict each other, or llama.cpp does
            not survive it.
    """
    overrides = mended_keys(path) | (options.get("kv_overrides") or {})
    n_header = check_header(path, {k: v for k, v in overrides.items() if isinstance(v, (bool, int, float, str))})
    refused = try_file(path, n_header, {**options, "kv_overrides": overrides}) if checked else ""
    if refused and is_all:
        raise ModelFileError(f"'{path}': llama.cpp cannot load it: {_explain(refused)}. {_advice(path)}")


def mended_keys(path: str) -> dict[str, bool | int | float | str]:
    """Keys of a model's file that llama.cpp must be given other values for: its header announces layers that it lacks.

    Empty for a file that cannot be read, which loading it explains.
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
    array = (lib.llama_model_kv_override * (len(values) + 1))()
    for item, (key, value) in zip(array, values.items(), strict=False):
        item.key = key.encode()
        if isinstance(value, bool):
            item.tag, item.value.val_bool = lib.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
        elif isinstance(value, int):
            item.tag, item.value.val_i64 = lib.LLAMA_KV_OVERRIDE_TYPE_INT, value
        elif isinstance(value, float):
            item.tag, item.value.val_f64 = lib.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
        elif isinstance(value, str) and len(value.encode()) < _OVERRIDE_SIZE:
            item.tag, item.value.val_str = lib.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
        else:
            raise ValueError(
                f"kv_overrides: expected a bool, int, float or text of less than {_OVERRIDE_SIZE} bytes for {key!r}, "
                f"found {value!r}"
            )
    return array


# what some of llama.cpp's assertions are about, for those who have not read it
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
    "K cache type": "see type_k",
    "V cache type": "see type_v",
}


def _explain(reason: str) -> str:
    """A reason, and in other words if it is one that we know."""
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
    """Have what goes wrong while llama.cpp loads a file raised with its reason; assertions do not end the process.

    Raises:
        ModelFileError: the file is not what llama.cpp wants.
        ValueError: it has no memory for the model, or cannot make such a context.
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
            if guard.asserted or ("load model" in str(e) and "alloc" not in guard.reason):
                raise ModelFileError(
                    f"'{path}': llama.cpp cannot load it: {_explain(guard.reason)}. {_advice(path)}"
                ) from e
            raise ValueError(f"{e}: {_explain(guard.reason)}") from e


def guard_tokenizer(model: Any) -> None:
    """Have a `LlamaModel` tokenize with an error where its vocabulary lacks something, not with the process's end."""
    vocab = int(model.vocab)

    def checked(text: bytes, add_bos: bool, special: bool) -> list[int]:
        return tokenize(vocab, text, add_bos, special)

    model.tokenize = checked
