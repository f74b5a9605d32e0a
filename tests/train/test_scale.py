"""Heads read values of size 1, however large the target's values are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiny import Target, write_target

torch = pytest.importorskip("torch")

from llama_cpp_eagle3_heads.convert import convert  # noqa: E402
from llama_cpp_eagle3_heads.train.build import fresh_head, head_from_gguf, target_config  # noqa: E402
from llama_cpp_eagle3_heads.train.checkpoint import export  # noqa: E402
from llama_cpp_eagle3_heads.train.data import Text  # noqa: E402
from llama_cpp_eagle3_heads.train.eagle import Head  # noqa: E402
from llama_cpp_eagle3_heads.train.packing import PackedTexts  # noqa: E402
from llama_cpp_eagle3_heads.train.rows import Extractor, Source  # noqa: E402
from llama_cpp_eagle3_heads.train.trainer import Settings, Trainer  # noqa: E402


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("scale") / "target.gguf", n_layer=7)


def make_head(target: Target, eagle31: bool) -> Head:
    torch.manual_seed(1)
    cfg = target_config(Path(target.path), 128, (), eagle31=eagle31)
    return fresh_head(Path(target.path), cfg, torch.arange(0, target.n_vocab, 5), 4)


def make_rows(head: Head) -> Any:
    """Return rows of sizes as in real targets: boundaries differ tenfold, some values are a hundred times as large."""
    torch.manual_seed(2)
    rows = torch.randn(1, 40, len(head.cfg.boundaries), head.cfg.n_embd)
    rows *= torch.tensor([2.0, 6.0, 22.0])[:, None]
    rows[..., 5] += 300
    return rows.flatten(2)


def logits(head: Head, rows: Any) -> Any:
    texts = PackedTexts(torch.arange(40) % 7, rows[0], [40], [4], [torch.arange(10, 30)])
    with torch.no_grad():
        return torch.cat([head.logits(normed)[0] for _, normed in head.steps(texts, 3)])


@pytest.mark.parametrize("eagle31", [False, True], ids=("eagle3", "eagle3.1"))
def test_a_head_stays_what_it_is(target: Target, tmp_path: Path, eagle31: bool) -> None:
    """A scaled head computes the same as before, bit by bit, and so does its export."""
    head = make_head(target, eagle31)
    for weight in head.parameters():
        torch.nn.init.normal_(weight)
    rows = make_rows(head)
    before, weight = logits(head, rows), head.fc.weight.detach().clone()
    head.scale_rows(rows[0])
    assert torch.equal(logits(head, rows), before)
    if not eagle31:  # these have size 1 already
        sizes = (rows[0] * head.row_scale).pow(2).mean(0).sqrt()
        assert 0.7 < sizes.min() <= sizes.max() < 1.42
    export(head, tmp_path / "hf")
    path = convert(tmp_path / "hf", target.path, tmp_path / "head.gguf", outtype="f32").path
    again = head_from_gguf(Path(path), Path(target.path), 128, 4)
    assert torch.equal(again.fc.weight, weight)
    assert torch.equal(logits(again, rows), before)


@pytest.mark.parametrize("eagle31", [False, True], ids=("eagle3", "eagle3.1"))
def test_a_fresh_head_has_small_states(target: Target, eagle31: bool) -> None:
    """The states have size 1, like the output of the layer; the norms after compute the same."""
    head = make_head(target, eagle31)
    rows = make_rows(head)
    before = logits(head, rows)
    head.scale_rows(rows[0])
    assert 0.7 < head.fuse(rows).pow(2).mean(-1).sqrt().median() < 1.42
    torch.testing.assert_close(logits(head, rows), before, rtol=1e-3, atol=1e-3)


def test_a_training_begins_so(target: Target, tmp_path: Path) -> None:
    """A training sets the sizes at the beginning, and continues with them."""
    texts = [Text(i, [(i * j) % 50 for j in range(1, 30)], 4, 0.0, "file") for i in range(1, 6)]
    extractor = Extractor(Path(target.path), (2, 3, 4), 128, n_threads=1)
    source = Source(extractor, None)
    head = make_head(target, False)
    trainer = Trainer(head, source, texts, tmp_path, Settings(steps=1, device="cpu"))
    rows = torch.cat([torch.from_numpy(source.get(text).rows[3:]).float() for text in texts[1:]])
    sizes = (rows * head.row_scale).pow(2).mean(0).sqrt()
    assert 0.7 < sizes.min() <= sizes.max() < 1.42
    trainer.save()
    again = make_head(target, False)
    Trainer(again, source, texts[:2], tmp_path, Settings(steps=1, device="cpu"))
    assert torch.equal(again.row_scale, head.row_scale)
    extractor.close()


def test_a_narrower_feed_forward_layer(target: Target) -> None:
    """A new head's layer is as wide as requested, else as the target's."""
    assert target_config(Path(target.path), 128, ()).n_ff != 24
    cfg = target_config(Path(target.path), 128, (), n_ff=24)
    head = fresh_head(Path(target.path), cfg, torch.arange(16), 4)
    assert head.layers[0].ffn.down.weight.shape == (cfg.n_embd, 24)
