"""What llama.cpp finds wrong with a model's file, as errors that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError

from ._core import LoadGuard, check_header, tokenize
from .errors import Eagle3Error, ModelFileError
from .trial import try_file

_ADVICE = "The file is damaged, or was made for another version of llama.cpp: fetch it again, or convert the model anew."


def check_file(path: str, options: Mapping[str, Any], checked: bool) -> None:
    """Check a model's header before llama.cpp sees it, with the keys that `options` give other values.

    checked: load what this machine has not seen yet in a process of its own first.

    Raises:
        ModelFileError: the file is missing, truncated, no GGUF, its numbers contradict each other, or llama.cpp does
            not survive it.
    """
    overrides = options.get("kv_overrides") or {}
    n_header = check_header(path, {k: v for k, v in overrides.items() if isinstance(v, (bool, int, float, str))})
    if checked:
        try_file(path, n_header, options)


@contextmanager
def loading(path: str) -> Iterator[None]:
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
                raise ModelFileError(f"'{path}': llama.cpp cannot load it: {guard.reason}. {_ADVICE}") from e
            raise ValueError(f"{e}: {guard.reason}") from e


def guard_tokenizer(model: Any) -> None:
    """Have a `LlamaModel` tokenize with an error where its vocabulary lacks something, not with the process's end."""
    vocab = int(model.vocab)

    def checked(text: bytes, add_bos: bool, special: bool) -> list[int]:
        return tokenize(vocab, text, add_bos, special)

    model.tokenize = checked
