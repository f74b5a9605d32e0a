"""The conversation in a request to /v1/messages: Anthropic's fields, as far as llama-server has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag


class _Object(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Text(_Object):
    """A block of text."""

    type: Literal["text"]
    text: str


class Base64Source(_Object):
    """An image's file itself."""

    type: Literal["base64"]
    media_type: str = "image/jpeg"
    data: str


class UrlSource(_Object):
    """Where an image's file is."""

    type: Literal["url"]
    url: str


class Image(_Object):
    """A block that is an image."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]


class Thinking(_Object):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinking(_Object):
    """The reasoning of Anthropic's models, encrypted: only they can read it."""

    type: Literal["redacted_thinking"]


class ToolUse(_Object):
    """A call of the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] = {}


def _form(value: Any) -> str:
    return "text" if isinstance(value, str) else "blocks"


class ToolResult(_Object):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[
            Annotated[str, Tag("text")]
            | Annotated[list[Annotated[Text | Image, Field(discriminator="type")]], Tag("blocks")],
            Discriminator(_form),
        ]
        | None
    ) = None


Block = Annotated[
    Text | Image | Thinking | RedactedThinking | ToolUse | ToolResult,
    Field(discriminator="type"),
]
Texts = Annotated[Annotated[str, Tag("text")] | Annotated[list[Text], Tag("blocks")], Discriminator(_form)]
Blocks = Annotated[Annotated[str, Tag("text")] | Annotated[list[Block], Tag("blocks")], Discriminator(_form)]


class Message(_Object):
    """One message of a conversation."""

    role: str
    content: Blocks | None = None


class Tool(_Object):
    """A function that the model may call."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = {}


class ToolChoice(_Object):
    """Which of them it calls."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class ThinkingConfig(_Object):
    """How much the model thinks."""

    type: str
    budget_tokens: int = 10000


class OutputFormat(_Object):
    """What the answer looks like."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(_Object):
    """How the answer is to be made."""

    effort: str | None = None
    format: OutputFormat | None = None


class MessagesRequest(_Object):
    """The fields that become something else in a request to /v1/chat/completions."""

    messages: list[Message]
    system: Texts | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: list[str] = []
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig = OutputConfig()
