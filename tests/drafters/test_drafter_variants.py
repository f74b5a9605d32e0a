"""The compiled drafter matches the NumPy reference for every variant of a head, and wrong references do not match."""

from typing import Any

import numpy as np
import pytest

from drafting import compare, make_drafter
from head_variants import LINEAR, LLAMA3, VARIANTS, YARN
from reference import ReferenceHead
from tiny import write_head, write_target
from tolerance import TEN_BITS, tolerance

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")

TOLERANCE = 1e-4


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_agrees_with_the_reference(name, tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    # 16 rows a graph: the prompt takes several graphs
    drafter = make_drafter(head, model_address(tiny_target.path), n_batch=16)
    worst = compare(drafter, ReferenceHead(head))
    assert worst.logits < tolerance(TOLERANCE)
    assert worst.states < tolerance(TOLERANCE)
    assert worst.same_ids


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
def test_tied_and_shared_tables_of_any_target(arch, n_threads, model_address, tiny_dir):
    target = write_target(tiny_dir / f"tied-{arch}-{n_threads}.gguf", arch, tied=True)
    head = write_head(tiny_dir / f"tied-{arch}-{n_threads}-head.gguf", target, n_vocab_dft=None, own_output=False)
    drafter = make_drafter(head, model_address(target.path), n_threads=n_threads)
    assert compare(drafter, ReferenceHead(head)).agrees(TOLERANCE)


class _ShiftedPositions(ReferenceHead):
    """A reference whose recurrent steps are one position too far."""

    def decode(self, tokens, hidden, pos_first, caches):
        return super().decode(tokens, hidden, pos_first + (len(tokens) == 1 and pos_first > 0), caches)


class _UnshiftedTokens(ReferenceHead):
    """A reference that pairs row p with token p instead of token p + 1."""

    def propose(self, id_last, n):
        last = self.tokens[-1]
        self.tokens = [0, *self.tokens[:-1]]
        draft = super().propose(last, n)
        self.tokens = [*self.tokens[1:], last]
        return draft


class _HiddenFirst(ReferenceHead):
    """A reference with attention over [hidden ; embedding]."""

    def __init__(self, head):
        super().__init__(head)
        w = self.blocks[0].w
        for name in ("q", "k", "v"):
            w[f"self_attn.{name}_proj.weight"] = np.roll(w[f"self_attn.{name}_proj.weight"], head.variant.n_embd, 1)


class _ContaminatedCache(ReferenceHead):
    """A reference whose slots of accepted tokens keep drafted values: the last row but one is its recurrent state."""

    def encode(self, rows):
        g = super().encode(rows)
        g[-2] = g[-3] * 0.5
        return g


class _InterleavedRotation(ReferenceHead):
    """A reference that rotates checkpoint weights in pairs."""

    def __init__(self, head):
        super().__init__(head)
        half = head.variant.n_rot // 2
        order = np.arange(head.variant.head_dim)
        order[: 2 * half] = order[: 2 * half].reshape(half, 2).T.reshape(-1)
        w = self.blocks[0].w
        for name in ("q", "k"):
            rows = w[f"self_attn.{name}_proj.weight"].reshape(-1, head.variant.head_dim, 2 * head.variant.n_embd)
            w[f"self_attn.{name}_proj.weight"] = rows[:, order].reshape(-1, 2 * head.variant.n_embd)


class _NormTwice(ReferenceHead):
    """A reference whose lm_head, with norm_output, reads a state that was normed twice."""

    def outputs(self, state):
        normed = super().outputs(state)[1]
        return super().outputs(normed)[0], normed


class _FcOnRecurrentState(ReferenceHead):
    """A reference that applies the norms before fc to recurrent rows too."""

    def decode(self, tokens, hidden, pos_first, caches):
        if len(tokens) == 1:
            hidden = hidden / np.sqrt(np.mean(hidden * hidden))
        return super().decode(tokens, hidden, pos_first, caches)


def _without(weights: str) -> Any:
    class Without(ReferenceHead):
        """A reference that ignores some weights."""

        def __init__(self, head):
            super().__init__(head)
            for block in self.blocks:
                block.w = {k: v for k, v in block.w.items() if weights not in k}

    return Without


def _with(weights: str, value: float) -> Any:
    class With(ReferenceHead):
        """A reference with other values in some weights."""

        def __init__(self, head):
            super().__init__(head)
            for block in self.blocks:
                block.w[weights] = np.full_like(block.w[weights], value)

    return With


class _RotatedByHalves(ReferenceHead):
    """A reference that rotates MLA as other heads."""

    def __init__(self, head):
        super().__init__(head)
        for block in self.blocks:
            setattr(block, "rotate", block.rope)  # noqa: B010


class _PlainMask(ReferenceHead):
    """A reference whose mask_hidden goes to fc unchanged."""

    def encode(self, rows):
        if len(rows) > 1:
            return super().encode(rows)
        w = self.head.weights
        return rows @ w["fc.weight"].T + w["fc.bias"]


FAULTS: dict[str, tuple[dict[str, Any], Any]] = {
    "norm_output_ignored": ({"norm_output": True}, {"norm_output": False}),
    "norm_output_invented": ({}, {"norm_output": True}),
    "norm_twice": ({"norm_output": True}, _NormTwice),
    "norm_before_residual_ignored": ({"norm_before_residual": True}, {"norm_before_residual": False}),
    "norm_before_residual_invented": ({}, {"norm_before_residual": True}),
    "norm_before_fc_ignored": ({"norm_before_fc": True}, {"norm_before_fc": False}),
    "fc_norm_ignored": ({"fc_norm": True}, {"fc_norm": False}),
    "norms_on_recurrent_rows": ({"norm_before_fc": True}, _FcOnRecurrentState),
    "attention_bias_ignored": ({"attention_bias": True}, _without("self_attn.v_proj.bias")),
    "key_bias_ignored": ({"attention_bias": True, "qk_norm": True}, _without("self_attn.k_proj.bias")),
    "mlp_bias_ignored": ({"mlp_bias": True}, _without("gate_proj.bias")),
    "q_norm_ignored": ({"qk_norm": True}, _without("q_norm")),
    "k_norm_ignored": ({"qk_norm": True}, _without("k_norm")),
    "window_ignored": ({"sliding_window": 8}, {"sliding_window": 0}),
    "window_off_by_one": ({"sliding_window": 8}, {"sliding_window": 9}),
    "theta_ignored": ({"rope_theta": 500000.0}, {"rope_theta": 10000.0}),
    "partial_rotary_ignored": ({"n_rot": 8}, {"n_rot": 16}),
    "linear_ignored": ({"rope_scaling": LINEAR}, {"rope_scaling": None}),
    "yarn_betas_ignored": ({"rope_scaling": YARN | {"beta_fast": 2.0, "beta_slow": 0.1}}, {"rope_scaling": YARN}),
    "yarn_is_linear": ({"rope_scaling": YARN}, {"rope_scaling": LINEAR}),
    "llama3_ignored": ({"rope_scaling": LLAMA3}, {"rope_scaling": None}),
    "gelu_is_silu": ({"hidden_act": "gelu"}, {"hidden_act": "silu"}),
    "gelu_is_tanh": ({"hidden_act": "gelu"}, {"hidden_act": "gelu_pytorch_tanh"}),
    "logit_scale_ignored": ({"logit_scale": 0.25}, {"logit_scale": 1.0}),
    "eps_ignored": ({"rms_eps": 0.1}, {"rms_eps": 1e-5}),
    "mscale_ignored": (VARIANTS["kimi"], {"rope_scaling": YARN}),
    "latent_norm_ignored": (VARIANTS["mla"], _with("self_attn.kv_a_layernorm.weight", 1.0)),
    "query_norm_ignored": (VARIANTS["mla_q_lora"], _with("self_attn.q_a_layernorm.weight", 1.0)),
    "latent_rotated_by_halves": (VARIANTS["mla"], _RotatedByHalves),
    "steps_of_p_eagle": (VARIANTS["p_eagle"], {"mask_token": None}),
    "other_mask_token": (VARIANTS["p_eagle"], {"mask_token": 6}),
    "norms_of_mask_hidden_ignored": (VARIANTS["p_eagle_fc_norm"], _PlainMask),
    "second_layer_ignored": ({"n_layer": 2}, {"n_layer": 1}),
    "positions_shifted": ({}, _ShiftedPositions),
    "tokens_not_shifted": ({}, _UnshiftedTokens),
    "hidden_before_embedding": ({}, _HiddenFirst),
    "contaminated_cache": ({}, _ContaminatedCache),
    "interleaved_rotation": ({}, _InterleavedRotation),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_would_be_seen(name, tiny_target, model_address, tmp_path):
    variant, fault = FAULTS[name]
    head = write_head(tmp_path / "head.gguf", tiny_target, **variant)
    wrong = ReferenceHead(head, **fault) if isinstance(fault, dict) else fault(head)
    worst = compare(make_drafter(head, model_address(tiny_target.path)), wrong)
    # devices of ten bits cannot tell the two gelus apart
    assert max(worst.logits, worst.states) > (2 * TOLERANCE if name == "gelu_is_tanh" else 2 * TEN_BITS.floor)
