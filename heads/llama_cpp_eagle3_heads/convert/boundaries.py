"""Which hidden states a head reads: every trainer's layer ids as boundaries, by one table of rules.

A boundary b is the residual stream after b target layers (0 = embedding, n_layer = before the final norm). A "layer
output" id i is the boundary i + 1. All defaults agree; only explicit ids can mean either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llama_cpp_eagle3.errors import IncompatibleDraftError, ModelFileError

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
OUTPUTS_KEY = "target_layer_ids"
"""DeepSpec's, whose ids are outputs of layers."""


@dataclass(frozen=True)
class Ids:
    """A checkpoint's layer ids, and which trainer wrote it, if that is known."""

    values: tuple[int, ...] | None
    nested: bool  # inside eagle_config, as SpecForge, TorchSpec and ModelOpt write them
    are_outputs: bool  # under a key whose ids are layer outputs
    is_speculators: bool
    is_modelopt: bool
    target_is_gpt_oss: bool
    n_layer_tgt: int

    @property
    def first_is_one(self) -> bool:
        """Whether ids are layer outputs by SGLang's rule: those begin at 1, boundaries at 2."""
        return self.values is not None and self.values[0] == 1


@dataclass(frozen=True)
class Rule:
    """One row of the table: if `applies`, the ids are shifted by `shift`. `doubtful`: other readers disagree."""

    applies: Callable[[Ids], bool]
    shift: int
    doubtful: bool
    why: str


# The first rule that applies decides.
RULES = (
    Rule(lambda i: i.are_outputs, 1, False, f"{OUTPUTS_KEY} are layer outputs, as DeepSpec writes them: + 1"),
    Rule(
        lambda i: any(x >= i.n_layer_tgt for x in i.values or ()),
        0,
        False,
        "ids are boundaries: the last one is the target's layer count, which no layer output has",
    ),
    Rule(
        lambda i: i.is_speculators and i.first_is_one,
        0,
        True,
        "ids are boundaries in the speculators format, but they begin with 1 like layer outputs that a conversion kept",
    ),
    Rule(lambda i: i.is_speculators, 0, False, "ids are boundaries in the speculators format"),
    Rule(
        lambda i: i.target_is_gpt_oss and i.is_modelopt,
        0,
        True,
        "ids are boundaries for NVIDIA's gpt-oss heads as SGLang reads them, though ModelOpt writes layer outputs",
    ),
    Rule(
        lambda i: i.nested and i.first_is_one and i.target_is_gpt_oss,
        1,
        True,
        "eagle_config ids that begin with 1 are layer outputs: + 1, though SGLang shifts no gpt-oss head",
    ),
    Rule(
        lambda i: i.nested and i.first_is_one,
        1,
        False,
        "eagle_config ids that begin with 1 are layer outputs: + 1",
    ),
    Rule(
        lambda i: i.nested,
        0,
        True,
        "eagle_config ids that do not begin with 1 are boundaries, though SpecForge and ModelOpt write layer outputs",
    ),
    Rule(
        lambda i: i.first_is_one,
        0,
        True,
        "top-level ids are boundaries as vLLM and llama.cpp read them, but they begin with 1 like layer outputs",
    ),
    Rule(lambda i: True, 0, False, "top-level ids are boundaries, as vLLM and llama.cpp read them"),
)


@dataclass(frozen=True)
class Boundaries:
    """The choice, and the reason. `other` is the other reading of explicit ids, which a probe tries too; or empty."""

    values: tuple[int, ...]
    provenance: str
    other: tuple[int, ...] = ()
    doubtful: bool = False


def choose(ids: Ids, n_aux: int, override: tuple[int, ...] | None, where: str) -> Boundaries:
    """The boundaries of a head with `n_aux` feature slots. `where` names the checkpoint in errors."""
    if override is not None:
        return Boundaries(_checked(override, n_aux, ids.n_layer_tgt, where), "explicit: --layer-boundaries")
    if ids.values is None:
        if n_aux != 3:
            raise ModelFileError(
                f"'{where}': fc reads {n_aux} hidden states but '{IDS_KEY}' is missing: give --layer-boundaries"
            )
        n = ids.n_layer_tgt
        return Boundaries(
            _checked((2, n // 2, n - 3), n_aux, n, where),
            f"default: no ids in the checkpoint, so 2, n/2, n - 3 of {n} layers as all trainers have it",
        )
    rule = next(rule for rule in RULES if rule.applies(ids))
    values = tuple(x + rule.shift for x in ids.values)
    other = tuple(x + 1 - rule.shift for x in ids.values)
    if max(other) > ids.n_layer_tgt:
        other = ()
    kind = "shifted" if rule.shift else "as written"
    provenance = f"{kind}: {list(ids.values)}, {rule.why}"
    return Boundaries(_checked(values, n_aux, ids.n_layer_tgt, where), provenance, other, rule.doubtful)


def _checked(values: tuple[int, ...], n_aux: int, n_layer_tgt: int, where: str) -> tuple[int, ...]:
    if len(values) != n_aux:
        raise ModelFileError(f"'{where}': fc reads {n_aux} hidden states, found {len(values)} layer ids {list(values)}")
    if len(set(values)) != len(values) or min(values) < 0:
        raise ModelFileError(f"'{where}': expected different boundaries >= 0, found {list(values)}")
    if max(values) > n_layer_tgt:
        raise IncompatibleDraftError(
            f"'{where}': the head reads boundary {max(values)}, the target has layers 0..{n_layer_tgt}: "
            "it was trained for another model"
        )
    return values
