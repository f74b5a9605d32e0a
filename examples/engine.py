"""Run the engine by hand: requests join and leave a running batch.

    python examples/engine.py [target.gguf head.gguf]

`Eagle3Llama.generate_batch` does the same if all prompts are known beforehand.
"""

import sys

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine import Sampling
from llama_cpp_eagle3.models import bundled_pair


def main() -> None:
    model, head = sys.argv[1:3] if len(sys.argv) > 2 else bundled_pair()
    llm = Eagle3Llama(model, draft_model_path=head, n_parallel=2, n_ctx=1024, verbose=False)
    engine = llm.engine
    waiting = ["import os\n", "def add(a, b):\n", "class Stack:\n", "for line in open(path):\n"]
    added = []
    n_steps = 0
    while waiting or engine.has_work:
        if waiting and n_steps % 4 == 0:  # a request arrives now and then, and waits for a slot by itself
            prompt = llm.tokenize(waiting.pop(0).encode())
            sampling = Sampling(temperature=0.7, seed=len(added))
            added.append(engine.add(prompt, sampling, max_tokens=24, stop=["\n\n"]))
        if n_steps == 6:
            engine.cancel(added[1])  # its client has left
        for output in engine.step():
            i = added.index(output.sequence)
            print(f"{n_steps:3d}  request {i}: {output.text!r}{'  [drafted]' if output.drafted else ''}")
        n_steps += 1
    for i, sequence in enumerate(added):
        print(
            f"request {i}: {sequence.result.finish_reason}, {len(sequence.generated)} tokens, {sequence.result.stats}"
        )


if __name__ == "__main__":
    main()
