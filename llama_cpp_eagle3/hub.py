"""Files from the Hugging Face hub, found and named as `Llama.from_pretrained` does."""

from __future__ import annotations

from typing import Any, cast

from llama_cpp import Llama


def download(repo_id: str, filename: str | None, **options: Any) -> str:
    """Download the one file of a repository that matches `filename`, and return its path.

    Raises:
        ImportError: huggingface-hub is not installed; the message says how to install it.
        ValueError: no file matches, or several do; the message lists them.
    """
    # Llama.from_pretrained ends with cls(model_path=..., **kwargs): let the "class" just return the path
    find = cast(Any, Llama.from_pretrained).__func__
    return cast(str, find(lambda model_path: model_path, repo_id=repo_id, filename=filename, **options))
