"""Qwen2.5-Coder-0.5B's hidden rows and logits against transformers, in float32, on weights that gguf dequantizes.

One file goes the whole way: tokens, embedding, rotations, attention with biases, feed-forward, norms and the output
table. An F32 copy by libllama's own dequantizer must agree up to rounding; of the quantized file, whose products round
activations to 8 bits, our kernels must be as near as ggml's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from gguf.quants import dequantize

from llama_cpp_eagle3 import Eagle3Llama
from real import OPTIONS, REAL, Real

Rows = npt.NDArray[np.float32]
NAME = "qwen2.5-coder-0.5b"
TEXT = """<|im_start|>system
You are a helpful assistant.<|im_end|>
<|im_start|>user
Write a Python function that returns the running mean of a list, über alle Werte: 3.14, 2,718 and 1e-9.<|im_end|>
<|im_start|>assistant
```python
def running_mean(values: list[float]) -> list[float]:
    \"\"\"Return the mean of each beginning of the list.\"\"\"
    total, means = 0.0, []
    for i, value in enumerate(values, start=1):
        total += value
        means.append(total / i)
    return means
```<|im_end|>
"""
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHERS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


class Found(NamedTuple):
    """The results for a text."""

    rows: Rows
    """(boundary, token, channel): the embedding, then the residual stream after each layer, then the final norm's."""
    logits: Rows


def hugging_face_name(name: str) -> str:
    """Return transformers' name of a tensor of the file."""
    if name in _OTHERS:
        return _OTHERS[name]
    if name == "output.weight":
        return "lm_head.weight"
    _, layer, kind, what = name.split(".")
    return f"model.layers.{layer}.{_NAMES[kind]}.{what}"


def by_transformers(path: str, tokens: list[int]) -> Found:
    """Compute with transformers, whose config is made from the file's keys."""
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if name.startswith("qwen2.")}
    weights = {
        hugging_face_name(t.name): torch.from_numpy(np.array(dequantize(t.data, t.tensor_type), np.float32))
        for t in reader.tensors
    }
    config = transformers.Qwen2Config(
        vocab_size=len(weights["model.embed_tokens.weight"]),
        hidden_size=keys["qwen2.embedding_length"],
        intermediate_size=keys["qwen2.feed_forward_length"],
        num_hidden_layers=keys["qwen2.block_count"],
        num_attention_heads=keys["qwen2.attention.head_count"],
        num_key_value_heads=keys["qwen2.attention.head_count_kv"],
        rms_norm_eps=keys["qwen2.attention.layer_norm_rms_epsilon"],
        max_position_embeddings=keys["qwen2.context_length"],
        rope_parameters={"rope_type": "default", "rope_theta": keys["qwen2.rope.freq_base"]},
        tie_word_embeddings="lm_head.weight" not in weights,
    )
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = transformers.Qwen2ForCausalLM(config).eval()
    left = model.load_state_dict(weights, strict=False, assign=True)
    assert left.unexpected_keys == []
    assert set(left.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its frequencies are no weights
    last: list[torch.Tensor] = []  # the last layer's output, which transformers gives only after the norm
    model.model.norm.register_forward_pre_hook(lambda _, args: last.append(args[0]))
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    return Found(torch.cat([*out.hidden_states[:-1], last[0], out.hidden_states[-1]]).numpy(), out.logits[0].numpy())


def by_us(path: str, tokens: list[int], **options: Any) -> Found:
    n_layer = gguf.GGUFReader(path).fields["qwen2.block_count"].contents()
    of_both = OPTIONS | {"n_ctx": 256, "logits_all": True, "type_k": "f32", "type_v": "f32"} | options
    with closing(Eagle3Llama(path, draft_target_layers=list(range(n_layer + 2)), **of_both)) as llm:
        llm.eval(tokens)
        return Found(np.asarray(llm.features).transpose(1, 0, 2).copy(), llm.scores[: len(tokens)].copy())


def distances(found: Found, expected: Found) -> npt.NDArray[np.float64]:
    """Return for each boundary's rows, and for the logits, the norm of the difference relative to the expected norm."""

    def distance(a: Rows, b: Rows) -> float:
        return float(np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(b.astype(np.float64)))

    return np.array([*map(distance, found.rows, expected.rows), distance(found.logits, expected.logits)])


@pytest.fixture(scope="module")
def model(pytestconfig: pytest.Config) -> Real:
    if not {NAME, "all"} & set(pytestconfig.getoption("real")):
        pytest.skip(f"--real {NAME} was not asked for")
    return REAL[NAME]


@pytest.fixture(scope="module")
def tokens(model: Real) -> list[int]:
    with closing(Eagle3Llama(model.path, vocab_only=True, verbose=False)) as llm:
        return llm.tokenize(TEXT.encode(), add_bos=False, special=True)


@pytest.fixture(scope="module")
def expected(model: Real, tokens: list[int]) -> Found:
    return by_transformers(model.path, tokens)


@pytest.fixture(scope="module")
def f32_path(model: Real, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Write the file in F32, by libllama's dequantizer; 2 GB."""
    path = tmp_path_factory.mktemp("f32") / "f32.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = int(gguf.LlamaFileType.ALL_F32), True
    assert llama_cpp.llama_model_quantize(model.path.encode(), str(path).encode(), ctypes.byref(params)) == 0
    yield str(path)
    Path(path).unlink()


@pytest.mark.parametrize("cpu_kernels", ["on", "off"])
def test_float32(
    f32_path: str, expected: Found, tokens: list[int], cpu_kernels: str, tell: Callable[[str], None]
) -> None:
    found = by_us(f32_path, tokens, cpu_kernels=cpu_kernels)
    far = distances(found, expected)
    tell(f"{len(tokens)} tokens; rows differ by {far[:-1].max():.1e} at most, logits by {far[-1]:.1e}")
    assert far.max() < 1e-5
    assert (found.logits.argmax(1) == expected.logits.argmax(1)).all()


def test_quantized(model: Real, expected: Found, tokens: list[int], tell: Callable[[str], None]) -> None:
    ours, ggml = (distances(by_us(model.path, tokens, cpu_kernels=kind), expected) for kind in ("on", "off"))
    tell(f"logits differ by {ours[-1]:.4f}, with ggml's kernels by {ggml[-1]:.4f}")
    assert ours.max() < 0.1
    assert (ours <= 1.1 * ggml + 1e-6).all()
