"""Read the hidden states of a target: any GGUF model will do, and no head is needed.

    python examples/features.py [model.gguf] [text]

A boundary b is the residual stream after b layers: 0 is the embedding, n_layer the input of the final norm.
"""

import sys

import numpy as np

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.models import bundled_pair


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else bundled_pair()[0]
    text = sys.argv[2] if len(sys.argv) > 2 else "import os"
    llm = Eagle3Llama(model, draft_target_layers=[0, 1, 2], n_ctx=512, verbose=False)
    llm.eval(llm.tokenize(text.encode()))

    features = llm.features
    print(f"{features.shape} = (tokens, boundaries, width), {features.dtype}, boundaries {features.boundaries}")
    norms = np.linalg.norm(features, axis=-1)
    for token, position, row in zip(features.tokens, features.positions, norms, strict=True):
        piece = llm.detokenize([int(token)]).decode(errors="replace")
        print(f"{position:3d} {piece!r:>12}  norms {np.round(row, 2)}")


if __name__ == "__main__":
    main()
