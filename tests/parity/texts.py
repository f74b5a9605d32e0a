"""Send the same requests to llama-server and to us: for the same seed both must write the same text, with any samplers.

    python tests/parity/texts.py [-n 3] [--drafts]

Without drafts both decode the same batches, so that all texts must be the same. With drafts (--drafts) batches have
more rows, logits differ in their last digits, and texts may part where a draw is close to a border: all must begin
alike, and most must be the same. Other tests check that drafts keep the distribution.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from llama_cpp_eagle3.models import bundled_pair, heldout_prompts

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from comparison.peer_tools import get_tools

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "defaults": {},
    "hot": {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "penalties": {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "dry": {"dry_multiplier": 0.8, "temperature": 0.3},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    "typical": {"typical_p": 0.7, "top_n_sigma": 1.5},
    "dynamic": {"dynatemp_range": 0.5, "min_keep": 3},
    "mirostat": {"mirostat": 2},
    "mirostat 1": {"mirostat": 1},
    "order": {"samplers": ["temperature", "min_p", "top_k"], "temperature": 1.2},
    "adaptive": {"samplers": ["min_p", "adaptive_p"], "adaptive_target": 0.4},
    "bias": {"logit_bias": [[200, 3.0], [13, False]], "ignore_eos": True},
    "grammar": {"grammar": 'root ::= ("a" | "b" | "cd" | [0-9] | " ")*'},
    "schema": {"json_schema": SCHEMA},
}


def start(command: list[str], port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200:
                return process
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError(f"{' '.join(command)} does not answer")


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=3, help="prompts of each kind")
    parser.add_argument("--drafts", action="store_true", help="with drafts all the same, to see how much that is")
    args = parser.parse_args()
    target, head = map(str, bundled_pair())
    ports = free_port(), free_port()
    common = ["-m", target, "-c", "512", "-np", "1", "-t", "1", "-fa", "off", "--port"]
    ours = [sys.executable, "-m", "llama_cpp_eagle3", "serve", *common, str(ports[0]), "-md", head]
    peer = [str(get_tools() / "llama-server"), *common, str(ports[1]), "--offline", "--cache-ram", "0"]
    processes: list[subprocess.Popen[bytes]] = []
    n_different = n_all = n_early = 0
    try:
        processes.append(start([*ours, "--spec-draft-n-max", "3"], ports[0]))
        processes.append(start(peer, ports[1]))
        for kind, options in KINDS.items():
            same = []
            for i, text in enumerate(heldout_prompts()[: args.n]):
                body = {"prompt": text[:400], "n_predict": 48, "seed": 100 + i, "cache_prompt": False, **options}
                body |= {"speculative": args.drafts, "rng": "llama"}
                texts = []
                for port in ports:
                    url = f"http://127.0.0.1:{port}/completion"
                    answer = httpx.post(url, json=body, timeout=60, trust_env=False)
                    texts.append(answer.json()["content"] if answer.status_code == 200 else answer.text)
                same.append(texts[0] == texts[1])
                n_early += texts[0][:4] != texts[1][:4]
                if not same[-1]:
                    print(f"{kind}, prompt {i}:\n  {texts[0][:100]!r}\n  {texts[1][:100]!r}")
            n_all += len(same)
            n_different += same.count(False)
            print(f"{kind}: {sum(same)} of {len(same)} the same", flush=True)
    finally:
        for process in processes:
            process.terminate()
            process.wait(120)
    print(f"{n_all - n_different} of {n_all} texts are the same, {n_early} differ at their beginning")
    return int(n_different > (0.4 * n_all if args.drafts else 0) or n_early > 0)


if __name__ == "__main__":
    sys.exit(main())
