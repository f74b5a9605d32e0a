"""Files of conversations, in the shapes that datasets and other trainers have."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3 import Eagle3Error
from llama_cpp_eagle3_heads.train.conversations import read_prompts

Q, A = "How high is the tower?", "About 50 m.\nRoughly."


def _asked(text: str, system: str = "") -> dict[str, Any]:
    before = [{"role": "system", "content": system}] if system else []
    return {"messages": [*before, {"role": "user", "content": text}]}


SYSTEM = {"from": "system", "value": "Be short."}
USER, GPT = {"from": "human", "value": Q}, {"from": "gpt", "value": A}
ASK, ANSWER = {"role": "user", "content": Q}, {"role": "assistant", "content": A}
SHAPES: dict[str, tuple[Any, Any]] = {
    "messages": ({"messages": [ASK, ANSWER]}, _asked(Q)),
    "batch": ({"custom_id": "1", "body": {"messages": [ASK]}}, _asked(Q)),
    "text in batch": ({"body": {"prompt": Q}}, _asked(Q)),
    "list": ([ASK, ANSWER], _asked(Q)),
    "sharegpt": ({"id": "x", "conversations": [USER, GPT]}, _asked(Q)),
    "sharegpt, system": ({"system": "Be short.", "conversations": [USER, GPT]}, _asked(Q, "Be short.")),
    "sharegpt, two turns": (
        {"conversations": [SYSTEM, USER, GPT, {"from": "user", "value": "Why?"}, GPT]},
        {"messages": [{"role": "system", "content": "Be short."}, ASK, ANSWER, {"role": "user", "content": "Why?"}]},
    ),
    "conversations, roles": ({"conversations": [ASK, ANSWER]}, _asked(Q)),
    "conversation": ({"conversation": [ASK, ANSWER], "language": "English"}, _asked(Q)),
    "alpaca": ({"instruction": Q, "input": "", "output": A, "text": f"### {Q} {A}"}, _asked(Q)),
    "alpaca, input": ({"instruction": "Sum up.", "input": Q, "output": A}, _asked(f"Sum up.\n\n{Q}")),
    "dolly": ({"instruction": "Sum up.", "context": Q, "response": A}, _asked(f"Sum up.\n\n{Q}")),
    "question": ({"question": Q, "answer": A}, _asked(Q)),
    "orca": ({"system_prompt": "Be short.", "question": Q, "response": A}, _asked(Q, "Be short.")),
    "completion": ({"prompt": Q, "completion": A}, _asked(Q)),
    "completion, turns": ({"prompt": [ASK], "completion": [ANSWER]}, _asked(Q)),
    "preference": ({"chosen": [ASK, ANSWER], "rejected": [ASK, ANSWER]}, _asked(Q)),
    "query": ({"query": Q, "response": A}, _asked(Q)),
    "mt-bench": ({"question_id": 81, "turns": [Q, "Why?"]}, _asked(Q)),
    "plain": (Q, _asked(Q)),
    "recorded": ({"text": Q}, Q),
}


def _write(path: Path, records: list[Any]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        path.write_text(json.dumps(records, indent=1 if "pretty" in path.name else None))
    return path


@pytest.mark.parametrize("name", ["lines.jsonl", "array.json", "pretty.json"])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(tmp_path: Path, shape: str, name: str) -> None:
    """Each shape gives its question and the turns before, and never an answer."""
    record, expected = SHAPES[shape]
    assert list(read_prompts(_write(tmp_path / name, [record, record]))) == [expected] * 2


def test_tools_as_text(tmp_path: Path) -> None:
    """LLaMA-Factory writes the tools of a conversation as JSON in a text, and a tool's turns under its own names."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    turns = [USER, {"from": "function_call", "value": "f()"}, {"from": "observation", "value": "50"}, GPT]
    (found,) = read_prompts(_write(tmp_path / "a.jsonl", [{"conversations": turns, "tools": json.dumps(tools)}]))
    assert isinstance(found, dict)
    assert found["tools"] == tools
    assert [message["role"] for message in found["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("name", ["lines.txt", "array.txt", "data.data"])
def test_json_under_another_name(tmp_path: Path, name: str) -> None:
    """A JSON file is no list of questions, whatever its name is."""
    record = {"question": Q, "answer": A}
    text = json.dumps([record, record]) if "array" in name else f"{json.dumps(record)}\n" * 2
    (tmp_path / name).write_text(text)
    assert list(read_prompts(tmp_path / name)) == [_asked(Q)] * 2


def test_text_with_braces(tmp_path: Path) -> None:
    """A question that begins like JSON is a question."""
    (tmp_path / "a.txt").write_text("[1, 2 what comes next?\n\n{x} is what?\n")
    assert list(read_prompts(tmp_path / "a.txt")) == [_asked("[1, 2 what comes next?"), _asked("{x} is what?")]


def test_an_object_around_an_array(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"question": Q}, {"question": "Why?"}]}))
    assert list(read_prompts(tmp_path / "a.json")) == [_asked(Q), _asked("Why?")]


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ","), (".tsv", "\t")])
def test_tables(tmp_path: Path, suffix: str, mark: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_text(mark.join(("id", "instruction", "input", "output")) + f'\n1{mark}Sum up.{mark}"a\n""b"""{mark}c\n')
    assert list(read_prompts(path)) == [_asked('Sum up.\n\na\n"b"')]


def test_a_table_of_a_mac(tmp_path: Path) -> None:
    """Lines end by a lone return, which stands in quoted fields too."""
    (tmp_path / "a.csv").write_bytes(b'question,answer\rone,x\r"two\rlines",y\r')
    assert list(read_prompts(tmp_path / "a.csv")) == [_asked("one"), _asked("two\nlines")]


def test_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n\n Instruction ;Output\none;x\n")
    assert list(read_prompts(tmp_path / "a.csv")) == [_asked("one")]


def test_a_quote_that_is_not_closed(tmp_path: Path) -> None:
    """It takes the rest of the file, which would be one question."""
    (tmp_path / "a.csv").write_text('question,answer\none,x\n"two,y\n' + "three,z\n" * 9)
    left_out: list[str] = []
    assert list(read_prompts(tmp_path / "a.csv", left_out)) == [_asked("one")]
    assert left_out == [f"'{tmp_path / 'a.csv'}', record 2: a quote in it is not closed: it takes all lines after it"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_half_of_an_emoji(tmp_path: Path, name: str) -> None:
    """No tokenizer takes it: what is missing has a mark."""
    records = ['{"messages": [{"role": "user", "content": "a\\ud83d"}]}', '{"prompt": "b\\ude00"}']
    text = "\n".join(records) if name == "a.jsonl" else f"[{','.join(records)}]"
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert list(read_prompts(tmp_path / name)) == [_asked("a\ufffd"), _asked("b\ufffd")]


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(Eagle3Error, match=r"a\.parquet' is a Parquet file, which needs pyarrow: pip install"):
        list(read_prompts(tmp_path / "a.parquet"))


def test_no_question(tmp_path: Path) -> None:
    """A conversation without a user's turn is left out, and the others are not."""
    records = [{"conversations": [GPT]}, {"conversations": []}, {"question": " "}, {"question": Q}]
    left_out: list[str] = []
    path = _write(tmp_path / "a.jsonl", records)
    assert list(read_prompts(path, left_out)) == [_asked(Q)]
    assert left_out == [
        f"'{path}', line 1: it has no user's turn",
        f"'{path}', line 2: its conversations are empty",
        f"'{path}', line 3: its question is empty",
    ]


BAD = {
    "expected messages, .*; found an object with dialog (an array of 2), n (a number)": {"dialog": ["a", "b"], "n": 1},
    "expected messages, .*; found an object with question (a number)": {"question": 1},
    "expected messages, .*; found an object with conversations (null)": {"conversations": None},
    "expected messages, .*; found an object with rows (an array of an object with q (a text))": {"rows": [{"q": "x"}]},
    "expected an object or a text, found an array of 2": ["a", "b"],
    "expected an object or a text, found null": None,
    "it has no user's turn; expected turns of human, .*; found 'narrator'": {"messages": [{"role": "narrator"}]},
    "expected a text as a turn's content, found a number": {"messages": [{"role": "user", "content": 5}]},
}


@pytest.mark.parametrize("said", BAD)
def test_one_bad_record(tmp_path: Path, said: str) -> None:
    """It is left out; the reason names the shape that was found, and its position."""
    path = _write(tmp_path / "a.jsonl", [{"question": Q}, BAD[said], {"question": Q}])
    left_out: list[str] = []
    assert list(read_prompts(path, left_out)) == [_asked(Q)] * 2
    assert len(left_out) == 1
    assert re.search(r"a\.jsonl', line 2: " + said.replace("(", r"\(").replace(")", r"\)"), left_out[0])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"question": ', "Expecting value"),
        (b"oops", "Expecting value"),
        (b'{"question": "caf\xe9"}', "expected text in UTF-8, found the byte 0xe9"),
        (b"[" * 100_000, "maximum recursion depth"),
        (b'{"text": ""}', "its text is empty"),
    ],
)
def test_damaged_lines(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    good = json.dumps({"question": Q}).encode()
    path.write_bytes(b"\n".join([good, line, good]))
    left_out: list[str] = []
    assert list(read_prompts(path, left_out)) == [_asked(Q)] * 2
    assert len(left_out) == 1
    assert f"a.jsonl', line 2: {said}" in left_out[0]


def test_a_damaged_array(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(
        b'[{"question": "one"}, {"messages": [{"role": "user", "content": "caf\xe9"}]}, {"question": "two"}]'
    )
    left_out: list[str] = []
    assert list(read_prompts(tmp_path / "a.json", left_out)) == [_asked("one"), _asked("two")]
    assert left_out == [f"'{tmp_path / 'a.json'}', record 2: expected text in UTF-8, found the byte 0xe9"]


def test_roles(tmp_path: Path) -> None:
    """An unknown role ends a conversation after a question, and is skipped before; both are said."""
    turns = [{"role": "Narrator", "content": "Once."}, ASK, {"role": "critic", "content": "Good."}, ANSWER, ASK]
    left_out: list[str] = []
    assert list(read_prompts(_write(tmp_path / "a.jsonl", [{"messages": turns}]), left_out)) == [_asked(Q)]
    assert [re.findall("'(Narrator|critic)'", text) for text in left_out] == [["Narrator"], ["critic"]]


@pytest.mark.parametrize(
    ("name", "role"),
    [("ipython", "tool"), ("function-response", "tool"), ("Tool_Response", "tool"), ("environment", "tool"),
     ("tool_call", "assistant"), ("Bot", "assistant"), ("AI", "assistant")],
)  # fmt: skip
def test_names_of_roles(tmp_path: Path, name: str, role: str) -> None:
    turns = [USER, {"from": name, "value": "x"}, {"from": "USER", "value": "Why?"}]
    (found,) = read_prompts(_write(tmp_path / "a.jsonl", [{"conversations": turns}]))
    assert isinstance(found, dict)
    assert [message["role"] for message in found["messages"]] == ["user", role, "user"]


def test_calls_as_text(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [ASK, {"role": "assistant", "content": None, "tool_calls": json.dumps([call])}, ASK]
    left_out: list[str] = []
    path = _write(tmp_path / "a.jsonl", [{"messages": turns, "tools": "f(): does it"}])
    (found,) = read_prompts(path, left_out)
    assert isinstance(found, dict)
    assert found["messages"][1]["tool_calls"] == [call]
    assert "tools" not in found
    assert left_out == [f"'{path}', record 1: its tools are left out, as they are no JSON: 'f(): does it'"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "semi.csv", "tab.csv", "A.JSONL", "a.txt"])
@pytest.mark.parametrize("packer", ["", ".gz", ".bz2", ".XZ"])
def test_files_of_windows_and_packed_ones(tmp_path: Path, name: str, packer: str) -> None:
    """Long fields, CRLF, a byte order mark, ; or a tab between columns, packed files."""
    long = "long text " * 20_000
    mark = {"a.tsv": "\t", "tab.csv": "\t", "semi.csv": ";"}.get(name, ",")
    if name.endswith("sv"):
        text = f"instruction{mark}input{mark}output\r\n{Q}{mark}{mark}{long}\r\n"
    else:
        record = {"question": Q, "answer": long}
        text = Q if name == "a.txt" else json.dumps([record] if name == "a.json" else record)
    data = b"\xef\xbb\xbf" + f"{text}\r\n\r\n".encode()
    path = tmp_path / (name + packer)
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".XZ": lzma.compress}.get(packer, bytes)
    path.write_bytes(pack(data))
    assert list(read_prompts(path)) == [_asked(Q)]


def test_utf_16_without_its_mark(tmp_path: Path) -> None:
    """Nobody trains on a letter and a NUL in turn."""
    (tmp_path / "a.txt").write_bytes(f"{Q}\n".encode("utf-16-le"))
    left_out: list[str] = []
    assert list(read_prompts(tmp_path / "a.txt", left_out)) == []
    assert "expected text in UTF-8, found the byte 0x0" in left_out[0]


def test_lines_are_read_one_after_another(tmp_path: Path) -> None:
    """A file takes the memory of a line."""
    path = tmp_path / "a.jsonl"
    with path.open("w") as file:
        for i in range(200):
            file.write(json.dumps({"question": f"{i} {'x' * 100_000}"}) + "\n")
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_prompts(path)) == 200
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
