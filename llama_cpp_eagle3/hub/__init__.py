"""Targets and heads from the Hugging Face hub, by the name of their repository. Needs the extra `hub`."""

from .choice import HEAD_QUANTS, TARGET_QUANTS, split_name
from .pair_files import Pair, fetch_pair
from .repository import Access

__all__ = ["HEAD_QUANTS", "TARGET_QUANTS", "Access", "Pair", "fetch_pair", "split_name"]
