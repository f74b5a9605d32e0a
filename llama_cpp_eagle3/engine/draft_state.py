"""Why texts get drafts or none: the one answer for figures, log, server and doctor."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from .._core import Policy
from .request import GRAMMAR, NGRAM, WITHOUT_MODEL, DraftSettings

_N_TOLD = 4
_NO_REPEATS = "nothing of the text repeats what was there before, or too little to pay"


@dataclass(frozen=True, slots=True)
class SourceState:
    """What a source of drafts has brought since the policy knows costs."""

    steps: int
    """Steps in which it was asked; of n-grams and of what a grammar forces, in which their tokens were verified."""
    seconds_saved: float
    reason: str
    """Why it is not asked more often; empty if it is asked in each step."""


@dataclass(frozen=True, slots=True)
class DraftState:
    """Whether texts with some settings get drafts."""

    can_draft: bool
    reason: str = ""
    """Why nothing is drafted, or not yet what pays best; empty if each source drafts where it pays."""
    by_source: dict[str, SourceState] = field(default_factory=dict)
    """What each source has brought, once costs are known in mode "auto"."""

    def why_not(self, settings: DraftSettings) -> str:
        """Why a text with these settings had no draft."""
        if self.by_source and self.by_source.keys() <= set(WITHOUT_MODEL):
            return _NO_REPEATS
        # of most texts it is no news that n-grams do not draft
        reasons = {name: source.reason for name, source in self.by_source.items() if source.reason and name != NGRAM}
        of_sources = [f"{name}: {why}" if len(reasons) > 1 else why for name, why in reasons.items()]
        usual = "no draft was expected to pay" if settings.mode == "auto" else _left_none(settings)
        return self.reason or "; ".join(of_sources) or usual


def draft_state(
    policy: Policy, names: SequenceOf[str], settings: DraftSettings, has_ngram: bool, why_no_source: str
) -> DraftState:
    """Whether texts with these settings get drafts.

    names: the policy's drafters. has_ngram: n-grams may draft too, and what grammars force. why_no_source: the reason
    if there is none of these.
    """
    has_ngram = has_ngram and not set(WITHOUT_MODEL).isdisjoint(settings.sources)
    if not names and not has_ngram:
        return DraftState(False, why_no_source or "the settings name no drafter that there is")
    if settings.mode == "off":
        return DraftState(False, "it was switched off")
    if max(settings.n_max if names else 0, settings.ngram_n_max if has_ngram else 0) <= 0:
        return DraftState(True, _left_none(settings))
    if settings.mode != "auto":
        return DraftState(True, "" if names else _left_none(settings))
    if not policy.is_measured:
        until = "chains of a few tokens are drafted" if names else "nothing is drafted"
        return DraftState(
            True,
            "what passes cost here was not measured yet, since something else ran or it took too long: "
            f"{until} until calibrate(), or `llama-cpp-eagle3 calibrate`, has done it",
        )
    return DraftState(True, by_source=_by_source(policy, names, has_ngram))


def _left_none(settings: DraftSettings) -> str:
    return (
        f"the settings leave none: draft={settings.mode!r}, draft_n_max={settings.n_max}, "
        f"draft_n_min={settings.n_min}, draft_p_min={settings.p_min:g}"
    )


def _by_source(policy: Policy, names: SequenceOf[str], has_ngram: bool) -> dict[str, SourceState]:
    stats, reasons = policy.stats(), _reasons(policy, names)
    found = {
        name: SourceState(asked, round(1e-6 * saved, 3), reasons.get(name, ""))
        for name, asked, saved in zip(names, stats["asked"], stats["saved_us"], strict=True)
    }
    if has_ngram:
        saved, why = round(1e-6 * stats["ngram_saved_us"], 3), "" if stats["ngram"] else _NO_REPEATS
        found[NGRAM] = SourceState(stats["ngram"], saved, why)
        if stats["grammar"]:
            found[GRAMMAR] = SourceState(stats["grammar"], round(1e-6 * stats["grammar_saved_us"], 3), "")
    return found


def _reasons(policy: Policy, names: SequenceOf[str]) -> dict[str, str]:
    """Why drafters are not asked more often; without those that are asked in each step."""
    stats = policy.stats()
    if names and not policy.can_pay():
        target = policy.costs[0]
        one, n = target.at(1), _N_TOLD
        return dict.fromkeys(
            names,
            f"a pass over {n} rows takes {target.at(n) / one:.1f} times as long here as one over a single row, and "
            f"drafting them {policy.draft_us(n - 1) / one:.1f} times: even one that is always right would not pay "
            "(measured; `llama-cpp-eagle3 calibrate` measures again)",
        )
    found = {}
    for name, (debt, saved, account), is_open in zip(names, stats["unread"], stats["is_open"], strict=True):
        if debt > 0.0:
            found[name] = (
                f"reading the prompt would take the drafter {1e-6 * debt:.2f} s, its drafts would have saved about "
                f"{1e-6 * saved:.2f} s so far, and its prompts may cost {max(0.0, 1e-6 * account):.2f} s (what it "
                "really saved since the start, and a little)"
            )
        elif not is_open:
            found[name] = "its drafts have not paid lately: it is only probed now and then"
    return found
