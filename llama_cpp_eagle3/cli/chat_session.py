"""A conversation with a model: its messages, and answers as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..chat import ChatTemplates, Message, read_conversation
from ..chat.message import GrowingMessage
from ..engine import Detokenizer, Sampling
from ..llama import Eagle3Llama


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that a token adds to an answer."""

    text: str
    is_reasoning: bool
    is_drafted: bool
    """Whether the token had been drafted."""


class ChatSession:
    """A conversation, in which the user's and the model's messages alternate."""

    def __init__(
        self,
        llm: Eagle3Llama,
        templates: ChatTemplates,
        sampling: Sampling,
        *,
        system: str = "",
        n_predict: int = -1,
        stop: Sequence[str] = (),
        reasoning_budget: int = -1,
        reasoning_message: str = "",
        **template_options: Any,
    ):
        """template_options: options of `read_conversation`; the other arguments are those of the flags."""
        self._llm, self._templates, self._sampling = llm, templates, sampling
        self._system, self._n_predict, self._stop = system, n_predict, list(stop)
        self._options, self._budget = template_options, (reasoning_budget, reasoning_message)
        self._n_again = 0
        self.messages: list[Message] = []
        self.finish_reason: Literal["", "stop", "length", "interrupted"] = ""
        """Why the last answer ended."""
        self.is_full = False
        """Whether the last answer ended because the context was full."""
        self.n_prompt = 0
        """Tokens of the conversation before the last answer."""
        self.clear()

    def clear(self) -> None:
        """Remove everything but the system's message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def send(self, text: str) -> Iterator[Piece]:
        """Send a message, and yield the answer. An error or end before its first text removes the message again."""
        self.messages.append({"role": "user", "content": text})
        n = len(self.messages)
        try:
            yield from self._answer()
        finally:
            if len(self.messages) == n:
                self.messages.pop()

    def say_again(self) -> Iterator[Piece]:
        """Drop the last answer, and get another one.

        Raises:
            ValueError: there is none.
        """
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise ValueError("there is no answer to drop")
        self.messages.pop()
        self._n_again += 1
        yield from self._answer()

    def _answer(self) -> Iterator[Piece]:
        llm, vocab = self._llm, self._llm.engine.vocab
        body = {"messages": self.messages, "grammar": self._sampling.grammar}
        conversation = read_conversation(body, self._templates, **self._options)
        params = conversation.params
        request = conversation.request(self._tokenize, vocab, *self._budget)
        tokens = request.tokens
        n_left = llm.n_ctx() - len(tokens)
        if n_left < 1:
            raise ValueError(
                f"the conversation has {len(tokens)} tokens, the context {llm.n_ctx()}: begin anew with /clear, or use "
                "a larger -c"
            )
        self.n_prompt, self.finish_reason, self.is_full = len(tokens), "length", False
        n_most = n_left if self._n_predict < 0 else min(n_left, self._n_predict)
        answer = GrowingMessage(params)
        text = Detokenizer([*self._stop, *params.additional_stops])
        stream = llm.generate(tokens, sampling=replace(self._sampling, seed=self._seed(), **request.sampling))
        is_drafted = False
        try:
            for _ in range(n_most):
                token = next(stream)
                is_drafted = llm.last_token_drafted
                if token in vocab.eog:
                    self.finish_reason = "stop"
                    break
                text.add(vocab.piece(token, special=token in request.options["special"]), can_complete=False)
                if text.find_stop():
                    self.finish_reason = "stop"
                    break
                yield from _pieces(answer.add(text.release()), is_drafted)
            else:
                self.is_full = n_most == n_left
            yield from _pieces(answer.add(text.release(at_end=True), is_partial=False), is_drafted)
        except (KeyboardInterrupt, GeneratorExit):
            self.finish_reason = "interrupted"
            raise
        finally:
            stream.close()
            # the answer so far stays
            if str(text):
                self.messages.append({"content": "", **answer.message})

    def _tokenize(self, text: str, add_special: bool = False) -> list[int]:
        tokens: list[int] = self._llm.tokenize(text.encode(), add_bos=add_special, special=True)
        return tokens

    def _seed(self) -> int | None:
        """The seed, which differs each time the user asks for another answer; None: random."""
        seed = self._sampling.seed
        return seed if seed is None or seed == 0xFFFFFFFF else (seed + self._n_again) & 0xFFFFFFFF


def _pieces(deltas: list[Message], is_drafted: bool) -> Iterator[Piece]:
    for delta in deltas:
        for name in ("reasoning_content", "content"):
            if delta.get(name):
                yield Piece(delta[name], name == "reasoning_content", is_drafted)
