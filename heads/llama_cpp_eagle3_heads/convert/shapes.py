"""Sizes of a head from its config, compared with the shapes of its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from llama_cpp_eagle3.errors import IncompatibleDraftError, ModelFileError

from .checkpoint import Checkpoint
from .config import Config
from .mla import Mla, read_mla


@dataclass(frozen=True)
class Sizes:
    """All sizes of a head, and which optional tensors it has."""

    n_embd: int
    n_embd_tgt: int
    n_aux: int  # feature slots, 1 without fc
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int  # the target's, 0 if unknown
    n_vocab_dft: int  # rows of lm_head
    own_embd: bool
    own_output: bool
    qk_norm: bool
    biases: tuple[str, ...]  # canonical names
    mla: Mla | None
    is_parallel: bool  # P-EAGLE


# not part of the graph
_BUFFERS = ("d2t", "t2d")


def read_sizes(
    checkpoint: Checkpoint, config: Config, n_embd_tgt: int, n_vocab: int, n_d2t: int | None, notes: list[str]
) -> Sizes:
    """Take sizes from the config where it has them, else from the shapes."""
    n_embd = _shape(checkpoint, "layers.0.post_attention_layernorm.weight", 1)[0]
    if config.has("hidden_size") and config.get_int("hidden_size") != n_embd:
        raise ModelFileError(
            f"'{checkpoint.path}': config.json has hidden_size {config.get_int('hidden_size')}, "
            f"the tensors are {n_embd} wide"
        )
    layers = checkpoint.layer_indices()
    if layers != list(range(len(layers))):
        raise ModelFileError(f"'{checkpoint.path}': layers {layers} found, expected 0 to {len(layers) - 1}")

    n_aux = 1
    if "fc.weight" in checkpoint.tensors:
        n_inp = _shape(checkpoint, "fc.weight", 2)[1]
        if n_inp % n_embd_tgt:
            raise ModelFileError(
                f"'{checkpoint.path}': tensor 'fc.weight': expected a multiple of the target's width {n_embd_tgt} as "
                f"input, found {n_inp}"
            )
        n_aux = n_inp // n_embd_tgt
        if config.has("num_aux_hidden_states") and config.get_int("num_aux_hidden_states") != n_aux:
            raise ModelFileError(
                f"'{checkpoint.path}': config.json has num_aux_hidden_states "
                f"{config.get_int('num_aux_hidden_states')}, fc reads {n_aux}"
            )
    elif n_embd != n_embd_tgt:
        raise ModelFileError(
            f"'{checkpoint.path}': tensor 'fc.weight' is missing; a head without fc must be as wide as its target, "
            f"found {n_embd} and {n_embd_tgt}"
        )

    mla = read_mla(checkpoint, config)
    n_head, n_head_kv, head_dim = (mla.n_head, mla.n_head, mla.head_dim) if mla else _attention(checkpoint, config)
    own_embd = "embed_tokens.weight" in checkpoint.tensors
    own_output = "lm_head.weight" in checkpoint.tensors
    if not own_embd and n_embd != n_embd_tgt:
        raise ModelFileError(
            f"'{checkpoint.path}': tensor 'embed_tokens.weight' is missing; the head is {n_embd} wide, its target "
            f"{n_embd_tgt}, so it cannot use the target's"
        )
    return Sizes(
        n_embd=n_embd,
        n_embd_tgt=n_embd_tgt,
        n_aux=n_aux,
        n_layer=len(layers),
        n_ff=_shape(checkpoint, "layers.0.mlp.gate_proj.weight", 2)[0],
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_vocab=n_vocab,
        n_vocab_dft=_draft_vocab(checkpoint, config, n_vocab, n_d2t, own_output, notes),
        own_embd=own_embd,
        own_output=own_output,
        qk_norm="layers.0.self_attn.q_norm.weight" in checkpoint.tensors,
        biases=tuple(name for name in checkpoint.tensors if name.endswith(".bias")),
        mla=mla,
        is_parallel="mask_hidden" in checkpoint.tensors,
    )


def _attention(checkpoint: Checkpoint, config: Config) -> tuple[int, int, int]:
    n_q = _shape(checkpoint, "layers.0.self_attn.q_proj.weight", 2)[0]
    n_k = _shape(checkpoint, "layers.0.self_attn.k_proj.weight", 2)[0]
    n_head = config.get_int("num_attention_heads")
    head_dim = config.get_int("head_dim")
    if "layers.0.self_attn.q_norm.weight" in checkpoint.tensors:
        head_dim = _shape(checkpoint, "layers.0.self_attn.q_norm.weight", 1)[0]
    if not head_dim:
        # not hidden_size / heads: in many heads q is wider or narrower than the hidden state
        head_dim = n_q // n_head
    n_head_kv = config.get_int("num_key_value_heads", n_head)
    for name, n, heads in (("q", n_q, n_head), ("k", n_k, n_head_kv)):
        if heads * head_dim != n:
            tensor = _name(checkpoint, f"layers.0.self_attn.{name}_proj.weight")
            raise ModelFileError(
                f"'{checkpoint.path}': tensor '{tensor}': expected {heads} heads of {head_dim} = {heads * head_dim} "
                f"rows as config.json has it, found {n}"
            )
    if n_head % n_head_kv:
        raise ModelFileError(f"'{checkpoint.path}': {n_head} heads cannot share {n_head_kv} key/value heads")
    return n_head, n_head_kv, head_dim


def _draft_vocab(
    checkpoint: Checkpoint, config: Config, n_vocab: int, n_d2t: int | None, own_output: bool, notes: list[str]
) -> int:
    n = _shape(checkpoint, "lm_head.weight", 2)[0] if own_output else n_vocab
    if config.has("draft_vocab_size") and own_output and config.get_int("draft_vocab_size") != n:
        raise ModelFileError(
            f"'{checkpoint.path}': tensor 'lm_head.weight': expected {config.get_int('draft_vocab_size')} rows "
            f"(draft_vocab_size), found {n}"
        )
    if n_d2t is not None and n_d2t != n:
        raise ModelFileError(
            f"'{checkpoint.path}': tensor 'd2t': expected {n} entries, one for each row of lm_head, found {n_d2t}"
        )
    if n_d2t is None and n_vocab and n != n_vocab:
        if n < n_vocab:
            raise IncompatibleDraftError(
                f"'{checkpoint.path}': the head predicts {n} tokens, the target's vocabulary has {n_vocab}, and the "
                "map between them, tensor 'd2t', is missing"
            )
        notes.append(f"lm_head has {n} rows, the target's vocabulary {n_vocab}: the padding is cut off")
        return n_vocab
    return n


def check_shapes(checkpoint: Checkpoint, config: Config, sizes: Sizes) -> None:
    """Raise `ModelFileError` for a missing tensor, one of another shape, or an unknown one."""
    expected, required = _expected(checkpoint, config, sizes)
    for name in required:
        if name not in checkpoint.tensors:
            raise ModelFileError(f"'{checkpoint.path}': tensor '{name}' is missing")
    for name, tensor in checkpoint.tensors.items():
        if name in _BUFFERS:
            continue
        if name not in expected:
            raise ModelFileError(
                f"'{checkpoint.path}': tensor '{_name(checkpoint, name)}' is no part of an EAGLE-3 head that we know"
            )
        # mask_hidden comes as one row, in one dimension or more
        shape = tuple(n for n in tensor.shape if n != 1) if name == "mask_hidden" else tensor.shape
        if shape != expected[name]:
            raise ModelFileError(
                f"'{checkpoint.path}': tensor '{_name(checkpoint, name)}': expected {list(expected[name])}, "
                f"found {list(tensor.shape)}"
            )


def _expected(checkpoint: Checkpoint, config: Config, s: Sizes) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    n_q, n_kv, n_feat = s.n_head * s.head_dim, s.n_head_kv * s.head_dim, s.n_aux * s.n_embd_tgt
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (s.n_embd,)}
    required = ["norm.weight"]
    if "fc.weight" in checkpoint.tensors:
        shapes |= {"fc.weight": (s.n_embd, n_feat), "fc.bias": (s.n_embd,), "input_norm.weight": (n_feat,)}
        shapes |= {f"fc_norm.{k}.weight": (s.n_embd_tgt,) for k in range(s.n_aux)}
        if config.get("norm_before_fc"):
            required.append("input_norm.weight")
        if config.get("fc_norm") or config.get("use_aux_norm") or "fc_norm.0.weight" in checkpoint.tensors:
            required += [f"fc_norm.{k}.weight" for k in range(s.n_aux)]
    if s.is_parallel:
        shapes["mask_hidden"] = (n_feat,)
    for il in range(s.n_layer):
        n_inp = 2 * s.n_embd if il == 0 else s.n_embd
        attention: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (n_q, n_inp),
            "self_attn.k_proj": (n_kv, n_inp),
            "self_attn.v_proj": (n_kv, n_inp),
            "self_attn.o_proj": (s.n_embd, n_q),
        }
        block = {
            "input_layernorm": (s.n_embd,),
            "post_attention_layernorm": (s.n_embd,),
            **(s.mla.shapes(s.n_embd, n_inp) if s.mla else attention),
            "mlp.gate_proj": (s.n_ff, s.n_embd),
            "mlp.up_proj": (s.n_ff, s.n_embd),
            "mlp.down_proj": (s.n_embd, s.n_ff),
        }
        if il == 0:
            block["hidden_norm"] = (s.n_embd,)
        required += [f"layers.{il}.{name}.weight" for name in block]
        biases = {name: (shape[0],) for name, shape in block.items() if name.endswith("_proj")}
        if s.mla:
            biases = {name: shape for name, shape in biases.items() if not name.startswith("self_attn.")}
        elif config.get("attention_bias"):
            required += [f"layers.{il}.self_attn.{x}_proj.bias" for x in "qkv"]
        if config.get("mlp_bias"):
            required += [f"layers.{il}.mlp.{x}_proj.bias" for x in ("gate", "up", "down")]
        if s.qk_norm:
            block |= {"self_attn.q_norm": (s.head_dim,), "self_attn.k_norm": (s.head_dim,)}
            required += [f"layers.{il}.self_attn.{x}_norm.weight" for x in "qk"]
        shapes |= {f"layers.{il}.{name}.weight": shape for name, shape in block.items()}
        shapes |= {f"layers.{il}.{name}.bias": shape for name, shape in biases.items()}
    rows = checkpoint.tensors["embed_tokens.weight"].shape[0] if s.own_embd else 0
    shapes["embed_tokens.weight"] = (max(rows, s.n_vocab), s.n_embd)
    rows = checkpoint.tensors["lm_head.weight"].shape[0] if s.own_output else 0
    shapes["lm_head.weight"] = (max(rows, s.n_vocab_dft), s.n_embd)
    return shapes, required


def _shape(checkpoint: Checkpoint, name: str, n_dims: int) -> tuple[int, ...]:
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        raise ModelFileError(f"'{checkpoint.path}': tensor '{name}' is missing")
    if len(tensor.shape) != n_dims:
        raise ModelFileError(
            f"'{checkpoint.path}': tensor '{_name(checkpoint, name)}': expected {n_dims} dimensions, "
            f"found {list(tensor.shape)}"
        )
    return tensor.shape


def _name(checkpoint: Checkpoint, name: str) -> str:
    return checkpoint.original.get(name, name)
