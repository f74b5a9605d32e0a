"""Each option once: its name and type are a key of a TypedDict, and a note on it has its default, check, text and flag.

The constructor's types, defaults and checks, the flags of the commands, the names by which errors call an option, and
the tables of docs/ are made from these. Options of samplers are in `engine.Sampling`, to which `sampling` adds flags
and the fields of a request.
"""
