"""Chat as llama-server does it, with llama.cpp's own code: templates, tool calls, reasoning, JSON schemas."""

from .blocks import LeftOut, text_of
from .boundaries import message_boundaries, thought_ends
from .constraints import CONSTRAINTS, Constraint, constraint_of, without_constraints
from .grammar import grammar_text
from .history import arguments_text, read_messages, without_billing_line
from .parser import ChatParser, Message
from .request import apply_request
from .schema import Loosened, SchemaGrammar, json_schema_to_grammar, log_loosened, schema_grammar
from .structured_output import StructuredOutput, structured_output
from .templates import ChatParams, ChatTemplates, GrammarTrigger

__all__ = [
    "CONSTRAINTS",
    "ChatParams",
    "ChatParser",
    "ChatTemplates",
    "Constraint",
    "GrammarTrigger",
    "LeftOut",
    "Loosened",
    "Message",
    "SchemaGrammar",
    "StructuredOutput",
    "apply_request",
    "arguments_text",
    "constraint_of",
    "grammar_text",
    "json_schema_to_grammar",
    "log_loosened",
    "message_boundaries",
    "read_messages",
    "schema_grammar",
    "structured_output",
    "text_of",
    "thought_ends",
    "without_billing_line",
    "without_constraints",
]
