"""A Gemma 4 target with an assistant, and as a reference the assistant driven by hand as llama.cpp's drafter does."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext

from arch_keys import arch_of, keys_of
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.draft.kinds.assistant import GemmaAssistant
from lowlevel import LowLevel
from mtp import default_params, place
from random_arch import random_tensor, random_tensors, write_arch, write_random_arch
from small import load_model

ROW = "gemma4-assistant"


def write_assistant(folder: Path) -> Path:
    """Write a random assistant, if it is missing. llama.cpp cannot name its tensors, as it counts no layers in it."""
    path = folder / f"{ROW}.gguf"
    if path.exists():
        return path
    keys = keys_of(ROW)
    n, n_tgt, n_ff, n_vocab = (
        keys[k] for k in ("embedding_length", "embedding_length_out", "feed_forward_length", "vocab_size")
    )
    head = keys["attention.key_length"]
    n_q = keys["attention.head_count"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (n_vocab, n),
        "output_norm": (n,),
        "rope_freqs": (head // 2,),
        "nextn.pre_projection": (n, 2 * n_tgt),
        "nextn.post_projection": (n_tgt, n),
    }
    of_layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (n,),
        "attn_q": (n_q, n),
        "attn_q_norm": (head,),
        "attn_output": (n, n_q),
        "post_attention_norm": (n,),
        "layer_output_scale": (1,),
        "ffn_norm": (n,),
        "ffn_gate": (n_ff, n),
        "ffn_up": (n_ff, n),
        "ffn_down": (n, n_ff),
        "post_ffw_norm": (n,),
    }
    for i in range(keys["block_count"]):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in of_layer.items()}
    tensors = {
        f"{name}.weight": random_tensor(f"{name}.weight", (1,) * (4 - len(shape)) + shape).reshape(shape)
        for name, shape in shapes.items()
    }
    tensors["rope_freqs.weight"] = np.ones_like(tensors["rope_freqs.weight"])
    return write_arch(path, arch_of(ROW), keys, tensors)


class Pair(LowLevel):
    """A target that gives the rows that its assistant reads, and a drafter on it."""

    def __init__(self, target: Path, assistant: Path, *, n_seq_max: int = 1, is_pooled: bool = True, **kwargs):
        self.path, self.path_draft = str(target), str(assistant)
        n_layer = _core.read_target(self.path).n_layer
        more = {"kv_unified": is_pooled, "n_ctx": 256} | kwargs
        super().__init__(self.path, [n_layer + 1], n_seq_max=n_seq_max, **more)
        self.n_seq_max, self.is_pooled = n_seq_max, is_pooled
        self.last_rows: dict[int, np.ndarray] = {}  # sequence -> the row that the drafter got last
        self.drafter = self.make_drafter()

    def make_drafter(self) -> _core.AssistantDrafter:
        """Make one more drafter, while nothing is evaluated yet."""
        draft = GemmaAssistant(self.path_draft)
        draft.fit(self.path, _core.read_target(self.path), None)
        where = place(
            self.model, self.ctx, n_ctx=self.target.n_ctx, n_seq=self.n_seq_max, is_pooled=self.is_pooled
        )  # fmt: skip
        where.context_params.kv_unified = self.is_pooled
        return draft.make(where, None)

    def close(self) -> None:
        """Free the drafter first: its context refers to the target's."""
        self.drafter.close()
        super().close()


class ByHand:
    """Target and assistant in contexts of their own, with one sequence, evaluated anew for each answer."""

    def __init__(self, target: Path, assistant: Path):
        self.models = [load_model(target), load_model(assistant)]
        params = default_params(n_ctx=512, n_batch=512, n_ubatch=512)
        params.swa_full = True
        self.ctx_tgt = llama_cpp.llama_init_from_model(self.models[0], params)
        assert self.ctx_tgt
        llama_cpp_ext.llama_set_embeddings_nextn(self.ctx_tgt, True, False)
        params.ctx_other = self.ctx_tgt
        self.ctx = llama_cpp.llama_init_from_model(self.models[1], params)
        assert self.ctx
        llama_cpp_ext.llama_set_embeddings_nextn(self.ctx, True, True)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.models[0]))
        self.n_embd = llama_cpp.llama_model_n_embd(self.models[0])

    def row(self, text: list[int]) -> np.ndarray:
        """Return the target's row of the last token of a text."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.ctx_tgt), True)
        batch = llama_cpp.llama_batch_init(len(text), 0, 1)
        batch.n_tokens = len(text)
        for i, token in enumerate(text):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, i, 1, 0
            batch.logits[i] = True
        assert llama_cpp.llama_decode(self.ctx_tgt, batch) == 0
        llama_cpp.llama_batch_free(batch)
        rows = np.ctypeslib.as_array(llama_cpp_ext.llama_get_embeddings_nextn(self.ctx_tgt), (len(text), self.n_embd))
        return rows[-1].copy()

    def step(self, token: int, row: np.ndarray, pos: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits after a token and the assistant's own row, after the text that the target has evaluated."""
        batch = llama_cpp.llama_batch_init(1, 0, 1)
        row = np.ascontiguousarray(row, dtype=np.float32)
        batch.embd, batch.n_tokens = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), 1
        batch.token[0], batch.pos[0], batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = token, pos, 1, 0, True
        assert llama_cpp.llama_decode(self.ctx, batch) == 0
        batch.embd = None
        llama_cpp.llama_batch_free(batch)
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.ctx), (self.n_vocab,)).copy()
        state = np.ctypeslib.as_array(llama_cpp_ext.llama_get_embeddings_nextn(self.ctx), (self.n_embd,)).copy()
        return logits, state

    def path(self, text: list[int], drafted: list[int]) -> np.ndarray:
        """Return logits after drafted tokens, the first of which is the token after the text: all have its position."""
        row = self.row(text)
        for token in drafted:
            logits, row = self.step(token, row, len(text))
        return logits

    def chain(self, text: list[int], id_last: int, n: int) -> tuple[list[int], list[np.ndarray]]:
        """Return a greedy chain after id_last, and the logits of its steps."""
        row, token, found, logits = self.row(text), id_last, [], []
        for _ in range(n):
            x, row = self.step(token, row, len(text))
            logits.append(x)
            token = int(x.argmax())
            found.append(token)
        return found, logits

    def close(self) -> None:
        """Free both contexts."""
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_free(self.ctx_tgt)
        for model in self.models:
            llama_cpp.llama_model_free(model)


def write_able(folder: Path, row: str = "gemma4") -> tuple[Path, Path]:
    """Write a pair of which the assistant is mostly right: the next token depends on the last one, and a little on
    the others."""
    target, assistant = folder / f"{row}-able.gguf", folder / f"{row}-assistant-able.gguf"
    if target.exists():
        return target, assistant
    tensors, own = random_tensors(write_random_arch(folder, row)), random_tensors(write_assistant(folder))
    n_embd = own["token_embd.weight"].shape[-1]
    for part in (tensors, own):
        for name in part:
            if any(end in name for end in ("post_attention_norm", "post_ffw_norm", "post_norm")):
                part[name] = np.full_like(part[name], 0.03)
            elif "layer_output_scale" in name:
                part[name] = np.ones_like(part[name])
    # a layer's output is nearly the token's embedding, of which half is enough
    tensors["token_embd.weight"] = np.copy(tensors["token_embd.weight"])
    tensors["token_embd.weight"][..., n_embd:] = 0.0
    tensors["output_norm.weight"] = np.ones_like(tensors["output_norm.weight"])
    own["output_norm.weight"] = np.ones_like(own["output_norm.weight"])
    own["nextn.pre_projection.weight"] = np.eye(*own["nextn.pre_projection.weight"].shape, dtype=np.float32)
    own["token_embd.weight"] = np.ascontiguousarray(tensors["output.weight"][..., :n_embd])
    write_arch(target, arch_of(row), keys_of(row), tensors)
    return target, write_arch(assistant, arch_of(ROW), keys_of(ROW), own)
