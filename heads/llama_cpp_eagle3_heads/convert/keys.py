"""Every key of a drafter's config.json that is known, and what becomes of it.

A key is read, or it changes nothing here, or only some of its values can be run. Keys that are in none of these tables
are reported, since the program that wrote them may compute something else. docs/checkpoints.md has the keys by their
effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llama_cpp_eagle3.errors import ModelFileError

from .config import Config, without_prefix

_LAYER_KEYS = frozenset({
    "attention_bias", "head_dim", "hidden_act", "hidden_activation", "hidden_size", "intermediate_size",
    "is_neox_style",
    "layer_types", "max_position_embeddings", "max_window_layers", "mlp_bias", "model_type", "num_attention_heads",
    "num_hidden_layers", "num_key_value_heads", "partial_rotary_factor", "rms_norm_eps", "rope_is_neox_style",
    "rope_local_base_freq", "rope_parameters", "rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings",
    "use_sliding_window", "vocab_size",
})  # fmt: skip
"""Keys that are read of any config of layers."""

_HEAD_KEYS = frozenset({
    "aux_hidden_state_layer_ids", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "eagle_config", "fc_norm",
    "kv_lora_rank", "logit_scale", "mask_token_id", "norm_before_fc", "norm_before_residual", "norm_output",
    "num_aux_hidden_states", "num_target_layers", "pard_token", "parallel_drafting", "ptd_token_id", "q_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "target_hidden_size", "target_layer_ids", "use_aux_hidden_state",
    "use_aux_norm", "v_head_dim",
})  # fmt: skip

_BLOCK_KEYS = frozenset({
    "attention_k_eq_v", "attention_value_scale", "aux_hidden_state_layer_ids", "block_size", "causal",
    "confidence_head_with_markov", "conv_group_size", "conv_kernel_size", "dflash_config", "draft_vocab_size",
    "dspark_config", "eagle_aux_hidden_state_layer_ids", "final_logit_softcapping", "global_head_dim",
    "input_embedding_scale", "is_causal", "markov_rank", "mask_token", "mask_token_id", "num_global_key_value_heads",
    "num_target_layers", "output_multiplier", "query_zero_predicts_next", "sample_from_anchor", "selector_rank",
    "selector_top_k", "shift_label", "sliding_window_non_causal", "speculators_config", "swa_window_size",
    "target_layer_ids", "target_num_hidden_layers", "use_swa",
})  # fmt: skip

_NO_EFFECT = frozenset({
    # names, versions, provenance
    "_name_or_path", "architectures", "auto_map", "base_model", "dtype", "has_no_defaults_at_init", "method",
    "speculators_config", "speculators_model_type", "speculators_version", "target_model_type",
    "target_text_model_type",
    "torch_dtype", "transformer_layer_config", "transformers_version", "verifier",
    # of transformers' classes; tokens and dropout have no part in a draft
    "_attn_implementation", "_attn_implementation_internal", "_commit_hash", "attention_dropout", "attn_implementation",
    "bos_token_id", "chunk_size_feed_forward", "decoder_start_token_id", "eos_token_id", "gradient_checkpointing",
    "hidden_dropout", "id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id",
    "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp", "problem_type", "residual_dropout",
    "return_dict", "sep_token_id", "use_bfloat16", "use_cache", "attn_dropout", "dropout", "classifier_dropout",
    # of training
    "ce_loss_alpha", "confidence_head_alpha", "confidence_temperatures", "dspark_confidence_head_alpha",
    "embed_requires_grad", "enable_confidence_head", "l1_loss_alpha", "length", "loss_decay_gamma", "loss_type",
    "num_anchors", "ttt_length", "ttt_steps", "use_confidence_head", "has_confidence_head",
    "eagle_decoder_type", "eagle_freeze_base_model", "eagle_loss_decay_factor", "eagle_offline",
    "eagle_self_logit_distillation", "training_seq_len",
    # known from the tensors
    "attention_sink_bias", "add_swa_attention_sink_bias", "add_full_attention_sink_bias", "bias", "has_embed_tokens",
    "has_lm_head", "num_layers", "qkv_bias", "use_qk_norm",
    # of a copied target's config: layers that a drafter does not have
    "attn_output_gate", "first_k_dense_replace", "full_attention_interval", "hidden_size_per_layer_input",
    "intermediate_size_mlp", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads",
    "linear_num_value_heads", "linear_value_head_dim", "mamba_ssm_dtype", "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings", "num_kv_shared_layers", "num_nextn_predict_layers", "output_gate_type",
    "text_config", "use_double_wide_mlp", "vision_config", "vocab_size_per_layer_input", "audio_config",
    "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "decoder_sparse_step",
    "experts_per_token", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob", "num_experts",
    "num_experts_per_tok", "num_local_experts", "output_router_logits", "router_aux_loss_coef",
    "shared_expert_intermediate_size", "swiglu_limit", "initial_context_length", "n_group", "n_routed_experts",
    "n_shared_experts", "moe_layer_freq", "ep_size", "scoring_func", "seq_aux", "topk_group", "topk_method",
    "routed_scaling_factor", "aux_loss_alpha", "query_pre_attn_scalar", "attention_chunk_size",
})  # fmt: skip
"""Keys without effect on what a drafter computes, or whose values are known from its tensors."""


@dataclass(frozen=True)
class Only:
    """Values of a key that can be run, and what other values would mean."""

    values: tuple[Any, ...]
    what: str


_HEAD_ONLY: Mapping[str, Only] = {
    "next_layer_regular": Only((True,), "layers after the first that read embedding and hidden state too"),
    "parallel_draft_heads_num_layers": Only((0, 1), "parallel draft heads of several layers"),
    "parallel_draft_step": Only((1,), "parallel draft heads (ModelOpt's parallel_draft_step)"),
    "use_input_layernorm_in_first_layer": Only((True,), "an embedding that is not normed"),
    "rope_interleave": Only(
        (True,), "multi-head latent attention that rotates the first half of its channels with the second"
    ),
    "use_last_layernorm": Only((True,), "no last norm"),
    "use_mtp_layernorm": Only((False,), "an MTP layer (use_mtp_layernorm)"),
}

_BLOCK_ONLY: Mapping[str, Only] = {
    "attention_mode": Only(
        ("gqa", "mha", "mqa"), "another attention than DFlash's (mla is multi-head latent attention)"
    ),
    "enable_moe_block": Only((False,), "experts (a mixture of experts, MoE)"),
    "enable_qwen35_gated_q_proj": Only((False,), "gated attention (Qwen3.5's)"),
    "fc_layernorm": Only((False,), "a norm of each hidden state before fc"),
    "fc_norm": Only((False,), "a norm of each hidden state before fc"),
    "markov_head_type": Only(("vanilla",), "a Markov head that is gated or recurrent"),
    "mlp_type": Only(("dense",), "experts (a mixture of experts, MoE)"),
    "norm_before_fc": Only((False,), "a norm of the hidden states before fc"),
    "projector_type": Only(("dflash", "dspark", "dflash2"), "another projector (Domino's is a recurrent network)"),
}

_OWN_TABLES = ("eagle_config", "dflash_config", "dspark_config", "transformer_layer_config")


def check_keys(config: Config, *, is_block: bool) -> list[str]:
    """Warnings for the keys of a config that are not known.

    Raises:
        ModelFileError: a key has a value with which the drafter cannot be run.
    """
    kind = "a block drafter" if is_block else "a head"
    known = _LAYER_KEYS | _NO_EFFECT | (_BLOCK_KEYS if is_block else _HEAD_KEYS)
    only = _BLOCK_ONLY if is_block else _HEAD_ONLY
    unknown = []
    for name, table in _tables(config):
        for key, value in table.items():
            bare = without_prefix(key) if is_block else key
            if bare in only:
                if value is not None and value not in only[bare].values:
                    raise ModelFileError(
                        f"'{config.path}': key '{name}{key}' is {value!r}: {kind} with {only[bare].what} cannot be run "
                        f"here, expected {' or '.join(map(_as_json, only[bare].values))}"
                    )
            elif key not in known and bare not in known and value is not None:
                unknown.append(name + key)
    if not unknown:
        return []
    return [
        f"not known, so not read, of config.json: {', '.join(sorted(unknown))}. If they change what the drafter "
        "computes, few of its drafts will be accepted"
    ]


def _tables(config: Config) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = [("", config.top)]
    for name in _OWN_TABLES:
        table = config.top.get(name)
        if isinstance(table, dict):
            found.append((f"{name}.", table))
    return found


def _as_json(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
