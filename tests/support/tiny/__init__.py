"""Tiny random models that the tests make on the spot: real GGUF files, written in milliseconds.

`write_target` writes a target, `write_head` an EAGLE-3 head of any variant for it, `write_perfect_pair` a target with a
head that is always right. Their results keep the weights in checkpoint layout, so that a test can compute the expected
values itself.
"""

from .corrupt import CORRUPTIONS, Corruption, corrupt, patch_key
from .head import Head, HeadVariant, write_head
from .perfect import write_perfect_pair
from .target import Target, write_target
from .template import with_template, without_template
from .vocab import BOS, CHAT_TEMPLATE, EOS

__all__ = [
    "BOS",
    "CHAT_TEMPLATE",
    "CORRUPTIONS",
    "EOS",
    "Corruption",
    "Head",
    "HeadVariant",
    "Target",
    "corrupt",
    "patch_key",
    "with_template",
    "without_template",
    "write_head",
    "write_perfect_pair",
    "write_target",
]
