"""`llama-cpp-eagle3 chat`, on a terminal and without one."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.cli.chat_session import ChatSession
from llama_cpp_eagle3.cli.parser import Parser
from llama_cpp_eagle3.cli.sampling_flags import sampling_of
from llama_cpp_eagle3.engine.drafting import Drafting
from loading import load, path_of

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a pair whose drafts are all accepted."""
    from tiny import write_perfect_pair

    folder = tmp_path_factory.mktemp("chat")
    return write_perfect_pair(folder / "target.gguf", folder / "head.gguf")


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, pair: Any, *flags: str, **env: str):
        command = [sys.executable, "-m", "llama_cpp_eagle3", "chat", "-m", path_of(pair[0]), "-md", path_of(pair[1])]
        command += ["--chat-template", TEMPLATE, "-t", "1", "-c", "2048", "--temp", "0", "--spec-draft-n-max", "4"]
        self._ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            [*command, *flags],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "", **env},
        )
        os.close(theirs)
        self.output = ""

    def send(self, text: str) -> None:
        """Type a text."""
        os.write(self._ours, text.encode())

    def wait_for(self, pattern: str, seconds: float = 180.0) -> str:
        """Read until a pattern is written; return all text since the last call."""
        end, new = time.monotonic() + seconds, ""
        while not re.search(pattern, new):
            ready, _, _ = select.select([self._ours], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {pattern!r} in {new!r}"
            try:
                chunk = os.read(self._ours, 65536).decode(errors="replace")
            except OSError:
                chunk = ""
            assert chunk, f"ended, and no {pattern!r} in {new!r}"
            new += chunk
        self.output += new
        return new

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.kill(self.process.pid, signal.SIGINT)

    def interrupt_until(self, pattern: str) -> str:
        """Press Ctrl-C, once more each second until a pattern is written: users do not know how far the program is."""
        for _ in range(30):
            self.interrupt()
            try:
                return self.wait_for(pattern, 1.0)
            except AssertionError:
                continue
        raise AssertionError(f"no {pattern!r} after Ctrl-C")

    def stop(self, text: str) -> None:
        """Send a text, and stop the answer; on a busy machine the answer may have ended before: then once more."""
        for _ in range(10):
            self.send("/clear\n" + text)
            self.wait_for("\x1b\\[36m[^\x1b]+\x1b\\[0m")  # accepted drafted tokens are coloured
            self.interrupt()
            if "(stopped)" in self.wait_for("> $"):
                return
        raise AssertionError("no answer was stopped")

    def close(self, again: Callable[[], None] = lambda: None) -> int:
        """Wait for the end, and read; return the exit code. again: called each second in which nothing is written.

        A Ctrl-C between a prompt and the reading of its answer is noticed with the next one: readline waits for keys.
        """
        for _ in range(60):
            ready, _, _ = select.select([self._ours], [], [], 1.0)
            if not ready:
                again()
                continue
            try:
                chunk = os.read(self._ours, 65536)
                self.output += chunk.decode(errors="replace")
                if not chunk:
                    break
            except OSError:
                break
        os.close(self._ours)
        return self.process.wait(60)


@pytest.fixture
def terminal(pair: Any) -> Iterator[Terminal]:
    terminal = Terminal(pair, "-n", "-1", "--ignore-eos")
    yield terminal
    if terminal.process.poll() is None:
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_on_a_terminal(terminal: Terminal) -> None:
    """Ctrl-C stops only the answer; its text is in the history; commands work; Ctrl-D ends the program."""
    terminal.wait_for("> $")
    terminal.stop("the self\n")
    terminal.send("/stats\n")
    stats = terminal.wait_for("mean acceptance length [^\n]+\n(.|\n)*> $")
    assert "(interrupted)" in stats
    n_first = int(re.search(r"prompt: (\d+) tokens", stats)[1])  # type: ignore[index]
    assert float(re.search(r"length ([0-9.]+)", stats)[1]) > 1.5  # type: ignore[index]
    # the stopped answer is part of the next prompt
    terminal.send("one\\\n")
    terminal.wait_for("\\.\\.\\. $")
    terminal.send("two\n")
    terminal.wait_for("\x1b\\[0m")
    terminal.interrupt()
    terminal.wait_for("> $")
    terminal.send("/stats\n")
    stats = terminal.wait_for("mean acceptance length [^\n]+\n(.|\n)*> $")
    n_second, n_new = map(int, re.search(r"prompt: (\d+) tokens, (\d+) of them", stats).groups())  # type: ignore[union-attr]
    assert n_second > n_first + 4
    assert n_new < n_second  # the beginning was cached
    terminal.send("/clear\n/nope\n/help\n")
    assert "there is no command /nope" in terminal.wait_for("another answer(.|\n)*> $")
    terminal.interrupt_until("Ctrl-C once more")
    terminal.send("\x04")
    # a Ctrl-D before readline has the terminal is lost
    assert terminal.close(again=lambda: terminal.send("\x04")) == 0, terminal.output[-2000:]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_pasted_lines_are_one_message(pair: Any) -> None:
    with closing(load(pair[0])) as llm:
        n_prompt = len(llm.tokenize(b"[user]the\nself\n[assistant]", special=True))
    terminal = Terminal(pair, "-n", "4")
    try:
        terminal.wait_for("> $")
        terminal.send("\x1b[200~the\nself\n\x1b[201~")
        terminal.send("\n")
        terminal.wait_for("\x1b\\[36m(.|\n)*> $")
        terminal.send("/stats\n")
        found = re.search(r"prompt: (\d+) tokens", terminal.wait_for("context: (.|\n)*> $"))
        assert found is not None
        assert int(found[1]) == n_prompt
    finally:
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_the_history_of_messages(pair: Any, tmp_path: Path) -> None:
    """The arrow brings an earlier run's message with all its lines; model, drafter and all commands are named."""
    env = {"LLAMA_CPP_EAGLE3_CACHE": str(tmp_path)}
    first = Terminal(pair, "-n", "4", **env)
    began = first.wait_for("> $")
    assert re.search(r"target\.gguf, context: 2048 tokens, drafts by: eagle3.* \(head\.gguf\)", began)
    first.send("\x1b[200~the\nself\x1b[201~\n")
    first.wait_for("\x1b\\[36m(.|\n)*> $")
    first.send("/help\n")
    said = first.wait_for("--simple-io(.|\n)*> $")
    for name in ("/regen", "/clear", "/stats", "/help", "/exit", "/quit", "-mli", "pasted", "Ctrl-C", "Ctrl-R"):
        assert name in said
    first.send("/exit\n")
    first.close()
    path = tmp_path / "chat_history.jsonl"
    assert path.read_text() == '"the\\nself"\n'
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text() + '"cut\n')
    second = Terminal(pair, "-n", "4", **env)
    second.wait_for("> $")
    second.send("\x1b[A\n")
    second.wait_for("\x1b\\[36m(.|\n)*> $")
    second.send("/stats\n")
    n_prompt = re.search(r"prompt: (\d+) tokens", second.wait_for("context: (.|\n)*> $"))
    second.send("/exit\n")
    second.close()
    with closing(load(pair[0])) as llm:
        assert n_prompt is not None
        assert int(n_prompt[1]) == len(llm.tokenize(b"[user]the\nself[assistant]", special=True))


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_a_history_that_cannot_be_kept(pair: Any, tmp_path: Path) -> None:
    """It is said once, and the chat goes on."""
    (tmp_path / "chat_history.jsonl").mkdir()
    terminal = Terminal(pair, "-n", "4", LLAMA_CPP_EAGLE3_CACHE=str(tmp_path))
    terminal.wait_for("messages are not kept for the next run: .*chat_history(.|\n)*> $")
    terminal.send("the self\n")
    terminal.wait_for("\x1b\\[36m(.|\n)*> $")
    terminal.send("/exit\n")
    terminal.close()
    assert terminal.output.count("not kept") == 1


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_two_interrupts_end(terminal: Terminal) -> None:
    terminal.wait_for("> $")
    terminal.interrupt_until("once more(.|\n)*> $")
    terminal.interrupt()
    # on a busy machine one more may come while the model is closed, after Python has let go of Ctrl-C
    assert terminal.close(again=terminal.interrupt) in (0, -signal.SIGINT)


def run(pair: Any, *flags: str, stdin: str = "") -> tuple[int, str, str]:
    """Run the command without a terminal."""
    import contextlib
    import io

    from llama_cpp_eagle3.cli import main

    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(["chat", "-m", path_of(pair[0]), "-md", path_of(pair[1]), "-t", "1", "-c", "512", *flags])
    return code, out.getvalue(), err.getvalue()


def test_stats_say_what_drafts_brought(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafting, "plain_tokens_per_second", 10.0)
    flags = ("--chat-template", TEMPLATE, "-n", "8", "--temp", "0", "--spec-draft-n-max", "2")
    found = re.search(
        r"([0-9.]+) tokens/s, ([0-9.]+) times plain decoding", run(pair, *flags, stdin="the\n/stats\n")[1]
    )
    assert found is not None
    assert float(found[2]) == pytest.approx(float(found[1]) / 10, abs=0.02)
    # nor is there anything to compare where costs are not measured
    monkeypatch.setattr(Drafting, "plain_tokens_per_second", None)
    assert "times plain" not in run(pair, *flags, stdin="the\n/stats\n")[1]


def test_without_a_terminal(pair: Any) -> None:
    flags = ("--chat-template", TEMPLATE, "-n", "8", "--temp", "0", "--spec-draft-n-max", "2")
    code, out, err = run(pair, *flags, stdin="the self\n/regen\n/stats\n/exit\nnever")
    assert code == 0
    first, second, *stats = out.strip().split("\n\n")
    assert first == second != ""  # greedy
    assert "8 tokens (length)" in stats[0]
    assert "\x1b" not in out
    assert "ChatML" not in err
    assert run(pair, *flags, "-p", "the self", "-st")[1].strip() == f"> the self\n{first}"
    # -mli: a line is a message unless it ends with a backslash
    code, other, _ = run(pair, *flags, "-mli", "-sys", "be", stdin="the\nself\\\n/stats\n")
    assert code == 0
    lengths = [int(re.search(r"prompt: (\d+) tokens", text)[1]) for text in (out, other)]  # type: ignore[index]
    assert lengths[1] > lengths[0] + 2
    # sampled answers differ, also with a seed
    sampled = (
        run(pair, *flags, "--temp", "99", "--min-p", "0", "--top-p", "1", "-s", "5", stdin="the self\n/regen\n")[1]
        .strip()
        .split("\n\n")
    )
    assert len(set(sampled)) == 2


def test_a_base_model_goes_on_with_a_text(pair: Any, tmp_path: Path) -> None:
    """Without a chat template the lines and the model's text are one text; an empty line continues it."""
    from tiny import without_template

    base = without_template(pair[0], tmp_path / "base.gguf")
    flags = ("-n", "6", "--temp", "0", "--spec-draft-n-max", "2")
    code, out, err = run((base, pair[1]), *flags, stdin="\nthe self\n\n self\n")
    assert code == 0
    assert "no chat template: it continues the text that you type" in err
    first, second, third = out.removesuffix("\n\n").split("\n\n")
    with closing(load(base)) as llm:
        text = ""
        for line, added in (("the self", first), ("", second), (" self", third)):
            text += line
            tokens = llm.generate(llm.tokenize(text.encode(), special=True), temp=0)
            expected = llm.detokenize([next(tokens) for _ in range(6)]).decode(errors="replace")
            assert added == expected
            text += added
    code, _, err = run((base, pair[1]), *flags, "--chat-template", "chatml", stdin="the self\n")
    assert code == 0
    assert "no chat template" not in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-no-cnv"], "a chat is a conversation"),
        (["-st"], "--single-turn needs a message"),
        (["-sys", "a", "-sysf", "b"], "-sys and -sysf exclude"),
        (["-p", "a", "-f", "b"], "-p and -f exclude"),
        (["--chat-template", "{% bad"], "error"),
        (["--chat-template-file", os.devnull], f"expected a template in '{os.devnull}', found no text"),
        (["--grammar", "root ::= x"], "Undefined rule identifier 'x'"),
    ],
    ids=str,
)
def test_errors(flags: list[str], message: str, pair: Any) -> None:
    code, _, err = run(pair, *flags, stdin="hello\n")
    assert message in err
    assert "Traceback" not in err
    assert code == 2


def test_a_failed_turn_does_not_end_the_conversation(pair: Any) -> None:
    code, out, err = run(pair, "--temp", "0", "-n", "2", stdin=f"{'a ' * 2000}\nhello\n")
    assert code == 0
    assert "error" in err
    assert out.strip()


def test_a_single_turn_that_fails(pair: Any) -> None:
    assert run(pair, "-st", "-p", "a " * 2000)[0] == 1
    assert run(pair, "-st", "-p", "a", "-n", "2")[0] == 0


def test_texts_of_a_locale_without_their_characters(pair: Any) -> None:
    """Python keeps what the C locale cannot read as halves of characters; they are the bytes that were typed."""
    halves = "größe 😀".encode().decode("ascii", errors="surrogateescape")
    flags = ("--temp", "0", "-n", "4", "-st")
    assert run(pair, *flags, "-p", halves, "-sys", halves) == run(pair, *flags, "-p", "größe 😀", "-sys", "größe 😀")
    with pytest.raises(SystemExit):
        run(pair, *flags, "-p", "\udcff")


def sampling(*flags: str) -> Any:
    from llama_cpp_eagle3.cli.chat import add_arguments

    parser = Parser("prog")
    add_arguments(parser)
    return sampling_of(parser.parse_args(["--temp", "0", *flags]))


def test_conversation(pair: Any) -> None:
    """A conversation has turns, errors, a stop string and a schema."""
    from llama_cpp_eagle3.chat import ChatTemplates

    with closing(load(pair[0], pair[1], n_ctx=128)) as llm:
        templates = ChatTemplates(llm.model_address, TEMPLATE)
        talk = ChatSession(llm, templates, sampling(), system="sys", n_predict=6)
        text = "".join(piece.text for piece in talk.send("the self"))
        assert [m["role"] for m in talk.messages] == ["system", "user", "assistant"]
        assert talk.messages[-1]["content"] == text
        assert talk.finish_reason == "length"
        before = list(talk.messages)
        with pytest.raises(ValueError, match="begin anew with /clear"):
            list(talk.send("self " * 200))
        assert talk.messages == before
        stopped = ChatSession(llm, templates, sampling(), system="sys", n_predict=6, stop=[text[2:4]])
        assert "".join(piece.text for piece in stopped.send("the self")) == text[: text.index(text[2:4])]
        assert stopped.finish_reason == "stop"
        schema = ChatSession(llm, templates, replace(sampling(), grammar='root ::= "ab" "c"'))
        assert "".join(piece.text for piece in schema.send("the self")) == "abc"
        schema.clear()
        with pytest.raises(ValueError, match="no answer to drop"):
            list(schema.say_again())


@pytest.mark.parametrize(("flags", "is_full"), [(["-n", "-1"], True), (["-n", "4"], False), (["-n", "4000"], True)])
def test_a_full_context_is_said(pair: Any, flags: list[str], is_full: bool) -> None:
    more = ("--chat-template", TEMPLATE, "--ignore-eos", "-c", "256", "-p", "the self", "-st")
    code, out, _ = run(pair, *more, *flags, "--spec-draft-n-max", "2")
    assert code == 0
    assert ("\n(the context is full, 256 tokens: /clear begins anew, a larger -c makes room)" in out) == is_full


def test_an_answer_that_is_left_stays(pair: Any) -> None:
    from llama_cpp_eagle3.chat import ChatTemplates

    with closing(load(pair[0], pair[1], n_ctx=256)) as llm:
        talk = ChatSession(llm, ChatTemplates(llm.model_address, TEMPLATE), sampling("--ignore-eos"))
        answer: Any = talk.send("the self")
        text = "".join(next(answer).text for _ in range(5))
        answer.close()
        assert talk.finish_reason == "interrupted"
        assert talk.messages[-1]["content"].startswith(text)
        assert list(talk.send("more"))


def test_readme_names_it() -> None:
    assert "llama-cpp-eagle3 chat" in (Path(__file__).parents[2] / "README.md").read_text()
