"""Write the table of the constructor's arguments in docs/api.md, from llama_cpp_eagle3/config.

python tools/options.py
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "api.md"
_BEGIN = "<!-- made by tools/options.py: change llama_cpp_eagle3/config -->\n"
_END = "<!-- end -->\n"


def table() -> str:
    """Return the name, default and meaning of each argument that llama_cpp lacks or defines otherwise."""
    from llama_cpp_eagle3.config.eagle3_options import DEFAULTS, OPTIONS
    from llama_cpp_eagle3.config.llama_options import LLAMA_DEFAULTS

    rows = [
        "| argument | default | meaning |",
        "|---|---|---|",
        "| `model_path` | | the target: a GGUF file, or a [name](pairs.md) |",
    ]
    others = [name for name in LLAMA_DEFAULTS if OPTIONS[name].doc]
    for name in ("draft_model_path", *DEFAULTS, *others):
        option = OPTIONS[name]
        default = LLAMA_DEFAULTS.get(name, option.default)
        shown = default if isinstance(default, str) else repr(default)
        rows.append(f"| `{name}` | `{shown}` | {_cell(option.doc)} |")
    rows.append("| all others | | as in `llama_cpp.Llama`; an unknown name is a `TypeError` |")
    return "\n".join(rows) + "\n"


def _cell(doc: str) -> str:
    return doc.replace("|", "\\|")


def document(text: str) -> str:
    """Return a page's text with the current table."""
    before, _, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert end, f"{DOCUMENT} has lost the marks around the table"
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


def main() -> int:
    """Run as a program."""
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
