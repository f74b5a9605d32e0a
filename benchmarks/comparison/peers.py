"""Sides of a comparison that are llama.cpp's own programs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from . import settings
from .settings import Setting

PEERS = {"simple": "llama-speculative-simple", "server": "llama-server", "ngram": "llama-server ngram-mod"}
"""Kind -> program; ngram drafts with ngram-mod, and with draft-eagle3 too if n_max is given."""


@dataclass(frozen=True)
class PeerSetting(Setting):
    """A program of llama.cpp, with chains of n_max."""

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.name.replace(self.kind, PEERS[self.kind], 1)


def parse(name: str) -> Setting:
    """From a name: of our sides, or of a peer like 'simple 3', 'server 3'.

    Raises:
        ValueError: it is none.
    """
    kind, _, n_max = name.partition(" ")
    if kind in PEERS and (not n_max or n_max.isdecimal()):
        return PeerSetting(kind, int(n_max or 0))
    return Setting.parse(name)


def of_dict(data: dict[str, Any]) -> Setting:
    """What `dataclasses.asdict` gave of a side."""
    return (PeerSetting if data["kind"] in PEERS else Setting)(**data)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flag that adds peers."""
    parser.add_argument(
        "--peer",
        action="append",
        choices=PEERS,
        default=[],
        help="also llama.cpp's llama-speculative-simple or llama-server, with each --n-max; ngram: llama-server with "
        "ngram-mod, alone and with draft-eagle3",
    )


def from_arguments(args: argparse.Namespace) -> list[Setting]:
    """What the flags name, as `settings.from_arguments`, and the peers."""
    peers = [PeerSetting(peer, n) for peer in args.peer for n in ([0] if peer == "ngram" else []) + args.n_max]
    return [*settings.from_arguments(args), *peers]
