"""`GeneratingLlama`: texts from an engine in llama_cpp's forms: token by token, many at once, a conversation."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property
from time import perf_counter_ns
from typing import Any, Literal, overload

from llama_cpp import LlamaGrammar, LlamaTokenizer, LogitsProcessorList, StoppingCriteriaList

from .batch import BatchResult, BatchRun, BatchStream, make_requests, progress_bar
from .chat import ChatTemplates, apply_request
from .chat.completion import ChatCompletion, chat_arguments, chat_request, request_body
from .context import Generation
from .engine import Request, Rng, SamplerChain, Sampling
from .engine import Sequence as EngineSequence
from .engine_llama import EngineLlama
from .errors import ContextFullError
from .media import TIMEOUT_S, AllowHttp, read_media, take_media
from .stats import Stats

_NOT_SAMPLING = ("self", "prompts", "options", "progress", "stream")
_NO_ROOM = "Requested tokens ("  # Llama's error for a prompt that is longer than the context


class GeneratingLlama(EngineLlama):
    """What generates. It has no constructor: `Eagle3Llama` loads it."""

    _media_http: AllowHttp

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        grammar: LlamaGrammar | None = None,
        *,
        ignore_eos: bool = False,
        sampling: Sampling | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Yield the tokens that follow `tokens`, as `Llama.generate` does and with its arguments.

        The consumer may `send` tokens, which then stand behind the last one. The generator can be closed or left at any
        token; the context then holds everything before it, as Llama's does. Stopping criteria get the logits that the
        token was drawn from. ignore_eos: never draw a token that ends the text. sampling: everything about drawing that
        llama.cpp knows, instead of all these options.

        Raises:
            ContextFullError: no room for the tokens, or for one more.
        """
        sampling = sampling or self._sampling(
            temperature=temp,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            mirostat_mode=mirostat_mode,
            mirostat_tau=mirostat_tau,
            mirostat_eta=mirostat_eta,
            logits_processor=logits_processor,
            grammar=grammar,
            ignore_eos=ignore_eos,
        )
        context = self._context
        generation: Generation | None = None
        run: Generator[int, Sequence[int] | None, None] | None = None
        sent: Sequence[int] | None = None
        try:
            while True:
                with self._guard:
                    start = perf_counter_ns()
                    try:
                        if generation is None or run is None:
                            self._sampler = SamplerChain(sampling, self.engine.vocab, self.engine.n_ctx)
                            self._sampler.see([int(t) for t in tokens])
                            settings = self._begin_text()
                            start = perf_counter_ns()
                            generation = Generation(self._sampler, settings, stopping_criteria)
                            run = context.generate(generation, [int(t) for t in tokens], reset)
                        token = run.send(sent)
                    except StopIteration:
                        return
                    finally:
                        context.stats.total_ns += perf_counter_ns() - start
                sent = yield token
        finally:
            # else another thread uses the engine, and has committed the step
            with self._guard.if_free() as is_in:
                if is_in and generation is not None:
                    context.end(generation)
                    self._explain()

    def _check_length(self, text: str) -> None:
        """Refuse a text that cannot fit before it is tokenized, unless the tokenizer is not llama.cpp's."""
        if type(self.tokenizer_) is LlamaTokenizer:
            self.engine.vocab.check_length(text, self.engine.n_ctx)

    def _create_completion(
        self, prompt: str | list[int], suffix: str | None = None, *args: Any, **options: Any
    ) -> Iterator[dict[str, Any]]:
        """What Llama's `create_completion` is made of; a prompt that has no room is a `ContextFullError`."""
        for text in (prompt, suffix):
            if isinstance(text, str):
                self._check_length(text)
        try:
            yield from super()._create_completion(prompt, suffix, *args, **options)
        except ValueError as e:
            if not str(e).startswith(_NO_ROOM):
                raise
            raise ContextFullError(f"{e}. Use a larger n_ctx.") from None

    @overload
    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        stream: Literal[False] = False,
        **common: Any,
    ) -> list[BatchResult]: ...
    @overload
    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        stream: Literal[True],
        **common: Any,
    ) -> BatchStream: ...
    def generate_batch(  # type: ignore[misc]  # the overloads leave out what both have in common
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        max_tokens: int | None = 16,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        rng: Rng | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        ignore_eos: bool = False,
        logprobs: int | None = None,
        stream: bool = False,
        progress: bool | None = None,
    ) -> list[BatchResult] | BatchStream:
        """Complete prompts, `n_parallel` at a time, with one draft graph and one pass of the target per round for all.

        Each prompt gets what `create_completion` would give it alone, and its own error, if that is what it ends with.
        Finished ones make room for those that wait, and prompts that begin alike share what was evaluated. What the
        context held before may be forgotten.

        Args:
            prompts: texts, or tokens.
            options: what is different for single prompts, one mapping of the arguments below for each.
            max_tokens: None = as many as the prompt's share of n_ctx holds.
            stop: strings that end a text, and are cut off.
            seed: of each prompt's sampler; None = the model's.
            rng: what it draws with, see `Sampling.rng`; None = the model's.
            temperature: 0 = greedy. This and the following: as `create_completion` takes them.
            top_k: see there.
            top_p: see there.
            min_p: see there.
            typical_p: see there.
            repeat_penalty: see there.
            frequency_penalty: see there.
            presence_penalty: see there.
            tfs_z: see there.
            mirostat_mode: see there.
            mirostat_tau: see there.
            mirostat_eta: see there.
            logits_processor: see there; a processor gets the tokens of its own prompt.
            grammar: see there.
            logit_bias: see there.
            ignore_eos: never draw a token that ends the text.
            logprobs: give the log-probability of each token too, and those of so many of the most probable ones.
            stream: return a generator of (number of the prompt, token, text that is new) instead, as they come. The
                token that ends a text comes too; None stands for an end without a token. Its return value, and that of
                `yield from`, are the results. To leave it ends all.
            progress: show a tqdm bar over the prompts; None = on a terminal.

        Returns:
            One result per prompt, in their order.

        Raises:
            TypeError: prompts is one text instead of a list of them.
            ValueError: an argument cannot work; the message names the prompt.
            ContextFullError: a prompt and its max_tokens do not fit into n_ctx.
        """
        if isinstance(prompts, (str, bytes)):
            raise TypeError(f"generate_batch() takes a list of prompts, found one {type(prompts).__name__}: say [text]")
        common = {name: value for name, value in locals().items() if name not in _NOT_SAMPLING}
        for option in options or ():
            unknown = set(option) - set(common)
            if unknown:
                raise TypeError(f"generate_batch() got unexpected options {sorted(unknown)}")
        run = self._run_batch(prompts, options, common, progress)
        if stream:
            return run
        while True:
            try:
                next(run)
            except StopIteration as e:
                results: list[BatchResult] = e.value
                return results

    def _run_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[Mapping[str, Any]] | None,
        common: Mapping[str, Any],
        progress: bool | None,
    ) -> BatchStream:
        """`generate_batch`, step by step."""
        if options is not None and len(options) != len(prompts):
            raise ValueError(f"expected options for each of {len(prompts)} prompts, found {len(options)}")
        with self._guard:
            start = perf_counter_ns()
            requests = make_requests(prompts, options, common, self._prompt_tokens, self._sampling, self.engine)
            total_ns = perf_counter_ns() - start
            run, calibrate_ns = self._begin_run(requests)
        bar = progress_bar(len(prompts), progress)
        return (yield from run.stream(self._guard, bar, self._end_run, total_ns, calibrate_ns))

    def _begin_run(self, requests: Sequence[Request]) -> tuple[BatchRun, int]:
        """Requests on their way, and the time that measuring has taken before."""
        settings = self._begin_text()
        calibrate_ns = self._context.stats.calibrate_ns
        return BatchRun(self.engine, requests, settings), calibrate_ns

    def _end_run(self, stats: Stats) -> None:
        self._context.sequence.result.stats = stats
        self._explain()

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """Tokens of a prompt as `create_completion` makes them."""
        if not isinstance(prompt, str):
            return [int(t) for t in prompt]
        self._check_length(prompt)
        tokens = self.tokenize(prompt.encode("utf-8"), add_bos=False, special=True) if prompt else []
        bos = self.token_bos()
        return [bos, *tokens] if bos >= 0 and (self._model.add_bos_token() or not tokens) else tokens

    # chat

    @cached_property
    def chat_templates(self) -> ChatTemplates:
        """The model's chat templates, in llama.cpp's own code."""
        return ChatTemplates(ctypes.cast(self._model.model, ctypes.c_void_p).value)

    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *args: Any, **options: Any
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Answer a conversation, as `Llama.create_chat_completion` does and with its arguments.

        With `chat_format="auto"` llama.cpp's own chat code does it, with tools, reasoning and JSON schemas as
        llama-server has them. Then there are more arguments: those of a request to llama-server that concern the
        conversation (`parallel_tool_calls`, `chat_template_kwargs`, `reasoning_format`, ...), `enable_thinking`,
        `reasoning_budget` (tokens) and `reasoning_budget_message`.

        Raises:
            ValueError: the request cannot work; or (from a stream while it runs) the model wrote what the template's
                format does not allow.
        """
        if self.chat_format != "auto" or self.chat_handler is not None:
            return super().create_chat_completion(messages, *args, **options)  # type: ignore[no-any-return]
        projector, prompt = self._projector, None
        files: list[Any] = []
        if projector is not None:
            deadline = time.monotonic() + TIMEOUT_S
            messages, files = take_media(
                messages,
                projector.marker,
                lambda source: read_media(source, allow_http=self._media_http, deadline=deadline),
            )
        arguments = chat_arguments((messages, *args), options)
        with self._guard:
            body, thinking = request_body(arguments), arguments.get("enable_thinking")
            params = apply_request(self.chat_templates, body, enable_thinking=thinking, has_markers=bool(files))
            self._check_length(params.prompt)
            if projector is not None and files:
                made = projector.prompt(params.prompt, files)
                prompt = made.tokens, made.media
            request = chat_request(params, arguments, self.engine, self.tokenize, self._sampling, prompt)
        completion = ChatCompletion(
            params, arguments["model"] or self.model_path, self.engine.vocab, lambda: self._begin_chat(request)
        )
        return completion.stream() if arguments["stream"] else completion.whole()

    def _begin_chat(self, request: Request) -> tuple[EngineSequence, Iterator[str]]:
        with self._guard:
            run, calibrate_ns = self._begin_run([request])

        def texts() -> Iterator[str]:
            for _, _, text in run.stream(self._guard, progress_bar(1, False), self._end_run, 0, calibrate_ns):
                yield text
            if run.sequences[0].result.error is not None:
                raise run.sequences[0].result.error

        return run.sequences[0], texts()
