"""Saved slots are exact, have the head's part, and lie only in the folder."""

from __future__ import annotations

import hashlib
import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_cpp_eagle3.files.prefix_file import MAGIC
from random_arch import write_random_arch
from serving import Running
from tiny import write_head

FIRST = {"prompt": "the self returned another list of words", "n_predict": 30, "temperature": 0.0}
SAMPLED = {"temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7}


def go_on(running: Running, id_slot: int) -> Any:
    text = running.ask("/completion", {**FIRST, "id_slot": id_slot})["content"]
    return running.ask("/completion", {**FIRST, "prompt": FIRST["prompt"] + text, "id_slot": id_slot})


def test_save_restore_erase(running: Running) -> None:
    for i in (0, 1):
        running.post(f"/slots/{i}?action=erase")
    answer = running.ask("/completion", {**FIRST, "id_slot": 1})
    assert answer["id_slot"] == 1
    n_held = answer["timings"]["prompt_n"] + 30 - 1
    saved = running.ask("/slots/1?action=save", {"filename": "one.bin"})
    assert saved["n_saved"] == n_held
    assert saved["n_written"] == (running.server.options.slot_save_path / "one.bin").stat().st_size
    restored = running.ask("/slots/0?action=restore", {"filename": "one.bin"})
    assert (restored["n_restored"], restored["n_read"]) == (n_held, saved["n_written"])
    longer = {**FIRST, "prompt": FIRST["prompt"] + answer["content"], "id_slot": 0}
    answer = running.ask("/completion", longer)
    assert answer["timings"]["cache_n"] >= n_held - 1
    # the head has read all of it: its drafts stay right
    assert answer["timings"]["draft_n_accepted"] == answer["timings"]["draft_n"] > 0
    assert running.ask("/slots/0?action=erase", {})["n_erased"] > n_held
    for i in range(running.server.n_slots):  # other slots hold the same
        running.ask(f"/slots/{i}?action=erase", {})
    assert running.ask("/completion", {**longer, "id_slot": 0})["timings"]["cache_n"] == 0


def test_a_slot_that_is_busy(running: Running) -> None:
    """A busy slot is saved when it is free, even if no request follows."""
    long = {**FIRST, "n_predict": 150, "id_slot": 0, "stream": True, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        with running.client.stream("POST", "/completion", json=long) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            saved = pool.submit(running.ask, "/slots/0?action=save", {"filename": "busy"})
            assert sum(line.startswith("data: ") for line in lines) == 150
        assert saved.result(120)["n_saved"] > 150


def test_saves_to_one_name_at_once(running: Running) -> None:
    """The file is one of them, as a whole."""
    for i in (0, 1):
        running.ask("/completion", {**FIRST, "prompt": FIRST["prompt"] * (1 + i), "n_predict": 4, "id_slot": i})
    with ThreadPoolExecutor(8) as pool:
        saves = [
            pool.submit(running.ask, f"/slots/{i % 2}?action=save", {"filename": "one-name.bin"}) for i in range(400)
        ]
        sizes = {save.result()["n_written"] for save in saves}
    folder = running.server.options.slot_save_path
    assert len(sizes) == 2
    assert (folder / "one-name.bin").stat().st_size in sizes
    assert not list(folder.glob(".one-name*"))
    running.ask("/slots/0?action=restore", {"filename": "one-name.bin"})


@pytest.mark.parametrize("how", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_after_a_restart(pair: Any, tmp_path: Path, how: dict[str, Any]) -> None:
    options = {"slot_save_path": tmp_path}
    with Running(*pair, draft_n_max=4, options=options) as running:
        first = running.ask("/completion", {**FIRST, **how, "id_slot": 0})
        running.ask("/slots/0?action=save", {"filename": "saved"})
        body = {**FIRST, **how, "prompt": FIRST["prompt"] + first["content"] + "x", "id_slot": 0, "n_probs": 2}
        expected = running.ask("/completion", body)
    with Running(*pair, draft_n_max=4, options=options) as running:
        running.ask("/slots/1?action=restore", {"filename": "saved"})
        found = running.ask("/completion", {**body, "id_slot": 1})
    with Running(pair[0]) as running:  # without head or slot
        body.pop("id_slot")
        assert running.ask("/completion", body)["content"] == expected["content"]
        other = running.ask("/completion", {**body, "seed": 8})["content"]
        assert (other == expected["content"]) == (not how)
    for key in ("content", "completion_probabilities"):
        assert found[key] == expected[key]
    for key in ("cache_n", "prompt_n", "draft_n", "draft_n_accepted"):
        assert found["timings"][key] == expected["timings"][key]


def test_another_pair(pair: Any, tmp_path: Path) -> None:
    target, _ = pair
    other = write_head(tmp_path / "other.gguf", target)
    options = {"slot_save_path": tmp_path}
    with Running(*pair, options=options) as running:
        running.ask("/completion", {**FIRST, "id_slot": 0})
        running.ask("/slots/0?action=save", {"filename": "saved"})
    with Running(target, other, options=options) as running:
        response = running.post("/slots/0?action=restore", {"filename": "saved"})
        assert response.status_code == 400
        assert "another draft" in response.json()["error"]["message"]
        assert running.ask("/completion", FIRST)["content"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\x00b", "x" * 300, None, 5, ["a"]]
)
def test_names(running: Running, name: Any) -> None:
    for action in ("save", "restore"):
        response = running.post(f"/slots/0?action={action}", {"filename": name})
        assert response.status_code == 400
        assert "filename" in response.json()["error"]["message"]


def test_files(running: Running, tmp_path: Path) -> None:
    folder = running.server.options.slot_save_path
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (folder / "link").symlink_to(secret)
    running.ask("/completion", {**FIRST, "id_slot": 0})
    running.ask("/slots/0?action=save", {"filename": "good"})
    good = (folder / "good").read_bytes()
    (folder / "short").write_bytes(good[:-1])
    (folder / "other").write_bytes(b"GGUF" + good)
    (folder / "header").write_bytes(good[:14] + b"\xff\xff\xff\x7f" + good[18:])
    for name in ("link", "short", "other", "header", "missing"):
        response = running.post("/slots/0?action=restore", {"filename": name})
        assert response.status_code == 400, name
        assert "secret" not in response.text
    (folder / "folder").mkdir()
    for name in ("link", "folder"):
        assert running.post("/slots/0?action=save", {"filename": name}).status_code == 400
    assert secret.read_text() == "secret"
    for path, body in (("/slots/9?action=erase", {}), ("/slots/x?action=erase", {}), ("/slots/0?action=what", {})):
        assert running.post(path, body).status_code == 400


def seal(data: bytes) -> bytes:
    """Return the data with its checksum."""
    return data + hashlib.sha256(data).digest()


def test_spoilt_files(running: Running) -> None:
    """Any changed byte is noticed before anything is loaded."""
    folder = running.server.options.slot_save_path
    running.ask("/completion", {**FIRST, "id_slot": 0})
    running.ask("/slots/0?action=save", {"filename": "sound"})
    sound = (folder / "sound").read_bytes()
    assert seal(sound[:-32]) == sound
    rng = np.random.default_rng(0)
    for i in [*rng.integers(0, len(sound), 30).tolist(), len(sound) - 1]:
        spoilt = bytearray(sound)
        spoilt[i] ^= 1 << int(rng.integers(8))
        (folder / "spoilt").write_bytes(spoilt)
        response = running.post("/slots/0?action=restore", {"filename": "spoilt"})
        assert response.status_code == 400, i
    # nothing was changed: the slot still holds its text
    assert running.ask("/completion", {**FIRST, "id_slot": 0})["timings"]["cache_n"] > 0


def header_of(data: bytes) -> tuple[dict[str, Any], int]:
    """Return (the header's JSON, the offset of the target's bytes)."""
    begin = len(MAGIC) + 4
    end = begin + struct.unpack_from("<I", data, len(MAGIC))[0]
    header = json.loads(data[begin:end])
    return header, end + 4 * header["n_tokens"] + 32


def fill_with_nan(data: bytes) -> bytes:
    """Fill the end of the target's state with NaN: values of cells of the last layer, and no numbers around them."""
    header, begin = header_of(data)
    end = begin + header["n_target"]
    first = end - header["n_target"] // 128 * 2
    last = end - 64
    nan = b"\xff" * (last - first)  # NaN in any float type
    return data[:first] + nan + data[last:-32]


def test_nan_in_a_state(pair: Any, tmp_path: Path, caplog: Any) -> None:
    """A request that meets NaN is evaluated again, and no other request on any slot changes."""
    with Running(*pair, draft_n_max=4, options={"slot_save_path": tmp_path}) as running:
        expected = {i: running.ask("/completion", {**FIRST, "id_slot": i}) for i in (0, 1)}
        running.ask("/slots/0?action=save", {"filename": "sound"})
        damaged = fill_with_nan((tmp_path / "sound").read_bytes())
        (tmp_path / "nan").write_bytes(seal(damaged))
        body = {**FIRST, "prompt": FIRST["prompt"] + expected[0]["content"], "id_slot": 0}
        for temperature in (0.0, 1.0):
            running.ask("/slots/0?action=restore", {"filename": "sound"})
            text = running.ask("/completion", {**body, "temperature": temperature})["content"]
            running.ask("/slots/0?action=restore", {"filename": "nan"})
            caplog.clear()
            assert running.ask("/completion", {**body, "temperature": temperature})["content"] == text
            assert "no numbers" in caplog.text
            for i in (0, 1):
                found = running.ask("/completion", {**FIRST, "id_slot": i})
                assert found["content"] == expected[i]["content"]
                assert found["timings"]["draft_n_accepted"] == found["timings"]["draft_n"] > 0
        # refused in the middle: NaN is in the cells already, then the head's part is invalid
        n_draft = header_of(damaged)[0]["n_draft"]
        (tmp_path / "refused").write_bytes(seal(damaged[:-n_draft] + b"x" * n_draft))
        assert running.post("/slots/0?action=restore", {"filename": "refused"}).status_code == 400
        found = running.ask("/completion", {**FIRST, "id_slot": 0})
        assert (found["content"], found["timings"]["cache_n"]) == (expected[0]["content"], 0)


@pytest.mark.parametrize("cpu_kernels", ["on", "off"])
def test_nan_in_cells_of_others(tiny_target: Any, tmp_path: Path, cpu_kernels: str) -> None:
    """Without flash attention masked cells are multiplied: another request has its own text all the same."""
    how = {"kv_unified": True, "flash_attn": False, "type_k": 1, "type_v": 1, "cpu_kernels": cpu_kernels}
    with Running(tiny_target, options={"slot_save_path": tmp_path}, **how) as running:
        body = {"prompt": [40 + i % 30 for i in range(20)], "n_predict": 24, "temperature": 0.0, "id_slot": 0}
        expected = running.ask("/completion", body)["content"]
        running.ask("/completion", {**body, "prompt": [70 + i % 40 for i in range(100)], "id_slot": 1})
        running.ask("/slots/1?action=save", {"filename": "sound"})
        data = (tmp_path / "sound").read_bytes()
        _, begin = header_of(data)
        rows = struct.pack("<iQ", 1, 64)  # what precedes the keys of a layer, and without flash attention the values
        for what, first in (("keys", rows), ("values", struct.pack("<iII", 1, 2, 32))):
            at = data.index(first, begin) + len(first)
            damaged = data[:at] + b"\x00\x7e" * 32 * 100 + data[at + 6400 :]
            (tmp_path / what).write_bytes(seal(damaged[:-32]))
            running.ask("/slots/1?action=restore", {"filename": what})
            for i in (0, 1):
                found = running.ask("/completion", {**body, "id_slot": i, "cache_prompt": False})
                assert found["content"] == expected


def test_without_a_folder(tiny_target: Any) -> None:
    with Running(tiny_target, options={"slots": False, "metrics": False}) as running:
        assert running.post("/slots/0?action=save", {"filename": "x"}).status_code == 501
        assert running.client.get("/slots").status_code == 501
        assert running.client.get("/metrics").status_code == 501


@pytest.mark.parametrize(
    "how", [{"kv_unified": True}, {"kv_unified": False}, {"swa_full": False}], ids=["pool", "streams", "window-alone"]
)
def test_sliding_windows(tmp_path: Path, how: dict[str, Any]) -> None:
    """A restored slot goes back as it could before: for the same prompt and the next turn, elsewhere by windows."""
    path = write_random_arch(tmp_path, "gemma3")  # a window of 16
    options, model = {"slot_save_path": tmp_path}, {"n_ctx": 2048, **how}
    prompt = [30 + 7 * i * i % 90 for i in range(221)]
    body = {"n_predict": 20, "temperature": 0.0, "id_slot": 0, "ignore_eos": True, "return_tokens": True}
    with Running(path, options=options, **model) as running:
        answer = running.ask("/completion", {**body, "prompt": prompt})["tokens"]
        assert running.ask("/slots/0?action=save", {"filename": "first"})["n_states"] > 0
        running.ask("/slots/0?action=save", {"filename": "again"})
    prompts = [(prompt, 220), ([*prompt, *answer, 40], 240), ([*prompt[:200], 40, 41], 184), ([*prompt[:90], 40], 74)]
    texts: list[Any] = []
    for name in ("", "first", "again"):
        with Running(path, options=options, **model) as running:
            for text, n_least in prompts:
                if name:
                    restored = running.ask("/slots/0?action=restore", {"filename": name})
                    assert restored["n_restored"] == 240
                found = running.ask("/completion", {**body, "prompt": text, "cache_prompt": bool(name)})
                assert found["timings"]["cache_n"] >= (n_least if name else 0)
                texts.append(found["tokens"])
    assert texts[:4] == texts[4:8] == texts[8:]


def test_sliding_windows_without_host_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file without windows says so where it is saved; what is restored goes on where it ends."""
    path = write_random_arch(tmp_path, "gemma3")
    options, model = {"slot_save_path": tmp_path}, {"n_ctx": 2048, "prefix_cache_bytes": 0}
    prompt = [30 + 7 * i * i % 90 for i in range(60)]
    body = {"n_predict": 4, "temperature": 0.0, "id_slot": 0, "ignore_eos": True, "return_tokens": True}
    with Running(path, options=options, **model) as running:
        answer = running.ask("/completion", {**body, "prompt": prompt})["tokens"]
        for _ in range(2):
            assert running.ask("/slots/0?action=save", {"filename": "a"})["n_states"] == 0
        running.ask("/slots/0?action=erase", {})
        assert running.ask("/slots/0?action=restore", {"filename": "a"})["n_states"] == 0
        found = running.ask("/completion", {**body, "prompt": [*prompt, *answer, 40]})
        assert found["timings"]["cache_n"] >= 60
    said = [record.getMessage() for record in caplog.records if "sliding windows" in record.getMessage()]
    assert len(said) == 1
    assert "--cache-ram" in said[0]


def test_states_that_are_restored_without_host_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They were saved where there was some: the slot goes on where it ends, and it is said why nowhere else."""
    path = write_random_arch(tmp_path, "gemma3")
    options, model = {"slot_save_path": tmp_path}, {"n_ctx": 2048}
    prompt = [30 + 7 * i * i % 90 for i in range(221)]
    body = {"prompt": prompt, "n_predict": 4, "temperature": 0.0, "id_slot": 0, "return_tokens": True}
    with Running(path, options=options, **model) as running:
        answer = running.ask("/completion", body)["tokens"]
        assert running.ask("/slots/0?action=save", {"filename": "a"})["n_states"] > 0
    with Running(path, options=options, **model, prefix_cache_bytes=0) as running:
        for _ in range(2):
            assert running.ask("/slots/0?action=restore", {"filename": "a"})["n_states"] == 0
        assert running.ask("/completion", body)["tokens"] == answer
    said = [record.getMessage() for record in caplog.records if "was restored without" in record.getMessage()]
    assert len(said) == 1
    assert "--cache-ram 0" in said[0]
