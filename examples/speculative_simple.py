"""Run the loop of speculative decoding by hand, greedy: propose, verify, accept, commit.

    python examples/speculative_simple.py [target.gguf head.gguf] [prompt]

`Eagle3Llama.generate` does the same with every sampler, and handles the end of the context and interrupts.
"""

import sys
from pathlib import Path

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import DraftRequest, DraftShape
from llama_cpp_eagle3.models import bundled_pair


def speculate(llm: Eagle3Llama, prompt: list[int], n_predict: int, n_max: int = 3) -> list[int]:
    target, [drafter], tap, chain = llm.target, llm.drafters, llm.tap, DraftShape(n_max)

    # evaluate all but the last token of the prompt; the head takes in the hidden states
    *context, id_last = prompt
    target.decode(context, 0, logits_all=False)
    drafter.process(tap, context, 0)
    n_past, tokens, n_steps = len(context), [], 0

    while len(tokens) < n_predict:
        # propose: draft the tokens after the last one
        [draft] = llm.policy.propose([DraftRequest(0, id_last, n_max, shape=chain)])

        # verify: one pass of the target over the last token and the draft
        batch = [id_last, *draft.tokens]
        target.decode(batch, n_past)

        # accept: row i predicts the token after batch[i]; go on as long as that is the drafted one
        n = 0
        while n < len(batch):
            id_last = target.argmax(n)
            tokens.append(id_last)
            n += 1
            if n < len(batch) and batch[n] != id_last:
                break

        # commit: remove the rejected tokens, and give the drafter the hidden states of the accepted ones
        target.truncate(n_past + n)
        drafter.process(tap, batch[:n], n_past)
        n_past += n
        n_steps += 1

    print(f"{len(tokens)} tokens in {n_steps} steps, {len(tokens) / n_steps:.2f} a step", file=sys.stderr)
    return tokens[:n_predict]


if __name__ == "__main__":
    args = sys.argv[1:]
    pair = [Path(arg) for arg in args[:2]] if len(args) > 1 else bundled_pair()
    text = args[-1] if len(args) % 2 else "def read_lines(path):\n"
    with_head = Eagle3Llama(pair[0], draft_model_path=pair[1], n_ctx=512, verbose=False)
    found = speculate(with_head, with_head.tokenize(text.encode()), 64)
    print(text + with_head.detokenize(found).decode(errors="replace"))
