"""Models by the name of a repository, from a stand-in for the Hugging Face hub."""

from __future__ import annotations

import importlib
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from block_checkpoints import weights_of, write_block, zlab
from checkpoints import FAMILIES, N_LAYER_TGT, write_family, write_torch_file
from dflash import SHAPES, write_dflash
from hub_server import TOKEN, HubServer, Repo
from llama_cpp_eagle3 import Eagle3Error, Eagle3Llama, HubError, IncompatibleDraftError
from llama_cpp_eagle3._core import read_head
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.draft import siblings
from llama_cpp_eagle3.extras import HEADS, install_command
from llama_cpp_eagle3.hub.pair_files import fetch_pair
from llama_cpp_eagle3.hub.repository import Access
from llama_cpp_eagle3_heads.convert import convert
from loading import OPTIONS, load_plain, path_of, take
from tiny import Target, write_head, write_target

constants = pytest.importorskip("huggingface_hub.constants")

HUB_VARIABLES = ("HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN")
LOAD: dict[str, Any] = OPTIONS | {"n_ctx": 128, "draft": "chain"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("hub") / "target.gguf", n_layer=N_LAYER_TGT)


@pytest.fixture(scope="module")
def other_target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Return a target of the same shape with other weights."""
    return write_target(tmp_path_factory.mktemp("hub") / "other.gguf", n_layer=N_LAYER_TGT, seed=5)


@pytest.fixture(scope="module")
def repos(target: Target, other_target: Target, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Repo]:
    folder = tmp_path_factory.mktemp("repos")
    q4, q8 = Path(target.path).read_bytes(), Path(other_target.path).read_bytes()
    found = {
        "me/Tiny-GGUF": Repo({"mmproj-F16.gguf": b"", "sub/Tiny-Q8_0.gguf": q8, "Tiny-IQ4_K_M.gguf": b"",
                              "Tiny-Q4_K_M.gguf": q4}),
        "me/Only-F16": Repo({"Only-F16.gguf": q4, "LICENSE": b"MIT"}),
        "me/Gated": Repo({"Tiny-Q4_K_M.gguf": q4}, gated=True),
        "me/Private": Repo({"Tiny-Q4_K_M.gguf": q4}, private=True),
        "me/Weights": Repo({"config.json": b"{}", "model.safetensors": b""}),
    }  # fmt: skip
    head = write_head(folder / "head.gguf", target, boundaries=(2, 4, 5))
    gguf = Path(head.path).read_bytes()
    found["me/Head-GGUF"] = Repo({"head-F16.gguf": b"", "head-Q8_0.gguf": gguf})
    found["me/Both"] = Repo({"Tiny-Q4_K_M.gguf": q4, "eagle3-Tiny-F16.gguf": gguf})
    wide = write_target(folder / "wide.gguf", n_layer=N_LAYER_TGT, n_embd=96)
    for name, family, whose in (
        ("me/Bin", "safeailab", target), ("me/Shards", "specforge", target), ("me/Wide", "safeailab", wide),
    ):  # fmt: skip
        kind = FAMILIES[family]
        write_family(folder / name, kind, write_head(folder / "unused.gguf", whose, **kind.variant))
        files = {file.name: file.read_bytes() for file in (folder / name).iterdir()}
        found[name] = Repo(files | {"optimizer.pt": b"\0" * 1000, "figure.png": b""})
    shape = SHAPES["plain"]
    config = zlab(shape) | {"num_target_layers": N_LAYER_TGT}
    block = write_block(folder / "block", config, weights_of(shape))
    found["me/DFlash"] = Repo({file.name: file.read_bytes() for file in block.iterdir()})
    row = {"embedding": np.linspace(-2, 2, shape.n_embd).astype(np.float32)}
    write_torch_file(block / "mask_embedding.pt", row, "f32", numbers={"mask_token_id": 300})
    files = {file.name: file.read_bytes() for file in block.iterdir()}
    found["me/Mask"] = Repo(files | {"README.md": b"", "vocab_mapping.pt": b""})
    drafter = write_dflash(folder / "dflash.gguf", shape)
    found["me/DFlash-GGUF"] = Repo({"dflash-Tiny-F16.gguf": drafter.read_bytes(), "mmproj-F16.gguf": b""})
    return found


@pytest.fixture
def hub(repos: dict[str, Repo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Start the stand-in, and set huggingface_hub as in a process that was started with these variables."""
    for name in HUB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "ours"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with HubServer(dict(repos)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        importlib.reload(constants)
        yield server
    monkeypatch.undo()
    importlib.reload(constants)


def greedy(llm: Any) -> list[int]:
    with llm:
        return take(llm, [1, 2, 3], 12)


def text_of(target: Target) -> list[int]:
    plain = load_plain(target.path)
    try:
        return take(plain, [1, 2, 3], 12)
    finally:
        plain.close()


def test_type_of_the_target(hub: HubServer, target: Target, other_target: Target) -> None:
    expected, other = text_of(target), text_of(other_target)
    assert expected != other
    assert greedy(Eagle3Llama.from_pretrained("me/Tiny-GGUF", **LOAD)) == expected
    assert hub.fetched() == ["Tiny-Q4_K_M.gguf"]
    hub.requests.clear()
    assert greedy(Eagle3Llama.from_pretrained("me/Tiny-GGUF:q8_0", **LOAD)) == other
    assert greedy(Eagle3Llama.from_pretrained("me/Tiny-GGUF", "*Q8_0.gguf", **LOAD)) == other
    assert hub.fetched() == ["sub/Tiny-Q8_0.gguf"]
    hub.requests.clear()
    assert greedy(Eagle3Llama.from_pretrained("me/Tiny-GGUF", **LOAD)) == expected  # from the cache
    assert hub.fetched() == []
    assert greedy(Eagle3Llama.from_pretrained("me/Only-F16", **LOAD)) == expected


def test_a_new_commit_fetches_what_changed(hub: HubServer, repos: dict[str, Repo], target: Target) -> None:
    Eagle3Llama.from_pretrained("me/Only-F16", **LOAD).close()
    hub.requests.clear()
    files = repos["me/Only-F16"].files
    hub.repos["me/Only-F16"] = Repo(files | {"LICENSE": b"another"})
    Eagle3Llama.from_pretrained("me/Only-F16", **LOAD).close()
    assert hub.fetched() == []
    hub.repos["me/Only-F16"] = Repo({"Only-F16.gguf": repos["me/Tiny-GGUF"].files["sub/Tiny-Q8_0.gguf"]})
    assert greedy(Eagle3Llama.from_pretrained("me/Only-F16", **LOAD)) != text_of(target)


def test_gguf_head(hub: HubServer, target: Target) -> None:
    with Eagle3Llama.from_pretrained("me/Tiny-GGUF", draft_repo_id="me/Head-GGUF", **LOAD) as llm:
        assert path_of(llm.draft_model_path).endswith("head-Q8_0.gguf")
        assert take(llm, [1, 2, 3], 12) == text_of(target)
    with Eagle3Llama.from_pretrained("me/Both", draft_filename="eagle3-*", **LOAD) as llm:
        assert path_of(llm.draft_model_path).endswith("eagle3-Tiny-F16.gguf")


@pytest.mark.parametrize("repo", ["me/DFlash", "me/DFlash-GGUF"])
def test_block_drafters(hub: HubServer, target: Target, repo: str) -> None:
    """The block drafter is a checkpoint, which is converted, or a GGUF with the usual name beside targets."""
    with Eagle3Llama.from_pretrained("me/Tiny-GGUF", draft_repo_id=repo, **LOAD) as llm:
        assert llm.draft_sources == ("dflash", "ngram", "grammar")
        assert take(llm, [1, 2, 3], 12) == text_of(target)


def test_the_small_model_of_a_family(
    hub: HubServer, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`auto` is the small model that the table has for the target: its Q4_0, else the next best type."""
    family = siblings.Sibling(
        "Tiny", "Tiny-0.1B", "me/Small-GGUF", "MIT", ("llama",), "tiny random", target.n_vocab, 1000
    )
    small = write_target(tmp_path / "small.gguf", n_layer=1, n_vocab=target.n_vocab + 4)  # further, unused tokens
    files = {"mmproj-F16.gguf": b"", "Small-Q8_0.gguf": Path(small.path).read_bytes()}
    hub.repos["me/Small-GGUF"] = Repo(files)
    with pytest.raises(HubError, match=r"no small model is known for .* named 'tiny random llama'.*Qwen2.5-Coder, "):
        Eagle3Llama.from_pretrained("me/Tiny-GGUF", draft_repo_id="auto", **LOAD)
    monkeypatch.setattr(siblings, "SIBLINGS", (family,))
    with Eagle3Llama.from_pretrained("me/Tiny-GGUF", draft_repo_id="auto", **LOAD) as llm:
        assert llm.draft_sources == ("simple", "ngram", "grammar")
        assert path_of(llm.draft_model_path).endswith("Small-Q8_0.gguf")
        assert take(llm, [1, 2, 3], 12) == text_of(target)
        assert llm.stats.of("simple").drafted > 0
    hub.repos["me/Small-GGUF"] = Repo({**files, "Small-Q4_0.gguf": files["Small-Q8_0.gguf"]})
    flags = ["speculative-simple", "-m", target.path, "-hfd", "auto", "-p", "the", "-n", "4", "-t", "1"]
    assert main([*flags, "--spec-draft-n-max", "2"]) == 0
    assert "drafter: me/Small-GGUF, Small-Q4_0.gguf, the small model of Tiny" in capsys.readouterr().err
    hub.repos["me/Small-GGUF"] = Repo({"model.safetensors": b""})
    assert main(flags) == 2
    assert "'me/Small-GGUF' has no GGUF file: it has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("repo", "needed"),
    [
        ("me/Bin", ["config.json", "pytorch_model.bin"]),
        ("me/Shards", ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
                       "model-00002-of-00002.safetensors"]),
    ],
)  # fmt: skip
def test_checkpoints_are_converted_once(
    hub: HubServer, target: Target, tmp_path: Path, repo: str, needed: list[str]
) -> None:
    from llama_cpp_eagle3_heads.convert import convert

    names = ("me/Tiny-GGUF", repo)
    with Eagle3Llama.from_pretrained(names[0], draft_repo_id=names[1], **LOAD) as llm:
        head = path_of(llm.draft_model_path)
        assert take(llm, [1, 2, 3], 12) == text_of(target)
    assert hub.fetched() == ["Tiny-Q4_K_M.gguf", *needed]
    assert Path(head).is_relative_to(tmp_path / "ours")
    # the result of `convert` for the same folder
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in needed:
        (folder / name).write_bytes(hub.repos[repo].files[name])
    by_hand = convert(folder, target.path, tmp_path / "by-hand.gguf", name=repo).path
    assert Path(head).read_bytes() == by_hand.read_bytes()
    assert read_head(head).boundaries == ([2, 4, 5] if repo == "me/Bin" else [2, 4, 7])

    hub.requests.clear()
    with Eagle3Llama.from_pretrained(names[0], draft_repo_id=names[1], **LOAD) as llm:
        assert llm.draft_model_path == head
    assert hub.fetched() == []
    # a new revision is another file
    hub.repos[repo] = Repo(hub.repos[repo].files | {"README": b"new"})
    with Eagle3Llama.from_pretrained(names[0], draft_repo_id=names[1], **LOAD) as llm:
        assert llm.draft_model_path != head


def test_checkpoints_need_the_package_that_makes_heads(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "llama_cpp_eagle3_heads"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "llama_cpp_eagle3_heads", None)
    needed = re.escape(
        f"converting the checkpoint 'me/Bin' needs the package llama-cpp-eagle3-heads: {install_command(of=HEADS)}"
    )
    with pytest.raises(Eagle3Error, match=needed):
        Eagle3Llama.from_pretrained("me/Tiny-GGUF", draft_repo_id="me/Bin", **LOAD)


def test_a_head_of_another_model(hub: HubServer) -> None:
    with pytest.raises(IncompatibleDraftError, match="96"):
        Eagle3Llama.from_pretrained("me/Tiny-GGUF", draft_repo_id="me/Wide", **LOAD)


def test_doubts_are_told(hub: HubServer, caplog: pytest.LogCaptureFixture, tmp_path: Path, target: Target) -> None:
    doubtful = next(name for name, family in FAMILIES.items() if family.doubts)
    kind = FAMILIES[doubtful]
    write_family(tmp_path / "made", kind, write_head(tmp_path / "unused.gguf", target, **kind.variant))
    hub.repos["me/Doubtful"] = Repo({file.name: file.read_bytes() for file in (tmp_path / "made").iterdir()})
    Eagle3Llama.from_pretrained("me/Tiny-GGUF", draft_repo_id="me/Doubtful", **LOAD).close()
    assert "--probe" in caplog.text


def test_broken_connections_go_on(hub: HubServer, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads continue after broken connections, within one run."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # less than a chunk is lost
    assert len(hub.repos["me/Tiny-GGUF"].files["Tiny-Q4_K_M.gguf"]) < 1_400_000
    hub.n_bytes_max = 700_000
    assert greedy(Eagle3Llama.from_pretrained("me/Tiny-GGUF", **LOAD)) == text_of(target)
    ranges = [r for method, path, r in hub.requests if method == "GET" and "resolve" in path]
    assert ranges == ["", "bytes=700000-"]


def test_killed_downloads_go_on(hub: HubServer, target: Target) -> None:
    """A killed process's part of a file is not fetched again in the next run."""
    size = len(hub.repos["me/Tiny-GGUF"].files["Tiny-Q4_K_M.gguf"])
    hub.n_bytes_max, hub.hangs = size // 3, True
    code = """
from huggingface_hub import constants
from llama_cpp_eagle3.hub import Access, fetch_pair
constants.DOWNLOAD_CHUNK_SIZE = 10_000  # what is less than a chunk is lost
fetch_pair("me/Tiny-GGUF", None, Access())
"""
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        assert hub.cut.wait(60)
        # its file has the sent bytes once
        parts = Path(constants.HF_HUB_CACHE)
        deadline = 100
        while not any(p.stat().st_size for p in parts.rglob("*.incomplete")) and deadline:
            deadline -= 1
            hub.cut.clear()
            hub.cut.wait(0.1)
    finally:
        child.kill()
        child.wait()
        hub.n_bytes_max, hub.hangs = None, False
    n_had = next(p.stat().st_size for p in parts.rglob("*.incomplete"))
    assert 0 < n_had < size
    hub.requests.clear()
    assert greedy(Eagle3Llama.from_pretrained("me/Tiny-GGUF", **LOAD)) == text_of(target)
    assert [r for method, _, r in hub.requests if method == "GET" and r] == [f"bytes={n_had}-"]
    assert not list(parts.rglob("*.incomplete"))


def test_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def load(**more: Any) -> Any:
        return Eagle3Llama.from_pretrained("me/Tiny-GGUF", draft_repo_id="me/Bin", **LOAD, **more)

    with pytest.raises(HubError, match=r"nothing of 'me/Tiny-GGUF' is in the cache .*fetch it once"):
        load(offline=True)
    expected = greedy(load())
    hub.requests.clear()
    assert greedy(load(offline=True)) == expected
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    importlib.reload(constants)
    assert greedy(load()) == expected
    with pytest.raises(HubError, match=r"cached part of 'me/Tiny-GGUF' \(offline\) has no Q8_0 model.*Tiny-Q4_K_M"):
        Eagle3Llama.from_pretrained("me/Tiny-GGUF:Q8_0", **LOAD)
    assert hub.requests == []
    # the checkpoint is no longer needed
    shutil.rmtree(next(Path(constants.HF_HUB_CACHE).glob("*Bin")))
    assert greedy(load()) == expected
    # a hub that does not answer
    monkeypatch.delenv("HF_HUB_OFFLINE")
    importlib.reload(constants)
    hub.close()
    assert greedy(load()) == expected
    assert "did not answer" in caplog.text
    with pytest.raises(HubError, match=r"the hub did not answer for 'me/Head-GGUF' \(http://127"):
        Eagle3Llama.from_pretrained("me/Tiny-GGUF", draft_repo_id="me/Head-GGUF", **LOAD)


def test_local_dir(hub: HubServer, tmp_path: Path) -> None:
    def load(**more: Any) -> Any:
        names = {"draft_repo_id": "me/Head-GGUF", "local_dir": tmp_path / "models"}
        return Eagle3Llama.from_pretrained("me/Tiny-GGUF:Q8_0", **names, **LOAD, **more)

    with load() as llm:
        assert llm.model_path == str(tmp_path / "models/sub/Tiny-Q8_0.gguf")
        assert llm.draft_model_path == str(tmp_path / "models/head-Q8_0.gguf")
    hub.requests.clear()
    load().close()
    assert hub.fetched() == []
    with pytest.raises(HubError, match=r"offline, give the paths of files in '.*models'"):
        load(offline=True)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("Tiny",), "'Tiny' is not the name of a repository: expected USER/REPO"),
        (("me/Nobody",), r"the hub has no model 'me/Nobody', or it is private.*hf auth login"),
        (("me/Private",), "the hub has no model 'me/Private', or it is private"),
        (("me/Gated",), r"of 'me/Gated' is gated, and was refused without a token: .* at http.*/me/Gated.*HF_TOKEN"),
        (("me/Tiny-GGUF:Q5_K_M",), r"'me/Tiny-GGUF' has no Q5_K_M model: it has .*sub/Tiny-Q8_0.gguf"),
        (("me/Weights",), r"'me/Weights' has no GGUF file \(it has .*model.safetensors\).*convert_hf_to_gguf"),
        (("me/Tiny-GGUF", "me/Head-GGUF:Q5_0"), "'me/Head-GGUF' has no Q5_0 head: it has GGUF files head-F16.gguf"),
        (("me/Tiny-GGUF", "me/Bin:Q8_0"), "has no Q8_0 head: .*leave the type away to have its checkpoint converted"),
        (("me/Tiny-GGUF", "me/Only"), "the hub has no model 'me/Only'"),
    ],
)
def test_errors(hub: HubServer, names: tuple[str, ...], said: str) -> None:
    with pytest.raises(HubError, match=said):
        Eagle3Llama.from_pretrained(names[0], draft_repo_id=names[1] if len(names) > 1 else None, **LOAD)


def test_file_names(hub: HubServer) -> None:
    for repo, filename, more, said in (
        ("me/Tiny-GGUF", "*.gguf", None, "Multiple files"),
        ("me/Tiny-GGUF", "nothing*", None, "No file found"),
        ("me/Tiny-GGUF", "*Q4_K_M.gguf", None, "Multiple files"),
        ("me/Tiny-GGUF:Q8_0", "*Q8_0.gguf", None, "either"),
        ("me/Tiny-GGUF", "*Q8_0.gguf", ["*.bin"], "No file found"),
    ):
        with pytest.raises(HubError, match=said):
            Eagle3Llama.from_pretrained(repo, filename, more, **LOAD)
    with pytest.raises(TypeError, match="either"):
        Eagle3Llama.from_pretrained("me/Tiny-GGUF", draft_repo_id="me/Head", draft_model_path="x", **LOAD)


def test_tokens(hub: HubServer, target: Target) -> None:
    for name in ("me/Gated", "me/Private"):
        assert greedy(Eagle3Llama.from_pretrained(name, token=TOKEN, **LOAD)) == text_of(target)
        with pytest.raises(HubError, match="refused with your token"):
            Eagle3Llama.from_pretrained("me/None", token=TOKEN, **LOAD)


def test_shards(hub: HubServer, target: Target) -> None:
    data = Path(target.path).read_bytes()
    files = {f"a/Big-Q4_K_M-{i:05}-of-00003.gguf": data + bytes([i]) for i in (1, 2, 3)}
    hub.repos["me/Big"] = Repo(files)
    from llama_cpp_eagle3.hub import Access, fetch_pair

    pair = fetch_pair("me/Big", None, Access())
    assert hub.fetched() == sorted(files)
    assert path_of(pair.target).endswith("00001-of-00003.gguf")
    assert len(list(Path(path_of(pair.target)).parent.glob("*.gguf"))) == 3
    del files["a/Big-Q4_K_M-00002-of-00003.gguf"]
    hub.repos["me/Big"] = Repo(files)
    with pytest.raises(HubError, match="one of 00003 shards, and the repository lacks a/Big-Q4_K_M-00002"):
        fetch_pair("me/Big", None, Access())


FLAGS = ["-t", "1", "-c", "128", "-n", "8", "-p", "a"]


def test_command_line(hub: HubServer, capsys: pytest.CaptureFixture[str], target: Target, tmp_path: Path) -> None:
    def simple(*flags: Any) -> str:
        assert main(["speculative-simple", *map(str, flags), *FLAGS]) == 0
        return capsys.readouterr().err

    said = simple("-hf", "me/Tiny-GGUF:Q4_K_M", "-hfd", "me/Bin", "--spec-draft-n-max", 2)
    assert "target: me/Tiny-GGUF, Tiny-Q4_K_M.gguf\n" in said
    assert "head: me/Bin, pytorch_model.bin, converted for this target\n" in said
    assert "n_draft   = 2" in said
    assert "converted before" in simple("-m", target.path, "--hf-repo-draft", "me/Bin", "--spec-draft-n-max", 2)
    # the head beside the target, unless drafts are switched off
    assert "eagle3-Tiny-F16.gguf, which lies beside the target" in simple("-hf", "me/Both", "--spec-draft-n-max", 2)
    for kind in ("none", "ngram-simple"):
        assert "head:" not in simple("-hf", "me/Both", "--spec-type", kind)
    assert "head" not in simple("-hf", "me/Tiny-GGUF", "-hff", "sub/Tiny-Q8_0.gguf")
    hub.requests.clear()
    simple("-hf", "me/Both", "--offline", "--spec-draft-n-max", 2)
    assert hub.requests == []
    pair = ["-hf", "me/Tiny-GGUF", "-hfd", "me/Bin", "-t", "1", "-c", "128"]
    assert main(["calibrate", *pair, "--seconds", "0.2"]) in (0, 1)
    assert "to accept" in capsys.readouterr().out
    assert main(["doctor", *pair]) in (0, 1)
    assert "they fit" in capsys.readouterr().out
    # tokens are not logged
    simple("-hf", "me/Gated", "-hft", TOKEN, "--json", tmp_path / "report.json")
    assert TOKEN not in (tmp_path / "report.json").read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-hf", "me/Tiny-GGUF", "-m", "x"], "give the target once"),
        (["-hf", "me/Tiny-GGUF", "-hfd", "me/Bin", "-md", "x"], "give the head once"),
        (["-hfd", "me/Bin"], "-hfd needs a target"),
        (["-hff", "x.gguf"], "give that with -hf"),
        (["-hf", "me/Gated"], "is gated"),
        (["-hf", "me/Nobody"], "the hub has no model"),
    ],
)
def test_command_line_errors(hub: HubServer, capsys: pytest.CaptureFixture[str], flags: list[str], said: str) -> None:
    assert main(["speculative-simple", *flags, *FLAGS]) == 2
    assert said in capsys.readouterr().err


def test_all_commands_take_repositories(
    hub: HubServer, capsys: pytest.CaptureFixture[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    (tmp_path / "prompts.txt").write_text("a\n")
    pair = ["-hf", "me/Nobody", "-hfd", "me/Bin"]
    for command, *more in (
        ["bench"], ["calibrate"], ["serve"],
        ["batch", str(tmp_path / "prompts.txt"), "-o", str(tmp_path / "out.jsonl")],
    ):  # fmt: skip
        assert main([command, *more, *pair]) in (1, 2), command
        captured = capsys.readouterr()
        assert "no model 'me/Nobody'" in captured.err + captured.out, command


def test_without_the_extra(hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith("llama_cpp_eagle3.hub")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=re.escape(f"huggingface_hub is missing: {install_command('hub')}")):
        Eagle3Llama.from_pretrained("me/Tiny-GGUF", **LOAD)
    assert main(["speculative-simple", "-hf", "me/Tiny-GGUF", *FLAGS]) == 2
    assert f"is missing: {install_command('hub')}\n" in capsys.readouterr().err


def test_files_arrive_whole(hub: HubServer) -> None:
    """A byte that the hub changes meanwhile is not put into a file of the old size."""
    from llama_cpp_eagle3.hub import Access, fetch_pair

    rng = np.random.default_rng(0)
    data = {f"Big-{name}.gguf": rng.bytes(300_000) for name in ("Q4_K_M", "Q8_0")}
    hub.repos["me/Random"] = Repo(data)
    for name, content in data.items():
        pair = fetch_pair(f"me/Random:{name[4:-5]}", None, Access())
        assert Path(path_of(pair.target)).read_bytes() == content


def test_documented_pairs() -> None:
    """The names in commands of docs/pairs.md and README.md are in the table, and are repositories' names."""
    from llama_cpp_eagle3.hub import split_name

    root = Path(__file__).parents[2]
    text = (root / "docs/pairs.md").read_text(encoding="utf-8")
    commands = text + (root / "README.md").read_text(encoding="utf-8")
    names = set(re.findall(r"-hfd? ([\w.-]+/[\w./:-]+)", commands))
    assert len(names) >= 8
    heads = set(re.findall(r"`([\w.-]+/[\w./:-]+)`", text))
    for name in names - {"USER/REPO", "USER/HEAD"}:
        assert {name, split_name(name)[0]} & heads, name


def test_what_belongs_to_the_weights_is_fetched(
    hub: HubServer, target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The row of the mask token beside the weights is fetched too; files that may belong to them are reported."""
    access = Access(cache_dir=str(tmp_path / "hf"))
    head = fetch_pair(None, "me/Mask", access, target_path=str(target.path)).head
    assert head is not None
    assert hub.fetched() == ["config.json", "mask_embedding.pt", "model.safetensors"]
    assert "vocab_mapping.pt" in caplog.text
    folder = next((tmp_path / "hf").rglob("config.json")).parent
    want = convert(folder, target.path, tmp_path / "here.gguf", name="me/Mask").path
    assert Path(head).read_bytes() == want.read_bytes()
