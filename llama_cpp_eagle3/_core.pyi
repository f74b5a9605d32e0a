"""Compiled part of llama_cpp_eagle3: feature tap, target, drafters, policy.

Made by tools/stubs.py from csrc/bindings: change the docstrings there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine.draft import Draft

class GuardTurn:
    """What `Guard.if_free` gives."""

    def __enter__(self) -> bool: ...
    def __exit__(self, *args: object) -> None: ...

class Guard:
    """A lock without waiting: a second caller gets a `BusyError`, the same thread included.

    After `closed` it is an `Eagle3Error`. It is not left taken by an interrupt, wherever that comes.
    """

    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...
    def __init__(self, name: str) -> None: ...
    def if_free(self) -> GuardTurn:
        """Do the same without an error: `with guard.if_free() as is_in`."""

    @property
    def closed(self) -> bool:
        """Whether what it guards has been freed."""

    @closed.setter
    def closed(self, arg1: bool) -> None: ...

class Device:
    """A ggml device: something that models can run on. Lives as long as the process."""

    @property
    def address(self) -> int:
        """The address of the ggml_backend_dev_t."""

    @property
    def buffer_type(self) -> tuple[str, int] | None:
        """Name and address of the ggml_backend_buffer_type_t that tensors on it usually have."""

    @property
    def description(self) -> str:
        """The endpoint of a device on a ggml-rpc server."""

    @property
    def extra_buffer_types(self) -> list[str]:
        """Names of the others that its backend has for weights, if this machine can use them: CPU_REPACK, AMX, ..."""

    @property
    def is_remote(self) -> bool:
        """Whether it is on a ggml-rpc server."""

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all."""

    @property
    def name(self) -> str: ...

class RpcConnection:
    """Keeps the connection to a ggml-rpc server open as long as it lives.

    Its devices are not registered with ggml: only models that are given them use them. llama.cpp ends the process
    if the server cannot be reached, so use `llama_cpp_eagle3.model.rpc`.
    """

    def __init__(self, endpoint: str) -> None: ...
    def close(self) -> None:
        """Let go of the connection, which others may hold: then `is_held` is still true."""

    def drop_graphs(self) -> None:
        """To be called after something was freed on the server while it is still in use."""

    def open(self) -> None:
        """Hold the connection again, after `close`."""

    def relay(self, fd: int) -> None:
        """Stand between llama.cpp and its server, whose socket that is (csrc/rpc_relay.h)."""

    @property
    def devices(self) -> list[Device]:
        """The devices of the server, the same ones each time."""

    @property
    def is_held(self) -> bool:
        """Whether llama.cpp has its socket open."""

    @property
    def is_lost(self) -> bool:
        """Whether the server has gone, or said what it should not."""

class FeatureTap:
    """Reads the target's hidden states at some boundaries while it decodes.

    A boundary b is the residual stream after b layers, 0 to n_layer; n_layer + 1 is the stream after the final
    norm. Create it before the context, put `cb_eval` and `cb_eval_user_data` into the context's parameters, and
    give it to `Target`. It must live as long as the context.
    """

    def __init__(self, boundaries: Sequence[int], n_layer: int, n_embd: int, arch: str, kind: str = "auto") -> None: ...
    def attach(self, ctx: int) -> None:
        """Bind to a context; Target does this."""

    def rows_of(self, n_decode: int) -> npt.NDArray[np.float32]:
        """Return the same, or raise Eagle3Error if the last decode was another one than `n_decode`."""

    @property
    def boundaries(self) -> list[int]: ...
    @property
    def cb_eval(self) -> int:
        """Address for llama_context_params.cb_eval, 0 when native."""

    @property
    def cb_eval_user_data(self) -> int:
        """Address for llama_context_params.cb_eval_user_data, 0 when native."""

    @property
    def kind(self) -> str:
        """native: llama.cpp copies the rows; callback: we copy them from the graph."""

    @property
    def n_decode(self) -> int:
        """Number of the last decode, counted from 1."""

    @property
    def needs_all_outputs(self) -> bool:
        """True if rows exist only for tokens with logits; Target then asks for all of them."""

    @property
    def rows(self) -> npt.NDArray[np.float32]:
        """Rows of the last decode in batch order: float32, (n_tokens, n_boundaries, n_embd), read-only.

        A view, not a copy; it keeps its values when the target decodes on.
        """

class BatchPart:
    """Tokens of one sequence in a batch: after its first n_past positions, the rest of which is removed.

    draft: tokens that may follow the last one, of which `Target.accept` keeps some. parents: of a drafted
    token, the index in `draft` of the one before it, -1 = the last of `tokens`, of which a tree allows one
    only. Empty: each follows the one before. logits: of which of `tokens`: "none", "last" or "all"; with a
    draft all rows have them.
    """

    @staticmethod
    def media(
        seq_id: int,
        n_past: int,
        tokens: Sequence[int],
        rows: npt.ArrayLike,
        *,
        pos: npt.ArrayLike | None = None,
        offset: int = 0,
        n_pos: int = 0,
        causal: bool = True,
        logits: str = "none",
    ) -> BatchPart:
        """Rows of embeddings in place of tokens, a piece of an image or a sound; it is the only part of its batch.

        tokens: one for each row, which stand for it in what remembers tokens. rows: float32 (n, n_embd_inp). pos:
        with M-RoPE, int32 (4, n), else None. offset: rows of the same image that were decoded before. n_pos: with
        M-RoPE, positions that the whole image takes. causal: whether a row sees only those before it.
        """

    def __init__(
        self,
        seq_id: int,
        n_past: int,
        tokens: Sequence[int],
        draft: Sequence[int] = ...,
        parents: Sequence[int] = ...,
        logits: str = "last",
    ) -> None: ...
    @property
    def is_draft(self) -> bool: ...
    @property
    def n_past(self) -> int: ...
    @property
    def seq_id(self) -> int: ...
    @property
    def tokens(self) -> list[int]:
        """The tokens, those of the draft included."""

class SavedState:
    """What of a sequence cannot be cut at any position, as `Target.save` found it: recurrent states, sliding
    windows.

    n_past: positions that the sequence had. data: what `Target.save` gave.
    """

    def __init__(self, n_past: int, data: bytes) -> None: ...
    @property
    def data(self) -> bytes: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def n_past(self) -> int:
        """Positions."""

class Target:
    """The target's context: decode, sample row by row, take back.

    `ctx` and `model` are addresses from llama-cpp-python and stay the caller's; call `close()` before freeing
    them. One thread at a time: a second one gets BusyError.
    """

    def __init__(self, ctx: int, model: int, tap: FeatureTap | None = None, n_seq: int = 0, n_guards: int = 0) -> None:
        """n_seq: sequences 0 to n_seq - 1 are the caller's, the other ids of the context are for the leaves of
        trees; 0 = all are the caller's. n_guards: n_seq, if that many of the other ids shall hold on to what has
        left the windows of a pool with sliding windows; 0 = llama.cpp may take such cells for others.
        """

    def accept(self, seq_id: int, path: Sequence[int]) -> None:
        """After a part that was a draft: accept the path through these of its rows, and remove its other tokens.

        Rows count from the part's first one, which the path begins with: 0, 1, 2, ... for a chain. An empty path
        goes back to before the part; snapshots do not reach that far, and unless a state was saved before the
        part the sequence is removed altogether.
        """

    def accept_batch(self, seq_ids: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Do the same for several sequences; one that holds no draft stays as it is."""

    def argmax(self, row: int) -> int:
        """Return the first of the most probable tokens of a row."""

    def attach(self, states: Sequence[SavedState], seq_id: int = 0) -> None:
        """Let `truncate` and `copy` go back to these states too, which were saved of the same tokens."""

    def clear(self) -> None:
        """Remove all sequences, and clear the cells too: what is left in them may be NaN."""

    def close(self) -> None:
        """Let go of the context: every later call raises."""

    def copy(self, src: int, dst: int, n_past: int) -> int:
        """Have sequence dst hold the first n_past positions of src and nothing else; they share the cells.

        Returns n_past; where recurrent states and sliding windows cannot be cut there, the position of the last
        saved state before it; or 0 without one.
        """

    def decode(self, tokens: Sequence[int], n_past: int, logits_all: bool = True, seq_id: int = 0) -> None:
        """Remove positions from `n_past` on and evaluate `tokens` there as one batch.

        Logits are kept for all tokens, or only for the last one. If it raises, the memory ends at `n_past`, or
        where it can go back to before that (see `n_past`).
        """

    def decode_batch(
        self, tokens: Sequence[int], pos: Sequence[int], seq_ids: Sequence[Sequence[int]], logits: Sequence[bool]
    ) -> None:
        """Evaluate one batch of any sequences, the general form. Nothing is removed before."""

    def decode_parts(self, parts: Sequence[BatchPart]) -> None:
        """Evaluate several sequences in one batch: prompt pieces, chains and trees together.

        Rows are numbered through all parts.
        """

    def has_draft(self, seq_id: int) -> bool:
        """Whether a draft was decoded of which no path was accepted yet."""

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        """Copy the logits of a row: float32, (n_vocab,). Row -1 is the context's last one."""

    def logits_all(self, n: int) -> npt.NDArray[np.float32]:
        """Copy the logits of the first n rows: float32, (n, n_vocab)."""

    def n_past(self, seq_id: int = 0) -> int:
        """Tokens that a sequence holds, rows of images included."""

    def n_past_min(self, seq_id: int = 0) -> int:
        """Return the least number of tokens, not 0, that `truncate` can keep without a saved state."""

    def n_replay(self, seq_id: int = 0) -> int:
        """Accepted tokens that the next batch of a sequence evaluates once more."""

    def n_state_bytes(self, seq_id: int = 0) -> int:
        """Bytes of a state that is saved to go back; 0 where none is needed."""

    def position(self, n_past: int, seq_id: int = 0) -> int:
        """Position of what comes after the first n_past tokens: n_past, or less where images share positions."""

    def sample(self, sampler: int, row: int, n_best: int = 0, grammar: int = 0) -> int:
        """Sample from a row of the last batch with a llama_sampler (its address), and let it accept the token.

        n_best > 0: the sampler looks at that many of the best tokens only, as one does that begins with top-k.
        grammar: a llama_sampler that is asked about the drawn token; another one is drawn if it refuses it.
        Row -1 is the last one of a decode that was not this object's; so it is in `argmax` and `logits`.
        """

    def sample_from(self, sampler: int, logits: npt.ArrayLike, grammar: int = 0) -> int:
        """Sample from logits that the caller has changed, float32 (n_vocab,), as `sample` does from a row."""

    def sampled_probs(self) -> list[tuple[int, float]]:
        """Tokens that the last `sample_from` drew from, with their probabilities, the most probable first.

        None if its sampler is greedy: that computes no probabilities.
        """

    def save(self, seq_id: int = 0) -> SavedState | None:
        """The present state, if this memory cannot go back to it by itself, else None. `truncate` and `copy` go back
        to it for as long as the object exists.
        """

    def set_device_argmax(self, n_outputs: int) -> None:
        """Let the target's device take the argmax of each row; `logits` and `sample` then raise, the rows stay
        there.

        n_outputs: rows with logits that a sequence may have in a batch, at most the context's
        n_outputs_max_per_seq. 0: bring the rows here again.
        """

    def set_spans(self, spans: Sequence[tuple[int, int, int]], seq_id: int = 0) -> None:
        """Set where images are in a sequence whose cells were written by other means."""

    def settle(self) -> None:
        """Make the memory hold exactly the accepted tokens, before the context is used by other means."""

    def spans(self, seq_id: int = 0) -> list[tuple[int, int, int]]:
        """Images in a sequence: the token where each begins, its rows, and the positions that these take."""

    def state_get(self, seq_id: int) -> bytes:
        """All that a sequence holds, but not the states that were saved of it, as bytes."""

    def state_set(self, seq_id: int, state: bytes) -> None:
        """Have a sequence hold what `state_get` gave, and nothing else.

        Raises ContextFullError if there is no room, and ValueError for other bytes; the sequence is then empty.
        """

    def truncate(self, n_past: int, seq_id: int = 0) -> int:
        """Remove positions from `n_past` on. Returns the position from which tokens must be decoded again.

        That is n_past, or less where the memory cannot go back there: the last saved state before it (`save`), or
        0.
        """

    @property
    def is_pooled(self) -> bool:
        """Whether the sequences share their cells, rather than having as many each."""

    @property
    def kernel_sides(self) -> dict[tuple[str, str, str], int]:
        """[what, why, type]: operations whose rows depend on others where ggml computes them, when it was made.

        what: products, attention or recurrence. why: empty if our kernels compute them, or else: device, adapter,
        source (of the weights, or of queries, no kernel), type (of the cache), rows (too many) or shape. type: of
        the weights, or of the cache.
        """

    @property
    def logits_are_remote(self) -> bool:
        """Whether logits are computed on a device whose memory the host cannot read."""

    @property
    def n_batches(self) -> int:
        """Batches that were begun; rows are those of the last one."""

    @property
    def n_ctx(self) -> int:
        """Positions of a sequence."""

    @property
    def n_embd_inp(self) -> int:
        """Values of a row that goes in."""

    @property
    def n_leaves_max(self) -> int:
        """Leaves that a tree may have; 1 where only chains can be verified."""

    @property
    def n_pos_per_row(self) -> int:
        """Positions of a row that goes in: 4 with M-RoPE, else 1."""

    @property
    def n_seq(self) -> int:
        """Sequences of the caller."""

    @property
    def n_snapshots(self) -> int | None:
        """Tokens of a draft that can be rejected without a replay; None: all of any draft."""

    @property
    def n_ubatch(self) -> int:
        """Rows that are computed together."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def pos(self) -> npt.NDArray[np.int32]:
        """Positions of the last batch."""

    @property
    def rollback_kind(self) -> str:
        """How rejected tokens go: "trim" removes positions (attention), "snapshots" goes back to a state that
        llama.cpp kept (recurrent, n_rs_seq > 0), "checkpoint" restores the state before the batch and puts the
        accepted tokens in front of the next one, so that there is never a pass for them alone. Snapshots that do
        not reach far enough are helped by a checkpoint.
        """

    @property
    def t_decode_us(self) -> int:
        """Microseconds in llama_decode and synchronize."""

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Tokens of the last batch."""

class TargetInfo:
    """The facts of a target's GGUF header. Made by read_target()."""

    @property
    def arch(self) -> str: ...
    @property
    def boundaries(self) -> list[int]:
        """Where hidden states can be read: 0 to n_layer, and n_layer + 1 after the final norm."""

    @property
    def file_size(self) -> int: ...
    @property
    def has_trunk(self) -> bool:
        """False for a file of layers for multi-token prediction alone."""

    @property
    def keys_without_block(self) -> dict[str, int]:
        """Keys for llama.cpp, as they would be without those layers; empty if it needs none, or cannot be told."""

    @property
    def n_ctx_train(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_embd_nextn(self) -> int:
        """Values of a row that its block for multi-token prediction reads."""

    @property
    def n_layer(self) -> int:
        """Layers, without those for multi-token prediction."""

    @property
    def n_layer_gone(self) -> int:
        """Layers for multi-token prediction that the header announces and the file lacks."""

    @property
    def n_layer_nextn(self) -> int:
        """Layers for multi-token prediction that are in the file."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def nextn(self) -> int:
        """They read the hidden state at boundary n_layer + nextn; -1: not known for this architecture."""

    @property
    def path(self) -> str: ...
    @property
    def runs_block(self) -> bool:
        """Whether llama.cpp has a graph of its block for multi-token prediction."""

    @property
    def why_no_target(self) -> str:
        """Why no head can stand after this model; empty if one can."""

    @property
    def why_no_text(self) -> str:
        """Why it does not generate text, so that nothing can draft for it, nor it for others; empty if it does."""

class VocabDifference:
    """How the tokens of a drafter's file differ from its target's. Made by compare_vocabularies()."""

    @property
    def flags(self) -> list[str]:
        """How BOS and EOS differ, as sentences."""

    @property
    def model_dft(self) -> str: ...
    @property
    def model_tgt(self) -> str:
        """Kind of tokenizer; empty if the file has none."""

    @property
    def n_dft(self) -> int: ...
    @property
    def n_more(self) -> int:
        """Tokens at the end of one of both, without padding."""

    @property
    def n_tgt(self) -> int:
        """Tokens; 0 if that is not known."""

    @property
    def others(self) -> list[int]:
        """Tokens that both have, with other texts, in ascending order."""

    @property
    def text_dft(self) -> bytes: ...
    @property
    def text_tgt(self) -> bytes:
        """Bytes of the first of `others`."""

class Head:
    """What an EAGLE-3 head is, from the header of its GGUF file. Read-only; made by read_head()."""

    @property
    def arch(self) -> str:
        """General.architecture: eagle3, or eagle3-ext for what llama.cpp cannot run."""

    @property
    def boundaries(self) -> list[int]:
        """Target boundaries that a row is made of, empty without fc."""

    @property
    def boundaries_why(self) -> str:
        """How the converter found the boundaries, empty if the file does not have it."""

    @property
    def dialect(self) -> str:
        """Upstream, fork or extended."""

    @property
    def fc_norm(self) -> bool: ...
    @property
    def has_d2t(self) -> bool: ...
    @property
    def has_output(self) -> bool: ...
    @property
    def has_tok_embd(self) -> bool: ...
    @property
    def hidden_act(self) -> str: ...
    @property
    def kv_lora_rank(self) -> int:
        """Rank of K and V in multi-head latent attention; 0 = it has another attention."""

    @property
    def logit_scale(self) -> float: ...
    @property
    def mask_token(self) -> int:
        """P-EAGLE: token of the rows that the target has not computed, -1 = the head is none."""

    @property
    def n_embd(self) -> int: ...
    @property
    def n_embd_head(self) -> int: ...
    @property
    def n_embd_tgt(self) -> int: ...
    @property
    def n_ff(self) -> int: ...
    @property
    def n_head(self) -> int: ...
    @property
    def n_head_kv(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_rot(self) -> int: ...
    @property
    def n_vocab(self) -> int:
        """Size of the target's vocabulary by the head's file, 0 = unknown."""

    @property
    def n_vocab_dft(self) -> int:
        """Draft vocabulary, 0 = the target's."""

    @property
    def norm_before_fc(self) -> bool: ...
    @property
    def norm_before_residual(self) -> bool: ...
    @property
    def norm_output(self) -> bool: ...
    @property
    def path(self) -> str: ...
    @property
    def q_lora_rank(self) -> int:
        """Rank of Q in multi-head latent attention; 0 = Q is not compressed."""

    @property
    def rms_eps(self) -> float: ...
    @property
    def rope_freq_base(self) -> float: ...
    @property
    def rope_scaling(self) -> str: ...
    @property
    def sliding_window(self) -> int: ...
    @property
    def use_aux_hidden_state(self) -> bool: ...

class CpuKernels:
    """While it lives, the CPU backend multiplies these weights by our kernels."""

    def __init__(self, matrices: Sequence[int], n_rows_max: Mapping[str, int]) -> None:
        """matrices: addresses of ggml tensors. n_rows_max: [name of a kernel]: operations of more rows are left to
        ggml; kernels that it does not name are not used.
        """

    def close(self) -> None:
        """To be called before the weights are freed."""

    @property
    def n_weights(self) -> dict[str, int]:
        """[name of a kernel]: weights that it computes."""

    @property
    def why_not(self) -> str:
        """Why there are none; empty if there are some."""

class LimitedProduct:
    """While it is open, graphs that this thread computes get a part of a matrix's product."""

    def __init__(self, matrix: int, ranges: Sequence[tuple[int, int]]) -> None:
        """matrix: address of a ggml tensor. ranges: (first, last) of the channels that are computed; others become
        -inf.
        """

    def close(self) -> None:
        """Close it; of several that are open the one that was made last comes first."""

class LoadGuard:
    """While its block runs, an assertion of llama.cpp that fails on this thread fails the call instead of the
    process.

    For calls that load a model or make a context, not for calls that compute.
    """

    def __enter__(self) -> LoadGuard: ...
    def __exit__(self, *args: object) -> None: ...
    def __init__(self) -> None: ...
    @property
    def asserted(self) -> bool:
        """Whether that was an assertion."""

    @property
    def reason(self) -> str:
        """Why something failed, as llama.cpp put it; empty if it gave no reason."""

class GrammarLookahead:
    """Which tokens a grammar allows after tokens that are not drawn yet."""

    def __init__(self, sampler: int, *, redraws: bool) -> None:
        """The sampler applies the grammar, as far as its text has come, and must outlive this.

        redraws: it is asked about a token that was drawn, and if it refuses that, another one is drawn; else it
        comes before the draw.
        """

    def allowed(self, path: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """Whether each of the tokens may come after the path. Where that cannot be known, all may."""

class GumbelNoise:
    """The dice of one text, which its draws and its drafts share.

    The token with the greatest logit / temperature + noise is one drawn from the softmax.
    """

    def __call__(self, token: int, n_ahead: int = 0, attempt: int = 0) -> float:
        """The noise of a token after n_ahead others that are not drawn yet; attempt: draws that were refused."""

    def __init__(
        self,
        seed: int,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        biases: Mapping[int, float] = ...,
    ) -> None:
        """What comes between logits and the draw is for drafts: the draw itself only adds the noise."""

    def sampler(self) -> int:
        """Address of a new llama_sampler that draws with it, and moves it on with each token that it accepts."""

    @property
    def position(self) -> int:
        """Tokens of the text that were drawn."""

    @position.setter
    def position(self, arg0: int) -> None: ...

class Drafter:
    """Drafts tokens for several sequences from the target's rows. Each kind of drafter is a class of its own.

    One thread at a time: a second one gets BusyError.
    """

    def add_image(self, first: int, pos: npt.ArrayLike, n_pos: int, seq_id: int = 0) -> None:
        """Rows of an image come next, from position `first` on.

        pos: their positions, int32 (4, n). n_pos: how many what comes after counts on. For heads with sections
        (n_pos_per_row 4).
        """

    def begin(self, seq_ids: Sequence[int], ids_last: Sequence[int], top_k: int, n_steps: int = 1) -> None:
        """Start drafting node by node: the top_k most probable tokens after each id_last.

        With n_steps > 1 (at most n_unroll) the best of them is followed further in the same graph. A parallel
        head computes n_steps positions and appends the first level.
        """

    def close(self) -> None:
        """Free the drafter: every later call raises."""

    def copy(self, src: int, dst: int, n_past: int, same_next: bool = False) -> int:
        """Make positions before n_past of one sequence those of another one too, which loses its own.

        Returns the position from which rows of `dst` must be processed: what truncate(n_past, same_next) would
        return for `src`, which stays as it is. Raises ValueError if `src` has not come to n_past.
        """

    def expand(self, nodes: Sequence[int], top_k: int) -> None:
        """Append the top_k most probable tokens after each of these nodes, in one graph.

        A node can be expanded once, and 128 nodes of a sequence. Nodes at the end of the context stay without.
        """

    def leave_out(self, tokens: Sequence[int]) -> None:
        """These tokens of the target are others in the drafter's own vocabulary: they are not drafted."""

    def limit_vocab(self, n_first: int) -> bool:
        """Draft this many of the most frequent tokens alone, and those of the texts, if that saves time: the CPU
        computes no logits of others; 0: all. False: it drafts all of its tokens.
        """

    def n_past(self, seq_id: int = 0) -> int:
        """Return the number of positions whose rows were appended."""

    def n_waiting(self, seq_id: int = 0) -> int:
        """Rows that `begin` has to evaluate first."""

    def process(
        self,
        tap: FeatureTap | None,
        tokens: Sequence[int],
        n_past: int,
        seq_id: int = 0,
        rows: Sequence[int] | None = None,
        can_defer: bool = False,
    ) -> None:
        """Append rows of the tap's last decode, one per token: those of the tokens at positions n_past, n_past + 1,
        ... of a sequence. rows: their indices in the batch, by default the first ones. tap: None for a drafter
        that reads no rows (n_embd_feat 0). can_defer: begin() is not expected soon, so that a prompt's K/V is not
        computed before.
        """

    def process_batch(
        self, tap: FeatureTap | None, parts: Sequence[tuple[int, int, Sequence[int], Sequence[int], bool]]
    ) -> None:
        """Do the same for several sequences, each (seq_id, n_past, tokens, rows, can_defer).

        Of a sequence that has some of these rows already, the rest; one that lacks rows before them goes on
        without those (`restart`).
        """

    def process_rows(
        self, rows: npt.ArrayLike, tokens: Sequence[int], n_past: int, seq_id: int = 0, can_defer: bool = False
    ) -> None:
        """Append rows from an array, float32 of shape (n_tokens, n_boundaries * n_embd_tgt)."""

    def reset(self, seq_id: int | None = None) -> None:
        """Clear a sequence, or all."""

    def restart(self, n_past: int, seq_id: int = 0) -> None:
        """Clear the sequence. The next rows come from n_past on; what lies before is never attended to."""

    def set_noise(self, noise: GumbelNoise | None, seq_id: int = 0) -> None:
        """What the sequence's next tokens will be drawn with; None: not known, or greedy."""

    def set_rules(self, rules: GrammarLookahead | None, seq_id: int = 0) -> None:
        """What the sequence's next tokens must be, as long as its text is what it is; None: anything."""

    def state_get(self, seq_id: int = 0) -> bytes:
        """Return a sequence's cache and waiting rows."""

    def state_set(self, state: bytes, seq_id: int = 0) -> None:
        """Make a sequence what state_get() saved, of this or another one. Raises ValueError, IncompatibleDraftError."""

    def truncate(self, n_past: int, seq_id: int = 0, same_next: bool = False) -> int:
        """Remove positions from n_past on. Returns the position from which rows must be processed again. same_next:
        the token at n_past will be the one that was there, so that the row before it is not needed again.
        """

    def use_cpu_kernels(self, n_rows_max: Mapping[str, int]) -> None:
        """Have the CPU multiply its own weights by our kernels, [name]: rows of an operation, at most."""

    @property
    def boundaries(self) -> list[int]: ...
    @property
    def cpu_kernels(self) -> dict[str, int]:
        """[name of a kernel]: own weights that it computes."""

    @property
    def device(self) -> str: ...
    @property
    def draft_vocab(self) -> int:
        """Tokens that it always drafts, beside those of the texts; 0: all."""

    @property
    def is_parallel(self) -> bool:
        """P-EAGLE: one graph drafts all tokens, and expand() costs nothing."""

    @property
    def matrices(self) -> list[int]:
        """Addresses of the ggml tensors that it multiplies by, except those of the target."""

    @property
    def n_bytes_read(self) -> int:
        """Bytes of the matrices that the first graph of a draft reads, lm_head included."""

    @property
    def n_ctx(self) -> int: ...
    @property
    def n_embd_feat(self) -> int:
        """Values of a row that it reads; 0: it reads none."""

    @property
    def n_expand(self) -> int:
        """Nodes of a sequence that a draft may expand; a chain has one token more at most."""

    @property
    def n_pos_per_row(self) -> int:
        """Positions of a row: 4 for a head with sections (M-RoPE), else 1."""

    @property
    def n_propose(self) -> int: ...
    @property
    def n_seq_max(self) -> int: ...
    @property
    def n_steps(self) -> int: ...
    @property
    def n_unroll(self) -> int:
        """Steps of a chain that one graph may take."""

    @property
    def nodes(self) -> list[tuple[int, int, float, int, int]]:
        """Nodes of the draft that begin() started: (parent, token, p, depth, seq_id), parents before their children.

        `parent` is an index, -1 = it follows id_last; `p` is the probability after the parent. Any call but
        `expand` ends the draft.
        """

    @property
    def t_graph_us(self) -> int:
        """Microseconds of both inside ggml."""

    @property
    def t_process_us(self) -> int: ...
    @property
    def t_propose_us(self) -> int: ...

class Eagle3Drafter(Drafter):
    """An EAGLE-3 head with its K/V cache."""

    def __init__(
        self,
        path: str,
        model_tgt: int,
        n_ctx: int,
        *,
        n_seq_max: int = 1,
        n_unroll: int = -1,
        boundaries: Sequence[int] | None = None,
        device: Device | None = None,
        n_gpu_layers: int = -1,
        type: int | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        n_threads: int = 1,
        n_batch: int = 512,
    ) -> None:
        """Path: GGUF head. model_tgt: address of the loaded target, which must outlive the drafter. n_ctx: positions
        of each of the n_seq_max sequences. n_unroll: steps of a chain in one graph, -1 = 1 on the CPU and all on
        an accelerator; parallel heads take all of them anyway. boundaries: instead of the head's own. device:
        where to run. Without it a device of this machine, by n_gpu_layers: 0 = CPU, > 0 = the first accelerator,
        < 0 = where the target's lm_head is. type: ggml type to which wider matrices are converted; None = as they
        are. type_k, type_v: ggml types of the cache. Raises ModelFileError, IncompatibleDraftError.
        """

    @property
    def draft_logits(self) -> npt.NDArray[np.float32]:
        """Float32 (n_vocab_dft,), of the last drafted token."""

    @property
    def head(self) -> Head: ...
    @property
    def hidden_state(self) -> npt.NDArray[np.float32]:
        """Float32 (n_embd,), the recurrent row after the last drafted token."""

    @property
    def n_bytes_cache(self) -> int:
        """Bytes of the K/V cache now: it grows and shrinks with what it holds."""

    @property
    def n_bytes_own(self) -> int:
        """Bytes of the head's tensors."""

    @property
    def n_bytes_shared(self) -> int:
        """Bytes of the target's tensors that the head uses in place."""

    @property
    def n_embd(self) -> int: ...
    @property
    def n_graph_nodes(self) -> int:
        """Nodes of the last graph, without those that compute nothing."""

    @property
    def n_vocab_dft(self) -> int: ...

class MtpDrafter(Drafter):
    """The block for multi-token prediction."""

    def __init__(
        self,
        ctx: int,
        path: str,
        *,
        model: int = 0,
        further: Sequence[int] = ...,
        n_ctx: int,
        n_seq_max: int = 1,
        n_outputs_max: int = 1,
    ) -> None:
        """ctx: address of a llama_context of the type MTP, which is freed with the drafter, also if this raises; so
        is model, the llama_model of a block in a file of its own. further: contexts of chained blocks after the
        first one, which are freed too. path: the file that has the block. n_ctx: positions of each of the
        n_seq_max sequences; the context's further sequence ids are for branches of trees. n_outputs_max: the
        context's. Raises ModelFileError, IncompatibleDraftError.
        """

    @property
    def draft_logits(self) -> npt.NDArray[np.float32]:
        """Float32 (n_vocab,), of the last row that was computed to draft after it."""

    @property
    def hidden_state(self) -> npt.NDArray[np.float32]:
        """Float32 (n_embd,), the block's own row of it."""

class SimpleDrafter(Drafter):
    """A small model of the target's vocabulary."""

    def __init__(
        self,
        ctx: int,
        model: int,
        path: str,
        *,
        n_vocab_tgt: int,
        n_ctx: int,
        n_pos_max: int = 0,
        n_seq_max: int = 1,
        n_outputs_max: int = 1,
    ) -> None:
        """ctx, model: addresses of a llama_context and its llama_model, which are freed with the drafter, also if
        this raises. path: the model's file. n_vocab_tgt: tokens of the target. n_ctx: positions of each of the
        n_seq_max sequences; the context's further sequence ids are for branches of trees, or for drafts after a
        recurrent state. n_pos_max: positions that the model reads, after which it drafts nothing; 0: all.
        n_outputs_max: the context's. Raises ModelFileError.
        """

    @property
    def draft_logits(self) -> npt.NDArray[np.float32]:
        """Float32, of the last row that was computed to draft after it: those of tokens that both models have."""

class DflashFile:
    """What a block drafter is, from the header of its GGUF file. Read-only; made by read_dflash()."""

    @property
    def block_size(self) -> int:
        """Rows of a block, at most."""

    @property
    def boundaries(self) -> list[int]:
        """Target boundaries that a row is made of."""

    @property
    def is_causal(self) -> bool:
        """Whether the rows of a block see only those before."""

    @property
    def kind(self) -> str:
        """dflash, dspark or dflash2."""

    @property
    def mask_token(self) -> int: ...
    @property
    def n_draft_max(self) -> int:
        """Tokens of a draft, at most."""

    @property
    def n_embd(self) -> int:
        """Width of the rows of the drafter and of its target."""

    @property
    def n_layer(self) -> int: ...
    @property
    def n_vocab(self) -> int:
        """Tokens of the target's vocabulary."""

    @property
    def n_vocab_dft(self) -> int:
        """Draft vocabulary, 0 = the target's."""

    @property
    def path(self) -> str: ...
    @property
    def sliding_window(self) -> int:
        """0 = none."""

class DflashDrafter(Drafter):
    """A block drafter: a model and a context of its own."""

    def __init__(
        self, file: DflashFile, model: int, ctx: int, model_tgt: int, *, n_ctx: int, n_seq_max: int = 1
    ) -> None:
        """file: of read_dflash(). model, ctx: addresses of the llama_model and llama_context made of it, which are
        freed with the drafter, also if this raises. model_tgt: the target's, whose tables it may use. n_ctx:
        positions of each of the n_seq_max sequences; the context has room for a block more. Raises
        ModelFileError.
        """

    @property
    def block_logits(self) -> npt.NDArray[np.float32]:
        """Float32 (n_rows, n_vocab), of the rows of the last pass over blocks, before the final scale."""

    @property
    def file(self) -> DflashFile: ...

class AssistantFile:
    """What a Gemma 4 assistant is, from the header of its GGUF file. Made by read_assistant()."""

    @property
    def n_embd(self) -> int:
        """Its own width."""

    @property
    def n_embd_tgt(self) -> int:
        """Width of the target's rows."""

    @property
    def n_layer(self) -> int: ...
    @property
    def n_vocab(self) -> int:
        """Tokens of the target's vocabulary."""

    @property
    def path(self) -> str: ...

class AssistantDrafter(Drafter):
    """A Gemma 4 assistant, which reads the target's K/V."""

    def __init__(
        self, file: AssistantFile, model: int, ctx: int, *, n_ctx: int, n_seq_max: int = 1, n_outputs_max: int = 1
    ) -> None:
        """file: of read_assistant(). model, ctx: addresses of the llama_model and llama_context made of it, which
        are freed with the drafter, also if this raises; the context's ctx_other is the target's. n_ctx: positions
        of each of the n_seq_max sequences. n_outputs_max: the context's. Raises ModelFileError,
        IncompatibleDraftError.
        """

    @property
    def draft_logits(self) -> npt.NDArray[np.float32]:
        """Float32 (n_vocab,), of the last row that was computed to draft after it."""

    @property
    def hidden_state(self) -> npt.NDArray[np.float32]:
        """Float32 (n_embd_tgt,), its own row of it."""

class NgramStore:
    """Texts that were written, for all sequences of a process to draft from. For any number of threads.

    n_max: tokens that it holds at most, at least half of them the latest ones.
    """

    def __init__(self, n_max: int = 1048576) -> None: ...
    def __len__(self) -> int:
        """Tokens that it holds."""

    def add(self, tokens: Sequence[int]) -> None:
        """Add a piece of a text."""

    def clear(self) -> None:
        """Remove all."""

    @property
    def n_bytes(self) -> int:
        """Bytes of memory."""

class NgramDrafter:
    """Drafts without a model: what followed, the last times, where a text ended as it ends now.

    store: where to look besides the text itself, and where what is generated goes. corpus: where to look too;
    nothing is added to it.
    """

    def __init__(
        self, n_seq_max: int = 1, store: NgramStore | None = None, corpus: NgramStore | None = None
    ) -> None: ...
    def begin(self, seq_id: int = 0) -> None:
        """A new text begins in this sequence."""

    def n_bytes(self, seq_id: int = 0) -> int:
        """Memory of a sequence's text."""

    def propose(self, n_max: int, n_nodes: int, top_k: int = 1, seq_id: int = 0) -> list[tuple[int, int, float, int]]:
        """The likeliest n_nodes tokens that may follow, as (parent, token, p, depth), parents first.

        n_max: length of a path. top_k: tokens after each other one. p: how sure it is, to be calibrated.
        """

    def set_rules(self, rules: GrammarLookahead | None, seq_id: int = 0) -> None:
        """What the sequence's next tokens must be, as long as its text is what it is; None: anything."""

    def tokens(self, seq_id: int = 0) -> list[int]:
        """A sequence's text."""

    def update(self, tokens: list[int], n_prompt: int = 0, seq_id: int = 0) -> None:
        """Have a sequence's text be these tokens, in time that depends only on what is new at its end.

        n_prompt: how many of them were not generated. A text with another n_prompt is compared from its
        beginning.
        """

class CostCurve:
    """Microseconds of one pass over n rows: a staircase with one value per n.

    Between measured n the larger neighbour counts, above them it grows in proportion; of a mixture of experts
    both follow the experts that n rows read. `observe` refines it: a drift that all n share, a correction per n,
    and what the depth of the context adds to a pass and to each row.
    """

    def __init__(
        self, measured: Mapping[int, float], growth: tuple[float, float] = ..., experts: tuple[int, int] = ...
    ) -> None:
        """measured: rows -> microseconds, at least one. growth: as the attribute, of an earlier one. experts: of a
        mixture all, and those that a row uses. ValueError for rows outside 1..128, times that are not > 0, growth
        below 0 or more experts in use than there are.
        """

    def at(self, n: int) -> float:
        """Microseconds of n rows, as of now."""

    def observe(self, n: int, t_us: float) -> None:
        """A pass over n rows took t_us."""

    def set_depth(self, n_past: float) -> None:
        """So many tokens are before the rows from now on, of each sequence on average."""

    @property
    def corrected(self) -> dict[int, float]:
        """The same, less where passes were faster."""

    @property
    def drift(self) -> float:
        """By how much everything is slower now than measured."""

    @property
    def growth(self) -> tuple[float, float]:
        """Microseconds that 1,000 tokens before it add to a pass, and to each of its rows."""

    @property
    def measured(self) -> dict[int, float]:
        """What it was made from."""

class DraftShape:
    """A draft of a fixed shape: a tree as in EAGLE-2, of which a chain is the one with top_k 1.

    depth: levels. top_k: nodes of a level that are expanded, and children of each. n_tokens: the most probable
    nodes, which are kept. n_min: fewer tokens are not verified. p_min: it ends before a token that is less
    probable.
    """

    def __init__(
        self, depth: int, top_k: int = 1, n_tokens: int | None = None, n_min: int = 0, p_min: float = 0.0
    ) -> None: ...

class DraftRequest:
    """A sequence of a step that is drafted for.

    id_last: its last token. n_room: tokens that fit after it, into the context and the batch. n_max, ngram_n_max:
    tokens of a drafter's and of the n-gram drafter's that may follow each other; 0: they are not asked. drafters:
    which may be asked, as bits. shape: what to draft; None: what pays best. n_past: tokens before id_last, on
    which the price of passes depends.
    """

    def __init__(
        self,
        seq_id: int,
        id_last: int,
        n_room: int,
        n_max: int = 2147483647,
        ngram_n_max: int = 2147483647,
        drafters: int = -1,
        shape: DraftShape | None = None,
        n_past: int = 0,
    ) -> None: ...

class Policy:
    """Chooses what to draft, step by step: a shape that a sequence asks for, else what makes tokens come fastest,
    which is a tree, a chain or nothing.

    drafters: those that draft with weights; shapes are the first one's. Each is a Drafter or simulates one, with
    `begin(seq_ids, ids_last, top_k, n_steps)` and `expand(nodes, top_k)`, which return the new nodes as tuples
    (parent, token, p, depth, seq_id), `n_waiting(seq_id)`, and the attributes `n_unroll`, `n_expand`,
    `is_parallel` and `t_draft_us`, its clock. costs: CostCurves of the target's pass over n rows, then of each
    drafter's first graph over n waiting rows and of a level of n nodes; all are refined while running. Without
    them nothing is known of what pays: the first drafter drafts short chains. n_max: longest path. top_k:
    candidates after each node, 1 = chains only. n_leaves_max: leaves of a tree, or of all trees of a step, beside
    the first one of each further sequence. n_nodes_max: drafted tokens of one step, of all sequences together
    (default: n_max). uniform: chains of sequences that share a pass have one length. n_snapshots: if more tokens
    of a chain are rejected, the next pass evaluates all accepted ones again; None: never. ngram: a NgramDrafter
    for the same sequences, which drafts too once there are costs; it must be up to date in each step.

    One thread at a time: a second one gets BusyError.
    """

    def __init__(
        self,
        drafters: Sequence[Any],
        costs: Sequence[CostCurve] = ...,
        *,
        n_max: int = 16,
        top_k: int = 1,
        n_leaves_max: int = 1,
        n_nodes_max: int | None = None,
        n_seq_max: int = 1,
        uniform: bool = False,
        n_snapshots: int | None = None,
        ngram: NgramDrafter | None = None,
    ) -> None: ...
    def acceptance(self, p: float, depth: int = 1, by_ngram: bool = False, drafter: int = 0) -> float:
        """How likely a node is accepted once its parent is, if a drafter (or the n-gram drafter) gives it p."""

    def can_pay(self, n_seqs: int = 1) -> bool:
        """Whether one that is always right could save time. If not, one is asked in a trial now and then alone."""

    def draft_us(self, n_tokens: int) -> float:
        """Microseconds that drafting a chain of so many tokens takes at least, with one row waiting."""

    def may_wait(self, n_seqs: int) -> int:
        """Drafters that need not evaluate prompts now, as bits: with n_seqs sequences at once they are not asked."""

    def observe(
        self,
        seq_ids: Sequence[int],
        tokens: Sequence[Sequence[int]],
        n_rows: int,
        t_verify_us: float,
        t_other_us: float = 0.0,
    ) -> None:
        """After each step, those without a draft too: what was sampled, and how long its pass took.

        tokens: those that the step gave each sequence, accepted ones and the one after them. n_rows: rows of the
        pass. t_other_us: all of the step that is neither drafting nor the pass.
        """

    def propose(self, requests: Sequence[DraftRequest], n_rows_extra: int = 0) -> list[Draft]:
        """Draft for the sequences of a step: a Draft for each request, which may be empty.

        n_rows_extra: rows of the target's next pass besides one per sequence and the drafts, such as tokens that
        are evaluated again.
        """

    def reset(self, seq_id: int = 0) -> None:
        """A new text begins in this sequence."""

    def stats(self) -> dict[str, Any]:
        """What happened so far: `steps`, of which `drafted` asked a drafter, `asked` each of them, `probes` of them
        although its gate was closed, `trials` although none could pay; `ngram`, steps that verified something of
        the n-gram drafter's; `levels` that were drafted after first graphs; `draft_tokens`, {drafted tokens
        verified: steps}; `draft_us`; `planning_us`, own time; `tokens_per_second`, the current estimate;
        `unread`, of each drafter's prompt that it has not read, in the last step: microseconds that reading
        takes, that its drafts would have saved in this text, and that reading may cost; `saved_us`, what each
        drafter's drafts have saved so far (negative: cost), beyond what the others would have; `ngram_saved_us`,
        what n-grams did in steps that asked no drafter; `is_open`, whether each is asked in each step of one
        sequence at the moment.
        """

    @property
    def costs(self) -> tuple[CostCurve, ...]:
        """The CostCurves that it refines: of the target, then of each drafter's first graph and of its levels."""

    @property
    def is_measured(self) -> bool:
        """Whether it knows costs. Without them the figures below raise ValueError."""

def check_head(path: str, n_vocab: int, n_embd: int, n_layer: int) -> None:
    """Check a head's tensors as loading does, for a target of these sizes. Raises ModelFileError,
    IncompatibleDraftError.
    """

def check_header(path: str, overrides: Mapping[str, bool | int | float | str] = ...) -> int:
    """Check the numbers in a model's header against each other, as llama.cpp's loader asserts them, its vocabulary
    and the other files of a split model. Raises ModelFileError; returns how many bytes the header takes.
    """

def compare_vocabularies(path_tgt: str, path_dft: str, n_vocab_tgt: int = 0, n_vocab_dft: int = 0) -> VocabDifference:
    """Compare the tokens of a target and of its drafter.

    n_vocab_tgt, n_vocab_dft: tokens of files without texts; 0 if that is not known.
    """

def cpu_kernel_format(name: str) -> tuple[int, bool, int, int]:
    """What a kernel's weights are: ggml type, whether repacked, channels of a group, inputs of a block."""

def cpu_kernel_mul_mat(name: str, weights: bytes, x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Weights in a kernel's layout times rows (n_rows, n_in), as (n_rows, n_out)."""

def cpu_kernel_names() -> list[str]:
    """Kernels that this processor can run."""

def cpu_kernel_shapes(matrices: Sequence[int], n_rows_max: Mapping[str, int]) -> dict[str, list[list[int]]]:
    """[name of a kernel]: shapes (k, n, experts) of those of the weights that it would compute."""

def decode_sound(data: bytes, sample_rate: int, n_max: int) -> npt.NDArray[np.float32]:
    """A WAV, MP3 or FLAC file as samples of one channel, float32 (n,). Raises ValueError for what cannot be decoded
    or has more than n_max samples.
    """

def find_kv_difference(path_tgt: str, path: str) -> str:
    """Why an assistant cannot read the K/V of a target, by their headers; empty if it can."""

def find_other_kind(path: str) -> str:
    """What a GGUF file is that holds no model, and what takes it; empty for models and drafters."""

def grammar_is_waiting(grammar: int) -> bool:
    """Whether a `grammar_sampler` is lazy and was not triggered, so that it allows everything."""

def grammar_sampler(
    vocab: int,
    grammar: str,
    root: str = "root",
    lazy: bool = False,
    trigger_patterns: Sequence[str] = ...,
    trigger_tokens: Sequence[int] = ...,
    n_best: int = 0,
) -> int:
    """Return the address of a new llama_sampler for a grammar in GBNF, which neither hangs nor ends the process.

    vocab: address of the llama_vocab; trigger_patterns (regular expressions) and trigger_tokens: what a lazy
    grammar waits for. n_best: what is applied after it looks at so many of the greatest logits alone, so that
    it may leave no more of them; 0: at all. Its methods throw where llama.cpp's grammar sampler would end the
    process.

    Raises:
        ValueError: the grammar cannot be parsed, or cannot be used; or a pattern is no regular expression.
    """

def has_nearly(n_dft: int, n_tgt: int) -> bool:
    """Whether two numbers of tokens differ by padding and a few tokens at the end alone."""

def local_accelerators() -> list[Device]:
    """GPUs of this machine, or its integrated ones if it has no other."""

def local_device(name: str) -> Device | None:
    """The registered ggml device of that name, such as CPU or CUDA0; None if there is none."""

def local_devices() -> list[Device]:
    """All devices of ggml on this machine."""

def model_matrices(model: int) -> list[int]:
    """Addresses of the ggml tensors that a llama_model multiplies by."""

def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10: four random words of 32 bits for a counter of four and a key of two."""

def read_arch(path: str) -> str:
    """Read the architecture that a GGUF file names; empty if it names none.

    Raises ModelFileError if it is no GGUF file.
    """

def read_assistant(path: str) -> AssistantFile:
    """Read the header of a Gemma 4 assistant. Raises ModelFileError with the key, what was expected and what was
    found.
    """

def read_dflash(path: str) -> DflashFile:
    """Read the header of a block drafter. Raises ModelFileError with the key or tensor, what was expected and what
    was found.
    """

def read_head(path: str) -> Head:
    """Read the header of a GGUF head. Raises ModelFileError with the key, what was expected and what was found."""

def read_projector(path: str) -> tuple[str, str]:
    """Types of a multimodal projector for images and for sounds, as its file calls them; empty if it has none.
    Raises ModelFileError.
    """

def read_target(path: str) -> TargetInfo:
    """Read the header of a target's GGUF file, or raise ModelFileError."""

def rpc_supported() -> bool:
    """Whether llama.cpp was built with ggml-rpc."""

def sampler_accept(sampler: int, token: int) -> None:
    """Llama_sampler_accept, of samplers that may throw."""

def time_cpu_kernels(
    matrices: Sequence[int], n_rows_max: Mapping[str, int], n_threads: int, n_rows: Sequence[int], seconds: float
) -> dict[str, dict[int, tuple[float, float]]]:
    """[name of a kernel][rows]: microseconds per MiB of weights by that kernel and by ggml."""

def token_to_piece(vocab: int, token: int, special: bool) -> bytes:
    """Bytes that a token stands for, of any length; of special tokens only if asked for."""

def tokenize(vocab: int, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
    """Tokens of a text. A vocabulary that cannot tokenize it raises ModelFileError, where llama.cpp aborts; too many
    characters in a row that are all whitespace or none are a ValueError.
    """

def why_no_target(arch: str) -> str:
    """Why no head can stand after models of an architecture; empty if one can."""

def with_stack_for(text: bytes, work: Callable[[], None]) -> None:
    """Call what has llama.cpp tokenize a text, on a thread whose stack its regular expressions do not overflow.
    Raises ValueError for a text with too many characters in a row that are all whitespace or none.
    """

LLAMA_CPP_PYTHON_VERSION: str

SOURCES_DIGEST: str

RPC_PROTO_VERSION: tuple[int, int]

BLANK_LEAVES: int
