"""Write tests/support/chat_goldens.json: llama-server's prompts and messages for the conversations of chat_cases.py.

python tools/chat_goldens.py LLAMA_SERVER      (templates that are in the file stay unchanged)
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from chat_cases import CASES, GOLDENS, digest, templates
from llama_cpp_eagle3.models import bundled_pair


def _ask(port: int, body: dict[str, Any]) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/apply-template", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as response:
            return digest(json.load(response)["prompt"])
    except urllib.error.HTTPError as e:
        return f"error {e.code}"


def _wait(port: int) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("llama-server does not start")


def main() -> None:
    """Run as a program."""
    goldens: dict[str, dict[str, str]] = json.loads(GOLDENS.read_text()) if GOLDENS.exists() else {}
    for i, path in enumerate(templates()):
        if path.name in goldens:
            continue
        port = 18200 + i
        command = [sys.argv[1], "-m", str(bundled_pair()[0]), "--port", str(port), "--chat-template-file", str(path)]
        command += ["--jinja", "-c", "256", "-np", "1", "--no-warmup", "--no-ui", "-t", "1"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait(port)
            goldens[path.name] = {name: _ask(port, body) for name, body in CASES.items()}
        finally:
            server.kill()
            server.wait()
        GOLDENS.write_text(json.dumps(goldens, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
