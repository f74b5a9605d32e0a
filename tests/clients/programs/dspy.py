"""DSPy.

import dspy
options = {"api_base": "http://localhost:8080/v1", "api_key": "none"}
dspy.configure(lm=dspy.LM("openai/any", **options))
"""

from __future__ import annotations

import dspy
from checks import V1

LM = dspy.LM("openai/any", api_base=V1, api_key="none", max_tokens=300, cache=False, num_retries=0)


def prediction() -> None:
    with dspy.context(lm=LM, adapter=dspy.ChatAdapter()):
        assert dspy.Predict("question -> answer")(question="What is the capital of Italy?").answer


def fields_by_json() -> None:
    with dspy.context(lm=LM, adapter=dspy.JSONAdapter()):
        found = dspy.Predict("text -> name: str, age: int")(text="Ada is 36 years old.")
    assert isinstance(found.age, int) and found.name
