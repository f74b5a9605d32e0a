"""Every architecture that libllama knows: the metadata of a tiny model of it, or the reason why it is no target.

A tiny model has three layers of width 64; an architecture's further keys, and those that it cannot have, are in its
row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tiny.vocab import N_VOCAB_MIN

Keys = dict[str, Any]

N_VOCAB = N_VOCAB_MIN + 2
N_EMBD, N_HEAD, N_FF, N_LAYER = 64, 2, 96, 3
HEAD_DIM = N_EMBD // N_HEAD

# A key that an architecture does not know has no effect. A slash: without the architecture's name before it
_BASE: Keys = {
    "vocab_size": N_VOCAB,
    "context_length": 512,
    "embedding_length": N_EMBD,
    "block_count": N_LAYER,
    "feed_forward_length": N_FF,
    "leading_dense_block_count": 1,
    "attention.head_count": N_HEAD,
    "attention.head_count_kv": N_HEAD,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.group_norm_epsilon": 1e-5,
    "attention.group_norm_groups": 8,
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": 2,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": 32,
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 64,  # the rotation works on blocks of 64
    "attention.indexer.top_k": 1024,
    "attention.indexer.block_size": 4,
    "attention.indexer.local_blocks": 1,
    "attention.indexer.kpool": 4,
    "attention.indexer.kpool_select_tail": True,
    "full_attention_interval": 2,
    "rope.dimension_sections": [HEAD_DIM // 8] * 4,
    "logit_scale": 1.0,
    "residual_scale": 0.8,
    "shortconv.l_cache": 3,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 2 * N_EMBD,
    "ssm.state_size": 16,
    "ssm.time_step_rank": N_HEAD,
    "ssm.group_count": 2,
    "kda.head_dim": 32,
    "kda.safe_gate": True,
    "kda.gate_lower_bound": -5.0,
    "wkv.head_size": N_EMBD,
    "time_mix_extra_dim": 16,
    "time_decay_extra_dim": 16,
    "attention.decay_lora_rank": 16,
    "attention.iclr_lora_rank": 16,
    "attention.value_residual_mix_lora_rank": 16,
    "attention.gate_lora_rank": 16,
    "/xielu.alpha_n": 1.0,
    "/xielu.alpha_p": 1.0,
    "/xielu.beta": 1.0,
    "/xielu.eps": 1e-7,
}

_MOE: Keys = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 48,
    "expert_shared_feed_forward_length": 48,
    "expert_chunk_feed_forward_length": 48,
    "expert_latent_length": 48,
    "expert_gating_func": 2,  # sigmoid
    "expert_group_scale": 1.0,
    "experts_per_group": 1,
    "expert_weights_scale": 1.0,
    "interleave_moe_layer_step": 2,
    "moe_every_n_layers": 2,
    "moe_latent_size": 48,
}
# a latent of 32 values, 16 more that are rotated; heads of 16 + 16 and 16
_MLA: Keys = {
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 32,
    "attention.value_length_mla": 16,
    "rope.dimension_count": 16,
}
# only layer 1 has no attention, or only layer 1 has it: 0 heads mean different things
_GAP = [N_HEAD, 0, N_HEAD]
_GAP_KV: Keys = {"attention.head_count_kv": _GAP}
_GAP_HEADS: Keys = {"attention.head_count": _GAP, "attention.head_count_kv": _GAP}
_ALTERNATE: Keys = {"attention.sliding_window_pattern": [0, 1, 0]}
# the layers before which an image's further rows are added
_DEEPSTACK: Keys = {"deepstack_mapping": [-1, 2, 1]}
# gated delta nets: heads of the state's size
_DELTA: Keys = {"ssm.inner_size": 16 * N_HEAD}
_RWKV: Keys = {"attention.head_count": 0, "attention.head_count_kv": 0}
_ALIBI: Keys = {"attention.max_alibi_bias": 8.0}


@dataclass(frozen=True)
class Arch:
    """A row: the keys beyond the common ones, and other exceptions."""

    keys: Keys = field(default_factory=dict)
    # the architecture's name, where the row has another one
    arch: str = ""
    # endings of optional tensors that no model of the architecture has
    without: tuple[str, ...] = ()
    # shapes of tensors for which llama.cpp does not ask if there is only metadata
    more: dict[str, tuple[int, ...]] = field(default_factory=dict)
    # whether the matrices of queries, keys and values are one
    fused: bool = False
    # the boundaries that the tests' head reads; by default layer 1, the last layer but one, and the last
    boundaries: tuple[int, ...] = ()
    # the way from the token embeddings to boundary 0: times a number, plus positions, or normed
    embd: str = "scaled"
    # the tensor of the final norm; "" if there is more between the last layer and the norm
    norm: str = "output_norm"
    # the graph computes all rows, and llama.cpp takes the first ones if only the last is asked for
    logits_all: bool = False


TARGETS: dict[str, Arch] = {
    "afmoe": Arch(_MOE),
    "apertus": Arch(),
    "arcee": Arch(),
    "arctic": Arch(_MOE),
    "arwkv7": Arch(_RWKV | {"token_shift_count": 1}),
    "baichuan": Arch(),
    "bailingmoe": Arch(_MOE),
    "bailingmoe2": Arch(_MOE),
    "bailingmoe3": Arch(_MOE | _MLA | {"attention.head_count_kv": [1, 0, 1], "rope.dimension_sections": [2, 3, 3, 0]}),
    "bitnet": Arch(),
    "bloom": Arch(),
    "chatglm": Arch(),
    "codeshell": Arch(),
    "cogvlm": Arch(logits_all=True),
    "cohere2": Arch(),
    "cohere2moe": Arch(_MOE | _ALTERNATE),
    "command-r": Arch(),
    "dbrx": Arch(_MOE | {"attention.clamp_kqv": 8.0}),
    "deci": Arch(),
    "deepseek": Arch(_MOE),
    "deepseek2": Arch(_MOE | _MLA),
    "deepseek2-ocr": Arch(_MOE),
    "deepseek32": Arch(_MOE | _MLA),
    "deepseek4": Arch(
        _MOE
        | {
            "block_count": 4,
            "attention.head_count_kv": 1,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "rope.dimension_count": 16,
            "attention.output_group_count": 2,
            "attention.output_lora_rank": 16,
            "attention.compress_ratios": [0, 0, 4, 128],
            "attention.compress_rope_freq_base": 160000.0,
            "hyper_connection.count": 4,
            "hyper_connection.sinkhorn_iterations": 2,
            "hyper_connection.epsilon": 1e-6,
            "hash_layer_count": 0,
            "swiglu_clamp_exp": 10.0,
            "expert_weights_norm": True,
            "expert_gating_func": 4,  # sqrt of softplus
        }
    ),
    "dots1": Arch(_MOE),
    "dots3note": Arch(
        _MOE
        | _MLA
        | _ALTERNATE
        | {
            "attention.kv_lora_rank_swa": 32,
            "attention.key_length_swa": 48,
            "attention.value_length_swa": 32,
            "attention.key_length_mla_swa": 32,
            "attention.value_length_mla_swa": 16,
            "attention.indexer.types": [1, 0, 1],
            "rope.freq_base_swa": 10000.0,
        }
    ),
    "ernie4_5": Arch(),
    "ernie4_5-moe": Arch(_MOE),
    "exaone": Arch(),
    "exaone-moe": Arch(_MOE),
    "exaone4": Arch(),
    "falcon": Arch(),
    "falcon-h1": Arch(),
    "gemma": Arch(),
    "gemma2": Arch(),
    "gemma3": Arch(),
    "gemma4": Arch(
        {
            "attention.sliding_window_pattern": [1, 1, 0],
            "embedding_length_per_layer_input": 32,
            "attention.shared_kv_layers": 0,
            "attention.key_length_swa": HEAD_DIM,
            "attention.value_length_swa": HEAD_DIM,
        }
    ),
    "glm-dsa": Arch(_MOE | _MLA),
    "glm4": Arch(),
    "glm4moe": Arch(_MOE),
    "gpt-oss": Arch(_MOE | {"block_count": 6}, boundaries=(1, 2, 3, 5, 6)),
    "gpt2": Arch(embd="positions"),
    "gptneox": Arch({"use_parallel_residual": False}),
    "granite": Arch(),
    "granite_swa": Arch({"attention.sliding_window_pattern": [0, 1, 1]} | _DEEPSTACK),
    "granitehybrid": Arch(_GAP_KV),
    "granitemoe": Arch(_MOE),
    "graniteswitch": Arch(
        {
            "adapters.count": 4,
            "adapters.lora_rank": 4,
            "adapters.token_ids_activate": [10, 60, 110, 200],
            "adapters.token_ids_substitute": [10, 60, 110, 200],
        }
    ),
    "grok": Arch(_MOE),
    "grovemoe": Arch(_MOE),
    "hrm_text": Arch({"block_count": 6, "hrm.layers_per_stack": 1, "hrm.h_cycles": 2, "hrm.l_cycles": 2}),
    "hunyuan-dense": Arch(),
    "hunyuan-moe": Arch(_MOE),
    "hunyuan_vl": Arch(),
    "hy_v3": Arch(_MOE),
    "internlm2": Arch(),
    "jais": Arch(_ALIBI),
    "jais2": Arch(),
    "jamba": Arch(_GAP_KV),
    "kimi-k3": Arch(
        _MOE
        | _MLA
        | {
            "attention.head_count_kv": [0, 1, 0],
            "attn_res.block_size": 2,
            "activation.situ_beta": 4.0,
            "activation.situ_linear_beta": 25.0,
        },
        norm="",
    ),
    "kimi-linear": Arch(_MOE | _MLA | {"attention.head_count_kv": [0, 1, 0]}, norm=""),
    "laguna": Arch(_MOE),
    "lfm2": Arch(_GAP_KV, norm="token_embd_norm"),
    "lfm2moe": Arch(_MOE | _GAP_KV, norm="token_embd_norm"),
    "llama": Arch(),
    "llama4": Arch(_MOE | {"block_count": 4}),
    "maincoder": Arch(),
    "mamba": Arch(),
    "mamba2": Arch(),
    "maple": Arch(_MOE | _ALTERNATE | {"swiglu_clamp_exp": 7.0}),
    "mellum": Arch(_MOE),
    "mimo2": Arch(_MOE | _ALTERNATE),
    "minicpm": Arch(),
    "minicpm3": Arch(),
    "minimax-01": Arch(_MOE),
    "minimax-m2": Arch(_MOE),
    "minimax-m3": Arch(_MOE),
    "mistral3": Arch(),
    "mistral4": Arch(_MOE | _MLA),
    "mpt": Arch(_ALIBI | {"attention.clamp_kqv": 8.0}, embd="positions"),
    "muse-glimmer": Arch(_ALTERNATE, embd="normed"),
    "nanbeige": Arch({"num_loops": 2, "skip_loop_final_norm": True}),
    "nemotron": Arch(),
    "nemotron_h": Arch(_GAP_HEADS | {"feed_forward_length": [0, 0, N_FF]}),
    "nemotron_h_moe": Arch(_MOE | _GAP_HEADS | {"feed_forward_length": [0, 0, N_FF]}),
    "olmo": Arch({"attention.clamp_kqv": 8.0}),
    "olmo2": Arch(),
    "olmoe": Arch(_MOE),
    "openelm": Arch(),
    "orion": Arch(),
    "paddleocr": Arch(_MOE),
    "pangu-embedded": Arch(),
    "phi2": Arch(),
    "phi3": Arch(),
    "phimoe": Arch(_MOE),
    "plamo": Arch(),
    "plamo2": Arch(_GAP_KV | {"ssm.group_count": 0}),
    "plamo3": Arch(),
    "plm": Arch(_MLA | {"attention.head_count_kv": N_HEAD, "attention.key_length": 32, "attention.value_length": 16}),
    "qwen": Arch(),
    "qwen2": Arch(),
    "qwen2moe": Arch(_MOE),
    "qwen2vl": Arch(),
    "qwen3": Arch(),
    "qwen35": Arch(_DELTA),
    "qwen35moe": Arch(_MOE | _DELTA),
    "qwen3moe": Arch(_MOE),
    "qwen3next": Arch(_MOE | _DELTA),
    "qwen3vl": Arch({"n_deepstack_layers": 2}),
    "qwen3vlmoe": Arch(_MOE | {"n_deepstack_layers": 2}),
    "refact": Arch(),
    "rwkv6": Arch(_RWKV),
    "rwkv6qwen2": Arch(_RWKV | {"token_shift_count": 1}, without=("time_mix_first.weight",)),
    "rwkv7": Arch(_RWKV),
    "seed_oss": Arch(),
    "smallthinker": Arch(_MOE),
    "smollm3": Arch(),
    "spark2_5": Arch(_ALTERNATE),
    "stablelm": Arch(),
    "starcoder": Arch(embd="positions"),
    "starcoder2": Arch(),
    "step35": Arch(_MOE | _ALTERNATE),
    "talkie": Arch(embd="normed"),
    "xverse": Arch(),
}

# Architectures for which no head can draft, for reasons that the package knows (csrc/target/arch_table.cpp)
OTHERS = (
    "bert", "chameleon", "clip", "dflash", "dream", "eagle3", "eurobert", "gemma-embedding", "gemma3n",
    "gemma4-assistant", "glm5-next", "gptj", "hy_v4", "jina-bert-v2", "jina-bert-v3", "llada", "llada-moe",
    "llama-embed", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "pockettts", "qwen3tts", "qwen4exp",
    "rnd1", "t5", "t5encoder", "wavtokenizer-dec",
)  # fmt: skip


# Those of them with several residual streams: a head reads none, but small models and n-grams draft for them
_HC: Keys = {
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 2,
    "hyper_connection.epsilon": 1e-6,
    "hyper_connection.low_rank": 16,
    "hyper_connection.magnitude": 1.0,
}
STREAMS: dict[str, Arch] = {
    # in llama.cpp layers from 20 on read the K/V of layers 18 and 19
    "gemma3n": Arch({"block_count": 22, "attention.sliding_window_pattern": 5}),
    "glm5-next": Arch(
        _MOE
        | _MLA
        | _HC
        | {
            "attention.head_count_kv": [0, 1, 0],
            "attention.key_length": 32,  # without rotation
            "attention.key_length_mla": 16,
            "rope.dimension_count": 0,
        }
    ),
    "hy_v4": Arch(_MOE | _MLA | _HC | {"attention.indexer.types": [1, 0, 1]}),
    "qwen4exp": Arch(_MOE | _DELTA | _HC),
}


# Common models whose graphs have parts that the rows above lack: experts, shared heads, fewer projections
VARIANTS: dict[str, Arch] = {
    "deepseek2-lite": Arch(_MOE | _MLA | {"attention.q_lora_rank": 0}, arch="deepseek2"),
    "gemma4-a4b": Arch(_MOE | TARGETS["gemma4"].keys | {"embedding_length_per_layer_input": 0}, arch="gemma4"),
    # the last two layers read the K/V of others
    "gemma4-shared": Arch(
        TARGETS["gemma4"].keys
        | {"block_count": 4, "attention.sliding_window_pattern": [1, 0, 1, 0], "attention.shared_kv_layers": 2},
        arch="gemma4",
    ),
    "granite-scaled": Arch({"embedding_scale": 3.0}, arch="granite"),
    "granite-vision": Arch(_DEEPSTACK | {"embedding_scale": 3.0}, arch="granite"),
    "granite-4-moe": Arch(_MOE | _GAP_KV, arch="granitehybrid"),
    "jamba-moe": Arch(_MOE | _GAP_KV, arch="jamba"),
    "llama-gqa": Arch({"attention.head_count": 4, "attention.head_count_kv": 2}, arch="llama"),
    "mixtral": Arch(_MOE, arch="llama"),
    "nanbeige-once": Arch(arch="nanbeige"),
    "qwen35-gqa": Arch(
        _DELTA | {"attention.head_count": 4, "attention.head_count_kv": 1, "full_attention_interval": 3}, arch="qwen35"
    ),
    "qwen3-mqa": Arch({"attention.head_count": 4, "attention.head_count_kv": 1}, arch="qwen3"),
}
ROWS = TARGETS | VARIANTS


def _with_block(name: str, fused: bool = False, more: dict[str, tuple[int, ...]] | None = None, **keys: Any) -> Arch:
    """Return a target with a block for multi-token prediction after its layers; arrays of the layers include it."""
    block = {"block_count": N_LAYER + 1, "nextn_predict_layers": 1}
    own = {key.replace("__", "."): value for key, value in keys.items()}
    return Arch(
        TARGETS[name].keys | block | own,
        arch=name,
        more=more or {},
        without=("scale", "attn_q.bias", "attn_k.bias", "attn_v.bias"),
        fused=fused,
    )


MTP: dict[str, Arch] = {
    "bailingmoe3-mtp": _with_block("bailingmoe3", attention__head_count_kv=[1, 0, 1, 1]),
    "cohere2moe-mtp": _with_block("cohere2moe", attention__sliding_window_pattern=[0, 1, 0, 0]),
    "deepseek2-mtp": _with_block("deepseek2"),
    "deepseek32-mtp": _with_block("deepseek32"),
    "deepseek4-mtp": _with_block(
        "deepseek4",
        more={
            "blk.4.nextn.eh_proj.weight": (N_EMBD, 2 * N_EMBD),
            "blk.4.nextn.enorm.weight": (N_EMBD,),
            "blk.4.nextn.hnorm.weight": (N_EMBD,),
            "blk.4.nextn.shared_head_norm.weight": (N_EMBD,),
        },
        block_count=5,
        attention__compress_ratios=[0, 0, 4, 128, 0],
        attention__key_length=128,
        attention__value_length=128,
    ),
    "glm-dsa-mtp": _with_block("glm-dsa"),
    "glm4moe-mtp": _with_block("glm4moe", rope__dimension_sections=[0, 0, 0, 0]),  # llama.cpp's block knows no others
    "hy_v3-mtp": _with_block("hy_v3"),
    "mimo2-mtp": _with_block("mimo2", fused=True, attention__sliding_window_pattern=[0, 1, 0, 1]),
    "nemotron_h_moe-mtp": _with_block(
        "nemotron_h_moe",
        attention__head_count=[*_GAP, N_HEAD],
        attention__head_count_kv=[*_GAP, N_HEAD],
        feed_forward_length=[0, 0, N_FF, N_FF],
    ),
    "qwen35-mtp": _with_block("qwen35"),
    "qwen35moe-mtp": _with_block("qwen35moe"),
    "qwen3next-mtp": _with_block("qwen3next"),
    "step35-mtp": _with_block("step35", attention__sliding_window_pattern=[0, 1, 0, 1]),
    "mimo2-mtp3": _with_block(
        "mimo2",
        fused=True,
        block_count=N_LAYER + 3,
        nextn_predict_layers=3,
        attention__sliding_window_pattern=[0, 1, 0, 1, 1, 1],
    ),
    "step35-mtp3": _with_block(
        "step35",
        block_count=N_LAYER + 3,
        nextn_predict_layers=3,
        attention__sliding_window_pattern=[0, 1, 0, 1, 1, 1],
    ),
}


ASSISTANTS: dict[str, Arch] = {
    "gemma4-assistant": Arch(
        {
            "nextn_predict_layers": N_LAYER,
            "embedding_length": N_EMBD // 2,
            "embedding_length_out": N_EMBD,
            "attention.key_length": HEAD_DIM,
            "attention.value_length": HEAD_DIM,
            "attention.key_length_swa": HEAD_DIM,
            "attention.value_length_swa": HEAD_DIM,
            "attention.sliding_window_pattern": [1, 0, 1],
            "attention.shared_kv_layers": N_LAYER,
            "wkv.head_size": N_EMBD // 2,  # not its own value, but at most the width
        }
    ),
}


def row_of(name: str) -> Arch:
    """Return the row of a name."""
    return (ROWS | STREAMS | MTP | ASSISTANTS)[name]


def arch_of(name: str) -> str:
    """Return the architecture of a row."""
    return row_of(name).arch or name


def keys_of(name: str) -> Keys:
    """Return the metadata of a tiny model, without the architecture's name before each key."""
    return _BASE | row_of(name).keys
