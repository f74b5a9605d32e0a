"""Read the digits of a picture with a tiny model and its head, both in `captions/`; the head has its rows, too."""

from __future__ import annotations

import sys
from pathlib import Path

from llama_cpp_eagle3 import Eagle3Llama

FOLDER = Path(__file__).parent / "captions"


def main() -> None:
    picture = sys.argv[1] if len(sys.argv) > 1 else FOLDER / "digits.png"
    with Eagle3Llama(
        FOLDER / "captions.gguf",
        draft_model_path=FOLDER / "captions-eagle3.gguf",
        mmproj_path=FOLDER / "captions-mmproj.gguf",
        draft_n_max=5,
        n_ctx=128,
        verbose=False,
    ) as llm:
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": str(picture)}}]}]
        print(llm.create_chat_completion(messages, temperature=0)["choices"][0]["message"]["content"])
        print(f"{llm.last_stats.mean_acceptance_length:.2f} tokens per pass of the target")


if __name__ == "__main__":
    main()
