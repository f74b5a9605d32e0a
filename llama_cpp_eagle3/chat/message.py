"""An answer becomes a message, whole or as it grows: parsed, and in OpenAI's form of a chat."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.sequence import TokenLogprob
from ..engine.vocab import Vocab
from .bare_call import BareCall
from .custom_tools import InputText, as_called
from .other_forms import CallForm
from .sent_tokens import SentToken, SentTokens
from .templates import ChatParams

_log = logging.getLogger("llama_cpp_eagle3")

_PLAIN = CallForm()

Message = dict[str, Any]
"""A message in OpenAI's form: role, content, and reasoning_content and tool_calls if there are any."""


class GrowingMessage:
    """An answer as it is parsed: the message is what its deltas are together, whole or as it grows.

    A text that does not have the chat template's format is sent unparsed, after what was sent before: a model can write
    anything, and may be cut off anywhere. A text that is one call as bare JSON waits for its end, and is that call.
    """

    def __init__(self, params: ChatParams):
        self._params = params
        self._parser = params.new_parser()
        self._text = ""
        self._is_unparsed = False
        """Whether the model has written something that the format does not allow."""
        self._begun: Message | None = None
        """A call of which only the name is known, which may go on: clients join what comes."""
        self._bare = BareCall(params.bare_tools)
        self._content, self._thought, self._calls = "", "", list[Message]()

    def add(self, text: str, is_partial: bool = True) -> list[Message]:
        """Add text to the answer; returns OpenAI's deltas. is_partial: more is to come."""
        self._text += text
        if not self._is_unparsed:
            try:
                return self._keep(self._found(self._parser.update(text, is_partial), is_partial))
            except ValueError as e:
                _log.warning("an answer does not have the format of its chat template: %s", str(e)[:200])
                self._is_unparsed, self._begun = True, None
                self._bare.release()  # its text is in the rest
        rest = "" if self._calls else self._rest()  # what was sent cannot be taken back
        return self._keep([{"content": rest}] if rest else [])

    def _rest(self) -> str:
        """The text after the message so far."""
        params = self._params
        text = params.generation_prompt + self._text  # may have begun a thought, which is then the message's
        at = len(params.generation_prompt) - (0 if params.is_continuation else len(params.begun))
        if self._thought:
            thought = self._thought.strip()
            found = text.find(thought)
            if found < 0:
                return ""
            at = found + len(thought)
            tags = [tag for tag in map(str.strip, params.thinking_end_tags) if tag]
            tag = next((tag for tag in tags if text[at:].lstrip().startswith(tag)), "")
            at = text.find(tag, at) + len(tag)
        if self._content:
            is_new = self._thought or self._text.startswith(self._content)  # else it has the prompt's end too
            found = text.find(self._content, at if is_new else 0)
            if found < 0:
                return ""
            at = found + len(self._content)
        return text[at:]

    def add_whole(self, texts: Sequence[str]) -> list[Message]:
        """Add the texts of all tokens; returns the deltas, which are together what `add` gives for one after the other.

        A text that has the format is read in one, unless the parser has begun a call or a thought that is not in the
        message: a stream has sent it. What was sent cannot be taken back, so such texts are read as they grow.
        """
        whole = "".join(texts)
        try:
            deltas = self._parser.update(whole, False) if self._parser.is_straight(whole) else None
        except ValueError:
            deltas, self._parser = None, self._params.new_parser()
        if deltas is None:
            return [d for text in texts for d in self.add(text)] + self.add("", is_partial=False)
        self._text = whole
        return self._keep(self._found(deltas, False))

    def _found(self, deltas: list[Message], is_partial: bool) -> list[Message]:
        """What the parser has found, as it is sent."""
        return self._bare.add(self._with_names(deltas, is_partial), is_partial)

    def _with_names(self, deltas: list[Message], is_partial: bool) -> list[Message]:
        """Deltas in which a call's name comes once, and whole."""
        found: list[Message] = []
        for delta in deltas:
            calls = delta.pop("tool_calls", None)
            if delta:
                found += self._end_name()
                found.append(delta)
            for call in calls or ():
                if self._begun is not None and self._begun["index"] != call["index"]:
                    found += self._end_name()
                function = call.get("function", {})
                if "id" in call or "name" in function:
                    self._begun = {**call, "function": {"name": function.get("name", "")}}
                if function.get("arguments"):
                    begun, self._begun = self._begun or {"index": call["index"], "function": {}}, None
                    begun["function"]["arguments"] = function["arguments"]
                    found.append({"tool_calls": [begun]})
        return found if is_partial else [*found, *self._end_name()]

    def _end_name(self) -> list[Message]:
        begun, self._begun = self._begun, None
        return [] if begun is None else [{"tool_calls": [begun]}]

    def _keep(self, deltas: list[Message]) -> list[Message]:
        for delta in deltas:
            self._content += delta.get("content", "")
            self._thought += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", ()):
                function = call["function"]
                if "name" in function:
                    id = {"id": call["id"]} if "id" in call else {}
                    self._calls.append(
                        {"type": "function", "function": {"name": function["name"], "arguments": ""}, **id}
                    )
                self._calls[-1]["function"]["arguments"] += function.get("arguments", "")
        return deltas

    @property
    def message(self) -> Message:
        """The whole message so far."""
        more = {"reasoning_content": self._thought, "tool_calls": self._calls}
        return {"role": "assistant", "content": self._content, **{name: value for name, value in more.items() if value}}

    @property
    def n_thought(self) -> int:
        """Characters of the answer's text until its thought has ended; 0: it has none."""
        if not self._thought:
            return 0
        ends = ((self._text.find(tag), tag) for tag in map(str.strip, self._params.thinking_end_tags) if tag)
        at, tag = min(((at, tag) for at, tag in ends if at >= 0), default=(len(self._text), ""))
        return at + len(tag)

    @property
    def ends_with_call(self) -> bool:
        """Whether it ends with a call that is whole: a stop string may be in the middle of its arguments."""
        arguments = self._calls[-1]["function"]["arguments"] if self._calls else None
        return arguments is not None and (not arguments or is_json(arguments))


def is_json(text: str) -> bool:
    """Whether a call's arguments are complete."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class NewText:
    """A part of an answer, as it comes."""

    text: str
    """What is safe to send."""
    tokens: Sequence[SentToken] = ()
    """Tokens that were generated meanwhile, if their log-probabilities are wanted; some of their text may wait."""


class OpenAIChoice:
    """One answer as a choice of a chat.completion, or as chunks: the role, the message's deltas, the finish reason."""

    def __init__(
        self,
        params: ChatParams,
        head: dict[str, Any],
        index: int = 0,
        *,
        show: Callable[[SentToken], dict[str, Any]] | None = None,
        form: CallForm = _PLAIN,
    ):
        """Begin a choice.

        Args:
            params: of the conversation.
            head: fields that all chunks have.
            index: of the choice.
            show: makes the object of a token and its log-probability; None: they are not wanted.
            form: of its calls.
        """
        self.message = GrowingMessage(params)
        self._head = {**head, "object": "chat.completion.chunk"}
        self._index, self._show, self._form = index, show, form
        self._texts: dict[int, InputText] = {}
        """[index]: the text of a custom tool's call."""
        self._sent = SentTokens()
        self._has_begun = False

    def role(self) -> dict[str, Any]:
        """The chunk that comes before all others."""
        self._has_begun = True
        return self._chunk({"role": "assistant", "content": None}, None)

    def begin(self) -> list[dict[str, Any]]:
        """That chunk, unless it was returned already."""
        return [] if self._has_begun else [self.role()]

    def add(self, new: NewText, is_partial: bool = True) -> list[dict[str, Any]]:
        """Chunks of what a part adds; is_partial: more is to come."""
        self._sent.add(new.tokens)
        chunks = []
        for delta in self.message.add(new.text, is_partial):
            shown = self._shown(delta)
            if not shown:
                continue
            chunk = self._chunk(shown, None)
            sent = self._take(delta)
            if sent:
                chunk["choices"][0]["logprobs"] = {"content": sent, "refusal": None}
            chunks.append(chunk)
        return chunks

    def end(self, reason: str) -> dict[str, Any]:
        """The last chunk; reason: "stop" or "length"."""
        return self._chunk({}, self._reason(reason))

    def whole(self, parts: Sequence[NewText], reason: str) -> dict[str, Any]:
        """The choice of an answer that did not come in chunks."""
        sent: list[dict[str, Any]] = []
        if self._show is None:
            self.message.add_whole([part.text for part in parts])
        else:  # only a text as it grows shows which tokens it was made of
            chunks = [chunk for part in parts for chunk in self.add(part)]
            chunks += self.add(NewText(""), is_partial=False)
            for chunk in chunks:
                sent += (chunk["choices"][0].get("logprobs") or {"content": []})["content"]
        message = self._shown(self.message.message)
        choice = {"index": self._index, "message": message, "finish_reason": self._reason(reason)}
        return choice if self._show is None else {**choice, "logprobs": {"content": sent, "refusal": None}}

    def _chunk(self, delta: Message, reason: str | None) -> dict[str, Any]:
        return {**self._head, "choices": [{"index": self._index, "delta": delta, "finish_reason": reason}]}

    def _take(self, delta: Message) -> list[dict[str, Any]]:
        """Log-probabilities of a delta's content. The tokens of other parts are passed over."""
        if self._show is None:
            return []
        if delta.get("reasoning_content"):
            self._sent.take(delta["reasoning_content"])
        return [self._show(token) for token in self._sent.take(delta["content"])] if delta.get("content") else []

    def _shown(self, message: Message) -> Message:
        """A message or delta in the request's form."""
        if "tool_calls" not in message or self._form == _PLAIN:
            return message
        first, *_ = message["tool_calls"]
        others = {name: value for name, value in message.items() if name != "tool_calls"}
        if not self._form.has_functions:
            calls = [as_called(call, self._form.custom, self._texts) for call in message["tool_calls"]]
            shown = [call for call in calls if call is not None]
            return {**others, "tool_calls": shown} if shown else others
        return others if first.get("index") else {**others, "function_call": first["function"]}

    def _reason(self, reason: str) -> str:
        if reason != "stop" or not self.message.ends_with_call:
            return reason
        return "function_call" if self._form.has_functions else "tool_calls"


def logprob_of(
    vocab: Vocab,
    found: TokenLogprob,
    n_top: int | None = None,
    *,
    post: bool = False,
    special: bool = False,
    piece: bytes | None = None,
) -> dict[str, Any]:
    """OpenAI's object of one token and its alternatives.

    Args:
        vocab: which has the tokens' texts.
        found: the token.
        n_top: how many alternatives; None: all.
        post: they are probabilities after the samplers, for which llama-server has other names.
        special: special tokens have their text.
        piece: the part of its bytes that was sent; None: all.
    """

    def one(token: int, logprob: float, piece: bytes) -> dict[str, Any]:
        value = {"prob": min(1.0, math.exp(logprob))} if post else {"logprob": max(logprob, -3.4e38)}
        return {"id": token, "token": piece.decode("utf-8", errors="replace"), "bytes": list(piece), **value}

    top = [one(token, value, vocab.piece(token, special)) for token, value in list(found.top.items())[:n_top]]
    own = one(found.token, found.logprob, vocab.piece(found.token, special) if piece is None else piece)
    return {**own, "top_probs" if post else "top_logprobs": top}
