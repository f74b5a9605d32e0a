"""Conversations with images: messages, llama_cpp's own handlers, the command line, and input that is no image."""

from __future__ import annotations

import base64
import http.server
import struct
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from llama_cpp.llama_chat_format import Llava15ChatHandler, MTMDChatHandler

from gguf_raw import spoil
from llama_cpp_eagle3 import ContextFullError, Eagle3Error, Eagle3Llama, ModelFileError
from llama_cpp_eagle3.media import MediaError, read_media
from tiny import write_head, write_target
from vlm_pairs import BEFORE, load_vlm, png, wav

NAMES = ["qwen25vl", "gemma3"]


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def messages(*sources, kind="image_url"):
    parts = [{"type": kind, kind: s if isinstance(s, (bytes, dict)) else {"url": s}} for s in sources]
    return [{"role": "user", "content": [{"type": "text", "text": BEFORE}, *parts]}]


def load(vlm, head=None, **options):
    return Eagle3Llama(
        vlm.path, head and head.path, draft="chain", n_ctx=1024, n_threads=1, verbose=False, **options
    )  # fmt: skip


def answer(llm, asked, n=12, **more):
    return llm.create_chat_completion(asked, temperature=0, max_tokens=n, **more)["choices"][0]["message"]["content"]


@pytest.fixture(scope="module", params=NAMES)
def vlm(request):
    return load_vlm(request.param)


@pytest.fixture(scope="module")
def head(vlm, tmp_path_factory):
    return write_head(tmp_path_factory.mktemp(vlm.name) / "head.gguf", vlm.target)


@pytest.fixture(scope="module")
def llm(vlm, head):
    with load(vlm, head, mmproj_path=vlm.mmproj) as llm:
        yield llm


def test_messages_with_images(vlm, llm, tmp_path):
    (tmp_path / "image.png").write_bytes(vlm.file)
    want = answer(llm, messages(data_url(vlm.file)))
    with load(vlm, mmproj_path=vlm.mmproj) as plain:
        assert answer(plain, messages(data_url(vlm.file))) == want
    assert llm.last_stats.drafts > 0
    for source in (vlm.file, str(tmp_path / "image.png"), f"file://{tmp_path}/image.png"):
        assert answer(llm, messages(source)) == want
    chunks = llm.create_chat_completion(messages(vlm.file), temperature=0, max_tokens=12, stream=True)
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == want
    other = np.ascontiguousarray(vlm.media[::-1, ::-1])
    if vlm.name == "qwen25vl":  # the other model says the same to all pictures
        assert answer(llm, messages(png(other))) != want
    assert isinstance(answer(llm, messages(vlm.file, png(other))), str)


@pytest.mark.parametrize("kind", [MTMDChatHandler, Llava15ChatHandler])
def test_handlers_of_llama_cpp_feed_the_draft(vlm, head, kind):
    asked = messages(data_url(vlm.file))
    handler = kind(clip_model_path=vlm.mmproj, verbose=False)
    with load(vlm, head, chat_handler=handler) as llm:
        got = answer(llm, asked, repeat_penalty=1.0)
        assert llm.last_stats.drafts > 0
        n_media = sum(n for _, n, _ in llm.target.spans())
        assert n_media == (20 if vlm.name == "qwen25vl" else 16)
        assert llm.drafters[0].n_past() == llm.n_tokens
        assert llm.detokenize([t for t in llm.input_ids[: llm.n_tokens].tolist() if t < 0]) == b""
        if kind is MTMDChatHandler:
            with load(vlm, head, mmproj_path=vlm.mmproj) as own:
                assert answer(own, asked, repeat_penalty=1.0) == got


def test_what_is_loaded_is_told(vlm, llm, head, caplog):
    text = "<|image_pad|>" if vlm.name == "qwen25vl" else "<image_soft_token>"
    assert f"images stand for the head as {llm.projector.placeholders[False][0]} ({text!r}" in llm.projector.describe()
    with load(vlm, head, mmproj_path=vlm.mmproj, media_placeholder=77) as other:
        assert other.projector.placeholders[False] == (77, "as asked for")
    with pytest.raises(ValueError, match="media_placeholder: expected one token"):
        load(vlm, mmproj_path=vlm.mmproj, media_placeholder=10**6)


def gif(n_frames: int) -> bytes:
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + frame * n_frames + b"\x3b"


def sized_png(width: int, height: int) -> bytes:
    data = png(np.zeros((1, 1, 3), np.uint8))
    return data[:16] + struct.pack(">II", width, height) + data[24:]


JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQ"
    "YEpRUk//wAALCAAYABgBAREA/8QAFQABAQAAAAAAAAAAAAAAAAAABgf/xAAXEAADAQAAAAAAAAAAAAAAAAAAAgUx/9oACAEBAAA/AA01cFk1cFk1"
    "cJZNXBZNXBZNXCWTVwWTVwWTVw//2Q=="
)
"""An image of 24 x 24 pixels."""


def bmp(n_header: int, width: int = 3, height: int = 2) -> bytes:
    """Return a BMP file of 24 bits a pixel, bottom up; with 12 bytes of header it is OS/2's."""
    sizes = struct.pack("<HHHH" if n_header == 12 else "<iiHH", width, height, 1, 24)
    pixels = bytes(range(10, 10 + (3 * width + 3) // 4 * 4 * height))
    header = (struct.pack("<I", n_header) + sizes).ljust(n_header, b"\0")
    return b"BM" + struct.pack("<IHHI", 14 + n_header + len(pixels), 0, 0, 14 + n_header) + header + pixels


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"no image at all", "is no PNG, JPEG, GIF, BMP, WAV, MP3 or FLAC"),
        (sized_png(1 << 16, 1 << 16), r"65536 x 65536 pixels, more than 64 Mi"),
        (sized_png(0, 5), "is an image of 0 x 5 pixels"),
        (gif(2), "is animated"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "is WebP"),
        (png(np.zeros((9, 9, 3), np.uint8))[:50], "cannot be decoded"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 40, "header is damaged"),
        (b"BM", "is truncated"),
        (wav(np.zeros(800, np.float32)), "is a sound, which .* does not take"),
        (JPEG[:-1], "is truncated"),
        (JPEG[:20], "is truncated"),
        (bmp(40)[:-1], "is truncated"),
        (bmp(12)[:-1], "is truncated"),
    ],
)  # fmt: skip
def test_what_is_no_image(llm, data, message):
    llm.reset()
    n_batches = llm.target.n_batches
    with pytest.raises(MediaError, match=message):
        answer(llm, messages(data))
    assert llm.target.n_batches == n_batches
    assert llm.n_tokens == 0


@pytest.mark.parametrize("data", [JPEG, JPEG + b"more", bmp(40), bmp(40, 3, 1), bmp(12), gif(1)])
def test_what_is_an_image(llm, data):
    assert llm.projector.prompt(llm.projector.marker, [data]).media


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
def test_no_program_is_run(llm, tmp_path, monkeypatch):
    """Without our check, libmtmd would run ffprobe and ffmpeg on files that its own decoder cannot read."""
    for name in ("ffprobe", "ffmpeg"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(MediaError, match="cannot be decoded: it is damaged"):
        llm.projector.prompt(llm.projector.marker, [png(np.zeros((9, 9, 3), np.uint8))[:50]])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (messages("http://localhost:1/image.png"), "addresses are not fetched"),
        (messages("/nowhere/image.png"), "No such file"),
        (messages("data:image/png;base64,???"), "no base64"),
        (messages("data:image/png,abc"), "expected a data URL with base64"),
        (messages({}), "to name a file"),
        ([{"role": "user", "content": [{"type": "media_marker", "text": "x"}]}], "unsupported"),
        (messages({"data": "AAAA"}, kind="input_audio"), "is no PNG"),
    ],
)
def test_what_is_no_source(llm, asked, message):
    with pytest.raises(MediaError, match=message):
        answer(llm, asked)


def test_images_that_do_not_fit(vlm, llm):
    with pytest.raises(ContextFullError):
        answer(llm, messages(*[vlm.file] * 60))


def test_files_that_are_no_projectors_of_this_model(vlm, head, tmp_path):
    other = write_target(tmp_path / "target.gguf", n_embd=128)
    with pytest.raises(ModelFileError, match=r"cannot be loaded as this model's projector.*mismatch"):
        Eagle3Llama(other.path, mmproj_path=load_vlm("pixtral").mmproj, verbose=False)
    with pytest.raises(ModelFileError, match="expected a multimodal projector"):
        load(vlm, head, mmproj_path=vlm.path)
    with pytest.raises(ModelFileError):
        load(vlm, head, mmproj_path="/nowhere/mmproj.gguf")


def test_projectors_that_are_damaged(vlm, tmp_path):
    """Types, numbers and shapes that ggml asserts while it computes, on threads that no exception could leave."""
    path = tmp_path / "mmproj.gguf"

    def refused(change, words, say=ModelFileError):
        path.write_bytes(Path(vlm.mmproj).read_bytes())
        with pytest.raises(say, match=words) as info, load(vlm, mmproj_path=str(spoil(path, change))) as llm:
            llm.create_chat_completion(messages(vlm.file), temperature=0, max_tokens=2)
        return str(info.value)

    def of(name, **values):
        def change(file):
            tensor = next(t for t in file.tensors if t.name.startswith(b"v.blk.0.") and t.name.endswith(name))
            for key, value in values.items():
                setattr(tensor, key, value)
            tensor.resize()

        return change

    refused(of(b".weight", type=27), "weight': expected a type that ggml multiplies, found the type i64")
    refused(of(b".bias", type=1), "bias': expected f32 for what is added, found the type f16")
    key = "clip.vision.attention.layer_norm_epsilon"
    refused(lambda f: f.set(key, 6, float("nan")), f"key '{key}': expected a number, found NaN")
    # of what no check sees, libmtmd's graph tells
    refused(of(b"attn_out.weight", dims=[0]), "an image could not be encoded: .*GGML_ASSERT", Eagle3Error)


def test_addresses_if_they_are_allowed(vlm):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302 if self.path == "/moved" else 200)
            self.send_header("Location", "/image.png")
            self.end_headers()
            self.wfile.write(vlm.file)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert read_media(f"{url}/image.png", allow_http="private") == vlm.file
        with pytest.raises(MediaError, match="302"):
            read_media(f"{url}/moved", allow_http="private")
        server.shutdown()
    with pytest.raises(MediaError, match="addresses are not fetched"):
        read_media(f"{url}/image.png")
