"""Chat with streaming, as with llama_cpp.Llama.

    python examples/chat.py target.gguf head.gguf

Without arguments the bundled pair answers, which knows Python code and nothing else.
"""

import sys

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.models import bundled_pair


def main() -> None:
    model, head = sys.argv[1:3] if len(sys.argv) > 2 else bundled_pair()
    llm = Eagle3Llama(model, draft_model_path=head, n_ctx=1024, verbose=False)
    messages = [{"role": "system", "content": "Answer in one sentence."}]
    while True:
        try:
            messages.append({"role": "user", "content": input("> ")})
        except EOFError:
            break
        answer = ""
        for chunk in llm.create_chat_completion(messages, stream=True, max_tokens=64):
            piece = chunk["choices"][0]["delta"].get("content", "")
            answer += piece
            print(piece, end="", flush=True)
        messages.append({"role": "assistant", "content": answer})
        print(f"\n[{llm.last_stats}]")
    print(llm.stats)


if __name__ == "__main__":
    main()
