"""A real byte-level BPE tokenizer ("gpt2" in GGUF) for tiny models: 256 bytes, a few dozen merges, bos and eos."""

from __future__ import annotations

import gguf

BOS = "<|bos|>"
EOS = "<|endoftext|>"

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)

# Merges in order of rank, "left+right" with _ for a space. Both halves of each come before it.
_MERGES_TEXT = (
    "h+e i+n r+e o+n a+t e+r e+s o+r e+n a+n t+i i+t s+t a+r a+l o+u _+t _+a _+s _+i _+o _+p _+c _+f _+w _+b _+m _+d "
    "_t+he in+g _+in _a+n _an+d _+re _t+o _o+f _i+s e+d l+y s+e l+f se+lf d+e de+f re+t u+r ret+ur retur+n _+self"
)
_MERGES = _MERGES_TEXT.split()

N_VOCAB_MIN = 256 + len(_MERGES) + 2


def _byte_alphabet() -> list[str]:
    """Return the printable character that stands for each byte in GPT-2's tokenizer."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


def vocab_tokens(n_vocab: int) -> list[str]:
    """Return all tokens: bytes, merges, unused fillers, then bos (n_vocab - 2) and eos (n_vocab - 1)."""
    if n_vocab < N_VOCAB_MIN:
        raise ValueError(f"n_vocab must be at least {N_VOCAB_MIN}, got {n_vocab}")
    space = _byte_alphabet()[ord(" ")]
    tokens = _byte_alphabet() + [m.replace("+", "").replace("_", space) for m in _MERGES]
    tokens += [f"<|unused_{i}|>" for i in range(n_vocab - 2 - len(tokens))]
    return [*tokens, BOS, EOS]


def printable_tokens(n_vocab: int) -> list[int]:
    """Return the ids of the tokens that stand for printable ASCII text."""
    space = _byte_alphabet()[ord(" ")]
    return [i for i, t in enumerate(vocab_tokens(n_vocab)[: N_VOCAB_MIN - 2]) if t.replace(space, " ").isascii()]


def add_vocab(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Write the tokenizer's keys, with the chat template."""
    tokens = vocab_tokens(n_vocab)
    space = _byte_alphabet()[ord(" ")]
    types = [gguf.TokenType.NORMAL] * (N_VOCAB_MIN - 2)
    types += [gguf.TokenType.UNUSED] * (n_vocab - N_VOCAB_MIN) + [gguf.TokenType.CONTROL] * 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m.replace("+", " ").replace("_", space) for m in _MERGES])
    writer.add_bos_token_id(n_vocab - 2)
    writer.add_eos_token_id(n_vocab - 1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
