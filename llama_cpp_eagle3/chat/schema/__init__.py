"""JSON schemas, patterns and the like as grammars: the one converter.

`converter` writes the rules of a document's schemas. A `core` is what a schema requires, with references and
combinations resolved; `parts`, `numbers` and `pattern_grammar` write it in the GBNF of `gbnf`. `lark` reads grammars in
Lark, and `lark_grammar` writes them; `given` is for grammars that requests write. `tools` completes the grammars of
llama.cpp's chat code. `work` bounds what all of them may do for one request; `matching` tells whether texts match a
pattern, in a time that grows with the text alone.
"""

from .converter import Loosened, SchemaGrammar, json_schema_to_grammar, log_loosened, schema_grammar
from .given import given_grammar
from .work import SchemaError

__all__ = [
    "Loosened", "SchemaError", "SchemaGrammar", "given_grammar", "json_schema_to_grammar", "log_loosened",
    "schema_grammar",
]  # fmt: skip
