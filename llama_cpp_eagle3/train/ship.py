"""Put a trained pair into the package: ``python -m llama_cpp_eagle3.train.ship --work DIR``."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llama_cpp_eagle3 import models

from . import corpus, prompts

PAGE = """# The bundled pair

| file | what | bytes | SHA-256 |
|---|---|---|---|
{files}
Both were trained by the scripts in `llama_cpp_eagle3/train` (see `docs/training.md`), on CPU, from random weights.

- **Data**: the standard library of CPython {python} as it lies in the interpreter's `Lib/`, without tests, encodings,
  documentation topics and installed packages: {train_files} files, {train_bytes:,} bytes, {train_tokens:,} tokens
  (SHA-256 over names and texts `{train_sha256}`).
  Never trained on: {held}.
- **Licence**: CPython's sources are under the Python Software Foundation licence, version 2 (PSF-2.0). The models
  contain what they learned from these sources; use them under the same terms. The head was trained on that text, too,
  and on text that the target wrote.
- **Tokenizer**: byte-level BPE of {n_vocab} tokens, trained on the same files; pre-tokenizer `gpt-2`.
- **Target**: Llama, {target_params:,} parameters; {target_steps} steps of {target_batch} windows of 512 tokens
  ({target_epochs} epochs, {target_minutes} minutes on 2 cores).
  Held-out loss {target_loss:.3f} per token, next token right {target_accuracy:.1%}.
- **Head**: EAGLE-3, boundaries {boundaries}, draft vocabulary of {draft_vocab} tokens, {head_params:,} parameters,
  trained on rows that the package's own tap took from the GGUF target, over {corpus_windows} windows of the training
  files and {own_windows} windows continued by the target; {head_steps} steps of {head_batch} windows, {ttt_steps} draft
  steps each ({head_minutes} minutes). On the target's greedy continuations of held-out text, draft length 4:
  mean acceptance length {length} in PyTorch, conditional acceptance per position {conditional}.
- **Commands** (with a number of steps in place of the time that was set, which the number of steps came from):
  `python -m llama_cpp_eagle3.train.target --steps {target_steps} --compile`,
  `python -m llama_cpp_eagle3.train.head --steps {head_steps} --own {own_windows} --corpus {corpus_windows}`,
  `python -m llama_cpp_eagle3.train.ship`. {note}
- **Versions**: {versions}.

`PROVENANCE.json` has all of it with the whole training log; `prompts.json` holds 40 prompts cut from the held-out
modules.
"""


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def provenance(work: Path, folder: Path, note: str) -> dict[str, Any]:
    """What is known about the pair in ``folder``."""
    names = {models.TARGET_NAME: "the target", models.DRAFT_NAME: "its EAGLE-3 head"}
    return {
        "note": note,
        "files": {
            name: {"what": what, "bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
            for name, what in names.items()
        },
        "corpus": json.loads((work / "corpus.json").read_text()),
        "target": json.loads((work / "target.json").read_text()),
        "head": json.loads((work / "head.json").read_text()),
        "versions": {name: version(name) for name in ("torch", "tokenizers", "gguf", "numpy", "llama-cpp-python")},
    }


def page(facts: dict[str, Any]) -> str:
    """PROVENANCE.md."""
    target, head, data = facts["target"], facts["head"], facts["corpus"]
    rows = [f"| `{name}` | {f['what']} | {f['bytes']:,} | `{f['sha256']}` |" for name, f in facts["files"].items()]
    n_layer = target["config"]["n_layer"]
    return PAGE.format(
        files="\n".join(rows) + "\n",
        note=facts["note"],
        held=", ".join(f"`{name}`" for name in data["heldout_files"]),
        boundaries=[2, n_layer // 2, n_layer - 3],
        versions=", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
        target_params=target["n_params"],
        target_loss=target["log"][-1]["loss"],
        target_accuracy=target["log"][-1]["accuracy"],
        head_params=head["n_params"],
        length=head["log"][-1]["mean_acceptance_length"],
        conditional=" / ".join(f"{c:.2f}" for c in head["log"][-1]["conditional"]),
        **{f"target_{key}": target[key] for key in ("steps", "batch", "epochs", "minutes")},
        **{f"head_{key}": head[key] for key in ("steps", "batch", "minutes")},
        **{key: head[key] for key in ("draft_vocab", "corpus_windows", "own_windows", "ttt_steps")},
        **{
            key: data[key]
            for key in ("python", "train_files", "train_bytes", "train_tokens", "train_sha256", "n_vocab")
        },
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/train"), help="work folder of both trainings")
    parser.add_argument("--to", type=Path, default=Path(models.__file__).parent, help="folder to fill")
    parser.add_argument("--note", default="", help="a sentence for the provenance page")
    args = parser.parse_args()
    shutil.copyfile(args.work / "target.gguf", args.to / models.TARGET_NAME)
    shutil.copyfile(args.work / "draft.gguf", args.to / models.DRAFT_NAME)
    prompts.write(corpus.load_tokenizer(args.work / "tokenizer.json"), args.to / "prompts.json")
    facts = provenance(args.work, args.to, args.note)
    (args.to / "PROVENANCE.json").write_text(json.dumps(facts, indent=1) + "\n")
    (args.to / "PROVENANCE.md").write_text(page(facts))


if __name__ == "__main__":
    main()
