"""Stands in for the package that trains: counts in DIR/round/count until DIR/round/result.json is there."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from llama_cpp_eagle3_heads.train.learn import run_behind

folder = Path(sys.argv[1]) / "round"
if "--background" in sys.argv:
    run_behind()
(folder / "pid").write_text(str(os.getpid()))
n = 0
while not (folder / "result.json").exists():
    n += 1
    (folder / "count").write_text(str(n))
    time.sleep(0.002)
