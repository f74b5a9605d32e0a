"""Measures which reading of a checkpoint is right: drafts with each candidate on the target's own answers."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from tqdm import tqdm

from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.errors import Eagle3Error
from llama_cpp_eagle3.llama import Eagle3Llama

from .gguf_file import open_gguf
from .head import HeadSpec
from .tensors import Array

_N_DRAFT = 3  # norm_output shows from the second drafted token on
_N_ANSWER = 64
_N_PROMPT = 512


@dataclass(frozen=True)
class Candidate:
    """One reading of a checkpoint."""

    boundaries: tuple[int, ...]
    norm_output: bool
    norm_before_residual: bool


@dataclass(frozen=True)
class Measurement:
    """Share of drafts whose first, second and third token were the target's; a token counts only after right ones."""

    candidate: Candidate
    acceptance: tuple[float, ...]
    n_drafts: int

    @property
    def n_accepted(self) -> float:
        """Tokens accepted per draft."""
        return sum(self.acceptance)


@dataclass(frozen=True)
class _Answer:
    tokens: list[int]
    n_prompt: int
    rows: Array  # (n_tokens, n_boundaries, n_embd)


def candidates_of(spec: HeadSpec) -> list[Candidate]:
    """Every reading to measure, the one that the rules chose first."""
    boundaries = [spec.boundaries.values]
    if spec.boundaries.other:
        boundaries.append(spec.boundaries.other)
    flags = [[flag.value, not flag.value] if flag.doubtful else [flag.value] for flag in _flags(spec)]
    return [Candidate(b, out, residual) for b, out, residual in product(boundaries, *flags)]


def probe_head(head: Path, spec: HeadSpec, target: Path, prompts: list[str], progress: bool) -> tuple[Measurement, ...]:
    """Measure each candidate with the head in `head`, whose flags are changed in place. The best comes first."""
    prompts = [prompt for prompt in prompts if prompt.strip()]
    if not prompts:
        raise Eagle3Error("a probe needs prompts: one per line, or paragraphs between empty lines")
    candidates = candidates_of(spec)
    union = sorted({b for candidate in candidates for b in candidate.boundaries})
    no_fc = not spec.use_aux_hidden_state
    n_layer = _core.read_target(str(target)).n_layer
    n_ctx = _N_PROMPT + _N_ANSWER + 8
    llm = Eagle3Llama(
        str(target),
        draft_target_layers=[n_layer + 1] if no_fc else union,
        draft_sources=(),
        n_ctx=n_ctx,
        n_batch=n_ctx,
        n_gpu_layers=-1,
        verbose=False,
    )
    try:
        answers = [_answer(llm, prompt) for prompt in tqdm(prompts, desc="answering", disable=not progress)]
        measurements = []
        for candidate in tqdm(candidates, desc="probing", disable=not progress):
            _set_flags(head, candidate)
            columns = [0] if no_fc else [union.index(b) for b in candidate.boundaries]
            drafter = _core.Eagle3Drafter(
                str(head),
                int(llm.model),
                n_ctx,
                boundaries=None if no_fc else list(candidate.boundaries),
                n_threads=llm.n_threads,
            )
            measurements.append(_measure(drafter, candidate, answers, columns))
            del drafter
    finally:
        llm.close()
        gc.collect()
    # sorted keeps the order of equals: the rules' choice wins a tie
    return tuple(sorted(measurements, key=lambda m: -m.n_accepted))


def _flags(spec: HeadSpec) -> tuple:  # type: ignore[type-arg]
    return spec.norm_output, spec.norm_before_residual


def _answer(llm: Eagle3Llama, prompt: str) -> _Answer:
    """The target's greedy answer, and its hidden states at every position."""
    tokens = llm.tokenize(prompt.encode())[-_N_PROMPT:]
    n_prompt = len(tokens)
    eos = llm.token_eos()
    for token in llm.generate(list(tokens), temp=0.0, repeat_penalty=1.0):
        tokens.append(int(token))
        if token == eos or len(tokens) >= n_prompt + _N_ANSWER:
            break
    llm.reset()
    llm.eval(tokens)
    return _Answer(tokens, n_prompt, np.array(llm.features))


def _measure(
    drafter: _core.Eagle3Drafter, candidate: Candidate, answers: list[_Answer], columns: list[int]
) -> Measurement:
    policy, chain, accepted = _core.Policy([drafter]), _core.DraftShape(_N_DRAFT), np.zeros(_N_DRAFT)
    n_drafts = 0
    for answer in answers:
        drafter.reset()
        rows, tokens = np.ascontiguousarray(answer.rows[:, columns]), answer.tokens
        n_past = 0
        for n in range(answer.n_prompt, len(tokens) - _N_DRAFT):
            drafter.process_rows(rows[n_past:n], tokens[n_past:n], n_past)
            (draft,) = policy.propose([_core.DraftRequest(0, tokens[n], _N_DRAFT, shape=chain)])
            for k, token in enumerate(draft.tokens):
                if token != tokens[n + 1 + k]:
                    break
                accepted[k] += 1
            n_past = n
            n_drafts += 1
    if n_drafts == 0:
        raise Eagle3Error("the target's answers to the probe's prompts were too short to draft on")
    return Measurement(candidate, tuple(float(x) / n_drafts for x in accepted), n_drafts)


def _set_flags(head: Path, candidate: Candidate) -> None:
    """Change the file in place: a bool in a GGUF header is one byte, and the writer always writes these two."""
    reader = open_gguf(head, "r+")
    for name in ("norm_output", "norm_before_residual"):
        field = reader.fields[f"eagle3.{name}"]
        field.parts[field.data[0]][0] = getattr(candidate, name)
    reader.data.flush()


def format_table(measurements: tuple[Measurement, ...]) -> str:
    """The measurements for people, the best first."""
    header = f"{'boundaries':<24} {'norm_output':<12} {'norm_before_residual':<21} "
    lines = [header + "position 0, 1, 2       accepted"]
    for m in measurements:
        c = m.candidate
        shares = "  ".join(f"{100 * share:5.1f}%" for share in m.acceptance)
        name = ", ".join(map(str, c.boundaries)) or "no fc"
        flags = f"{'on' if c.norm_output else 'off':<12} {'on' if c.norm_before_residual else 'off':<21}"
        lines.append(f"{name:<24} {flags} {shares}  {m.n_accepted:8.2f}")
    return "\n".join(lines)
