"""JSON schemas, patterns and the like as grammars: the one converter.

`converter` writes the rules of a document's schemas. A `core` is what a schema requires, with references and
combinations resolved; `parts`, `numbers` and `pattern_grammar` write it in the GBNF of `gbnf`. `tools` completes the
grammars of llama.cpp's chat code.
"""

from .converter import Loosened, SchemaError, SchemaGrammar, json_schema_to_grammar, log_loosened, schema_grammar

__all__ = ["Loosened", "SchemaError", "SchemaGrammar", "json_schema_to_grammar", "log_loosened", "schema_grammar"]
