"""Each option once: its name and type are a key of a TypedDict, and a note on it has its default, check, text and flag.

The constructor's types, defaults and checks, the flags of the commands, the names by which errors call an option, and
the table in docs/api.md are made from these (`python tools/options.py`, `python tools/flags.py`). Options of samplers
are fields of `engine.Sampling`; `sampling` has the flags of these, and from both the fields of requests are made.
"""
