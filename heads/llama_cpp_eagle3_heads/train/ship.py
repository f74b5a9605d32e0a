"""Put a trained pair into the package: ``python -m llama_cpp_eagle3_heads.train.ship --work DIR``."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from llama_cpp_eagle3 import models
from llama_cpp_eagle3.files.whole_file import write_whole

from . import corpus, prompts
from .data import Store

HEAD_COMMAND = (
    "llama-cpp-eagle3 train -m build/train/target.gguf -f build/train/prompts.jsonl -o build/train/draft.gguf "
    "--outtype f16 -c {n_ctx} -n {max_tokens} --tokens {n_answer_tokens} --draft-vocab {draft_vocab} "
    "--ttt-steps {ttt_steps} --batch {batch} --steps {steps}"
)
PAGE = """# The bundled pair

| file | what | bytes | SHA-256 |
|---|---|---|---|
{files}
Both were trained by `llama_cpp_eagle3_heads.train` (see `docs/training.md`), on CPU, from random weights.

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
- **Head**: EAGLE-3, boundaries {boundaries}, draft vocabulary of {draft_vocab} tokens, trained by
  `llama-cpp-eagle3 train` on {n_texts} texts of the GGUF target's own, {n_answer_tokens:,} tokens, which go on from
  beginnings of the training files; {head_steps} steps of {batch} texts, {ttt_steps} draft steps each
  ({head_minutes} minutes). On texts that were held out, draft length 4: mean acceptance length {length} simulated on
  greedy text, conditional acceptance per position {conditional}.
- **Commands** (with a number of steps in place of the time that was set, which the number of steps came from):
  `python -m llama_cpp_eagle3_heads.train.target --steps {target_steps} --compile`,
  `{head_command}`, `python -m llama_cpp_eagle3_heads.train.ship`. {note}
- **Versions**: {versions}.

`PROVENANCE.json` has all of it with the whole training log; `prompts.json` holds 40 prompts cut from the held-out
modules.
"""


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def provenance(work: Path, folder: Path, note: str) -> dict[str, Any]:
    """Collect the facts about the pair in ``folder``: how it was made, its sizes and its figures."""
    names = {models.TARGET_NAME: "the target", models.DRAFT_NAME: "its EAGLE-3 head"}
    return {
        "note": note,
        "files": {
            name: {"what": what, "bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
            for name, what in names.items()
        },
        "corpus": json.loads((work / "corpus.json").read_text()),
        "target": json.loads((work / "target.json").read_text()),
        "head": head_facts(work / "draft.gguf.work"),
        "versions": {name: version(name) for name in ("torch", "tokenizers", "gguf", "numpy", "llama-cpp-python")},
    }


def head_facts(work: Path) -> dict[str, Any]:
    """Read the settings and the best evaluation from the work folder of `llama-cpp-eagle3 train`."""
    settings, log = (json.loads((work / f"{name}.json").read_text()) for name in ("settings", "log"))
    store = Store(work)
    best = min(log, key=lambda entry: float(entry["loss"]))
    return {
        "draft_vocab": len(np.load(work / "d2t.npy")),
        "n_texts": len(store.texts),
        "n_answer_tokens": store.n_tokens,
        "steps": log[-1]["step"],
        "minutes": round(log[-1]["seconds"] / 60, 1),
        "best": best,
        "log": log,
        **{name: settings[name] for name in ("ttt_steps", "batch", "max_tokens", "n_ctx", "seed")},
    }


def page(facts: dict[str, Any]) -> str:
    """Return the text of PROVENANCE.md."""
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
        length=head["best"]["length"],
        conditional=" / ".join(f"{c:.2f}" for c in head["best"]["accepted"]),
        head_command=HEAD_COMMAND.format(**head),
        head_steps=head["steps"],
        head_minutes=head["minutes"],
        **{f"target_{key}": target[key] for key in ("steps", "batch", "epochs", "minutes")},
        **{key: head[key] for key in ("draft_vocab", "n_texts", "n_answer_tokens", "batch", "ttt_steps")},
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
    write_whole(args.to / "PROVENANCE.json", json.dumps(facts, indent=1) + "\n")
    write_whole(args.to / "PROVENANCE.md", page(facts))


if __name__ == "__main__":
    main()
