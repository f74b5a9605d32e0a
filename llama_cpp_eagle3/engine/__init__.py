"""The loop behind everything that generates: sequences that join and leave, share passes, and draft.

`Engine` knows a target, a draft and llama.cpp's samplers, and neither `llama_cpp.Llama` nor files nor HTTP.
"""

from .detokenizer import Detokenizer
from .engine import Engine
from .media import Media, check_media, media_tokens
from .memory import Memory
from .outputs import Output
from .proposers import AutoProposer, DraftModelProposer, FixedProposer, NoProposer, Proposer
from .rounds import N_ROWS_ARGMAX
from .sampling import RNGS, SAMPLERS, Chain, LogitsProcessor, Reasoning, Rng, Sampling, check_rng, samplers_of
from .sequence import DraftSettings, ScheduledSequence, Sequence, Shift, State, Step, TokenLogprob, check_prompt
from .vocab import Vocab

__all__ = [
    "N_ROWS_ARGMAX",
    "RNGS",
    "SAMPLERS",
    "AutoProposer",
    "Chain",
    "Detokenizer",
    "DraftModelProposer",
    "DraftSettings",
    "Engine",
    "FixedProposer",
    "LogitsProcessor",
    "Media",
    "Memory",
    "NoProposer",
    "Output",
    "Proposer",
    "Reasoning",
    "Rng",
    "Sampling",
    "ScheduledSequence",
    "Sequence",
    "Shift",
    "State",
    "Step",
    "TokenLogprob",
    "Vocab",
    "check_media",
    "check_prompt",
    "check_rng",
    "media_tokens",
    "samplers_of",
]
