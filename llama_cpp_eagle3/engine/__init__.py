"""Continuous batching with drafts: sequences join and leave, and share each step's pass of the target.

`Engine` takes a target, drafters and llama.cpp's samplers; it imports neither `llama_cpp.Llama` nor files nor HTTP.
Read `step.py` first.
"""

from .detokenizer import Detokenizer
from .drafters import Drafters
from .engine import Engine
from .fim import FimTokens
from .keeping import KeptText
from .media import Media, media_tokens
from .memory import Memory
from .prefix_cache import PrefixStats
from .prefix_disk import FolderEntry, PrefixFiles
from .prefix_nodes import Slot, StoredFile, n_common
from .request import GRAMMAR, NGRAM, WITHOUT_MODEL, DraftSettings, Request, Shift, token_list
from .sampler_chain import GrammarError, SamplerChain
from .sampling import RNGS, SAMPLERS, LogitsProcessor, Reasoning, Rng, Sampling
from .sequence import FinishReason, Output, Result, ScheduledSequence, Sequence, State, Step, StoredPrefix, TokenLogprob
from .slots import Slots
from .verifier import N_ROWS_ARGMAX
from .vocab import Vocab

__all__ = [
    "GRAMMAR", "NGRAM", "N_ROWS_ARGMAX", "RNGS", "SAMPLERS", "WITHOUT_MODEL", "Detokenizer", "DraftSettings",
    "Drafters", "Engine", "FimTokens", "FinishReason", "FolderEntry", "GrammarError", "KeptText", "LogitsProcessor",
    "Media", "Memory", "Output", "PrefixFiles", "PrefixStats", "Reasoning", "Request", "Result", "Rng", "SamplerChain",
    "Sampling", "ScheduledSequence", "Sequence", "Shift", "Slot", "Slots", "State", "Step", "StoredFile",
    "StoredPrefix", "TokenLogprob", "Vocab", "media_tokens", "n_common", "token_list",
]  # fmt: skip
