"""Figures of speculative decoding: tokens drafted and accepted, and the time of each part of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any

from .draft import Draft
from .request import WITHOUT_MODEL

_NS = 1e-9
_DERIVED = (
    *("mean_acceptance_length", "draft_acceptance_rate", "acceptance_rate_per_position", "calibrate_seconds"),
    *("prefill_seconds", "draft_seconds", "verify_seconds", "sample_seconds", "other_seconds", "total_seconds"),
    "tokens_per_second",
)
"""Figures that are computed from counters."""


@dataclass(slots=True)
class SourceStats:
    """Drafted and accepted tokens of one source."""

    drafted: int = 0
    """Tokens that the target verified."""
    accepted: int = 0

    def __add__(self, other: SourceStats) -> SourceStats:
        return SourceStats(self.drafted + other.drafted, self.accepted + other.accepted)


@dataclass(slots=True, repr=False)
class Stats:
    """Counters of one or several generations.

    A step is one pass of the target over the last token and its draft. The names follow llama.cpp and vLLM:
    `mean_acceptance_length`, `draft_acceptance_rate`, `metrics()`.
    """

    prompt_tokens: int = 0
    """Prompt tokens evaluated; those of a cached prefix are not counted."""
    tokens: int = 0
    """Tokens generated."""
    steps: int = 0
    """Passes of the target after the prompt."""
    drafts: int = 0
    """Steps that verified a draft."""
    drafted: int = 0
    """Drafted tokens that were accepted or rejected. If the consumer stops within a draft, its rest is not counted."""
    accepted: int = 0
    """Drafted tokens that the target's own sampler chose too."""
    accepted_per_position: list[int] = field(default_factory=list)
    """How often the 1st, 2nd, ... drafted token was accepted."""

    by_source: dict[str, SourceStats] = field(default_factory=dict)
    """Counts by drafter: "eagle3", "dflash", "mtp", "assistant", "simple", "ngram", "grammar", as in
    `draft_sources`. Of whole drafts; a token that two drafted counts for both."""

    why_not_drafted: str = ""
    """Why nothing was drafted, if nothing was."""

    # nanoseconds on the wall
    calibrate_ns: int = 0
    prefill_ns: int = 0
    draft_ns: int = 0
    verify_ns: int = 0
    sample_ns: int = 0
    total_ns: int = 0

    def begin_draft(self, draft: Draft, names: Sequence[str]) -> None:
        """Count a draft that is verified. names: the sources, in the order of their bits."""
        self.drafts += 1
        for i, source in enumerate(names):
            if n_tokens := draft.n_of(1 << i):
                if source not in self.by_source:
                    self.by_source[source] = SourceStats()
                self.by_source[source].drafted += n_tokens
        n = len(self.accepted_per_position)
        if len(draft.tokens) > n and draft.depth > n:  # the first is quick to compute
            self.accepted_per_position += [0] * (draft.depth - n)

    def judge(self, draft: Draft, i: int, node: int, names: Sequence[str]) -> None:
        """Count the i-th token of a step: token `node` of the draft is accepted; -1: the rest is rejected."""
        self.tokens += 1
        if node < 0:
            self.drafted += len(draft.tokens) - i
            return
        self.drafted += 1
        self.accepted += 1
        self.accepted_per_position[i] += 1
        bits = draft.drafters_of(node)
        for i, source in enumerate(names):
            if bits >> i & 1:
                self.by_source[source].accepted += 1

    def of(self, source: str) -> SourceStats:
        """What one source drafted; zeros if it did not."""
        return self.by_source.get(source, SourceStats())

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per step: 1 + accepted / steps."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Part of the drafted tokens that was accepted, 0 to 1."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_rate_per_position(self) -> list[float]:
        """Part of all steps in which the 1st, 2nd, ... drafted token was accepted."""
        return [n / self.steps if self.steps else 0.0 for n in self.accepted_per_position]

    @property
    def calibrate_seconds(self) -> float:
        """Seconds of measuring what passes cost, before the first generation; not in the total."""
        return self.calibrate_ns * _NS

    @property
    def prefill_seconds(self) -> float:
        """Seconds of prefill, in target and drafter."""
        return self.prefill_ns * _NS

    @property
    def draft_seconds(self) -> float:
        """Seconds in the drafter: drafting, and evaluating the rows of accepted tokens."""
        return self.draft_ns * _NS

    @property
    def verify_seconds(self) -> float:
        """Seconds in the target's passes."""
        return self.verify_ns * _NS

    @property
    def sample_seconds(self) -> float:
        """Seconds in the sampler chain, logits processors and stopping criteria included."""
        return self.sample_ns * _NS

    @property
    def other_seconds(self) -> float:
        """The other seconds: our own code."""
        return max(0, self.total_ns - self.prefill_ns - self.draft_ns - self.verify_ns - self.sample_ns) * _NS

    @property
    def total_seconds(self) -> float:
        """Seconds inside `generate` and `eval`, without those of the consumer between two tokens."""
        return self.total_ns * _NS

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens per second, without the time for the prompt; None if nothing was generated."""
        decode_ns = self.total_ns - self.prefill_ns
        return self.tokens / (decode_ns * _NS) if self.tokens and decode_ns > 0 else None

    def __add__(self, other: Stats) -> Stats:
        total = Stats()
        for f in fields(Stats):
            a, b = getattr(self, f.name), getattr(other, f.name)
            if isinstance(a, str):
                setattr(total, f.name, b or a)
            elif isinstance(a, dict):
                setattr(total, f.name, {name: self.of(name) + other.of(name) for name in a | b})
            elif isinstance(a, list):  # by position; the shorter list counts as zero where it ends
                setattr(total, f.name, [x + y for x, y in zip_longest(a, b, fillvalue=0)])
            else:
                setattr(total, f.name, a + b)
        if total.drafts:  # something was drafted in one of both
            total.why_not_drafted = ""
        return total

    def as_dict(self) -> dict[str, Any]:
        """Everything, derived figures included, ready for JSON."""
        counters = {f.name: getattr(self, f.name) for f in fields(Stats) if not f.name.endswith("_ns")}
        return {
            **counters,
            "accepted_per_position": list(self.accepted_per_position),
            "by_source": {name: asdict(counts) for name, counts in self.by_source.items()},
            **{name: getattr(self, name) for name in _DERIVED},
        }

    def metrics(self) -> dict[str, int | list[int]]:
        """Counters under the names that vLLM and llama-server use in their metrics, without their prefix."""
        return {
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.tokens,
            "spec_decode_num_drafts_total": self.drafts,
            "spec_decode_num_draft_tokens_total": self.drafted,
            "spec_decode_num_accepted_tokens_total": self.accepted,
            "spec_decode_num_accepted_tokens_per_pos_total": list(self.accepted_per_position),
            **{f"spec_decode_{name}_num_draft_tokens_total": x.drafted for name, x in self.by_source.items()},
            **{f"spec_decode_{name}_num_accepted_tokens_total": x.accepted for name, x in self.by_source.items()},
        }

    def __repr__(self) -> str:
        parts = [f"{self.tokens} tokens"]
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        if self.drafted:
            per_position = " ".join(f"{100 * rate:.0f}" for rate in self.acceptance_rate_per_position)
            parts += [
                f"{self.steps} steps",
                f"mean acceptance length {self.mean_acceptance_length:.2f}",
                f"accepted {self.accepted}/{self.drafted} = {100 * self.draft_acceptance_rate:.1f} % [{per_position}]",
            ]
        if not self.by_source.keys().isdisjoint(WITHOUT_MODEL) or len(self.by_source) > 1:
            parts += [f"of {name} {x.accepted}/{x.drafted}" for name, x in self.by_source.items()]
        if self.why_not_drafted:
            parts.append(f"nothing drafted: {self.why_not_drafted}")
        parts.append(
            f"prefill {self.prefill_seconds:.3f} s, draft {self.draft_seconds:.3f} s, "
            f"verify {self.verify_seconds:.3f} s, sample {self.sample_seconds:.3f} s, other {self.other_seconds:.3f} s"
        )
        return f"<Stats: {', '.join(parts)}>"
