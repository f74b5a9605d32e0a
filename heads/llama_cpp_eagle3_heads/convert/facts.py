"""The facts of a drafter's GGUF, as (name, value) for people."""

from __future__ import annotations

from pathlib import Path

from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.draft.kinds import DrafterFile, MtpBlock, SmallModel
from llama_cpp_eagle3.draft.kinds.assistant import GemmaAssistant
from llama_cpp_eagle3.draft.kinds.dflash import BlockDrafter
from llama_cpp_eagle3.draft.kinds.eagle3 import Eagle3Head

from .gguf_file import key_values, open_gguf
from .rope import STILL
from .writer import PROVENANCE

ON_OFF = {True: "on", False: "off"}
_OUTPUTS = ("output.weight", "token_embd.weight")  # the second is both, where there is no first


def facts_of(draft: DrafterFile) -> list[tuple[str, str]]:
    """The facts of a drafter's file."""
    if isinstance(draft, Eagle3Head):
        return head_facts(draft.head)
    if isinstance(draft, BlockDrafter):
        return block_drafter_facts(draft.file)
    if isinstance(draft, GemmaAssistant):
        return [
            ("family", f"a {draft.title}: it drafts on the target's own K/V"),
            ("layers", f"{draft.file.n_layer} of width {draft.file.n_embd}"),
            ("target", f"rows of {draft.file.n_embd_tgt} values"),
            ("vocabulary", f"{draft.file.n_vocab} tokens"),
            ("shared with target", "K/V of the last two layers, token embedding"),
            ("llama.cpp", f"can run it ({draft.spec_types[0]})"),
        ]
    assert isinstance(draft, MtpBlock | SmallModel), draft
    arch, is_mtp = draft.info.arch, isinstance(draft, MtpBlock)
    model = f"a {draft.title} ({arch}) in a file of its own"
    return [
        ("family", model if is_mtp else f"a small model ({arch}) of the target's vocabulary: it drafts by itself"),
        ("layers", f"{draft.info.n_layer} of width {draft.info.n_embd}"),
        ("vocabulary", f"{draft.info.n_vocab} tokens"),
        ("shared with target", "nothing"),
        ("llama.cpp", f"can run it ({draft.spec_types[0]})"),
    ]


def head_facts(head: _core.Head) -> list[tuple[str, str]]:
    """The facts of a head's GGUF."""
    path = Path(head.path)
    reader = open_gguf(path)
    keys = {entry.key: entry.value for entry in key_values(path, reader, "eagle3.")}
    n_vocab = head.n_vocab or int(keys.get("eagle3.vocab_size", 0))
    provenance = {k.removeprefix(PROVENANCE): str(v) for k, v in keys.items() if k.startswith(PROVENANCE)}
    types: dict[str, int] = {}
    for tensor in reader.tensors:
        types[tensor.tensor_type.name] = types.get(tensor.tensor_type.name, 0) + int(tensor.n_bytes)
    kinds = ", ".join(f"{kind} {n / 1e6:.1f} MB" for kind, n in sorted(types.items(), key=lambda x: -x[1]))
    facts = [
        ("dialect", head.dialect),
        ("family", provenance.get("family", "unknown: not written by llama-cpp-eagle3")),
        ("boundaries", str(list(head.boundaries)) if head.use_aux_hidden_state else "- (no fc)"),
        ("  why", provenance.get("boundaries", "as in the file")),
        ("norm_before_fc", ON_OFF[head.norm_before_fc]),
        ("fc_norm", ON_OFF[head.fc_norm]),
    ]
    for name in ("norm_output", "norm_before_residual"):
        why = f" ({provenance[name]})" if name in provenance else ""
        facts.append((name, ON_OFF[getattr(head, name)] + why))
    part = "" if head.n_rot == head.n_embd_head else f", {head.n_rot} of {head.n_embd_head} channels"
    scaling = "" if head.rope_scaling == "none" else f", {head.rope_scaling} scaling"
    divisors = next((tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"), None)
    if divisors is not None:
        scaling = f", {'llama3' if float(divisors.max()) < 0.5 * STILL else 'proportional'} scaling"
    return [
        *facts,
        ("hidden size", f"{head.n_embd}, target {head.n_embd_tgt}, feed-forward {head.n_ff}"),
        (
            "attention",
            f"{head.n_layer} layer(s), {head.n_head} heads of {head.n_embd_head}, {head.n_head_kv} for keys and values",
        ),
        ("rotation", f"theta {head.rope_freq_base:.9g}{scaling}{part}"),
        ("extras", ", ".join(_gguf_extras(head)) or "none"),
        ("vocabulary", vocabulary(head.n_vocab_dft, n_vocab, head.has_d2t)),
        ("tensors", kinds),
        ("shared with target", shared(head.has_tok_embd, head.has_output)),
        ("llama.cpp", _gguf_upstream(head, {tensor.name for tensor in reader.tensors})),
    ]


def _gguf_extras(head: _core.Head) -> list[str]:
    extras = [f"sliding window {head.sliding_window}"] if head.sliding_window else []
    if head.kv_lora_rank:
        extras.append(mla(head.kv_lora_rank, head.q_lora_rank))
    if head.mask_token >= 0:
        extras.append(parallel(head.mask_token))
    return extras


def _gguf_upstream(head: _core.Head, names: set[str]) -> str:
    """Whether llama.cpp's own loader and graph can run a head."""
    if head.dialect == "fork":
        return "cannot run it: written for another llama.cpp (SpecDrift's)"
    if head.dialect != "upstream":
        return "refuses it: its architecture is eagle3-ext"
    lacking = {
        f"{len(head.boundaries)} boundaries": len(head.boundaries) != 3,
        f"{head.n_layer} layers": head.n_layer != 1,
        "biases": any(name.endswith(".bias") for name in names),
        "q/k norms": any("attn_q_norm" in name or "attn_k_norm" in name for name in names),
        "sliding window": head.sliding_window > 0,
        f"{head.hidden_act} activation": head.hidden_act != "silu",
        "logit_scale": head.logit_scale != 1.0,
        "multi-head latent attention": head.kv_lora_rank > 0,
        "drafting in one pass (P-EAGLE)": head.mask_token >= 0,
    }
    if found := [name for name, is_so in lacking.items() if is_so]:
        return f"cannot run it: {', '.join(found)}"
    unknown = [name for name in ("fc_norm", "norm_output") if getattr(head, name)]
    return f"loads it but ignores {', '.join(unknown)}" if unknown else "can run it"


def block_drafter_facts(drafter: _core.DflashFile) -> list[tuple[str, str]]:
    """The facts of a block drafter's GGUF."""
    names = {tensor.name for tensor in open_gguf(Path(drafter.path)).tensors}
    order = "one after another" if drafter.is_causal else "all of each other"
    window = f", sliding window {drafter.sliding_window}" if drafter.sliding_window else ""
    return [
        ("kind", drafter.kind),
        ("boundaries", str(list(drafter.boundaries))),
        ("block", f"{drafter.block_size} rows that see {order}: {drafter.n_draft_max} tokens in one pass"),
        ("size", f"{drafter.n_layer} layer(s) of width {drafter.n_embd}{window}"),
        ("mask token", str(drafter.mask_token)),
        ("vocabulary", vocabulary(drafter.n_vocab_dft, drafter.n_vocab, drafter.n_vocab_dft > 0)),
        ("shared with target", shared("token_embd.weight" in names, not names.isdisjoint(_OUTPUTS))),
        ("llama.cpp", "can run it"),
    ]


def mla(kv_lora_rank: int, q_lora_rank: int) -> str:
    """Latent attention with its ranks, as text."""
    return f"multi-head latent attention (kv_lora_rank {kv_lora_rank}, q_lora_rank {q_lora_rank or '-'})"


def parallel(mask_token: int) -> str:
    """Whether the head drafts all tokens in one pass, as text."""
    return f"P-EAGLE: all tokens in one pass (mask token {mask_token})"


def vocabulary(n_dft: int, n_vocab: int, has_d2t: bool) -> str:
    """The sizes of draft and target vocabulary, as text."""
    if not has_d2t:
        return f"the target's, {n_vocab} tokens" if n_vocab else "the target's"
    return f"{n_dft} of the target's {n_vocab or '?'} tokens, mapped by d2t"


def shared(own_embd: bool, own_output: bool) -> str:
    """The tables that a file shares with its target, as text."""
    names = [name for name, own in (("token embedding", own_embd), ("lm_head", own_output)) if not own]
    return ", ".join(names) or "nothing"
