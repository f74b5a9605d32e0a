"""Fetch the files that the flags name: files of the Hugging Face hub, and models that `models` knows by name."""

from __future__ import annotations

import argparse
import sys

from .. import models
from ..errors import Eagle3Error
from .sources import uses_head


def fetch_files(args: argparse.Namespace) -> None:
    """Fetch the files that flags of the hub name, and set `args.model` and `args.draft_model_path` to them.

    Raises:
        ValueError: a model is named twice, or a flag is given without the one that it belongs to.
        HubError: see `fetch_pair`.
        Eagle3Error: something of the extra `hub` is missing.
    """
    token, args.hf_token = args.hf_token, None  # arguments are written to reports
    if args.hf_file is not None and args.hf_repo is None:
        raise ValueError("-hff names a file of a repository: give that with -hf")
    if args.hf_repo is not None and args.model is not None:
        raise ValueError("give the target once: with -m or with -hf")
    if args.hf_repo_draft is not None and args.draft_model_path:
        raise ValueError("give the head once: with -md or with -hfd")
    if args.hf_repo_draft is not None and args.hf_repo is None and args.model is None:
        raise ValueError("-hfd needs a target: give one with -m or -hf")
    fetch_named(args, "model", "draft_model_path")
    if args.hf_repo is None and args.hf_repo_draft is None:
        return
    try:
        from ..hub import Access, fetch_pair
    except ImportError as e:
        raise Eagle3Error(f"-hf and -hfd: {e}") from e
    drafts = uses_head(args)
    pair = fetch_pair(
        args.hf_repo,
        args.hf_repo_draft if drafts else None,
        Access(token=token, offline=args.offline),
        target_path=args.model,
        target_file=args.hf_file,
        use_sidecar=drafts and not args.draft_model_path,
        log=say,
    )
    args.model = pair.target or args.model
    args.draft_model_path = args.draft_model_path if pair.head is None else [pair.head]


def fetch_named(args: argparse.Namespace, *flags: str) -> None:
    """Replace names that `models` knows by their files in these flags.

    Raises:
        ModelFileError, HubError: see `models.resolve`.
    """

    def found(name: str) -> str:
        return models.resolve(name, say)

    for flag in flags:
        named = getattr(args, flag)
        if named is not None:
            setattr(args, flag, [*map(found, named)] if isinstance(named, list) else found(named))


def say(text: str) -> None:
    """Print a message for the user, beside the output."""
    print(text, file=sys.stderr, flush=True)
