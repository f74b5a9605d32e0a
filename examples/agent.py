"""An agent that calls tools until it is done. Each of its turns is a call whose arguments fit their schema.

    python examples/agent.py [model.gguf [draft.gguf]]

The bundled pair, which answers without arguments, knows Python code and nothing else: its calls are valid, not wise.
"""

import json
import sys
from pathlib import Path
from typing import Any

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.models import bundled_pair

FOLDER = Path(__file__).parent
N_TURNS_MAX = 4


def tool(name: str, description: str, **arguments: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": arguments, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool("list_files", "List the examples"),
    tool("read_file", "Read the first lines of a file", path={"enum": sorted(p.name for p in FOLDER.glob("*.py"))}),
    tool("done", "Give the answer", answer={"type": "string", "maxLength": 200}),
]


def call(name: str, arguments: dict[str, str]) -> str:
    if name == "list_files":
        return "\n".join(sorted(p.name for p in FOLDER.glob("*.py")))
    return "\n".join((FOLDER / arguments["path"]).read_text(encoding="utf-8").splitlines()[:5])


def main() -> None:
    model, draft = [*sys.argv[1:3], None, None][:2] if len(sys.argv) > 1 else bundled_pair()
    llm = Eagle3Llama(model, draft_model_path=draft, n_ctx=1024, chat_format="auto", verbose=False)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Which example shows how requests join a batch?"}]
    for _ in range(N_TURNS_MAX):
        answer = llm.create_chat_completion(
            messages, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, temperature=0.0
        )
        message = answer["choices"][0]["message"]
        asked = message["tool_calls"][0]
        function = asked["function"]
        print(f"{function['name']}({function['arguments']})  [{llm.last_stats}]")
        if function["name"] == "done":
            break
        result = call(function["name"], json.loads(function["arguments"]))
        messages += [message, {"role": "tool", "tool_call_id": asked["id"], "content": result}]


if __name__ == "__main__":
    main()
