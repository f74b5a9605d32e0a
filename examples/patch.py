"""A patch by a grammar in Lark, which a custom tool takes: whatever the model writes, it can be applied.

    python examples/patch.py [model.gguf [draft.gguf]]

The bundled pair, which answers without arguments, knows Python code and nothing else: its patch is valid, not wise.
"""

import json
import sys

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.models import bundled_pair

FILE = """\
class Stack:
    def push(self, item):
        self.items.append(item)
    def pop(self):
        return self.items.pop(0)
"""


def grammar() -> str:
    """A patch replaces one of the lines that there are, so it names no other."""
    lines = " | ".join(json.dumps(f"-{line}") for line in FILE.splitlines())
    return f"""
        start: "*** stack.py\\n" removed "\\n" added
        removed: {lines}
        added: "+" /[ -~]{{1,60}}/
    """


def apply(patch: str) -> str:
    _, removed, added = patch.split("\n")
    return FILE.replace(f"{removed[1:]}\n", f"{added[1:]}\n", 1)


def main() -> None:
    model, draft = [*sys.argv[1:3], None, None][:2] if len(sys.argv) > 1 else bundled_pair()
    llm = Eagle3Llama(model, draft_model_path=draft, n_ctx=1024, chat_format="auto", verbose=False)
    lark = {"syntax": "lark", "definition": grammar()}
    tool = {"name": "apply_patch", "description": "Replace a line", "format": {"type": "grammar", "grammar": lark}}
    answer = llm.create_chat_completion(
        [{"role": "user", "content": f"pop() must return what was pushed last. Mend this:\n\n{FILE}"}],
        tools=[{"type": "custom", "custom": tool}],
        tool_choice={"type": "custom", "custom": {"name": "apply_patch"}},
        temperature=0.0,
    )
    patch = answer["choices"][0]["message"]["tool_calls"][0]["custom"]["input"]
    print(f"{patch}\n\n{apply(patch)}\n[{llm.last_stats}]")


if __name__ == "__main__":
    main()
