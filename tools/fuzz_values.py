"""Make requests with random fields: plausible ones, spoilt in a few fields by values that no client should send."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

INT_MAX = 2**31 - 1
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 20, 64, 127, 128, 129, 255, 1000, 1024, 1025, 65536, INT_MAX, INT_MAX - 1, INT_MAX + 1),
    *(-INT_MAX, -INT_MAX - 1, 2**32, 2**32 - 1, 2**53, 2**63, 2**63 - 1, -(2**63), 2**64, 2**64 - 1, 10**30, -(10**30)),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 0.1, 1e-9, 1e-45, 1e-320, 1e9, 1e38, 3.5e38, -1e38, 1e308),
    *(float("nan"), float("inf"), float("-inf")),
)
TEXTS = (
    *(
        "",
        " ",
        "a",
        "the self",
        "\n",
        "\0",
        "a\0b",
        "é",
        "😀",
        "\ud800",
        "\udc00x",
        "\u2028",
        "\ufeff",
        "\u202e",
        "%s%n",
    ),
    *(
        "<|im_start|>",
        "<|im_end|>",
        "</s>",
        "<tool_call>",
        "{{ x }}",
        "{% raw %}",
        "../../etc/passwd",
        "-1",
        "5",
        "1e9",
    ),
    *(
        "null",
        "auto",
        "none",
        "required",
        "float",
        "base64",
        "user",
        "data:image/png;base64,AAAA",
        "file:///etc/passwd",
    ),
    *("http://127.0.0.1:1/x", "<__media__>", "json_object", "top_k", "penalties;dry;top_k", "kypmtxisdea"),
)
GRAMMARS = (
    *(
        'root ::= "a"+',
        "root ::= [z-a]",
        "root ::= <[999999999]>",
        r'root ::= "\UFFFFFFFF"',
        "root ::= root",
        "",
        "root",
    ),
    *('root ::= ("a" | "b")*', "root ::= .*", "root ::= [^\\x00-\\xff]", 'root ::= "a"{5,2}', 'root ::= "a"{99999}'),
    *(
        'root ::= ""',
        "root ::= x",
        "root ::= <foo>",
        "root ::= !<[3]>",
        r'root ::= "\x00"',
        "root ::= (",
        "root ::= " + "(" * 300,
    ),
    *(
        "root ::= a\na ::= b\nb ::= a",
        'root ::= "a"\0',
        "root ::= [" + "a" * 500 + "]",
        "root ::= <" + "a" * 50000 + ">",
    ),
)
SCHEMAS: tuple[Any, ...] = (
    *({}, True, False, {"type": "object"}, {"type": "integer"}, {"type": "array", "items": {"type": "integer"}}),
    *(
        {"enum": ["a", 1, None]},
        {"const": "x"},
        {"type": "string", "pattern": "^a+$"},
        {"type": "string", "pattern": "("},
    ),
    *({"$ref": "#"}, {"$ref": "#/nowhere"}, {"$ref": "http://x/"}, {"anyOf": []}, {"type": "nonsense"}, {"type": []}),
    *({"type": "integer", "minimum": -(2**63), "maximum": 2**63}, {"type": "string", "minLength": INT_MAX}),
    *({"type": "array", "items": {}, "minItems": 3000}, {"type": "array", "items": False, "maxItems": -1}),
    *({"properties": {"a": {"type": "null"}}, "required": ["b"]}, {"type": "string", "format": "date"}),
)
BLOCKS = (
    *("text", "input_text", "refusal", "thinking", "reasoning", "redacted_thinking", "tool_use", "server_tool_use"),
    *("tool_result", "web_search_tool_result", "search_result", "tool_reference", "document", "file", "input_file"),
    *("image", "input_image", "message", "function_call", "function_call_output", "custom_tool_call", "mcp_call"),
    *("web_search_call", "local_shell_call", "local_shell_call_output", "compaction", "item_reference", "smell"),
)
BLOCK_FIELDS = (
    *(
        "text",
        "content",
        "source",
        "title",
        "data",
        "url",
        "id",
        "call_id",
        "tool_use_id",
        "name",
        "input",
        "arguments",
    ),
    *(
        "output",
        "summary",
        "role",
        "file",
        "file_data",
        "image_url",
        "action",
        "thinking",
        "refusal",
        "encrypted_content",
    ),
)
SPECULATIVE: tuple[Any, ...] = (
    *(True, False, {}, {"n_max": 4}, {"n_max": 64}, {"n_max": 65}, {"n_min": 5, "n_max": 2}, {"mode": "tree"}),
    *({"mode": "chain", "p_min": 0.5}, {"mode": "off"}, {"mode": "x"}, {"p_min": 2}),
)
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]},
    },
}
SAMPLING = (
    *(
        "temperature",
        "dynatemp_range",
        "dynatemp_exponent",
        "top_k",
        "top_p",
        "min_p",
        "top_n_sigma",
        "xtc_probability",
    ),
    *(
        "xtc_threshold",
        "typical_p",
        "repeat_last_n",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_keep",
    ),
    *(
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
    ),
    *(
        "adaptive_target",
        "adaptive_decay",
        "seed",
        "n_keep",
        "n_discard",
        "n_indent",
        "t_max_predict_ms",
        "id_slot",
        "n",
    ),
    *("min_tokens", "repetition_penalty", "truncate_prompt_tokens"),
    *("n_probs", "logprobs", "top_logprobs", "max_tokens", "n_predict", "n_cmpl", "best_of", "max_completion_tokens"),
    *("speculative.n_max", "speculative.n_min", "speculative.p_min", "reasoning_budget_tokens", "embd_normalize"),
)
FLAGS = (
    *(
        "stream",
        "verbose",
        "timings_per_token",
        "cache_prompt",
        "return_tokens",
        "return_progress",
        "echo",
        "ignore_eos",
    ),
    *("post_sampling_probs", "grammar_lazy", "parallel_tool_calls", "add_generation_prompt", "continue_final_message"),
    *("with_pieces", "add_special", "parse_special", "background", "include_stop_str_in_output", "use_beam_search"),
)


class Fuzzer:
    """Makes requests: the same numbers make the same one."""

    def __init__(self, seed: int, case: int, image: bytes = b""):
        self.rng = random.Random(f"{seed} {case}")
        self._image = image

    def pick(self, options: Sequence[Any]) -> Any:
        """Return one of the options."""
        return self.rng.choice(options)

    def text(self) -> str:
        """Return a text, mostly a short one."""
        kind = self.rng.random()
        if kind < 0.6:
            return str(self.pick(TEXTS))
        if kind < 0.9:
            return "".join(self.rng.choices(string.printable, k=self.rng.randint(1, 40)))
        if kind < 0.97:
            return "".join(chr(self.rng.randint(1, 0x10FFFF)) for _ in range(self.rng.randint(1, 60)))
        return str(self.pick(TEXTS)) * self.pick((100, 5000, 200_000))

    def value(self, depth: int = 0) -> Any:
        """Return any value."""
        kind = self.rng.random()
        if kind < 0.35:
            return self.pick(NUMBERS)
        if kind < 0.65:
            return self.text()
        if kind < 0.75:
            return self.pick((None, True, False))
        if depth > 3:
            return []
        n = self.pick((0, 1, 2, 3, 3, 5, 300)) if depth == 0 else self.rng.randint(0, 3)
        if kind < 0.88:
            return [self.value(depth + 1) for _ in range(n)]
        if kind < 0.99:
            return {self.text(): self.value(depth + 1) for _ in range(n)}
        return self.deep(self.pick((10, 400, 600)))

    def deep(self, n: int) -> Any:
        """Return lists in lists, or objects in objects."""
        value: Any = 1
        for _ in range(n):
            value = [value] if n % 3 else {"a": value}
        return value

    def message(self) -> Any:
        """Return a message of a conversation."""
        kind = self.rng.random()
        if kind < 0.5:
            return {"role": self.pick(("user", "system", "assistant", "tool", "developer")), "content": self.text()}
        if kind < 0.8:
            return {"role": "user", "content": [self.part() for _ in range(self.rng.randint(0, 3))]}
        if kind < 0.9:
            call = {"id": self.text(), "type": "function", "function": {"name": "add", "arguments": self.arguments()}}
            return {"role": "assistant", "content": None, "tool_calls": [call, self.value()][: self.rng.randint(0, 2)]}
        return self.value()

    def arguments(self) -> Any:
        """Return arguments of a tool call."""
        return self.pick(('{"a": "x"}', "{", "", "[" * 1000, {"a": 1}, None, self.text()))

    def part(self) -> Any:
        """Return a part of a message."""
        kind = self.rng.random()
        if kind < 0.4:
            return {"type": "text", "text": self.text()}
        if kind < 0.7:
            return {"type": "image_url", "image_url": {"url": self.image_url()}}
        if kind < 0.8:
            return self.block()
        if kind < 0.9:
            return {"type": "input_audio", "input_audio": {"data": self.text(), "format": "wav"}}
        return self.value()

    def block(self) -> Any:
        """Return a part or an item as agents send them, with some of its fields."""
        block = {"type": self.pick(BLOCKS)}
        for field in self.rng.sample(BLOCK_FIELDS, self.rng.randint(0, 6)):
            block[field] = self.pick((self.text, self.value, self.part, lambda: [self.part()], lambda: None))()
        return block

    def image_url(self) -> Any:
        """Return an image's address: good, spoilt, or none."""
        data = bytearray(self._image)
        if data and self.rng.random() < 0.5:
            for _ in range(self.rng.randint(1, 8)):
                data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        if data and self.rng.random() < 0.2:
            data = data[: self.rng.randrange(len(data))]
        good = "data:image/png;base64," + base64.b64encode(bytes(data)).decode()
        return good if self.rng.random() < 0.7 else self.text()

    def logit_bias(self) -> Any:
        """Return tokens and the numbers added to their logits."""
        pairs = [[self.pick((0, 5, 65, 319, 320, -1, "a", "5")), self.pick((1.5, -100, False, True, None, 1e38))]] * 2
        return self.pick((pairs, [[i, False] for i in range(320)], {"5": -100, "x": 3, "99999": 1}, [[]], [[1, 2, 3]]))

    def likely(self, field: str) -> Any:
        """Return a plausible value of a field, or an extreme one."""
        special: dict[str, Callable[[], Any]] = {
            "prompt": lambda: self.pick(
                (self.text(), [1, 2, 3], ["a", 5, "b"], ["a", "b"], [[1, 2], "x"], [], [-1], [10**9])
            ),
            "stop": lambda: self.pick(
                ("a", ["a", ""], [], ["x"] * 257, ["y" * 20_000], [""], [self.text(), self.text()])
            ),
            "grammar": lambda: self.pick(GRAMMARS),
            "json_schema": lambda: self.pick(SCHEMAS),
            "response_format": lambda: self.pick(
                (
                    {"type": "json_object"},
                    {"type": "json_schema", "json_schema": {"schema": self.pick(SCHEMAS)}},
                    {"type": "x"},
                )
            ),
            "samplers": lambda: self.pick(
                (["top_k"] * 40, ["dry", "xtc", "temperature"], [], ["adaptive_p"], ["infill"], "kypmt")
            ),
            "dry_sequence_breakers": lambda: self.pick((["\n"], ["a" * 100] * 3, [""], ["x"] * 65, [], ["\0"])),
            "logit_bias": self.logit_bias,
            "bad_words": lambda: self.pick(
                (["a"], ["the self", ""], [], ["x"] * 257, ["\0"], [self.text(), self.text()])
            ),
            "stop_token_ids": lambda: self.pick(([5, 6], [], [-1], [10**9], [2**64], list(range(320)), ["a"])),
            "allowed_token_ids": lambda: self.pick(([5, 6], [], [-1], [2**64], list(range(320)), None)),
            "functions": lambda: self.pick(([TOOL["function"]], [{}], [], [5], [{"name": "add", "parameters": None}])),
            "function_call": lambda: self.pick(("auto", "none", {"name": "add"}, {"name": "x"}, {}, 5)),
            "tools": lambda: self.pick(([TOOL], [TOOL] * 3, [], [{}], [{"type": "function"}], [TOOL, self.value()])),
            "tool_choice": lambda: self.pick(
                ("auto", "none", "required", {"type": "function", "function": {"name": "add"}}, {"name": "x"}, "x")
            ),
            "messages": lambda: [self.message() for _ in range(self.rng.randint(0, 4))],
            "input": lambda: self.pick(
                (
                    *(self.text(), [1, 2], ["a", "b"], [], [[1], [2]]),
                    *([self.message() for _ in range(3)], [self.block() for _ in range(5)]),
                )
            ),
            "speculative": lambda: self.pick(SPECULATIVE),
            "stream_options": lambda: self.pick(
                ({}, {"include_usage": True, "continuous_usage_stats": True}, {"include_usage": 5})
            ),
            "response_fields": lambda: self.pick((["content"], ["generation_settings/n_predict"], ["a/b/c"], [])),
            "chat_template_kwargs": lambda: self.pick(
                ({}, {"enable_thinking": False}, {"x": self.value()}, {"messages": 1})
            ),
            "tokens": lambda: self.pick(([1, 2, 3], [], [-1], [10**9], [1.5], ["a"], list(range(320)))),
            "lora": lambda: self.pick(([], [{"id": 0, "scale": 1.0}], [{"id": 0, "scale": 0.0}], [1])),
            "input_extra": lambda: self.pick(([], [{"filename": "a", "text": self.text()}], [{}], [1])),
            "reasoning_effort": lambda: self.pick(("low", "none", "x")),
            "filename": self.text,
        }
        if field in special:
            return special[field]()
        if field in SAMPLING:
            return self.pick(NUMBERS)
        return self.pick((True, False)) if field in FLAGS else self.text()

    def spoil(self, body: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
        """Set some fields to plausible values or to any; perhaps leave some out."""
        for _ in range(self.pick((0, 1, 1, 2, 3, 5, 8))):
            field = self.pick(fields)
            body[field] = self.likely(field) if self.rng.random() < 0.75 else self.value()
        if self.rng.random() < 0.05 and body:
            body.pop(self.pick(list(body)), None)
        return body

    def encode(self, body: Mapping[str, Any]) -> bytes:
        """Encode a request as JSON, perhaps with values that JSON lacks; rarely as invalid JSON."""
        kind = self.rng.random()
        if kind < 0.005:
            return self.rng.randbytes(self.rng.randint(0, 200))
        if kind < 0.01:
            return b"[" * self.pick((5, 1000, 100_000))
        if kind < 0.015:
            return json.dumps(self.value()).encode(errors="replace")
        data = json.dumps(body, ensure_ascii=self.rng.random() < 0.7).encode(errors="surrogatepass")
        if kind < 0.03:
            data = data[: self.rng.randrange(len(data))]
        elif kind < 0.04:
            n = self.pick((600, 20_000))
            strange = self.pick((b"9" * 5000, b"1e99999", b"-0", b"[" * n + b"]" * n, b'{"a":' * n + b"1" + b"}" * n))
            data = data.replace(b": ", b": " + strange + b', "also": ', 1)
        return data
