"""lm-evaluation-harness, with the server's tokenizer.

pip install "lm-eval[api]"
lm_eval run --tasks arc_easy --model local-completions \\
    --model_args base_url=http://localhost:8080/v1/completions,model=any,tokenizer_backend=remote
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from checks import V1
from lm_eval.api.registry import get_model


def _model() -> Any:
    return get_model("local-completions")(
        base_url=f"{V1}/completions", model="any", tokenizer_backend="remote", max_length=2048, max_gen_toks=16
    )


def loglikelihoods() -> None:
    pairs = [SimpleNamespace(args=("The capital of Italy is", end)) for end in (" Rome", " xylophone")]
    (right, _), (wrong, _) = _model().loglikelihood(pairs)
    assert math.isfinite(wrong) and right > wrong


def generation() -> None:
    request = SimpleNamespace(args=("1, 2, 3, 4, 5,", {"until": [" 9"], "temperature": 0.0}))
    (text,) = _model().generate_until([request])
    assert "6" in text and "9" not in text


def rolling_loglikelihood() -> None:
    (value,) = _model().loglikelihood_rolling([SimpleNamespace(args=("The sky is blue.",))])
    assert value < 0
