"""`Eagle3Llama`, a `llama_cpp.Llama`: texts, conversations, tokens and states as a client of the engine."""

from .llama import Eagle3Llama

__all__ = ["Eagle3Llama"]
