"""Every supported kind of head, by name: arguments of tiny.write_head."""

from __future__ import annotations

from typing import Any

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "factor": 4.0}

MLA = {"kv_lora_rank": 32, "head_dim": 20, "n_rot": 8, "v_head_dim": 12}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    # features
    "boundaries_1": {"boundaries": (2,)},
    "boundaries_5": {"boundaries": (0, 1, 2, 3, 4)},
    "boundaries_unsorted": {"boundaries": (3, 1, 2)},
    "boundary_embedding": {"boundaries": (0,)},
    "boundary_last_layer": {"boundaries": (4,)},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "fc_norm_5": {"fc_norm": True, "boundaries": (0, 1, 2, 3, 4)},
    "fc_bias": {"fc_bias": True},
    "no_fc": {"use_aux_hidden_state": False},
    # the layer
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "qk_norm": {"qk_norm": True},
    "head_dim": {"head_dim": 24},
    "multi_head": {"n_head_kv": 4},
    "multi_query": {"n_head_kv": 1},
    "sliding_window": {"sliding_window": 8},
    "sliding_window_1": {"sliding_window": 1},
    "sliding_window_wide": {"sliding_window": 70},
    "gelu": {"hidden_act": "gelu"},
    "gelu_tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "rms_eps": {"rms_eps": 0.1},
    # rotation
    "rope_theta": {"rope_theta": 500000.0},
    "partial_rotary": {"n_rot": 8},
    "rope_linear": {"rope_scaling": LINEAR},
    "rope_yarn": {"rope_scaling": YARN},
    "rope_yarn_betas": {"rope_scaling": YARN | {"beta_fast": 2.0, "beta_slow": 0.1}},
    "rope_llama3": {"rope_scaling": LLAMA3},
    "partial_rotary_yarn": {"n_rot": 8, "rope_scaling": YARN},
    "partial_rotary_qk_norm": {"n_rot": 8, "qk_norm": True},
    # several layers
    "layers_2": {"n_layer": 2},
    "layers_3": {"n_layer": 3},
    "layers_2_window": {"n_layer": 2, "sliding_window": 8},
    "layers_2_norm_output": {"n_layer": 2, "norm_output": True},
    # multi-head latent attention
    "mla": MLA,
    "mla_q_lora": MLA | {"q_lora_rank": 24},
    "mla_window": MLA | {"sliding_window": 8},
    "mla_layers_2": MLA | {"n_layer": 2, "q_lora_rank": 24},
    "kimi": MLA | {"q_lora_rank": 24, "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, "fc_norm": True},
    # all tokens in one pass
    "p_eagle": {"mask_token": 5},
    "p_eagle_layers_4": {"mask_token": 5, "n_layer": 4, "own_embd": True, "norm_before_residual": True},
    "p_eagle_fc_norm": {"mask_token": 0, "fc_norm": True, "fc_bias": True, "boundaries": (0, 1, 2, 3, 4)},
    "p_eagle_norm_before_fc": {"mask_token": 5, "norm_before_fc": True, "sliding_window": 4, "n_layer": 2},
    "p_eagle_no_fc": {"mask_token": 5, "use_aux_hidden_state": False},
    "p_eagle_mla": MLA | {"mask_token": 5, "n_vocab_dft": None},
    # tables
    "own_embd": {"own_embd": True},
    "own_embd_full_vocab": {"own_embd": True, "n_vocab_dft": None},
    "full_vocab": {"n_vocab_dft": None},
    "shared_output": {"n_vocab_dft": None, "own_output": False},
    "wider_than_target": {"own_embd": True, "n_embd": 96},
    "narrower_than_target": {"own_embd": True, "n_embd": 32},
    "logit_scale": {"logit_scale": 0.25},
    # heads as they are published
    "eagle_3_1": {"fc_norm": True, "norm_output": True, "boundaries": (0, 1, 2, 3, 4)},
    "speculators": {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True},
    "qwen3_draft": {"qk_norm": True, "head_dim": 32, "rope_theta": 1000000.0, "norm_before_residual": True},
    "short_context": {"use_aux_hidden_state": False, "n_vocab_dft": None, "own_output": False},
    "fork_plain": {"dialect": "fork"},
    "fork_eagle_3_1": {"dialect": "fork", "fc_norm": True, "norm_output": True},
    "everything": {
        "boundaries": (0, 1, 2, 3, 4),
        "fc_norm": True,
        "norm_output": True,
        "norm_before_residual": True,
        "fc_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "qk_norm": True,
        "n_layer": 2,
        "n_embd": 96,
        "own_embd": True,
        "head_dim": 32,
        "n_rot": 16,
        "rope_scaling": YARN,
        "sliding_window": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "logit_scale": 0.5,
    },
}
