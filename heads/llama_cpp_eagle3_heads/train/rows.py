"""The rows that a head learns from: hidden states and probabilities of the target's GGUF, read by the package's tap."""

# mypy: disable-error-code="no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from llama_cpp_eagle3.engine import Sampling
from llama_cpp_eagle3.engine.keeping import half
from llama_cpp_eagle3.files.whole_file import whole_file
from llama_cpp_eagle3.llama import Eagle3Llama

from .data import TEMPERATURES, Prompt, Text

_N_CTX_UNIT = 256
"""llama.cpp rounds the context of a sequence up to a multiple of it, with a warning."""

TOP_K = 64
"""Tokens whose probabilities are kept for each row: less probable ones are too improbable to be drafted."""


@dataclass(frozen=True)
class Sample:
    """A text with the target's hidden states and probabilities."""

    id: int
    n_prompt: int
    temperature: float
    tokens: npt.NDArray[np.int32]
    rows: npt.NDArray[np.float16]
    """Hidden states, (n_tokens, n_boundaries * n_embd)."""
    top_ids: npt.NDArray[np.int32]
    """The most probable next tokens, best first, from row n_first on: (n_tokens - n_first, TOP_K)."""
    top_p: npt.NDArray[np.float16]
    """Their probabilities."""

    @property
    def n_first(self) -> int:
        """The number of the first row that predicts a token of the answer."""
        return max(0, self.n_prompt - 1)

    def save(self, path: Path) -> None:
        """Write the sample as a safetensors file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            save_file({name: getattr(self, name) for name in ("tokens", "rows", "top_ids", "top_p")}, part)


class Extractor:
    """The target in llama.cpp with a tap on the head's boundaries."""

    def __init__(self, path: Path, boundaries: Sequence[int], n_ctx: int, **loading: Any) -> None:
        """Load the target; loading: further arguments of `Eagle3Llama`."""
        self.llm = Eagle3Llama(
            path, draft_target_layers=list(boundaries), draft_sources=(), n_ctx=n_ctx, n_batch=n_ctx, n_ubatch=n_ctx,
            logits_all=True, prefix_cache_bytes=0, verbose=False, **loading,
        )  # fmt: skip
        self._lock = threading.Lock()

    def __call__(self, text: Text) -> Sample:
        """Run the target over a text, in a pass of its own, so that its rows depend on no other text."""
        with self._lock:
            return self._extract(text)

    def _extract(self, text: Text) -> Sample:
        tokens = text.tokens
        self.llm.reset()
        self.llm.eval(tokens)
        rows = np.asarray(self.llm.features)
        if len(rows) != len(tokens):
            raise ValueError(f"expected {len(tokens)} rows of one pass, found {len(rows)}: raise the batch size")
        top_ids, top_p = top_probabilities(self.llm.scores[text.n_first : len(tokens)])
        ids = np.array(tokens, dtype=np.int32)
        return Sample(text.id, text.n_prompt, text.temperature, ids, half(rows), top_ids, top_p)

    def close(self) -> None:
        """Free the target."""
        self.llm.close()


class LazyExtractor:
    """An extractor that is loaded when the first text needs it: never, if all rows are on disk."""

    def __init__(self, make: Callable[[], Extractor]) -> None:
        self._make = make
        self._extractor: Extractor | None = None
        self._lock = threading.Lock()

    def __call__(self, text: Text) -> Sample:
        """Run the target over a text."""
        with self._lock:
            if self._extractor is None:
                self._extractor = self._make()
        return self._extractor(text)

    def close(self) -> None:
        """Free the target, if it was loaded."""
        if self._extractor is not None:
            self._extractor.close()


def top_probabilities(
    logits: npt.NDArray[np.float32], device: str = "cpu"
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
    """Return the TOP_K most probable tokens of each row of logits and their probabilities, best first.

    device: the torch device that sorts.
    """
    rows = torch.from_numpy(logits).to(device)
    values, ids = rows.topk(min(TOP_K, rows.shape[1]), dim=1)
    p = (values - rows.logsumexp(1, keepdim=True)).exp()
    return ids.to(torch.int32).cpu().numpy(), p.to(torch.float16).cpu().numpy()


class _Capture:
    """The rows of one sequence, collected pass by pass."""

    def __init__(self) -> None:
        self.rows: list[npt.NDArray[np.float16]] = []
        self.n_rows = 0
        self.top: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]] = []

    def add(self, n_past: int, rows: npt.NDArray[np.float16]) -> bool:
        """Add rows (n, n_values) from position n_past on; False: all of them are known."""
        if n_past + len(rows) <= self.n_rows:
            return False  # the sequence was preempted, and evaluates these again
        if n_past > self.n_rows:
            raise ValueError(f"expected rows from position {self.n_rows} on, found {n_past}: raise the batch size")
        self.rows.append(rows[self.n_rows - n_past :])
        self.n_rows = n_past + len(rows)
        return True


class AnswerGenerator:
    """Generate answers and keep the hidden states and probabilities of their passes, which cost no pass of their own.

    Flash attention is on, since it is faster. No draft has to match the rows, which may depend on the batch.
    """

    def __init__(
        self,
        path: Path,
        boundaries: Sequence[int],
        n_ctx: int,
        n_parallel: int,
        n_prompt_max: int,
        device: str = "cpu",
        **loading: Any,
    ) -> None:
        """Load the target.

        device: the torch device that finds the most probable tokens; loading: further arguments of `Eagle3Llama`.
        """
        n_batch = n_parallel + n_prompt_max
        n_total = -(-n_ctx // _N_CTX_UNIT) * _N_CTX_UNIT * n_parallel
        self.llm = Eagle3Llama(
            path, draft_target_layers=list(boundaries), draft_sources=(), n_ctx=n_total, n_parallel=n_parallel,
            n_batch=n_batch, n_ubatch=n_batch, prefill_budget=n_batch, flash_attn=True, prefix_cache_bytes=0,
            verbose=False, **loading,
        )  # fmt: skip
        self.n_ctx, self.n_prompt_max, self.device = n_ctx, n_prompt_max, device

    def __call__(
        self, prompts: Iterable[Prompt], max_tokens: int, seed: int, is_over: Callable[[], bool] = lambda: False
    ) -> Iterator[Sample]:
        """Yield the samples as their texts end. Prompts of more than n_prompt_max tokens are left out.

        When is_over() returns True after a pass, all running answers end where they are, and no more are begun.
        """
        engine, tap = self.llm.engine, self.llm.tap
        assert tap is not None
        captures: dict[int, _Capture] = {}
        running: dict[int, tuple[Prompt, Any, _Capture]] = {}
        logits: list[tuple[_Capture, npt.NDArray[np.float32]]] = []  # of the last pass

        def on_sample(part: Any, token: int) -> int:
            capture = captures.get(id(part.sequence))
            if capture is not None:
                states = tap.rows[part.first_row : part.root + 1]
                if capture.add(part.n_past, half(states)):
                    logits.append((capture, engine.target.logits(part.row)))
            return token

        left = (prompt for prompt in prompts if len(prompt.tokens) <= self.n_prompt_max)
        following: Prompt | None = None
        engine.stepper.on_sample = on_sample
        try:
            while True:
                n_fresh = 0  # a prompt has to fit into the next pass whole: the tap reads no rows of a part of one
                while len(running) < engine.target.n_seq:
                    prompt = following or next(left, None)
                    following = prompt
                    if prompt is None or n_fresh + len(prompt.tokens) > self.n_prompt_max:
                        break
                    following = None
                    n_fresh += len(prompt.tokens)
                    n_room = min(max_tokens, self.n_ctx - len(prompt.tokens) - 1)
                    sampling = Sampling(temperature=TEMPERATURES[prompt.id % len(TEMPERATURES)], seed=seed + prompt.id)
                    added = engine.add(prompt.tokens, sampling, max_tokens=n_room, cache_prompt=False)
                    captures[id(added)] = capture = _Capture()
                    running[id(added)] = prompt, added, capture
                if not running:
                    return
                engine.step()
                self._keep_top(logits)
                for key, (prompt, sequence, capture) in list(running.items()):
                    if sequence.is_done:
                        del running[key], captures[key]
                        if sequence.result.error is not None:
                            raise sequence.result.error
                        yield self._sample(prompt, sequence.tokens, capture)
                if running and is_over():
                    for prompt, sequence, capture in running.values():
                        if capture.n_rows > len(prompt.tokens):
                            yield self._sample(prompt, sequence.tokens, capture)
                    return
        finally:
            engine.stepper.on_sample = None
            engine.drop([sequence for _, sequence, _ in running.values() if not sequence.is_done])

    def _keep_top(self, logits: list[tuple[_Capture, npt.NDArray[np.float32]]]) -> None:
        """Keep the most probable tokens of a pass's logits, all rows at once, and empty the list."""
        if logits:
            ids, p = top_probabilities(np.stack([row for _, row in logits]), self.device)
            for i, (capture, _) in enumerate(logits):
                capture.top.append((ids[i : i + 1], p[i : i + 1]))
            logits.clear()

    def _sample(self, prompt: Prompt, tokens: list[int], capture: _Capture) -> Sample:
        n = capture.n_rows
        n_first = max(0, len(prompt.tokens) - 1)
        top_ids, top_p = (np.concatenate(parts) for parts in zip(*capture.top, strict=True))
        assert len(top_ids) == n - n_first, (len(top_ids), n, n_first)
        temperature = TEMPERATURES[prompt.id % len(TEMPERATURES)]
        ids = np.array(tokens[:n], dtype=np.int32)
        return Sample(prompt.id, len(prompt.tokens), temperature, ids, np.concatenate(capture.rows)[: len(ids)],
                      top_ids[: len(ids) - n_first], top_p[: len(ids) - n_first])  # fmt: skip

    def close(self) -> None:
        """Free the target."""
        self.llm.close()


class Source:
    """Samples of texts: from the cache folder if there is one and it has them, else from the target."""

    def __init__(self, extractor: Callable[[Text], Sample] | None, cache: Path | None) -> None:
        """Read samples from the cache, or make them with the extractor; None = the cache has all of them."""
        self.extractor, self.cache = extractor, cache

    def get(self, text: Text) -> Sample:
        """Return the sample of one text."""
        if self.cache is None:
            return self._extract(text)
        path = cache_path(self.cache, text.id)
        with suppress(FileNotFoundError, SafetensorError):  # one that is damaged is made again
            found = Sample(text.id, text.n_prompt, text.temperature, **load_file(path))
            if found.tokens.tolist() == text.tokens:
                return found
        sample = self._extract(text)
        sample.save(path)
        return sample

    def _extract(self, text: Text) -> Sample:
        if self.extractor is None:
            raise FileNotFoundError(f"'{self.cache}' has no rows of text {text.id}")
        return self.extractor(text)

    def stream(self, texts: Iterable[Text], n_ahead: int = 8) -> Iterator[Sample]:
        """Yield the samples of texts in order; a thread prepares up to `n_ahead` of them while the head learns."""
        ready: queue.Queue[Sample | BaseException | None] = queue.Queue(n_ahead)
        left = threading.Event()

        def put(item: Sample | BaseException | None) -> None:
            while not left.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    return
                except queue.Full:
                    continue

        def work() -> None:
            try:
                for text in texts:
                    put(self.get(text))
                    if left.is_set():
                        return
                put(None)
            except BaseException as e:
                put(e)

        thread = threading.Thread(target=work, name="target rows")
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            left.set()
            thread.join()


def cache_path(cache: Path, number: int) -> Path:
    """Return the path of a text's sample."""
    return cache / f"{number:07d}.safetensors"


def cache_bytes(n_tokens: int, n_values: int) -> int:
    """Return the bytes of a cache for texts of n_tokens, prompts included, with rows of n_values."""
    return n_tokens * (4 + 2 * n_values + 6 * TOP_K)
