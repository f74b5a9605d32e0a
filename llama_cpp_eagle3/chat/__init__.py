"""Chat as llama-server does it, with llama.cpp's own code: templates, tool calls, reasoning, JSON schemas."""

from .blocks import LeftOut, text_of
from .constraints import CONSTRAINTS, Constraint, constraint_of, without_constraints
from .conversation import ChatRequest, Conversation, apply_request, message_boundaries, read_conversation, thought_ends
from .custom_format import input_schema
from .history import arguments_text, read_messages, without_billing_line
from .message import Message
from .other_forms import THINKING_FIELDS, CallForm, call_form, in_one_form
from .schema import Loosened, SchemaGrammar, json_schema_to_grammar, log_loosened, schema_grammar
from .templates import ChatParams, ChatTemplates, GrammarTrigger

__all__ = [
    "CONSTRAINTS", "THINKING_FIELDS", "CallForm", "ChatParams", "ChatRequest", "ChatTemplates", "Constraint",
    "Conversation", "GrammarTrigger", "LeftOut", "Loosened", "Message", "SchemaGrammar", "apply_request",
    "arguments_text", "call_form", "constraint_of", "in_one_form", "input_schema", "json_schema_to_grammar",
    "log_loosened", "message_boundaries", "read_conversation", "read_messages", "schema_grammar", "text_of",
    "thought_ends", "without_billing_line", "without_constraints",
]  # fmt: skip
