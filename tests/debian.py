"""Install and fetch Debian's packages by apt, for the programs beside this file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class CannotBeHad(Exception):
    """A required package is missing, and cannot be had."""


def install(packages: list[str]) -> None:
    """Install packages by apt.

    Raises:
        CannotBeHad: there is no apt, or it cannot install them.
    """
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *packages]):
        try:
            ended = subprocess.run([*sudo, *command], env=environment, capture_output=True, text=True, check=False)
        except OSError as e:
            raise CannotBeHad(f"{' '.join(packages)} cannot be installed: {e}") from e
        if ended.returncode and command[1] == "install":
            raise CannotBeHad(f"{' '.join(packages)} cannot be installed: {_last_line(ended)}")


def mirror() -> str:
    """Return the address from which apt gets this system's packages.

    Raises:
        CannotBeHad: there is no apt, or it knows no source of packages.
    """
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError as e:
        raise CannotBeHad(f"this system has no apt: {e}") from e
    if not listed.strip():
        raise CannotBeHad("apt knows no source of packages")
    return listed.split()[0]


def download(folder: Path, kind: str, release: str, arguments: list[str], architecture: str = "") -> None:
    """Let apt put files of a Debian release into a folder, without a change to the system's sources.

    Args:
        folder: the folder for the files and apt's lists.
        kind: deb or deb-src.
        release: a release's name, such as bookworm.
        arguments: those of apt-get, such as download and a package.
        architecture: the packages' architecture, if not this system's.

    Raises:
        CannotBeHad: there is no such release or package, or no network.
    """
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(f"{kind} [signed-by={KEYRING}] {mirror()} {release} main\n")
    options = [f"Dir::Etc::SourceList={folder}/sources.list", "Dir::Etc::SourceParts=-"]
    options += [f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}/cache", "APT::Sandbox::User=root"]
    if architecture:
        options += [f"APT::Architecture={architecture}", f"APT::Architectures={architecture}"]
    flags = [word for option in options for word in ("-o", option)]
    for command in (["update", "-qq"], arguments):
        ended = subprocess.run(["apt-get", *flags, *command], cwd=folder, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise CannotBeHad(f"{arguments[-1]} of Debian {release} cannot be had: {_last_line(ended)}")


def _last_line(ended: subprocess.CompletedProcess[str]) -> str:
    return (ended.stderr.strip().splitlines() or [f"apt-get ended with {ended.returncode}"])[-1]
