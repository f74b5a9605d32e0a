"""benchmarks/mean_heads.py: the mean of two heads' weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mean_heads  # noqa: E402
from tiny import write_head, write_target  # noqa: E402


def test_the_mean_of_two_heads(tmp_path: Path) -> None:
    """Each weight is the weighted mean; a token that one head does not draft keeps the other's row."""
    target = write_target(tmp_path / "target.gguf")
    before, after = (write_head(tmp_path / f"{seed}.gguf", target, seed=seed) for seed in (1, 2))
    output = tmp_path / "mean.gguf"
    mean_heads.write_mean(Path(target.path), Path(before.path), Path(after.path), output, 0.25)
    old, new, found = ({t.name: t.data for t in gguf.GGUFReader(p).tensors} for p in (before.path, after.path, output))
    assert found.keys() == new.keys()
    rows = {int(token): row for row, token in enumerate(old["d2t"])}
    for name, values in found.items():
        if name == "d2t":
            np.testing.assert_array_equal(values, new[name])
        elif name == "output.weight":
            n_known = 0
            for row, token in enumerate(map(int, new["d2t"])):
                expected = new[name][row]
                if token in rows:
                    n_known, expected = n_known + 1, 0.25 * old[name][rows[token]] + 0.75 * expected
                np.testing.assert_allclose(values[row], expected, rtol=1e-5, atol=1e-7)
            assert n_known > 0
        else:
            np.testing.assert_allclose(values, 0.25 * old[name] + 0.75 * new[name], rtol=1e-5, atol=1e-7)
