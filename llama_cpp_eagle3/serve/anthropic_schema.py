"""The conversation in a request to /v1/messages: those of Anthropic's fields that llama-server has."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Object(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Message(_Object):
    """One message of a conversation; `chat.read_messages` reads its blocks."""

    role: str
    content: str | list[Any] | None = None


class Tool(_Object):
    """A tool; other fields are those of its type."""

    model_config = ConfigDict(extra="allow")

    type: Any = None
    name: str = ""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool = False


class ToolChoice(_Object):
    """Which of them it calls."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class ThinkingConfig(_Object):
    """How much the model thinks."""

    type: Literal["enabled", "disabled", "adaptive"]
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
    """The fields that are translated for /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    system: str | list[Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: list[str] = []
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig = OutputConfig()
