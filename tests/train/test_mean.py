"""The mean of two heads: weights, rows of another scale, and whether a learned head or the mean is judged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llama_cpp_eagle3.errors import IncompatibleDraftError
from tiny import write_head, write_target

torch = pytest.importorskip("torch")

from llama_cpp_eagle3_heads.train import learn  # noqa: E402
from llama_cpp_eagle3_heads.train.acceptance import Acceptance  # noqa: E402
from llama_cpp_eagle3_heads.train.build import head_from_gguf  # noqa: E402
from llama_cpp_eagle3_heads.train.mean import mean_head  # noqa: E402


def heads(tmp_path: Path, **options: Any) -> tuple[Any, Any]:
    """Two heads of one target."""
    target = write_target(tmp_path / "target.gguf")
    paths = (
        write_head(tmp_path / "1.gguf", target, seed=1),
        write_head(tmp_path / "2.gguf", target, seed=2, **options),
    )
    before, after = (head_from_gguf(Path(path.path), Path(target.path), 64, 4) for path in paths)
    return before, after


def test_rows_of_another_scale(tmp_path: Path) -> None:
    """A training scales the target's values: the mean reads them as the mean of both unscaled heads does."""
    before, after = heads(tmp_path)
    plain = mean_head(before, after, 0.25)
    rows = torch.randn(50, after.cfg.n_feat) * 30
    after.scale_rows(rows)
    assert (after.row_scale != 1).any()
    scaled = mean_head(before, after, 0.25)
    torch.testing.assert_close(scaled.fuse(rows), plain.fuse(rows))
    expected = 0.25 * before.fuse(rows) + 0.75 * after.fuse(rows)
    torch.testing.assert_close(scaled.fuse(rows), expected, rtol=1e-4, atol=1e-4)
    ours, theirs, old = (head.layers[0].attn.q.weight for head in (scaled, after, before))
    torch.testing.assert_close(ours, 0.25 * old + 0.75 * theirs)


def test_another_shape(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleDraftError, match=r"other shapes: layers\.0\.ffn\.down\.weight, "):
        mean_head(*heads(tmp_path, n_ff=48), 0.5)


@pytest.mark.parametrize("of_mean", [5, 6, 7])
def test_the_better_one_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_mean: int) -> None:
    """The mean goes on unless it drafts worse on the texts that the training held out."""
    before, after = heads(tmp_path)

    def simulated(head: Any, mean: Any, sample: Any, n_max: int) -> tuple[Acceptance, Acceptance]:
        assert head is after
        return Acceptance(10, 6), Acceptance(10, of_mean)

    monkeypatch.setattr(learn, "simulate", simulated)
    source = SimpleNamespace(stream=iter)
    trainer = SimpleNamespace(head=after, settings=SimpleNamespace(n_max=4), held_out=[1, 2, 3])
    assert (learn._better(before, trainer, source) is after) == (of_mean < 6)  # type: ignore[arg-type]
