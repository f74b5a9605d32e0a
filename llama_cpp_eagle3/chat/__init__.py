"""Chat as llama-server does it, with llama.cpp's own code: templates, tool calls, reasoning, JSON schemas."""

from .boundaries import message_boundaries
from .grammar import grammar_text, json_schema_to_grammar
from .parser import ChatParser, Message
from .request import apply_request
from .structured_output import StructuredOutput, structured_output
from .templates import ChatParams, ChatTemplates, GrammarTrigger

__all__ = [
    "ChatParams",
    "ChatParser",
    "ChatTemplates",
    "GrammarTrigger",
    "Message",
    "StructuredOutput",
    "apply_request",
    "grammar_text",
    "json_schema_to_grammar",
    "message_boundaries",
    "structured_output",
]
