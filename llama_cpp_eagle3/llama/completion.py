"""`Eagle3Llama`'s methods for texts and conversations: completions, batches of them, answers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, overload

from llama_cpp import Llama, LlamaTokenizer

from ..engine import FimTokens, Request, token_list
from ..errors import ContextFullError
from .attributes import LlamaAttributes
from .generate_batch import (
    BatchResult,
    BatchStream,
    PromptOptions,
    check_options,
    make_requests,
    results_of,
    run_batch,
    run_one,
)
from .sampling_arguments import SCHEMAS, SamplingDefaults, asked_grammar, bias_of, checked

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..chat import ChatTemplates

_OWN_FORMATS = ("chat_template.", "chatml", "mistral-instruct", "llama-3")
"""How the formats begin that Llama takes by itself: a template in the file, or the name of one that it knows."""
_NO_ROOM = "Requested tokens ("  # Llama's error for a prompt that is longer than the context


def _with_grammar(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with a grammar in the place of a JSON schema."""
    kept = {name: value for name, value in options.items() if name not in SCHEMAS}
    grammar = asked_grammar(options)
    return kept if grammar is None else {**kept, "grammar": grammar}


class LlamaCompletion(LlamaAttributes, Llama):  # type: ignore[misc]
    """A `llama_cpp.Llama` whose texts and conversations are requests to the engine."""

    @property
    def _defaults(self) -> SamplingDefaults:
        return SamplingDefaults(self._seed, self.rng, self.last_n_tokens_size)

    def _check_length(self, text: str) -> None:
        """Refuse a text that cannot fit before it is tokenized, unless the tokenizer is not llama.cpp's."""
        if type(self.tokenizer_) is LlamaTokenizer:
            self.engine.vocab.check_length(text, self.engine.n_ctx)

    def _create_completion(
        self, prompt: str | list[int], suffix: str | None = None, *args: Any, **options: Any
    ) -> Iterator[dict[str, Any]]:
        """The generator behind Llama's `create_completion`; a prompt that has no room raises `ContextFullError`.

        Llama uses token 0 as a token of fill-in-the-middle, whatever it is, so such prompts are made here.
        """
        given = checked(signature(super()._create_completion).bind(prompt, suffix, *args, **options).arguments)
        prompt, suffix, bias = given["prompt"], given["suffix"], given.get("logit_bias")
        stop = given.get("stop") or []
        given["stop"] = [text for text in ([stop] if isinstance(stop, str) else stop) if text]
        if bias:  # Llama gives up processors beside a bias: it takes the None that list.extend returns
            own = given.get("logits_processor") or ()
            given |= {"logits_processor": [*own, bias_of(bias, self.engine.vocab.n_tokens)], "logit_bias": None}
        if given.get("echo") and not isinstance(prompt, str):
            raise ValueError("echo: expected a text as the prompt, found tokens")
        for text in (prompt, suffix):
            if isinstance(text, str):
                self._check_length(text)
        if suffix is not None:
            if given.get("echo"):
                raise ValueError("echo=True and a suffix exclude each other: only the text between them is returned")
            given |= {"prompt": self._fim_prompt(prompt, suffix), "suffix": None}
        try:
            yield from super()._create_completion(**given)
        except ValueError as e:
            if not str(e).startswith(_NO_ROOM):
                raise
            raise ContextFullError(f"{e}. Use a larger n_ctx.") from None

    @overload
    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[PromptOptions] | None = None,
        *,
        stream: Literal[False] = False,
        progress: bool | None = None,
        **common: Unpack[PromptOptions],
    ) -> list[BatchResult]: ...
    @overload
    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[PromptOptions] | None = None,
        *,
        stream: Literal[True],
        progress: bool | None = None,
        **common: Unpack[PromptOptions],
    ) -> BatchStream: ...
    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[PromptOptions] | None = None,
        *,
        stream: bool = False,
        progress: bool | None = None,
        **common: Unpack[PromptOptions],
    ) -> list[BatchResult] | BatchStream:
        """Complete prompts, `n_parallel` at a time; all of them share each step's draft graph and pass of the target.

        A prompt gets what `create_completion` would give it alone; an error ends only its own prompt. When one ends,
        the next takes its slot, and prompts with a common prefix share what was evaluated. The context may be cleared.

        Args:
            prompts: texts, or tokens.
            options: for each prompt, the options that differ from `common`.
            stream: return a generator of (number of the prompt, token, new text) instead. The token that ends a text is
                included; None stands for an end without a token. The generator's return value is the results. Closing
                it ends all prompts.
            progress: show a tqdm bar over the prompts; None = on a terminal.
            **common: max_tokens, stop, temperature, ...: see `PromptOptions`.

        Returns:
            One result per prompt, in their order.

        Raises:
            TypeError: prompts is one text instead of a list of them; there is an unknown option.
            ValueError: an argument is invalid; the message names the prompt.
            ContextFullError: a prompt and its max_tokens do not fit into n_ctx.
        """
        check_options(prompts, options, common)

        def make() -> list[Request]:
            return make_requests(prompts, options, common, self._prompt_tokens, self._defaults, self.engine)

        run = run_batch(self._guard, self._context, make, self.draft_settings, progress)
        return run if stream else results_of(run)

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """Tokens of a prompt as `create_completion` makes them."""
        if not isinstance(prompt, str):
            return token_list(prompt, self.engine.vocab.n_tokens)
        self._check_length(prompt)
        tokens = self.tokenize(prompt.encode("utf-8"), add_bos=False, special=True) if prompt else []
        bos = self.token_bos()
        return [bos, *tokens] if bos >= 0 and (self._model.add_bos_token() or not tokens) else tokens

    def _fim_prompt(self, prefix: str | list[int], suffix: str) -> list[int]:
        """The prompt that asks for the text between two texts.

        Raises:
            ValueError: the model has no tokens for that.
        """
        fim = FimTokens.of(self.engine.vocab)
        if fim.missing:
            raise ValueError(f"suffix: '{self.model_path}' cannot fill in, it has no token for {fim.missing}")
        before, after = (
            self.tokenize(text.encode("utf-8"), add_bos=False, special=False) if isinstance(text, str) else text
            for text in (prefix, suffix)
        )
        return fim.prompt(before, after, spm=self.spm_infill)

    def create_completion(
        self,
        prompt: str | list[int],
        suffix: str | None = None,
        *args: Any,
        json_schema: Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Complete a prompt, as `Llama.create_completion` does, with its arguments and these.

        Args:
            prompt: a text, or tokens.
            suffix: the text after the one to generate (fill-in-the-middle); the prompt is the text before it. With
                `spm_infill=True` of the constructor the model reads the suffix first.
            *args: Llama's.
            json_schema: of the text, which is JSON then.
            response_format: the same in OpenAI's form.
            **options: Llama's.

        Raises:
            ValueError: the schema cannot be a grammar, or there is a `grammar` too; a suffix was given, and the model
                has no tokens for filling in, or `echo` was given too.
            ContextFullError: the prompt has no room.
        """
        given = {"json_schema": json_schema, "response_format": response_format}
        return super().create_completion(prompt, suffix, *args, **_with_grammar({**options, **given}))

    @cached_property
    def chat_templates(self) -> ChatTemplates:
        """The model's chat templates, in llama.cpp's own code."""
        from ..chat import ChatTemplates  # not above: importing chat takes as long as all the rest

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
            ValueError: the request is invalid.
        """
        if self.chat_format != "auto" or self.chat_handler is not None:
            from ..chat.conversation import refuse_media
            from ..chat.forced_tool import WithForcedTool, forced_tool, with_forced_tool

            given = signature(Llama.create_chat_completion).bind_partial(None, messages, *args, **options).arguments
            del given["self"]
            given = checked(given)
            tool = forced_tool(given)
            # a format of the user's own, or a handler, may know what to do with images
            is_own = self.chat_handler is None and (self.chat_format or "").startswith(_OWN_FORMATS)
            has_parts = is_own and refuse_media(messages)
            try:
                if tool is not None:
                    model: Any = WithForcedTool(self, tool)
                    return Llama.create_chat_completion(model, **with_forced_tool(given, tool))  # type: ignore[no-any-return]
                return super().create_chat_completion(**_with_grammar(given))  # type: ignore[no-any-return]
            except TypeError as e:
                if not has_parts:
                    raise
                # such as SmolLM2's template, which adds the content to a text
                raise ValueError(
                    f"the model's chat template takes no content in parts ({e}): give a text, or load the model with "
                    "chat_format='auto'"
                ) from e
        from ..chat import call_form
        from .chat_completion import ChatCompletion, chat_arguments, read_chat, request_of

        arguments = chat_arguments((messages, *args), options)
        chat = read_chat(arguments, self.chat_templates, self._projector, self._plan.given["media_http"])
        self._check_length(chat.params.prompt)

        def tokenize(text: str, add_special: bool = False) -> list[int]:
            tokens: list[int] = self.tokenize(text.encode(), add_bos=add_special, special=True)
            return tokens

        with self._guard:
            request = request_of(chat, arguments, self.engine, tokenize, self._defaults)
        model = arguments["model"] or self.model_path
        completion = ChatCompletion(
            chat.params,
            model,
            self.engine.vocab,
            lambda: run_one(self._guard, self._context, request, self.draft_settings),
            call_form(arguments),
        )
        return completion.stream() if arguments["stream"] else completion.whole()
