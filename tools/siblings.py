"""Write the table of small models in docs/pairs.md, from llama_cpp_eagle3/draft/siblings.py.

python tools/siblings.py
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "pairs.md"
_BEGIN = "<!-- made by tools/siblings.py: change llama_cpp_eagle3/draft/siblings.py -->\n"
_END = "<!-- end of the small models -->\n"
SIZES = (1, 2, 5, 10, 20)
"""Targets, in GB."""


def table() -> str:
    """Return the small model of each family, and what it is computed to bring."""
    from llama_cpp_eagle3.draft.siblings import SIBLINGS

    gains = "/".join(map(str, SIZES))
    rows = [
        "| targets | architectures | small model (`-hfd`) | licence | tokens | reads, MB | accepted | "
        f"gain at {gains} GB |",
        "|---|---|---|---|---:|---:|---:|---|",
    ]
    for s in SIBLINGS:
        found = [s.brings(size * 10**9) for size in SIZES]
        gain = ", ".join(f"{p.speedup:.1f}" if p.n_draft else "-" for p in found)
        rows.append(
            f"| {s.family} | {', '.join(s.archs)} | {s.title} (`{s.repo}`) | {s.licence} | {s.n_vocab:,} | "
            f"{s.n_bytes / 1e6:.0f} | {100 * s.acceptance:.0f} % | {gain} |"
        )
    return "\n".join(rows) + "\n"


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
