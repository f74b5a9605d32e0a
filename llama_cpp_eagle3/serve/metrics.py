"""Counters for Prometheus, under the names of llama-server and vLLM."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..engine import Engine, PrefixStats
from ..engine.stats import SourceStats
from .answer import Answer

_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_SECONDS_LONG = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0)
_RATE = 0.1


@dataclass(slots=True)
class _Histogram:
    """A histogram: how often a value was at most each bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, n: int = 1) -> None:
        """Count a value n times."""
        self.counts[bisect_left(self.bounds, value)] += n
        self.total += value * n


@dataclass(slots=True)
class _Bucket:
    """Counts since the last scrape."""

    n_read: int = 0
    read_seconds: float = 0.0
    n_steps: int = 0
    step_seconds: float = 0.0
    n_decode: int = 0
    n_busy: int = 0


class Metrics:
    """The server's counters, gauges and histograms. From any thread."""

    def __init__(self, model_name: str):
        self.t_start = int(time.time())
        self.mean_request_seconds = 1.0
        self._model_name = model_name
        self._lock = threading.Lock()
        self._n_prompt = self._n_cached = self._n_tokens = self._n_tokens_max = 0
        self._prompt_seconds = self._predicted_seconds = 0.0
        self._n_decode = 0
        self._n_batches = -1
        self._n_drafted = self._n_accepted = self._n_drafts = 0
        self._by_source: dict[str, SourceStats] = {}
        self._per_position: list[int] = []
        self._ended: dict[str, int] = {}
        self._bucket = _Bucket()
        self._first = _Histogram(_SECONDS)
        self._gap = _Histogram(_SECONDS)
        self._whole = _Histogram(_SECONDS_LONG)

    def on_step(self, engine: Engine) -> None:
        """Count a step."""
        with self._lock:
            n = engine.target.n_batches
            n_decode = n - self._n_batches if self._n_batches >= 0 else 1
            self._n_batches = n
            self._n_decode += n_decode
            self._bucket.n_decode += n_decode
            self._bucket.n_busy += n_decode * max(1, engine.n_running)

    def on_tokens(self, answer: Answer, n: int, now: float, before: float) -> None:
        """Count n tokens of a sequence that came at once; `before`: the time of those before, 0.0 = there were none."""
        with self._lock:
            self._n_tokens += n
            if not before:
                n_read = answer.n_prompt - answer.n_cached
                self._n_prompt += n_read
                self._n_cached += answer.n_cached
                self._prompt_seconds += answer.prompt_seconds
                self._bucket.n_read += n_read
                self._bucket.read_seconds += answer.prompt_seconds
                self._first.observe(now - answer.t_submit)
                self._bucket.n_steps += n - 1
                if n > 1:
                    self._gap.observe(0.0, n - 1)
                return
            self._predicted_seconds += now - before
            self._bucket.n_steps += n
            self._bucket.step_seconds += now - before
            self._gap.observe(now - before)
            if n > 1:  # no time passed between these tokens
                self._gap.observe(0.0, n - 1)

    def on_end(self, answer: Answer, reason: str) -> None:
        """Count a sequence that has ended."""
        stats = answer.sequence.result.stats
        seconds = time.perf_counter() - answer.t_submit
        with self._lock:
            self._ended[reason] = self._ended.get(reason, 0) + 1
            self._n_drafted += stats.drafted
            self._n_accepted += stats.accepted
            self._n_drafts += stats.drafts
            for source, counts in stats.by_source.items():
                self._by_source[source] = self._by_source.get(source, SourceStats()) + counts
            for i, n in enumerate(stats.accepted_per_position):
                if i == len(self._per_position):
                    self._per_position.append(0)
                self._per_position[i] += n
            self._n_tokens_max = max(self._n_tokens_max, answer.n_prompt + answer.n_tokens)
            if reason in ("stop", "length"):
                self._whole.observe(seconds)
                self.mean_request_seconds += _RATE * (seconds - self.mean_request_seconds)

    def prometheus(self, n_unfinished: int, n_slots: int, cache_usage: float, prefixes: PrefixStats) -> str:
        """Return the metrics in Prometheus' text format; gauges of speed cover the time since the last call."""
        with self._lock:
            bucket, self._bucket = self._bucket, _Bucket()
            n_running = min(n_unfinished, n_slots)
            lines = self._lines(bucket, n_running, n_unfinished - n_running, cache_usage)
            return "".join([*lines, *_prefix_lines(prefixes)])

    def _lines(self, bucket: _Bucket, n_running: int, n_waiting: int, cache_usage: float) -> Iterator[str]:
        counters: dict[str, tuple[str, float]] = {
            "prompt_tokens_total": ("Number of prompt tokens processed, excluding cached tokens", self._n_prompt),
            "prompt_tokens_cached_total": ("Number of prompt tokens reused from the cache", self._n_cached),
            "prompt_seconds_total": ("Total time spent processing prompts", self._prompt_seconds),
            "tokens_predicted_total": ("Number of generated tokens", self._n_tokens),
            "tokens_predicted_seconds_total": ("Total time spent generating tokens", self._predicted_seconds),
            "n_decode_total": ("Number of passes of the target", self._n_decode),
            "n_tokens_max": ("Largest observed sequence length", self._n_tokens_max),
            "spec_decode_num_draft_tokens_total": ("Drafted tokens", self._n_drafted),
            "spec_decode_num_accepted_tokens_total": ("Drafted tokens that the target accepted", self._n_accepted),
            "spec_decode_num_drafts_total": ("Steps that had a draft", self._n_drafts),
        }
        decoded = _rate(bucket.n_steps, bucket.step_seconds)
        gauges: dict[str, tuple[str, float]] = {
            "prompt_tokens_seconds": ("Prompt throughput in tokens/s", _rate(bucket.n_read, bucket.read_seconds)),
            "predicted_tokens_seconds": ("Generation throughput in tokens/s", decoded),
            "requests_processing": ("Number of requests processing", n_running),
            "requests_deferred": ("Number of requests waiting", n_waiting),
            "n_busy_slots_per_decode": ("Sequences per pass", _rate(bucket.n_busy, bucket.n_decode)),
        }
        for kind, items in (("counter", counters), ("gauge", gauges)):
            for name, (text, value) in items.items():
                yield _metric(f"llamacpp:{name}", kind, {"": value}, text)
        for what in ("draft", "accepted"):
            by_source = {
                f'source="{source}"': counts.drafted if what == "draft" else counts.accepted
                for source, counts in self._by_source.items()
            }
            text = "The same of each source; what both suggested counts for both"
            yield _metric(f"llamacpp:spec_decode_source_num_{what}_tokens_total", "counter", by_source, text)
        by_position = {f'position="{i}"': n for i, n in enumerate(self._per_position)}
        name = "spec_decode_num_accepted_tokens_per_pos_total"
        yield _metric(f"llamacpp:{name}", "counter", by_position, "Accepted tokens per position in the draft")
        yield from self._vllm_lines(n_running, n_waiting, cache_usage)

    def _vllm_lines(self, n_running: int, n_waiting: int, cache_usage: float) -> Iterator[str]:
        model = self._model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = f'engine="0",model_name="{model}"'
        counters = {
            "spec_decode_num_drafts": self._n_drafts,
            "spec_decode_num_draft_tokens": self._n_drafted,
            "spec_decode_num_accepted_tokens": self._n_accepted,
            "prompt_tokens": self._n_prompt + self._n_cached,
            "generation_tokens": self._n_tokens,
            "prefix_cache_queries": self._n_prompt + self._n_cached,
            "prefix_cache_hits": self._n_cached,
        }
        for name, n in counters.items():
            yield _metric(f"vllm:{name}_total", "counter", {labels: n})
        by_position = {f'{labels},position="{i}"': n for i, n in enumerate(self._per_position)}
        yield _metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", by_position)
        by_reason = {f'{labels},finished_reason="{reason}"': n for reason, n in sorted(self._ended.items())}
        yield _metric("vllm:request_success_total", "counter", by_reason)
        gauges = {
            "num_requests_running": n_running,
            "num_requests_waiting": n_waiting,
            "kv_cache_usage_perc": round(cache_usage, 6),
        }
        for name, value in gauges.items():
            yield _metric(f"vllm:{name}", "gauge", {labels: value})
        histograms = {
            "time_to_first_token_seconds": self._first,
            "inter_token_latency_seconds": self._gap,
            "e2e_request_latency_seconds": self._whole,
        }
        for name, histogram in histograms.items():
            yield f"# TYPE vllm:{name} histogram\n"
            n = 0
            for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
                n += count
                yield f'vllm:{name}_bucket{{{labels},le="{bound}"}} {n}\n'
            yield f"vllm:{name}_sum{{{labels}}} {_number(histogram.total)}\nvllm:{name}_count{{{labels}}} {n}\n"


def _prefix_lines(stats: PrefixStats) -> Iterator[str]:
    items = (
        ("bytes", "gauge", "Host memory of cached prefixes and saved states", stats.n_bytes),
        ("bytes_max", "gauge", "Host memory that they may have", stats.n_bytes_max),
        ("prefixes", "gauge", "Cached prefixes in host memory", stats.n_prefixes),
        ("states", "gauge", "Saved states of recurrent layers and sliding windows", stats.n_states),
        ("evictions_total", "counter", "Prefixes and states that went for others", stats.n_evicted),
        ("too_large_total", "counter", "Prefixes and states that host memory may not hold", stats.n_too_large),
        ("disk_bytes", "gauge", "Files of prefixes and states", stats.n_file_bytes),
        ("disk_bytes_max", "gauge", "What they may have", stats.n_file_bytes_max),
        ("disk_prefixes", "gauge", "Files of prefixes", stats.n_prefix_files),
        ("disk_states", "gauge", "Files of states", stats.n_state_files),
        ("disk_evictions_total", "counter", "Files that went for others", stats.n_evicted_files),
    )
    for key, kind, text, value in items:
        yield _metric(f"llamacpp:prefix_cache_{key}", kind, {"": value}, text)
    by_tier = {f'tier="{tier}"': n for tier, n in stats.reused_tokens.items()}
    text = "Prompt tokens reused, by where they were"
    yield _metric("llamacpp:prefix_cache_reused_tokens_total", "counter", by_tier, text)


def learn_lines(figures: Mapping[str, Any]) -> str:
    """Return the metrics of `--learn`. figures: of its learner."""
    heads = {f'version="{head["version"]}"': head for head in figures["heads"]}
    items: tuple[tuple[str, str, str, Mapping[str, float]], ...] = (
        ("texts", "gauge", "Texts that are kept", {"": figures["texts"]}),
        ("tokens", "gauge", "Tokens of their answers", {"": figures["tokens"]}),
        ("bytes", "gauge", "Bytes of the folder", {"": figures["bytes"]}),
        ("seconds_total", "counter", "Seconds of learning", {"": figures["seconds"]}),
        ("head", "gauge", "The version of the head that drafts", {"": figures["head"]}),
        (
            "head_tokens_total", "counter", "Tokens that each head has drafted for",
            {label: head["tokens"] for label, head in heads.items()},
        ),
        (
            "head_tokens_per_step", "gauge", "Tokens a step with each head",
            {label: head["tokens_per_step"] for label, head in heads.items()},
        ),
    )  # fmt: skip
    return "".join(_metric(f"llamacpp:learn_{name}", kind, values, text) for name, kind, text, values in items)


def _metric(name: str, kind: str, values: Mapping[str, float], text: str = "") -> str:
    """Return the lines of one metric; values: its values by their labels."""
    lines = [f"# HELP {name} {text}"] if text else []
    lines.append(f"# TYPE {name} {kind}")
    lines += [f"{name}{f'{{{labels}}}' if labels else ''} {_number(value)}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"


def _rate(n: float, per: float) -> float:
    return n / per if per > 0.0 else 0.0


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
