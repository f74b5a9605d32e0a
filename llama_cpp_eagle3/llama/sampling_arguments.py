"""Sampling arguments of Llama's methods, as the engine's `Sampling`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from llama_cpp import Llama, LlamaGrammar

from ..engine import LogitsProcessor, Rng, Sampling
from ..engine.arguments import as_type, hints


class SamplingArguments(TypedDict, total=False):
    """Names, types and defaults are those of `Llama.create_completion`, where it has them; see `Sampling` for the rest.

    Attributes:
        seed: of the sampler. Default: the model's.
        rng: the generator that samples. Default: the model's.
        tfs_z: ignored, as by Llama.
        logits_processor: functions of (tokens of the text, logits float32 (n_vocab,)) that return logits.
        grammar: which the text follows.
        json_schema: of the text, which is JSON then.
        response_format: the same in OpenAI's form.
    """

    seed: int | None
    rng: Rng | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    tfs_z: float
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    logits_processor: Sequence[Callable[[npt.NDArray[np.intc], npt.NDArray[np.single]], npt.NDArray[np.single]]] | None
    grammar: LlamaGrammar | None
    json_schema: Mapping[str, Any] | None
    response_format: Mapping[str, Any] | None
    logit_bias: Mapping[int, float] | None
    ignore_eos: bool


_AS_THEY_ARE = SamplingArguments.__annotations__.keys() & {f.name for f in fields(Sampling)} - {
    *("seed", "rng", "temperature", "grammar", "logit_bias")
}
_TYPES = {name: hint | None for name, hint in hints(Llama.create_completion)} | {
    "prompt": str | list[int],
    "messages": Sequence[Mapping[str, Any]],
    **dict.fromkeys(("tools", "functions"), Sequence[Mapping[str, Any]] | None),
    **dict.fromkeys(("tool_choice", "function_call"), str | Mapping[str, Any] | None),
    "tokens": Sequence[int],
    "sampling": Sampling | None,
    "idx": int | None,
    "grammar": LlamaGrammar | str | None,
    "logits_processor": Sequence[Callable[..., Any]] | None,
    "stopping_criteria": Callable[..., Any] | None,
    "logprobs": bool | int | None,
    "top_logprobs": int | None,
    "enable_thinking": bool | None,
    "reasoning_budget": int,
    "reasoning_budget_message": str,
}
SCHEMAS = ("json_schema", "response_format")
"""Arguments that ask for a grammar."""


def checked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Llama.create_completion` and its kin, by their types. Raises ValueError."""
    return {name: as_type(name, x, _TYPES[name]) if name in _TYPES else x for name, x in arguments.items()}


def bias_of(logit_bias: Mapping[int, float], n_vocab: int) -> LogitsProcessor:
    """A logits processor that adds a bias to tokens, as Llama does; ValueError: there is no such token."""
    unknown = [token for token in logit_bias if not 0 <= token < n_vocab]
    if unknown:
        raise ValueError(f"logit_bias: expected tokens in 0..{n_vocab - 1}, found {unknown[0]}")
    tokens, added = [*logit_bias], np.array([*logit_bias.values()], dtype=np.single)

    def bias(_: npt.NDArray[np.intc], logits: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        logits[tokens] += added
        return logits

    return bias


def asked_grammar(arguments: Mapping[str, Any]) -> LlamaGrammar | None:
    """The grammar of a JSON schema among arguments, if there is one.

    Raises:
        ValueError: it cannot be one, or there is a grammar too.
    """
    asked = {name: arguments[name] for name in SCHEMAS if arguments.get(name) is not None}
    if not asked:
        return None
    from ..chat import constraint_of, log_loosened

    constraint = constraint_of(asked)
    if constraint is None:
        return None
    if arguments.get("grammar") is not None:
        raise ValueError(f"Cannot use both {constraint.name} and grammar")
    grammar = constraint.compile()
    log_loosened(grammar.loosened)
    return LlamaGrammar.from_string(grammar.text, verbose=False)


def grammar_text(grammar: LlamaGrammar) -> tuple[str, str]:
    """GBNF of a grammar, and the rule that it begins with; llama_cpp has no public names for them."""
    as_type("grammar", grammar, LlamaGrammar)
    return grammar._grammar, grammar._root


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """A model's defaults for sampling arguments that a call does not set."""

    seed: int | None
    rng: Rng
    repeat_last_n: int

    def sampling(self, arguments: Mapping[str, Any]) -> Sampling:
        """The engine's sampling of `SamplingArguments`; other arguments of a method are ignored.

        Raises:
            ValueError: a value is invalid.
        """
        options = {name: arguments[name] for name in _AS_THEY_ARE if name in arguments}
        grammar = asked_grammar(arguments) or arguments.get("grammar")
        if grammar is not None:
            options["grammar"], options["grammar_root"] = grammar_text(grammar)
        temperature = arguments.get("temperature", arguments.get("temp"))  # `generate` and `sample` call it temp
        if temperature is not None:
            options["temperature"] = temperature
        seed = arguments.get("seed")
        return Sampling(
            seed=self.seed if seed is None else seed,
            rng=arguments.get("rng") or self.rng,
            repeat_last_n=self.repeat_last_n,
            logit_bias=arguments.get("logit_bias") or {},
            logits_processors=list(arguments.get("logits_processor") or ()),
            **options,
        )
