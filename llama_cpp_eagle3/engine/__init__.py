"""The loop behind everything that generates: sequences that join and leave, share passes, and draft.

`Engine` knows a target, a draft and llama.cpp's samplers, and neither `llama_cpp.Llama` nor files nor HTTP.
"""

from .engine import Engine
from .media import Media, check_media, media_tokens
from .memory import Memory
from .outputs import Output
from .proposer import Fixed, Guess, Plain, Planned, Proposer
from .rounds import N_ROWS_ARGMAX
from .sampling import RNGS, SAMPLERS, Chain, LogitsProcessor, Reasoning, Rng, Sampling, check_rng, samplers_of
from .sequence import DraftSettings, Part, Round, Sequence, Shift, State, TokenLogprob, check_prompt
from .text import Text
from .vocab import Vocab

__all__ = [
    "N_ROWS_ARGMAX",
    "RNGS",
    "SAMPLERS",
    "Chain",
    "DraftSettings",
    "Engine",
    "Fixed",
    "Guess",
    "LogitsProcessor",
    "Media",
    "Memory",
    "Output",
    "Part",
    "Plain",
    "Planned",
    "Proposer",
    "Reasoning",
    "Rng",
    "Round",
    "Sampling",
    "Sequence",
    "Shift",
    "State",
    "Text",
    "TokenLogprob",
    "Vocab",
    "check_media",
    "check_prompt",
    "check_rng",
    "media_tokens",
    "samplers_of",
]
