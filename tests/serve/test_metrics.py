"""/metrics, as Prometheus' own parser reads it, agrees with the answers."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llama_cpp_eagle3.serve.log_lines import ACCESS
from serving import Running

BODY = {"prompt": "the self", "n_predict": 20, "temperature": 0.0}


def scrape(running: Running) -> tuple[dict[str, float], dict[str, str]]:
    """Return (values, types), by name and labels."""
    response = running.client.get("/metrics")
    assert int(response.headers["Process-Start-Time-Unix"]) > 1e9
    values, types = {}, {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k not in ("engine", "model_name"))
            values[sample.name + (f"[{labels}]" if labels else "")] = sample.value
            types[sample.name] = family.type
    return values, types


def test_they_count_what_was_told(running: Running) -> None:
    before, _ = scrape(running)
    answers = [running.ask("/completion", {**BODY, "n_predict": n}) for n in (1, 5, 20)]
    after, types = scrape(running)
    timings = [answer["timings"] for answer in answers]
    figures = [answer["metrics"]["speculative_decoding"] for answer in answers]
    expected = {
        "llamacpp:prompt_tokens_total": sum(t["prompt_n"] for t in timings),
        "llamacpp:prompt_tokens_cached_total": sum(t["cache_n"] for t in timings),
        "llamacpp:tokens_predicted_total": 26,
        "llamacpp:tokens_predicted_seconds_total": sum(t["predicted_ms"] for t in timings) / 1e3,
        "llamacpp:prompt_seconds_total": sum(t["prompt_ms"] for t in timings) / 1e3,
        "llamacpp:spec_decode_num_draft_tokens_total": sum(f["num_draft_tokens"] for f in figures),
        "llamacpp:spec_decode_num_accepted_tokens_total": sum(f["num_accepted_draft_tokens"] for f in figures),
        "llamacpp:spec_decode_num_drafts_total": sum(f["num_spec_steps"] for f in figures),
        "vllm:spec_decode_num_draft_tokens_total": sum(f["num_draft_tokens"] for f in figures),
        "vllm:prefix_cache_hits_total": sum(t["cache_n"] for t in timings),
        "vllm:e2e_request_latency_seconds_count": 3,
        "vllm:time_to_first_token_seconds_count": 3,
        "vllm:inter_token_latency_seconds_count": 23,
        "vllm:request_success_total[finished_reason=length]": 3,
    }
    reused = [name for name in after if name.startswith("llamacpp:prefix_cache_reused_tokens_total")]
    assert sum(after[name] - before[name] for name in reused) == sum(t["cache_n"] for t in timings) > 0
    assert after["llamacpp:prefix_cache_bytes"] <= after["llamacpp:prefix_cache_bytes_max"] > 0
    for name, value in expected.items():
        assert after[name] - before.get(name, 0.0) == pytest.approx(value, rel=1e-3, abs=1e-4), name
    position = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    counts = [after[f"{position}[position={i}]"] for i in range(4)]
    assert sum(counts) == after["llamacpp:spec_decode_num_accepted_tokens_total"]
    assert counts == sorted(counts, reverse=True)
    assert after["llamacpp:n_decode_total"] > before.get("llamacpp:n_decode_total", 0)
    assert after["llamacpp:requests_processing"] == after["vllm:num_requests_running"] == 0
    assert after["llamacpp:predicted_tokens_seconds"] > 0
    assert 0.0 <= after["vllm:kv_cache_usage_perc"] <= 1.0
    assert types["llamacpp:n_busy_slots_per_decode"] == "gauge"
    assert types["vllm:inter_token_latency_seconds_bucket"] == "histogram"


def test_a_line_for_each_request(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """The line has the reused tokens, their kind of memory, and the evaluated ones, as answers and /slots have them."""
    caplog.set_level(logging.INFO, logger=ACCESS.name)
    body = {**BODY, "prompt": "a prompt of this test alone: " * 4}
    answers = [running.ask("/completion", body) for _ in range(2)]
    end = time.monotonic() + 5
    fields: list[Any] = []
    while len(fields) < 2 and time.monotonic() < end:
        time.sleep(0.01)
        fields = [vars(r)["fields"] for r in caplog.records if r.name == ACCESS.name]
        fields = [f for f in fields if f["path"] == "/completion"]
    for line, answer in zip(fields, answers, strict=True):
        assert line["n_cached"] == answer["timings"]["cache_n"]
        assert line["n_evaluated"] == answer["timings"]["prompt_n"]
        assert line["cached_in"] == ("slot" if line["n_cached"] else "")
    assert fields[1]["cached_in"] == "slot"
    assert all(slot["n_states"] == 0 for slot in running.client.get("/slots").json())  # the cache can be cut anywhere


def test_odd_names(tiny_target: Any) -> None:
    with Running(tiny_target, options={"model_name": 'a "b"\\\nc'}) as running:
        running.ask("/completion", {**BODY, "n_predict": 2})
        assert scrape(running)[0]["llamacpp:tokens_predicted_total"] == 2


def test_the_dashboard(running: Running) -> None:
    """The dashboard asks only for existing metrics."""
    running.ask("/completion", BODY)
    values, _ = scrape(running)
    names = {name.split("[")[0] for name in values}
    dashboard = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"(?:llamacpp|vllm):\w+", target["expr"])
    }
    assert len(asked) > 15
    assert asked <= names
