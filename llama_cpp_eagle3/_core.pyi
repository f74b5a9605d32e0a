"""Compiled part of llama_cpp_eagle3: feature tap, target, drafters, policy.

Made by tools/stubs.py from csrc/bindings: change the docstrings there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine.draft import Draft

class GuardTurn:
    """The context manager of `Guard.if_free`: enters with whether the guard was free."""

    def __enter__(self) -> bool: ...
    def __exit__(self, *args: object) -> None: ...

class Guard:
    """A lock that nobody waits for: a second caller gets a `BusyError`, from the same thread too.

    Once it is `closed`, every caller gets an `Eagle3Error`. An interrupt never leaves it locked.
    """

    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...
    def __init__(self, name: str) -> None: ...
    def if_free(self) -> GuardTurn:
        """Enter without an error: `with guard.if_free() as is_in`; is_in is False if it is locked."""

    @property
    def closed(self) -> bool:
        """Whether the guarded object has been freed."""

    @closed.setter
    def closed(self, arg1: bool) -> None: ...
    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that made it: every caller gets an `Eagle3Error`."""

class Device:
    """A ggml device that models can run on. It lives as long as the process."""

    @property
    def address(self) -> int:
        """The address of the ggml_backend_dev_t."""

    @property
    def buffer_type(self) -> tuple[str, int] | None:
        """The name and address of the device's default ggml_backend_buffer_type_t."""

    @property
    def description(self) -> str:
        """The endpoint of a device on a ggml-rpc server."""

    @property
    def extra_buffer_types(self) -> list[str]:
        """Names of its backend's other buffer types for weights that this machine can use: CPU_REPACK, AMX, ..."""

    @property
    def is_remote(self) -> bool:
        """Whether it is on a ggml-rpc server."""

    @property
    def memory(self) -> tuple[int, int]:
        """Free bytes, and all bytes of its memory."""

    @property
    def name(self) -> str: ...

class HiddenAmx:
    """A context manager: models that are loaded meanwhile do not use AMX's layout of weights."""

    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...
    def __init__(self) -> None: ...

class RpcConnection:
    """Keeps the connection to a ggml-rpc server open as long as it lives.

    The server's devices are not registered with ggml: only models that are given them use them. llama.cpp ends
    the process if the server cannot be reached, so use `llama_cpp_eagle3.model.rpc`, which checks that first.
    """

    def __init__(self, endpoint: str) -> None: ...
    def close(self) -> None:
        """Release the connection. It stays open, and `is_held` True, while other objects hold it."""

    def drop_graphs(self) -> None:
        """Have the server forget its cached graphs. Has to be called after anything was freed on a server that is
        still used.
        """

    def open(self) -> None:
        """Hold the connection again, after `close`."""

    def relay(self, fd: int) -> None:
        """Put a relay between llama.cpp and its server; fd: the socket of their connection (csrc/rpc_relay.h)."""

    @property
    def devices(self) -> list[Device]:
        """The devices of the server: the same objects each time."""

    @property
    def is_held(self) -> bool:
        """Whether llama.cpp has its socket open."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection is lost: the server is gone, or its answer cannot be true."""

class FeatureTap:
    """Reads the target's hidden states at some boundaries while it decodes.

    A boundary b is the residual stream after b layers, 0 to n_layer; n_layer + 1 is the stream after the final
    norm. Create the tap before the context, put `cb_eval` and `cb_eval_user_data` into the context's
    parameters, and give the tap to `Target`. It must live as long as the context.
    """

    def __init__(self, boundaries: Sequence[int], n_layer: int, n_embd: int, arch: str, kind: str = "auto") -> None: ...
    def attach(self, ctx: int) -> None:
        """Bind the tap to a context; `Target` does this."""

    def rows_of(self, n_decode: int) -> npt.NDArray[np.float32]:
        """Return `rows`, or raise Eagle3Error if the last decode is not number `n_decode`."""

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
        """How rows are read: native (llama.cpp copies them) or callback (we copy them while the graph is computed)."""

    @property
    def n_decode(self) -> int:
        """The number of the last decode, counted from 1."""

    @property
    def needs_all_outputs(self) -> bool:
        """True if rows exist only for tokens with logits; Target then asks for all of them."""

    @property
    def rows(self) -> npt.NDArray[np.float32]:
        """The rows of the last decode in batch order: float32, (n_tokens, n_boundaries, n_embd), read-only.

        It is a view, not a copy, and keeps its values when the target goes on.
        """

class BatchPart:
    """The tokens of one sequence in a batch. They follow its first n_past positions; all later positions are
    removed.

    draft: drafted tokens after the last of `tokens`; `Target.accept` keeps some of them. parents: for each
    drafted token, the index in `draft` of the token before it, -1 = the last of `tokens`; empty = a chain. A
    tree stands after a single token. logits: which of `tokens` get logits: "none", "last" or "all"; with a
    draft all rows get them.
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
        """Make a part of embeddings instead of tokens: a piece of an image or a sound. It must be the only part of
        its batch.

        tokens: a token for each row, which stands for it in lists of tokens. rows: float32 (n, n_embd_inp). pos:
        with M-RoPE the rows' positions, int32 (4, n), else None. offset: rows of the same image that were decoded
        before. n_pos: with M-RoPE, positions of the whole image. causal: whether a row attends only to rows
        before it.
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
    """The recurrent states and sliding windows of a sequence at one position, which cannot be cut at others; see
    `Target.save`.

    n_past: positions that the sequence had. data: the bytes of another SavedState.
    """

    def __init__(self, n_past: int, data: bytes) -> None: ...
    @property
    def data(self) -> bytes: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def n_past(self) -> int:
        """Positions that the sequence had."""

class Target:
    """The target's context: decodes batches, samples from their rows, and takes rejected tokens back.

    `ctx` and `model` are addresses from llama-cpp-python and stay the caller's; call `close()` before freeing
    them. One thread at a time: a second one gets BusyError.
    """

    def __init__(self, ctx: int, model: int, tap: FeatureTap | None = None, n_seq: int = 0, n_guards: int = 0) -> None:
        """Wrap a context.

        n_seq: sequences 0 to n_seq - 1 are the caller's, the context's other ids are for the leaves of trees; 0 =
        all are the caller's. n_guards: n_seq, to have as many of the other ids keep cells that have left a
        sliding window of a pool, so that a rejected draft can be taken back; 0 = llama.cpp may reuse such cells.
        """

    def accept(self, seq_id: int, path: Sequence[int]) -> None:
        """Accept a path through the rows of a part with a draft, and remove the part's other tokens.

        Rows count from the part's first one, which the path begins with: 0, 1, 2, ... for a chain. An empty path
        removes the whole part; snapshots do not reach that far, so that the sequence is removed altogether unless
        a state was saved before the part.
        """

    def accept_batch(self, seq_ids: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Call `accept` for several sequences; a sequence without a draft stays as it is."""

    def argmax(self, row: int) -> int:
        """Return the most probable token of a row; of several, the first one."""

    def attach(self, states: Sequence[SavedState], seq_id: int = 0) -> None:
        """Let `truncate` and `copy` also go back to these states, which must be of the sequence's own tokens."""

    def clear(self) -> None:
        """Remove all sequences, and set their cells to zero: old values may be NaN."""

    def close(self) -> None:
        """Release the context: every later call raises."""

    def copy(self, src: int, dst: int, n_past: int) -> int:
        """Have sequence dst hold the first n_past positions of src and nothing else; both share the cells.

        Returns the positions that dst holds: n_past, or, if recurrent states or sliding windows cannot be cut
        there, those of the last state that was saved before it, 0 without one.
        """

    def decode(self, tokens: Sequence[int], n_past: int, logits_all: bool = True, seq_id: int = 0) -> None:
        """Remove positions from `n_past` on and evaluate `tokens` there as one batch.

        Logits are kept for all tokens, or only for the last one. If it raises, the memory ends at `n_past`, or at
        an earlier position that it can go back to; the method `n_past` returns it.
        """

    def decode_batch(
        self, tokens: Sequence[int], pos: Sequence[int], seq_ids: Sequence[Sequence[int]], logits: Sequence[bool]
    ) -> None:
        """Evaluate one batch of any sequences at the given positions. No position is removed before."""

    def decode_parts(self, parts: Sequence[BatchPart]) -> None:
        """Evaluate several sequences in one batch: chunks of prompts, chains and trees together.

        Rows are numbered through all parts, in order.
        """

    def has_draft(self, seq_id: int) -> bool:
        """Whether the sequence's last part has a draft of which no path has been accepted yet."""

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        """Copy the logits of a row: float32, (n_vocab,). Row -1 is the context's last one."""

    def logits_all(self, n: int) -> npt.NDArray[np.float32]:
        """Copy the logits of the first n rows: float32, (n, n_vocab)."""

    def n_past(self, seq_id: int = 0) -> int:
        """Return the tokens that a sequence holds, rows of images included."""

    def n_past_min(self, seq_id: int = 0) -> int:
        """Return the fewest tokens, at least 1, that `truncate` can keep without a saved state."""

    def n_replay(self, seq_id: int = 0) -> int:
        """Return how many accepted tokens the next batch of a sequence evaluates again."""

    def n_state_bytes(self, seq_id: int = 0) -> int:
        """Return the bytes of a state that is saved to go back; 0 = none is needed."""

    def position(self, n_past: int, seq_id: int = 0) -> int:
        """Return the position of the token after the first n_past tokens: n_past, or less if rows of images share
        positions.
        """

    def sample(self, sampler: int, row: int, n_best: int = 0, grammar: int = 0) -> int:
        """Sample a token from a row of the last batch with a llama_sampler (its address), which then accepts the
        token.

        n_best: the sampler gets so many of the most probable tokens alone, which suffice if it begins with top-k;
        0 = all. grammar: a llama_sampler that is asked about the drawn token; if it refuses that, another one is
        drawn. Row -1 is the last row of a decode by other means, as in `argmax` and `logits`.
        """

    def sample_from(self, sampler: int, logits: npt.ArrayLike, grammar: int = 0) -> int:
        """Sample a token as `sample` does, from logits of the caller's, float32 (n_vocab,)."""

    def sampled_probs(self) -> list[tuple[int, float]]:
        """Return the tokens that the last `sample_from` drew from with their probabilities, the most probable first.

        The list is empty if the sampler is greedy, which computes no probabilities.
        """

    def save(self, seq_id: int = 0) -> SavedState | None:
        """Save the present state, if this memory cannot go back to it by itself, else return None.

        `truncate` and `copy` go back to it as long as the object exists.
        """

    def set_device_argmax(self, n_outputs: int) -> None:
        """Have the target's device take the argmax of each row, so that logits are not copied; `logits` and `sample`
        then raise.

        n_outputs: rows with logits that a sequence may have in a batch, at most the context's
        n_outputs_max_per_seq; 0 = copy logits to the host again.
        """

    def set_spans(self, spans: Sequence[tuple[int, int, int]], seq_id: int = 0) -> None:
        """Set the images of a sequence whose cells were written by other means, as `spans` returns them."""

    def settle(self) -> None:
        """Make the memory hold exactly the accepted tokens, before the context is used by other means."""

    def spans(self, seq_id: int = 0) -> list[tuple[int, int, int]]:
        """Return a sequence's images: for each the index of its first token, its rows, and the positions that these
        take.
        """

    def state_get(self, seq_id: int) -> bytes:
        """Return a sequence's cells and states as bytes, without the states that were saved of it."""

    def state_set(self, seq_id: int, state: bytes) -> None:
        """Restore a sequence from the bytes of `state_get`, in place of what it holds.

        Raises ContextFullError if there is no room, and ValueError for other bytes; the sequence is then empty.
        """

    def truncate(self, n_past: int, seq_id: int = 0) -> int:
        """Remove positions from `n_past` on. Returns the position from which tokens must be decoded again.

        That is n_past, or, if the memory cannot go back there, the position of the last state that was saved
        before it (`save`), 0 without one.
        """

    @property
    def is_pooled(self) -> bool:
        """Whether all sequences share their cells; else each has a part of its own."""

    @property
    def kernel_sides(self) -> dict[tuple[str, str, str], int]:
        """Counts of operations whose rows depend on other rows if ggml computes them, by (what, why, type), at
        creation.

        what: products, attention or recurrence. why: empty if our kernels compute them, else the reason: device,
        adapter, source (no kernel for the weights or queries), type (of the cache), rows (too many) or shape.
        type: of the weights, or of the cache.
        """

    @property
    def logits_are_remote(self) -> bool:
        """Whether logits are computed on a device whose memory the host cannot read."""

    @property
    def n_batches(self) -> int:
        """The number of batches that were begun; rows are those of the last one."""

    @property
    def n_ctx(self) -> int:
        """Positions that a sequence may have."""

    @property
    def n_embd_inp(self) -> int:
        """Values of an input row of embeddings."""

    @property
    def n_leaves_max(self) -> int:
        """Leaves that a tree may have; 1 = only chains can be verified."""

    @property
    def n_pos_per_row(self) -> int:
        """Positions of an input row: 4 with M-RoPE, else 1."""

    @property
    def n_seq(self) -> int:
        """The number of the caller's sequences."""

    @property
    def n_snapshots(self) -> int | None:
        """Tokens of a draft that can be rejected without a replay; None = any number."""

    @property
    def n_ubatch(self) -> int:
        """Rows that llama.cpp computes at once (n_ubatch)."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def pos(self) -> npt.NDArray[np.int32]:
        """Positions of the last batch."""

    @property
    def rollback_kind(self) -> str:
        """How rejected tokens are taken back.

        "trim" removes their positions (attention). "snapshots" goes back to a state that llama.cpp kept
        (recurrent, n_rs_seq > 0), or, if these do not reach far enough, to a checkpoint. "checkpoint" restores
        the state before the batch and puts the accepted tokens in front of the next one, so that no pass
        evaluates them alone.
        """

    @property
    def t_decode_us(self) -> int:
        """Microseconds spent in llama_decode and llama_synchronize so far."""

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Tokens of the last batch."""

class TargetInfo:
    """The facts of a target's GGUF header. Made by read_target()."""

    @property
    def arch(self) -> str: ...
    @property
    def boundaries(self) -> list[int]:
        """The boundaries at which hidden states can be read: of 0 to n_layer, and n_layer + 1 after the final norm."""

    @property
    def file_size(self) -> int: ...
    @property
    def has_trunk(self) -> bool:
        """Whether the file has the model's own layers; False = it has layers for multi-token prediction alone."""

    @property
    def keys_without_block(self) -> dict[str, int]:
        """Overrides of keys with which llama.cpp loads the file without the missing layers (`n_layer_gone`); empty =
        none are needed, or they would not suffice.
        """

    @property
    def n_ctx_train(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_embd_nextn(self) -> int:
        """Values of a row that the target's block for multi-token prediction reads."""

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
        """The block for multi-token prediction reads boundary n_layer + nextn; -1 = not known for this architecture."""

    @property
    def path(self) -> str: ...
    @property
    def runs_block(self) -> bool:
        """Whether llama.cpp can run the block for multi-token prediction."""

    @property
    def unknown_ids(self) -> dict[str, int]:
        """Keys of special tokens whose ids the vocabulary does not have, with these ids."""

    @property
    def why_no_target(self) -> str:
        """Why no head can draft for this model; empty if one can."""

    @property
    def why_no_text(self) -> str:
        """Why the model does not generate text, so that it can be neither target nor drafter; empty if it does."""

class VocabDifference:
    """How the tokens of a drafter's file differ from its target's. Made by compare_vocabularies()."""

    @property
    def flags(self) -> list[str]:
        """Sentences that say how BOS and EOS differ."""

    @property
    def model_dft(self) -> str: ...
    @property
    def model_tgt(self) -> str:
        """The kind of tokenizer; empty = the file has none."""

    @property
    def n_dft(self) -> int: ...
    @property
    def n_more(self) -> int:
        """Tokens at the end that only one of the two has, without padding."""

    @property
    def n_tgt(self) -> int:
        """The number of tokens; 0 = not known."""

    @property
    def others(self) -> list[int]:
        """Tokens that both have with different texts, ascending."""

    @property
    def text_dft(self) -> bytes: ...
    @property
    def text_tgt(self) -> bytes:
        """The text of the first of `others`."""

class Head:
    """The facts of an EAGLE-3 head's GGUF header. Read-only; made by read_head()."""

    @property
    def arch(self) -> str:
        """The file's general.architecture: eagle3, or eagle3-ext for heads that llama.cpp cannot run."""

    @property
    def boundaries(self) -> list[int]:
        """The target's boundaries that a row is made of; empty without fc."""

    @property
    def boundaries_why(self) -> str:
        """How the converter found the boundaries; empty = the file does not say."""

    @property
    def dialect(self) -> str:
        """The dialect of the file's keys: upstream, fork or extended."""

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
        """Rank of K and V in multi-head latent attention; 0 = the head has ordinary attention."""

    @property
    def logit_scale(self) -> float: ...
    @property
    def mask_token(self) -> int:
        """P-EAGLE: the token of rows that the target has not computed; -1 = the head is no P-EAGLE head."""

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
        """Size of the target's vocabulary by the head's file; 0 = not known."""

    @property
    def n_vocab_dft(self) -> int:
        """Size of the draft vocabulary; 0 = the target's vocabulary."""

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
    """While it lives, the CPU backend multiplies by these weights with our kernels."""

    def __init__(self, matrices: Sequence[int], n_rows_max: Mapping[str, int]) -> None:
        """Register weights.

        matrices: addresses of ggml tensors. n_rows_max: for each kernel's name the most rows of an operation,
        beyond which ggml computes it; kernels that are not named are not used.
        """

    def close(self) -> None:
        """Unregister the weights. Has to be called before they are freed."""

    @property
    def n_weights(self) -> dict[str, int]:
        """The number of weights that each kernel computes, by its name."""

    @property
    def why_not(self) -> str:
        """Why no kernel computes any weight; empty if one does."""

class LimitedProduct:
    """While it is open, graphs that this thread computes get only a part of a matrix's product."""

    def __init__(self, matrix: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Limit a product. matrix: the address of a ggml tensor. ranges: (first, last) of the channels that are
        computed; the others become -inf.
        """

    def close(self) -> None:
        """End the limit. Of several open ones, the one that was made last is closed first."""

class LoadGuard:
    """While its block runs, an assertion of llama.cpp that fails on this thread ends the call instead of the
    process.

    It is for calls that load a model or make a context, which catch what it throws.
    """

    def __enter__(self) -> LoadGuard: ...
    def __exit__(self, *args: object) -> None: ...
    def __init__(self, *, computes: bool = False) -> None:
        """computes: the calls compute too; an assertion in a kernel, where other threads wait, ends the process."""

    @property
    def asserted(self) -> bool:
        """Whether an assertion has failed."""

    @property
    def ignored(self) -> set[str]:
        """Keys whose overrides llama.cpp ignores, since the file's value has another type, and both types."""

    @property
    def reason(self) -> str:
        """Why a call has failed, in llama.cpp's words; empty if it gave no reason."""

    @property
    def tensors(self) -> set[str]:
        """Names of the tensors that llama.cpp has asked a model's file for: those of its graph."""

class TokenTree:
    """The tokens of a vocabulary by their characters, which all grammars of a model read."""

    def __init__(self, vocab: int) -> None:
        """Read a vocabulary, by the address of its llama_vocab, which must outlive this object and grammars."""

class GrammarLookahead:
    """Tells which tokens a grammar allows after tokens that are not drawn yet."""

    def __init__(self, sampler: int, *, redraws: bool) -> None:
        """Look ahead in the grammar of a sampler, from where its text is now; the sampler must outlive this object.

        redraws: whether the grammar is asked about drawn tokens, and another token is drawn if it refuses one;
        else it is applied before the draw.
        """

    def allowed(self, path: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """Return for each of the tokens whether it may come after the path; if that cannot be known, all may."""

class GumbelNoise:
    """The random noise of one text, which its draws and its drafts share.

    The token with the greatest logit / temperature + noise is drawn with its probability in the softmax
    (Gumbel-max).
    """

    def __call__(self, token: int, n_ahead: int = 0, attempt: int = 0) -> float:
        """Return the noise of a token after n_ahead others that are not drawn yet; attempt: refused draws before
        this one.
        """

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
        """Make the noise of a seed. The other arguments are the samplers' between logits and draw, for drafts alone:
        the draw itself only adds the noise.
        """

    def sampler(self) -> int:
        """Return the address of a new llama_sampler that draws with this noise, and advances it with each accepted
        token.
        """

    @property
    def position(self) -> int:
        """The number of tokens that were drawn for the text."""

    @position.setter
    def position(self, arg0: int) -> None: ...

class GrammarDrafter:
    """Drafts what a grammar forces: text after which nothing else may come, or, besides white space, only this.

    vocab: the address of the llama_vocab. grammar: that of a `grammar_sampler`. Both must outlive this object.
    """

    def __init__(self, vocab: int, grammar: int) -> None: ...
    def forced(self) -> tuple[bytes, list[float]]:
        """Return the text that comes next, and how likely each of its bytes is after those before; 1: it is forced."""

    def propose(self, n_max: int) -> list[tuple[int, float]]:
        """Return that text as the tokenizer spells it, at most n_max tokens, with the probability of each."""

    def read(self, tokens: Sequence[int]) -> None:
        """Read the text's next tokens, which the grammar has accepted: their white space is what is guessed."""

    def reset(self) -> None:
        """Forget the text."""

class Drafter:
    """Drafts tokens for several sequences from the target's rows. Each kind of drafter is a class of its own.

    One thread at a time: a second one gets BusyError.
    """

    def add_image(self, first: int, pos: npt.ArrayLike, n_pos: int, seq_id: int = 0) -> None:
        """Announce an image, whose rows come next, from position `first` on. For heads with M-RoPE's sections
        (n_pos_per_row 4).

        pos: the rows' positions, int32 (4, n). n_pos: the positions by which tokens after the image count on.
        """

    def begin(self, seq_ids: Sequence[int], ids_last: Sequence[int], top_k: int, n_steps: int = 1) -> None:
        """Start a draft for each sequence, with the top_k most probable tokens after its id_last as nodes.

        With n_steps > 1 (at most n_unroll) the best node is followed further in the same graph. A parallel head
        computes n_steps positions and appends the nodes of the first one.
        """

    def close(self) -> None:
        """Free the drafter: every later call raises."""

    def copy(self, src: int, dst: int, n_past: int, same_next: bool = False) -> int:
        """Copy the positions before n_past of sequence src to dst, in place of what dst holds.

        Returns the position from which rows of `dst` must be processed: what truncate(n_past, same_next) would
        return for `src`, which stays as it is. Raises ValueError if `src` has fewer than n_past positions.
        """

    def draft_always(self, tokens: Sequence[int]) -> None:
        """Draft these tokens too, whatever `limit_vocab` has left out: earlier answers had them."""

    def expand(self, nodes: Sequence[int], top_k: int) -> None:
        """Append the top_k most probable tokens after each of these nodes, in one graph.

        A node can be expanded once, and at most 128 nodes of a sequence. A node at the end of the context gets
        none.
        """

    def leave_out(self, tokens: Sequence[int]) -> None:
        """Never draft these tokens: in the drafter's own vocabulary they have other texts than in the target's."""

    def limit_vocab(self, n_first: int) -> bool:
        """Draft only the n_first most frequent tokens and those of the texts, so that the CPU computes no logits of
        others; 0 = all.

        Returns False if the drafter cannot save time so, and drafts all of its tokens.
        """

    def n_past(self, seq_id: int = 0) -> int:
        """Return the number of positions whose rows were appended."""

    def n_waiting(self, seq_id: int = 0) -> int:
        """Return the number of rows that `begin` has to evaluate first."""

    def process(
        self,
        tap: FeatureTap | None,
        tokens: Sequence[int],
        n_past: int,
        seq_id: int = 0,
        rows: Sequence[int] | None = None,
        can_defer: bool = False,
    ) -> None:
        """Append the rows of a sequence's tokens at positions n_past, n_past + 1, ... from the tap's last decode,
        one per token.

        rows: their indices in the batch, by default the first ones. tap: None for a drafter that reads no rows
        (n_embd_feat 0). can_defer: whether no begin() is expected soon, so that the K/V of a prompt is computed
        only with it.
        """

    def process_batch(
        self, tap: FeatureTap | None, parts: Sequence[tuple[int, int, Sequence[int], Sequence[int], bool]]
    ) -> None:
        """Call `process` for several sequences, each (seq_id, n_past, tokens, rows, can_defer).

        Rows that a sequence has already are skipped; a sequence that lacks rows before these goes on without them
        (`restart`).
        """

    def process_rows(
        self, rows: npt.ArrayLike, tokens: Sequence[int], n_past: int, seq_id: int = 0, can_defer: bool = False
    ) -> None:
        """Append rows from an array, float32 of shape (n_tokens, n_boundaries * n_embd_tgt)."""

    def reset(self, seq_id: int | None = None) -> None:
        """Clear a sequence, or all of them."""

    def restart(self, n_past: int, seq_id: int = 0) -> None:
        """Clear the sequence. Its next rows begin at n_past; earlier positions are never attended to."""

    def set_noise(self, noise: GumbelNoise | None, seq_id: int = 0) -> None:
        """Set the noise that the sequence's next tokens will be drawn with; None = not known, or greedy."""

    def set_rules(self, rules: GrammarLookahead | None, seq_id: int = 0) -> None:
        """Set the grammar that the sequence's next tokens must follow, until its text changes; None = any token may
        come.
        """

    def state_get(self, seq_id: int = 0) -> bytes:
        """Return a sequence's K/V cache and waiting rows as bytes."""

    def state_set(self, state: bytes, seq_id: int = 0) -> None:
        """Restore a sequence from the bytes of state_get(), of this or another sequence. Raises ValueError,
        IncompatibleDraftError.
        """

    def truncate(self, n_past: int, seq_id: int = 0, same_next: bool = False) -> int:
        """Remove positions from n_past on. Returns the position from which rows must be processed again.

        same_next: whether the next token at n_past is the one that was there, so that the row before it is not
        needed again.
        """

    def use_cpu_kernels(self, n_rows_max: Mapping[str, int]) -> None:
        """Have our CPU kernels multiply by the drafter's own weights. n_rows_max: the most rows of an operation, by
        kernel name.
        """

    @property
    def boundaries(self) -> list[int]: ...
    @property
    def cpu_kernels(self) -> dict[str, int]:
        """The number of the drafter's own weights that each kernel computes, by its name."""

    @property
    def device(self) -> str: ...
    @property
    def draft_vocab(self) -> int:
        """Tokens that are always drafted, beside those of the texts; 0 = all."""

    @property
    def is_parallel(self) -> bool:
        """Whether one graph drafts all tokens (P-EAGLE), so that expand() costs nothing."""

    @property
    def matrices(self) -> list[int]:
        """Addresses of the ggml tensors that the drafter multiplies by, except the target's."""

    @property
    def n_bytes_read(self) -> int:
        """Bytes of the matrices that the first graph of a draft reads, lm_head included."""

    @property
    def n_ctx(self) -> int: ...
    @property
    def n_embd_feat(self) -> int:
        """Values of a row that the drafter reads; 0 = it reads none."""

    @property
    def n_expand(self) -> int:
        """Nodes of a sequence that a draft may expand, at most; a chain has at most one token more."""

    @property
    def n_pos_per_row(self) -> int:
        """Positions of a row: 4 for a head with M-RoPE's sections, else 1."""

    @property
    def n_propose(self) -> int: ...
    @property
    def n_seq_max(self) -> int: ...
    @property
    def n_steps(self) -> int: ...
    @property
    def n_unroll(self) -> int:
        """Steps of a chain that one graph computes, at most."""

    @property
    def nodes(self) -> list[tuple[int, int, float, int, int]]:
        """Nodes of the draft that begin() started: (parent, token, p, depth, seq_id), parents before their children.

        `parent` is an index, -1 = it follows id_last; `p` is the probability after the parent. Any call but
        `expand` ends the draft.
        """

    @property
    def t_graph_us(self) -> int:
        """Microseconds of process and propose that were spent inside ggml."""

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
        """Load a head.

        path: the head's GGUF. model_tgt: the address of the loaded target, which must outlive the drafter. n_ctx:
        positions of each of the n_seq_max sequences. n_unroll: steps of a chain in one graph, -1 = 1 on the CPU
        and all on an accelerator; parallel heads always take all. boundaries: replace the head's own. device: the
        device to run on; None = one of this machine by n_gpu_layers: 0 = the CPU, > 0 = the first accelerator, <
        0 = the device of the target's lm_head. type: the ggml type that wider matrices are converted to; None =
        as they are. type_k, type_v: ggml types of the cache.

        Raises ModelFileError, IncompatibleDraftError.
        """

    @property
    def draft_logits(self) -> npt.NDArray[np.float32]:
        """Logits of the last drafted token: float32 (n_vocab_dft,)."""

    @property
    def head(self) -> Head: ...
    @property
    def hidden_state(self) -> npt.NDArray[np.float32]:
        """The head's own row after the last drafted token, which the next step reads: float32 (n_embd,)."""

    @property
    def n_bytes_cache(self) -> int:
        """Bytes of the K/V cache at present; it grows and shrinks with its contents."""

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
        """Operations of the last graph, without those that compute nothing."""

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
        """Draft with a block on a context.

        ctx: the address of a llama_context of type MTP. model: the llama_model of a block in a file of its own.
        further: contexts of chained blocks after the first one. All of these are freed with the drafter, also if
        this raises. path: the file that has the block. n_ctx: positions of each of the n_seq_max sequences; the
        context's other sequence ids are for branches of trees. n_outputs_max: the context's.

        Raises ModelFileError, IncompatibleDraftError.
        """

    @property
    def draft_logits(self) -> npt.NDArray[np.float32]:
        """Logits of the last row that was computed to draft after it: float32 (n_vocab,)."""

    @property
    def hidden_state(self) -> npt.NDArray[np.float32]:
        """The block's own hidden state of that row: float32 (n_embd,)."""

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
        """Draft with a small model.

        ctx, model: the addresses of a llama_context and its llama_model, which are freed with the drafter, also
        if this raises. path: the model's file. n_vocab_tgt: tokens of the target. n_ctx: positions of each of the
        n_seq_max sequences; the context's other sequence ids are for branches of trees, or for drafts after a
        recurrent state. n_pos_max: positions that the model reads, after which it drafts nothing; 0 = all.
        n_outputs_max: the context's.

        Raises ModelFileError.
        """

    @property
    def draft_logits(self) -> npt.NDArray[np.float32]:
        """Logits of the last row that was computed to draft after it, of the tokens that both models have: float32."""

class DflashFile:
    """The facts of a block drafter's GGUF header. Read-only; made by read_dflash()."""

    @property
    def block_size(self) -> int:
        """Rows of a block, at most."""

    @property
    def boundaries(self) -> list[int]:
        """The target's boundaries that a row is made of."""

    @property
    def is_causal(self) -> bool:
        """Whether a row of a block attends only to rows before it."""

    @property
    def kind(self) -> str:
        """The kind of drafter: dflash, dspark or dflash2."""

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
        """Size of the draft vocabulary; 0 = the target's vocabulary."""

    @property
    def path(self) -> str: ...
    @property
    def sliding_window(self) -> int:
        """Positions that a row sees in layers with a sliding window; 0 = there are none."""

class DflashDrafter(Drafter):
    """A block drafter: a model and a context of its own."""

    def __init__(
        self, file: DflashFile, model: int, ctx: int, model_tgt: int, *, n_ctx: int, n_seq_max: int = 1
    ) -> None:
        """Draft with a block drafter.

        file: of read_dflash(). model, ctx: the addresses of the llama_model and llama_context made of it, which
        are freed with the drafter, also if this raises. model_tgt: the target's llama_model, whose embedding and
        output it may use. n_ctx: positions of each of the n_seq_max sequences; the context has room for one more
        block.

        Raises ModelFileError.
        """

    @property
    def block_logits(self) -> npt.NDArray[np.float32]:
        """Logits of the last pass over blocks, before the final scale: float32 (n_rows, n_vocab)."""

    @property
    def file(self) -> DflashFile: ...

class AssistantFile:
    """The facts of a Gemma 4 assistant's GGUF header. Made by read_assistant()."""

    @property
    def n_embd(self) -> int:
        """Width of the assistant's own rows."""

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
        """Draft with an assistant.

        file: of read_assistant(). model, ctx: the addresses of the llama_model and llama_context made of it,
        which are freed with the drafter, also if this raises; the context's ctx_other is the target's. n_ctx:
        positions of each of the n_seq_max sequences. n_outputs_max: the context's.

        Raises ModelFileError, IncompatibleDraftError.
        """

    @property
    def draft_logits(self) -> npt.NDArray[np.float32]:
        """Logits of the last row that was computed to draft after it: float32 (n_vocab,)."""

    @property
    def hidden_state(self) -> npt.NDArray[np.float32]:
        """The assistant's own hidden state of that row: float32 (n_embd_tgt,)."""

class NgramStore:
    """Texts from which all sequences of a process may draft n-grams. Any number of threads may use it.

    n_max: tokens that it holds at most; at least the latest n_max / 2 are kept.
    """

    def __init__(self, n_max: int = 1048576) -> None: ...
    def __len__(self) -> int:
        """Return the number of tokens that it holds."""

    def add(self, tokens: Sequence[int]) -> None:
        """Add a piece of a text."""

    def clear(self) -> None:
        """Remove all texts."""

    def merge(self) -> None:
        """Make searches as fast as they can be, after many texts were added."""

    @property
    def n_bytes(self) -> int:
        """Bytes of memory that it takes."""

class NgramDrafter:
    """Drafts without a model: proposes the tokens that followed where a text ended before as it ends now.

    store: texts that are searched besides the sequence's own; generated tokens are added to it. corpus: further
    texts that are searched; nothing is added to it.
    """

    def __init__(
        self, n_seq_max: int = 1, store: NgramStore | None = None, corpus: NgramStore | None = None
    ) -> None: ...
    def begin(self, seq_id: int = 0) -> None:
        """Begin a new text in this sequence."""

    def n_bytes(self, seq_id: int = 0) -> int:
        """Return the bytes of memory that a sequence's text takes."""

    def propose(self, n_max: int, n_nodes: int, top_k: int = 1, seq_id: int = 0) -> list[tuple[int, int, float, int]]:
        """Return the n_nodes most likely tokens that may follow, as (parent, token, p, depth), parents before their
        children.

        n_max: tokens of a path, at most. top_k: tokens after each token, at most. p is a confidence, to be
        calibrated.
        """

    def set_forced(self, tokens: Sequence[tuple[int, float]], seq_id: int = 0) -> None:
        """Set tokens that are known to follow, with their probabilities, until the sequence's text changes: they are
        proposed, and what follows them.
        """

    def set_rules(self, rules: GrammarLookahead | None, seq_id: int = 0) -> None:
        """Set the grammar that the sequence's next tokens must follow, until its text changes; None = any token may
        come.
        """

    def tokens(self, seq_id: int = 0) -> list[int]:
        """Return the tokens of a sequence's text."""

    def update(self, tokens: list[int], n_prompt: int = 0, seq_id: int = 0) -> None:
        """Set a sequence's text to these tokens, in time that depends only on the number of new tokens at its end.

        n_prompt: how many of them were not generated. A text with another n_prompt than before is compared from
        its beginning.
        """

class CostCurve:
    """Microseconds of one pass over n rows: a staircase with one value per n.

    Between measured n the larger neighbour counts, above the largest one the time grows in proportion to n; for
    a mixture of experts both follow the number of experts that n rows read. `observe` refines the curve by a
    drift that all n share, a correction per n, and the time that the depth of the context adds to a pass and to
    each row.
    """

    def __init__(
        self, measured: Mapping[int, float], growth: tuple[float, float] = ..., experts: tuple[int, int] = ...
    ) -> None:
        """measured: rows -> microseconds, at least one entry. growth: the attribute `growth` of an earlier curve.
        experts: of a mixture of experts, all experts and those that a row uses.

        Raises ValueError for rows outside 1..128, times that are not > 0, growth below 0, or more experts in use
        than there are.
        """

    def at(self, n: int) -> float:
        """Return the present estimate of a pass over n rows, in microseconds."""

    def observe(self, n: int, t_us: float) -> None:
        """Refine the curve: a pass over n rows took t_us microseconds."""

    def set_depth(self, n_past: float) -> None:
        """Set the number of tokens before the rows of later passes, the mean over sequences."""

    @property
    def corrected(self) -> dict[int, float]:
        """The measured microseconds by rows, reduced where passes were faster."""

    @property
    def drift(self) -> float:
        """The factor by which all passes are slower now than measured."""

    @property
    def growth(self) -> tuple[float, float]:
        """Microseconds that each 1,000 tokens before a pass add to it, and to each of its rows."""

    @property
    def measured(self) -> dict[int, float]:
        """The measured microseconds by rows that the curve was made from."""

class DraftShape:
    """The fixed shape of a draft: a tree as in EAGLE-2; a chain is a tree with top_k 1.

    depth: levels. top_k: nodes of a level that are expanded, and children of each. n_tokens: nodes that are
    kept, the most probable ones. n_min: a draft of fewer tokens is not verified. p_min: a chain ends before a
    less probable token.
    """

    def __init__(
        self, depth: int, top_k: int = 1, n_tokens: int | None = None, n_min: int = 0, p_min: float = 0.0
    ) -> None: ...

class DraftRequest:
    """A sequence of a step that is drafted for.

    id_last: its last token. n_room: tokens that fit after it, into the context and the batch. n_max,
    ngram_n_max: the longest path of a drafter's tokens, and of the n-gram drafter's; 0 = it is not asked.
    drafters: the drafters that may be asked, as bits. shape: the shape of the draft; None = the one that pays
    best. n_past: tokens before id_last, on which the price of passes depends.
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
    """Chooses the drafts of each step: of the shape that a sequence asks for, else the tree, chain or nothing that
    gives the most tokens per second.

    drafters: the drafters with weights; shapes are drafted by the first one. Each is a Drafter or simulates
    one, with `begin(seq_ids, ids_last, top_k, n_steps)` and `expand(nodes, top_k)`, which return the new nodes
    as tuples (parent, token, p, depth, seq_id), `n_waiting(seq_id)`, and the attributes `n_unroll`, `n_expand`,
    `is_parallel` and `t_draft_us`, its clock. costs: the CostCurve of the target's pass over n rows, then of
    each drafter those of its first graph over n waiting rows and of a level of n nodes; all are refined while
    running. Without costs the first drafter drafts short chains.

    n_max: the longest path. top_k: candidates after each node, 1 = chains only. n_leaves_max: leaves of a tree;
    all trees of a step have as many in total, not counting the first leaf of each further sequence.
    n_nodes_max: drafted tokens of a step, of all sequences in total (default: n_max). uniform: whether chains
    of sequences that share a pass have the same length. n_snapshots: rejected tokens of a chain beyond which
    the next pass evaluates all accepted ones again; None = never. ngram: an NgramDrafter of the same sequences,
    which drafts too once there are costs; its texts must be current in each step. priors: what is known of each
    drafter, as another policy's `priors` has told; None: nothing.

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
        priors: Sequence[dict[str, Any] | None] = ...,
    ) -> None: ...
    def acceptance(self, p: float, depth: int = 1, by_ngram: bool = False, drafter: int = 0) -> float:
        """Return how likely a node is accepted once its parent is, if a drafter (or the n-gram drafter) gives it
        probability p.
        """

    def can_pay(self, n_seqs: int = 1) -> bool:
        """Whether a drafter that is always right could save time. If not, drafters are asked only in rare trials."""

    def draft_us(self, n_tokens: int) -> float:
        """Return the least time of drafting a chain of n_tokens with one row waiting, in microseconds."""

    def may_wait(self, n_seqs: int) -> int:
        """Return the drafters that need not evaluate prompts now, as bits: with n_seqs sequences at once they are
        not asked.
        """

    def observe(
        self,
        seq_ids: Sequence[int],
        tokens: Sequence[Sequence[int]],
        n_rows: int,
        t_verify_us: float,
        t_other_us: float = 0.0,
    ) -> None:
        """Learn from a step. Has to be called after each step, with or without a draft.

        tokens: the tokens that the step gave each sequence, accepted ones and the one after them. n_rows: rows of
        the pass. t_verify_us: microseconds of the pass. t_other_us: microseconds of the step that are neither
        drafting nor the pass.
        """

    def priors(self) -> list[dict[str, Any] | None]:
        """Return what is known of each drafter, for the policy of another process; None: it was never asked.

        `accepted`: (mean, variance) of each weight of its calibration. `log_p`: mean log probability of its best
        tokens. `worth`: tokens that its steps give beyond plain ones. In tokens of plain decoding: `row`, the
        time of reading a row of a prompt; `saved`, what its drafts save in a text; `for_prompts` and
        `for_drafts`, by the number of sequences at once, what reading prompts and drafting may cost.
        """

    def propose(self, requests: Sequence[DraftRequest], n_rows_extra: int = 0) -> list[Draft]:
        """Draft for the sequences of a step: a Draft for each request, which may be empty.

        n_rows_extra: rows of the target's next pass besides one per sequence and the drafts, such as tokens that
        are evaluated again.
        """

    def reset(self, seq_id: int = 0) -> None:
        """Begin a new text in this sequence."""

    def stats(self) -> dict[str, Any]:
        """Return figures of all steps so far.

        `steps`: all steps. `drafted`: steps that asked a drafter; `asked`: the same for each drafter; `probes`:
        those with its gate closed; `trials`: those in which none could pay. `ngram`: steps that verified tokens
        of the n-gram drafter; `grammar`: those that a grammar forces. `levels`: levels that were drafted after
        first graphs. `draft_tokens`: {drafted tokens verified: steps}. `draft_us`: microseconds of drafting.
        `planning_us`: microseconds of the policy itself. `tokens_per_second`: the present estimate.

        `unread`: for each drafter with an unread prompt in the last step, the microseconds that reading takes,
        that its drafts would have saved in this text, and that reading may cost. `saved_us`: microseconds that
        each drafter's drafts have saved beyond the others (negative: they cost time). `ngram_saved_us`: those
        that n-grams have saved in steps that asked no drafter; `grammar_saved_us`: in those with nothing but what
        a grammar forces. `is_open`: whether each drafter is asked in each step of a single sequence at present.
        """

    @property
    def costs(self) -> tuple[CostCurve, ...]:
        """The CostCurves that the policy refines: the target's, then each drafter's of its first graph and of its
        levels.
        """

    @property
    def is_measured(self) -> bool:
        """Whether costs are known. Without them `acceptance`, `can_pay`, `draft_us` and `stats` raise ValueError."""

def bounds_of_tokens(vocab: int) -> tuple[int, bytes, bool]:
    """Return of all tokens the bytes of the longest one, the bytes that are tokens by themselves, and whether some
    swallow white space beside them.
    """

def check_adapter(path: str, model_path: str) -> list[str]:
    """Check a LoRA adapter's file for a model: its keys, and the types, values and numbers of its matrices.
    Return the names of the tensors that llama.cpp leaves out. Raises ModelFileError.
    """

def check_head(path: str, n_vocab: int, n_embd: int, n_layer: int) -> None:
    """Check a head's tensors against a target of these sizes, as loading does. Raises ModelFileError,
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
    """Return the format of a kernel's weights: ggml type, whether repacked, channels of a group, inputs of a block."""

def cpu_kernel_mul_mat(name: str, weights: bytes, x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Multiply rows x, float32 (n_rows, n_in), by weights in a kernel's layout; returns (n_rows, n_out)."""

def cpu_kernel_names() -> list[str]:
    """Return the names of the kernels that this processor can run."""

def cpu_kernel_shapes(matrices: Sequence[int], n_rows_max: Mapping[str, int]) -> dict[str, list[list[int]]]:
    """Return the shapes (k, n, experts) of the weights that each kernel would compute, by its name."""

def decode_sound(data: bytes, sample_rate: int, n_max: int) -> npt.NDArray[np.float32]:
    """Decode a WAV, MP3 or FLAC file to samples of one channel, float32 (n,). Raises ValueError if it cannot be
    decoded, or has more than n_max samples.
    """

def eog_tokens(vocab: int) -> list[int]:
    """Return the tokens that end a text."""

def find_kv_difference(path_tgt: str, path: str) -> str:
    """Return why an assistant cannot read the K/V of a target, by their headers; empty if it can."""

def find_other_kind(path: str) -> str:
    """Return what a GGUF file without a model is, and which argument takes it; empty for models and drafters."""

def grammar_is_waiting(grammar: int) -> bool:
    """Whether a lazy `grammar_sampler` has not been triggered yet, so that it allows every token."""

def grammar_sampler(
    tokens: TokenTree,
    grammar: str,
    root: str = "root",
    lazy: bool = False,
    trigger_patterns: Sequence[str] = ...,
    trigger_tokens: Sequence[int] = ...,
    n_best: int = 0,
) -> int:
    """Return the address of a new llama_sampler for a grammar in GBNF, which neither hangs nor ends the process.

    tokens: the vocabulary's. trigger_patterns (regular expressions), trigger_tokens: the triggers that a lazy
    grammar waits for. n_best: if later samplers use only so many of the greatest logits, the
    grammar need not check more; 0 = all. The sampler's methods throw where llama.cpp's grammar sampler would
    end the process.

    Raises ValueError if the grammar cannot be parsed or used, or if a pattern is no regular expression.
    """

def has_lost_threads() -> bool:
    """Whether the process was forked since this thread used a model: OpenMP keeps threads for it that are not in
    this process, and waits for them.
    """

def has_nearly(n_dft: int, n_tgt: int) -> bool:
    """Whether two numbers of tokens differ only by padding and a few tokens at the end."""

def header_size(path: str) -> int:
    """Return how many bytes the header of a GGUF file takes. Raises ModelFileError if it is no GGUF file."""

def local_accelerators() -> list[Device]:
    """Return the GPUs of this machine; integrated ones only if it has no other."""

def local_device(name: str) -> Device | None:
    """Return the registered ggml device of that name, such as CPU or CUDA0; None if there is none."""

def local_devices() -> list[Device]:
    """Return all devices of ggml on this machine."""

def model_matrices(model: int) -> list[int]:
    """Return the addresses of the ggml tensors that a llama_model multiplies by."""

def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Return Philox4x32-10's four random words of 32 bits, for a counter of four words and a key of two."""

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
    """Return a multimodal projector's types for images and for sounds, as its file names them; empty = it has none.
    Raises ModelFileError.
    """

def read_target(path: str) -> TargetInfo:
    """Read the header of a target's GGUF file, or raise ModelFileError."""

def read_weights(path: str) -> list[tuple[str, int, int, int]]:
    """Return the tensors of a GGUF file that have several dimensions: the name, the ggml type, the number of
    weights and that of bytes of each. Of a split file it returns those of this part.

    Raises ModelFileError if the file cannot be read.
    """

def rpc_supported() -> bool:
    """Whether llama.cpp was built with ggml-rpc."""

def sampler_accept(sampler: int, token: int) -> None:
    """Call llama_sampler_accept on a sampler that may throw."""

def tensor_names(path: str) -> list[str]:
    """Return the names of the tensors that a GGUF file has. Raises ModelFileError."""

def time_cpu_kernels(
    matrices: Sequence[int], n_rows_max: Mapping[str, int], n_threads: int, n_rows: Sequence[int], seconds: float
) -> dict[str, dict[int, tuple[float, float]]]:
    """Measure kernels; returns the microseconds per MiB of weights by our kernel and by ggml, by kernel name and
    rows.
    """

def token_to_piece(vocab: int, token: int, special: bool) -> bytes:
    """Return the bytes of a token's text, of any length; a special token has some only if `special` is True."""

def tokenize(vocab: int, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
    """Tokenize a text. Raises ModelFileError if the vocabulary cannot tokenize it, where llama.cpp would abort, and
    ValueError for too many characters in a row that are all whitespace or all not.
    """

def use_huge_pages() -> None:
    """Ask for pages of 2 MiB for ggml's large buffers in the CPU's memory from now on (Linux)."""

def why_no_target(arch: str) -> str:
    """Return why no head can draft for models of an architecture; empty if one can."""

def with_stack_for(text: bytes, work: Callable[[], None]) -> None:
    """Call a function that has llama.cpp tokenize a text, on a thread with a stack that its regular expressions do
    not overflow. Raises ValueError for a text with too many characters in a row that are all whitespace or all
    not.
    """

LLAMA_CPP_PYTHON_VERSION: str

SOURCES_DIGEST: str

RPC_PROTO_VERSION: tuple[int, int]

BLANK_LEAVES: int
