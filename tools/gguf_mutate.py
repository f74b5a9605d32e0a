"""Spoil a GGUF file by its parts: fields, vocabulary, descriptions of tensors, data, bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable

import gguf
import numpy as np

from gguf_raw import ARRAY, BOOL, F32, I32, NUMBERS, STR, U32, U64, Field, RawFile, Tensor, parse, serialize

Mutation = Callable[[random.Random, RawFile], None]

_INTS = (0, 1, 2, 3, 5, 7, 8, 16, 31, 33, 64, 100, 127, 255, 256, 511, 512, 513, 1024, 65536, 1 << 20, (1 << 31) - 1)
_INTS += (1 << 31, (1 << 32) - 1, -1, -2, 1 << 40, (1 << 63) - 1)
_FLOATS = (0.0, -1.0, 1.0, 0.5, 1e-30, -1e-5, 1e30, 3e38, float("nan"), float("inf"), -float("inf"), 2.0, 1e4)
_STRINGS = (
    b"",
    b"none",
    b"linear",
    b"yarn",
    b"longrope",
    b"mean",
    b"\xff\xfe\x80",
    b"a" * 300,
    b"%s%n%d",
    b"\0",
    b"{{",
)
_TOKENIZERS = (b"llama", b"gpt2", b"bert", b"t5", b"rwkv", b"plamo2", b"gemma4", b"none", b"no_vocab", b"test", b"",
               b"hybriddna", b"whitespace", b"replit")  # fmt: skip
_PRES = (b"default", b"llama-bpe", b"qwen2", b"gpt-2", b"gemma4", b"kimi-k2", b"deepseek-v3", b"gpt-4o", b"falcon", b"",
         b"jais", b"tekken", b"bailingmoe", b"jina-v2-de", b"smaug-bpe", b"afmoe", b"nothing")  # fmt: skip
_TOKENS = (b"", b"a", b"<0x0A>", b"<0x", b"<0xZZ>", b"\xe2\x96\x81", b"\xff", b"\xc4\x80", b"'\\x0'", b"b'\\x", b"</s>",
           b"<unk>", b"<|im_end|>", b"\xf0\x9f\x98\x80", b"x" * 5000, b"\0", b" ", b"<|eot_id|>")  # fmt: skip


def _known_keys() -> list[str]:
    """Return every key that the gguf package knows, with {arch} in it."""
    groups = [v for v in vars(gguf.Keys).values() if isinstance(v, type)]
    names = {v for group in groups for k, v in vars(group).items() if isinstance(v, str) and k.isupper()}
    return sorted(names)


_KEYS = _known_keys()


def _numbers(file: RawFile) -> list[Field]:
    return [f for f in file.fields if not f.key.startswith((b"tokenizer.", b"general."))]


def _other_number(rng: random.Random, old: object) -> int:
    value = old if isinstance(old, int) else int(old) if isinstance(old, float) and abs(old) < 1e9 else 1
    near = (value + 1, value - 1, 2 * value, value // 2, 3 * value, value * 4, value // 4)
    return rng.choice(near) if rng.random() < 0.6 else rng.choice(_INTS)


def _other_value(rng: random.Random, kind: int, old: object) -> object:
    if kind == STR:
        return rng.choice(_STRINGS)
    if kind in (F32, 12):
        return rng.choice(_FLOATS)
    return _other_number(rng, old)


def change_field(rng: random.Random, file: RawFile) -> None:
    """Give a key of the model another value."""
    f = rng.choice(_numbers(file) or file.fields)
    if f.type != ARRAY:
        f.value = _other_value(rng, f.type, f.value)
    elif not f.value or rng.random() < 0.3:
        n = rng.choice((0, 1, len(f.value) - 1, len(f.value) + 1, 2 * len(f.value), 600))
        f.value = [f.value[i % len(f.value)] if f.value else 0 for i in range(max(0, n))]
    elif rng.random() < 0.3:
        f.value = [_other_value(rng, f.item, f.value[0])] * len(f.value)
    else:
        i = rng.randrange(len(f.value))
        f.value[i] = _other_value(rng, f.item, f.value[i])


def retype_field(rng: random.Random, file: RawFile) -> None:
    """Give a key another type, make an array of its value, or one value of its array."""
    f = rng.choice(_numbers(file) if rng.random() < 0.8 and _numbers(file) else file.fields)
    if f.type == ARRAY:
        if rng.random() < 0.5:
            f.item = rng.choice((*NUMBERS, STR))
        else:
            f.type, f.value = f.item, f.value[0] if f.value else 0
    elif rng.random() < 0.4:
        n = rng.choice((0, 1, 2, 3, 4, 6, 512))
        f.item, f.type, f.value = f.type, ARRAY, [f.value] * n
    else:
        f.type = rng.choice((*NUMBERS, STR, 13, 99))


def remove_field(rng: random.Random, file: RawFile) -> None:
    """Remove a key."""
    file.fields.remove(rng.choice(file.fields))


def rename_field(rng: random.Random, file: RawFile) -> None:
    """Give a key another key's name, or an unknown one."""
    f = rng.choice(file.fields)
    f.key = rng.choice((rng.choice(file.fields).key, f.key[:-1], b"", f.key + b"\xff", f.key.swapcase()))


def add_field(rng: random.Random, file: RawFile) -> None:
    """Add a key that some architecture knows."""
    key = rng.choice(_KEYS).replace("{arch}", file.arch)
    if rng.random() < 0.2:
        n = rng.choice((1, 3, 4, 6))
        file.set(key, ARRAY, [rng.choice((0, 1, 2)) for _ in range(n)], rng.choice((U32, I32, BOOL)))
    else:
        kind = rng.choice((U32, U32, U32, F32, BOOL, STR))
        file.set(key, kind, _other_value(rng, kind, rng.choice((1, 2, 4, 32, 64))))


def add_experts(rng: random.Random, file: RawFile) -> None:
    """Add numbers of experts and groups that may contradict each other."""
    keys = (
        "expert_count",
        "expert_used_count",
        "expert_group_count",
        "expert_group_used_count",
        "nextn_predict_layers",
    )
    for key in rng.sample(keys, rng.randint(1, 3)):
        file.set(f"{file.arch}.{key}", U32, rng.choice((0, 1, 2, 3, 4, 5, 8, 1024)))


def change_arch(rng: random.Random, file: RawFile) -> None:
    """Set another architecture's name, everywhere or at the top only."""
    old = file.arch.encode()
    names = sorted({name.encode() for name in gguf.MODEL_ARCH_NAMES.values()})
    new = rng.choice((*names, b"", b"nothing", old.upper()))
    everywhere = rng.random() < 0.7
    for f in file.fields:
        if f.key == b"general.architecture" and f.type == STR:
            f.value = new
        elif everywhere and f.key.startswith(old + b"."):
            f.key = new + f.key[len(old) :]


def _tokens(file: RawFile) -> list[bytes]:
    found = file.find("tokenizer.ggml.tokens")
    return found.value if found and found.type == ARRAY and found.item == STR else []


def change_token(rng: random.Random, file: RawFile) -> None:
    """Make tokens empty, repeated, invalid text, very long, or one bit off."""
    tokens = _tokens(file)
    for _ in range(rng.choice((1, 1, 1, 4, 40)) if tokens else 0):
        i = rng.randrange(len(tokens))
        if rng.random() < 0.5 and tokens[i]:
            text = bytearray(tokens[i])
            text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
            tokens[i] = bytes(text)
        else:
            tokens[i] = rng.choice((*_TOKENS, rng.choice(tokens)))


def change_tokenizer(rng: random.Random, file: RawFile) -> None:
    """Set another kind of tokenizer over the same tokens."""
    file.set("tokenizer.ggml.model", STR, rng.choice(_TOKENIZERS))
    if rng.random() < 0.5:
        file.set("tokenizer.ggml.pre", STR, rng.choice(_PRES))
    n = len(_tokens(file))
    if rng.random() < 0.5:
        file.set("tokenizer.ggml.scores", ARRAY, [rng.choice(_FLOATS) for _ in range(n)], F32)
    if rng.random() < 0.5:
        file.set("tokenizer.ggml.token_type", ARRAY, [rng.randint(0, 7) for _ in range(n)], I32)
    if rng.random() < 0.3:
        blob = [rng.randrange(256) for _ in range(rng.choice((0, 3, 8, 64, 4096)))]
        if len(blob) >= 8:
            blob[:4] = struct.pack("<I", rng.choice((0, 4, len(blob) // 2 & ~3, len(blob) - 5, 1 << 30)))
        file.set("tokenizer.ggml.precompiled_charsmap", ARRAY, blob, rng.choice((0, 1)))


def spell_bytes(rng: random.Random, file: RawFile) -> None:
    """Set a SentencePiece vocabulary of as many tokens, with all bytes or all but a few."""
    found = file.find("tokenizer.ggml.tokens")
    n = len(_tokens(file))
    if found is None or n < 262:
        return
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256))]
    tokens += [b"\xe2\x96\x81" * (i % 3) + b"piece%d" % i for i in range(n - len(tokens))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (n - 259)]
    for _ in range(rng.choice((0, 0, 1, 5))):
        tokens[rng.randrange(n)] = rng.choice(_TOKENS) + b"#%d" % rng.randrange(n)
    for _ in range(rng.choice((0, 0, 1, 5))):
        kinds[rng.randrange(n)] = rng.randint(0, 7)
    found.value = tokens
    file.set("tokenizer.ggml.model", STR, rng.choice((b"llama", b"llama", b"t5", b"plamo2", b"bert", b"gemma4")))
    file.set("tokenizer.ggml.scores", ARRAY, [-float(i) for i in range(n)], F32)
    file.set("tokenizer.ggml.token_type", ARRAY, kinds, I32)
    for key, value in (("bos", 1), ("eos", 2), ("unknown", 0)):
        file.set(f"tokenizer.ggml.{key}_token_id", U32, value)


def change_special(rng: random.Random, file: RawFile) -> None:
    """Change special tokens, the flags about them, types, merges and the chat template."""
    n = len(_tokens(file))
    what = rng.randrange(6)
    if what == 0:
        name = rng.choice(("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", "fim_pre", "fim_sep"))
        file.set(f"tokenizer.ggml.{name}_token_id", U32, rng.choice((0, 1, n - 1, n, n + 1, (1 << 32) - 1, 1 << 31)))
    elif what == 1:
        name = rng.choice(("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix"))
        file.set(f"tokenizer.ggml.{name}", BOOL, rng.randrange(2))
        if rng.random() < 0.5:
            file.remove(f"tokenizer.ggml.{rng.choice(('bos', 'eos'))}_token_id")
    elif what == 2:
        merges = file.find("tokenizer.ggml.merges")
        if merges and merges.value and isinstance(merges.value, list):
            merges.value[rng.randrange(len(merges.value))] = rng.choice(
                (b"", b" ", b"a", b"a b c", b" b", b"\xff \xfe")
            )
    elif what == 3:
        types = file.find("tokenizer.ggml.token_type")
        if types and types.value and isinstance(types.value, list):
            for _ in range(rng.choice((1, 10, n))):
                types.value[rng.randrange(len(types.value))] = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, -1, 1 << 20))
    elif what == 4:
        templates = (b"{{", b"{% for %}", b"\xff", b"{{ messages[9] }}", b"{% set x = 1 // 0 %}", b"", b"{{ raise() }}")
        file.set("tokenizer.chat_template", STR, rng.choice(templates))
    else:
        found = rng.choice([f for f in file.fields if f.key.startswith(b"tokenizer.")] or file.fields)
        if found.type == ARRAY:
            found.value = found.value[: rng.randrange(len(found.value) + 1)]
        else:
            found.value = _other_value(rng, found.type, found.value)


def change_shape(rng: random.Random, file: RawFile) -> None:
    """Give a tensor another shape, with matching bytes or the old ones."""
    if not file.tensors:
        return
    t = rng.choice(file.tensors)
    what = rng.randrange(4)
    if what == 0 and t.dims:
        i = rng.randrange(len(t.dims))
        t.dims[i] = _other_number(rng, t.dims[i])
    elif what == 1:
        t.dims.append(rng.choice((0, 1, 2, 1 << 40)))
    elif what == 2 and t.dims:
        t.dims.pop()
    else:
        t.dims.reverse()
    if rng.random() < 0.7:
        t.resize()


def change_type(rng: random.Random, file: RawFile) -> None:
    """Give a tensor another type, with matching bytes or the old ones."""
    if not file.tensors:
        return
    t = rng.choice(file.tensors)
    t.type = rng.choice((0, 1, 2, 3, 6, 8, 10, 12, 14, 16, 20, 23, 24, 25, 26, 27, 28, 30, 34, 39, 40, 41, 42, 99, -1))
    if rng.random() < 0.8:
        t.resize()


def change_tensors(rng: random.Random, file: RawFile) -> None:
    """Remove, repeat, rename or move tensors."""
    if not file.tensors:
        return
    t = rng.choice(file.tensors)
    what = rng.randrange(7)
    if what == 0:
        file.tensors.remove(t)
    elif what == 1:
        file.tensors.append(Tensor(t.name, list(t.dims), t.type, t.data))
    elif what == 2:
        other = rng.choice(file.tensors)
        t.name, other.name = other.name, t.name
    elif what == 3:
        t.name = rng.choice((b"", b"x" * 70, t.name + b".y", t.name.replace(b".0.", b".9."), b"\xff", t.name[:-1]))
    elif what == 4:
        t.offset = rng.choice((0, 1, 16, 1 << 20, 1 << 62, (1 << 64) - 32, 32))
    elif what == 5:
        file.tensors.append(Tensor(b"blk.0.extra.weight", [32, 2], 0, bytes(256)))
    else:
        layer = b".%d." % rng.randrange(4)
        file.tensors = [x for x in file.tensors if layer not in x.name]


def change_counts(rng: random.Random, file: RawFile) -> None:
    """Change the counts in the file's header."""
    what = rng.randrange(4)
    if what == 0:
        file.n_fields = rng.choice((0, len(file.fields) - 1, len(file.fields) + 1, 1 << 40, (1 << 64) - 1))
    elif what == 1:
        file.n_tensors = rng.choice((0, len(file.tensors) - 1, len(file.tensors) + 1, 1 << 40, (1 << 64) - 1))
    elif what == 2:
        file.version = rng.choice((0, 1, 2, 4, 0x03000000))
    else:
        file.set("general.alignment", rng.choice((U32, U64, STR)), rng.choice((0, 1, 3, 8, 16, 64, 4096, 1 << 31)))


def change_data(rng: random.Random, file: RawFile) -> None:
    """Set weights that are no numbers, or other numbers: a few, or a whole tensor."""
    tensors = [t for t in file.tensors if t.data]
    for t in rng.sample(tensors, min(len(tensors), rng.choice((1, 1, 3, 20)))):
        data = bytearray(t.data)
        what = rng.randrange(4)
        if what == 0:
            data = bytearray(rng.randbytes(len(data)))
        elif what == 1:
            words = np.full(len(data) // 4 + 1, rng.choice((np.nan, np.inf, -np.inf, 0.0, 3e38)), np.float32)
            data = bytearray(words.tobytes()[: len(data)])
        else:
            for _ in range(rng.choice((1, 8, 64))):
                at = rng.randrange(0, max(1, len(data) - 4), 4)
                data[at : at + 4] = rng.choice((struct.pack("<f", float("nan")), rng.randbytes(4), b"\xff\xff\xff\x7f"))
        t.data = bytes(data[: len(t.data)])


STRUCTURED: tuple[tuple[Mutation, float], ...] = (
    (change_field, 8),
    (add_field, 3),
    (add_experts, 1),
    (retype_field, 1),
    (remove_field, 1),
    (rename_field, 0.3),
    (change_arch, 0.7),
    (change_token, 1.5),
    (change_tokenizer, 1),
    (spell_bytes, 1),
    (change_special, 1.5),
    (change_shape, 1),
    (change_type, 1),
    (change_tensors, 1),
    (change_counts, 0.3),
    (change_data, 1.5),
)


def flip(rng: random.Random, data: bytes, n_header: int) -> bytes:
    """Change bits or bytes, most of them in the header."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(n_header if rng.random() < 0.8 else len(out))
        out[at] = out[at] ^ 1 << rng.randrange(8) if rng.random() < 0.6 else rng.randrange(256)
    return bytes(out)


def truncate(rng: random.Random, data: bytes, n_header: int) -> bytes:
    """Cut the file, or remove or insert bytes."""
    at = rng.randrange(n_header if rng.random() < 0.5 else len(data))
    what = rng.randrange(3)
    if what == 0:
        return data[:at]
    n = rng.choice((1, 4, 8, 32, 1000))
    return data[:at] + data[at + n :] if what == 1 else data[:at] + rng.randbytes(n) + data[at:]


def mutate(
    rng: random.Random, data: bytes, refit: Callable[[RawFile], None], mutations: Iterable[tuple[Mutation, float]]
) -> tuple[bytes, str]:
    """Spoil a file in one to three ways; return it and the names of the ways.

    refit gives a file the tensors that llama.cpp wants for its keys, so that shapes do not reveal a wrong number.
    """
    kind = rng.random()
    file = parse(data)
    if kind < 0.1:
        return flip(rng, data, len(data) - sum(len(t.data) for t in file.tensors)), "flip"
    if kind < 0.16:
        return truncate(rng, data, len(data) - sum(len(t.data) for t in file.tensors)), "truncate"
    choices, weights = zip(*mutations, strict=True)
    done = []
    for mutation in rng.choices(choices, weights, k=rng.choice((1, 1, 1, 2, 3))):
        mutation(rng, file)
        done.append(mutation.__name__)
    if rng.random() < 0.5:
        refit(file)
        done.append("refit")
    return serialize(file), "+".join(done)
