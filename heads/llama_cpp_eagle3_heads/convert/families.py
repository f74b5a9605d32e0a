"""What kind of head a checkpoint holds, by its tensors and shapes. What we cannot run is refused by name."""

from __future__ import annotations

from llama_cpp_eagle3.errors import ModelFileError

from .checkpoint import Checkpoint
from .config import Config
from .kinds import refuse_other_kinds

# eagle_config keys that only ModelOpt (and TensorRT-LLM, which reads them) write
_MODELOPT_KEYS = (
    "use_last_layernorm",
    "use_mtp_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
    "parallel_draft_heads_num_layers",
    "use_input_layernorm_in_first_layer",
)


def is_modelopt(config: Config) -> bool:
    """Whether NVIDIA's ModelOpt exported this."""
    return any(key in config.eagle for key in _MODELOPT_KEYS)


def refuse_unsupported(checkpoint: Checkpoint, config: Config) -> None:
    """Raise `ModelFileError` for heads that are not EAGLE-3, or EAGLE-3 that needs another graph than ours."""
    names = checkpoint.tensors
    where = checkpoint.path

    refuse_other_kinds(checkpoint, config, is_block=False)
    is_parallel = config.get("parallel_drafting") or any("PEagle" in name for name in config.architectures)
    if is_parallel and "mask_hidden" not in names:
        raise ModelFileError(
            f"'{where}': a P-EAGLE head (parallel drafting) without the tensor 'mask_hidden': it cannot draft what the "
            "target has not computed"
        )
    if any("parallel_draft_heads" in name for name in names):
        raise ModelFileError(
            f"'{where}': a head with parallel draft heads (ModelOpt's parallel_draft_step): not supported, what is "
            "missing here is drafting several tokens in one pass"
        )
    _refuse_other_methods(checkpoint)


def _refuse_other_methods(checkpoint: Checkpoint) -> None:
    names = checkpoint.tensors
    q_names = (f"layers.0.self_attn.{name}.weight" for name in ("q_proj", "q_a_proj"))
    q_proj = next((names[name] for name in q_names if name in names), None)
    norm = names.get("layers.0.post_attention_layernorm.weight")
    if q_proj is None or len(q_proj.shape) != 2 or norm is None or len(norm.shape) != 1:
        raise ModelFileError(
            f"'{checkpoint.path}': not an EAGLE-3 head: expected tensors layers.0.* (or midlayer.*) with a q_proj and "
            "a post_attention_layernorm. What kind of drafter it is is not known: it cannot be converted"
        )
    if "layers.0.hidden_norm.weight" not in names and q_proj.shape[1] == norm.shape[0]:
        raise ModelFileError(
            f"'{checkpoint.path}': not an EAGLE-3 head: its q_proj reads {q_proj.shape[1]} values, EAGLE-3 reads "
            f"embedding and hidden state, {2 * norm.shape[0]} (EAGLE-1 and 2 look like this, which cannot be run here: "
            "use a head that was trained by EAGLE-3)"
        )


def family_of(checkpoint: Checkpoint, config: Config) -> str:
    """The name of the checkpoint's trainer, for people and for the rules of doubt; the graph does not depend on it."""
    names = config.architectures
    if config.is_speculators:
        family = "speculators"
    elif is_modelopt(config):
        family = "ModelOpt"
    elif "LlamaEagle3DraftModel" in names or "model.fc.weight" in checkpoint.original.values():
        family = "NeMo"
    elif any("DeepseekV" in name for name in names):
        family = "TorchSpec"
    elif "LlamaForCausalLMEagle3" in names or "PEagleDraftModel" in names:
        family = "SpecForge"
    elif "Eagle3LlamaForCausalLM" in names:
        family = "vLLM/AngelSlim"
    elif "LlamaForCausalLM" in names:
        family = "SafeAILab"
    else:
        family = "unknown trainer"
    return family
