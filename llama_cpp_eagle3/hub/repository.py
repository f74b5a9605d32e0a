"""A repository of the hub: its list of files, and the files, downloaded or from the hub's cache."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import HubError
from ..extras import install_command
from ..files.whole_file import naming

try:
    import huggingface_hub
    from huggingface_hub import constants, get_token, hf_hub_download, hf_hub_url, scan_cache_dir
    from huggingface_hub.file_download import get_hf_file_metadata, http_get, repo_folder_name
    from huggingface_hub.utils import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        WeakFileLock,
        build_hf_headers,
    )
except ModuleNotFoundError as e:
    raise ImportError(f"{e.name} is missing: {install_command('hub')}", name=e.name) from e

_log = logging.getLogger("llama_cpp_eagle3")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """Access to the hub: token, cache and folder."""

    cache_dir: str | os.PathLike[str] | None = None
    """The hub's cache; None: huggingface_hub's default."""
    local_dir: str | os.PathLike[str] | None = None
    """A folder for GGUF files, in place of the cache."""
    token: str | None = None
    """None: HF_TOKEN, or what `hf auth login` left."""
    offline: bool = False
    """Use files of this machine only. HF_HUB_OFFLINE=1 does the same."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a repository at one commit, or those of them that are on this machine."""

    commit: str
    files: tuple[str, ...]


class Repository:
    """A repository by its name, USER/REPO."""

    def __init__(self, repo_id: str, access: Access):
        """List the files by asking the hub, or by the cache if the hub is not to be asked or does not answer.

        Raises:
            HubError: there is no such repository, or it may not be read with this token.
        """
        self.repo_id, self.access = repo_id, access
        self._unanswered: HubError | None = None
        self._is_local = access.offline or bool(constants.HF_HUB_OFFLINE)
        self.snapshots = self._cached() if self._is_local else self._listed()

    def check(self) -> None:
        """Raise HubError if nothing of it is in the cache, and the hub was not asked, or did not answer."""
        if self.snapshots:
            return
        if self._unanswered is not None:
            raise self._unanswered
        raise HubError(
            f"nothing of '{self.repo_id}' is in the cache '{self._cache_dir()}', and the hub is not asked offline "
            "(--offline, HF_HUB_OFFLINE): fetch it once with a network"
        )

    def find(self, choose: Callable[[Snapshot], T | None]) -> tuple[Snapshot, T] | None:
        """What `choose` finds in the newest snapshot in which it finds something, and that snapshot."""
        for snapshot in self.snapshots:
            chosen = choose(snapshot)
            if chosen is not None:
                return snapshot, chosen
        return None

    @property
    def files(self) -> tuple[str, ...]:
        """All files of the repository, or those of them that are on this machine."""
        return tuple(dict.fromkeys(file for snapshot in self.snapshots for file in snapshot.files))

    @property
    def where(self) -> str:
        """The place that was searched, for messages."""
        return f"the cached part of '{self.repo_id}' (offline)" if self._is_local else f"'{self.repo_id}'"

    def fetch(self, snapshot: Snapshot, names: Sequence[str], local_dir: Any = None) -> list[Path]:
        """Paths of files, downloaded if they are not here; an interrupted download goes on where it ended.

        Raises:
            HubError: the hub does not give them.
        """
        return [self._fetch(snapshot, name, local_dir) for name in names]

    def _fetch(self, snapshot: Snapshot, name: str, local_dir: Any) -> Path:
        access = self.access
        with self._errors(name):
            if local_dir is None and not self._is_local:
                self._complete_blob(snapshot, name)
            path = hf_hub_download(
                self.repo_id,
                name,
                revision=snapshot.commit,
                cache_dir=access.cache_dir,
                local_dir=local_dir,
                token=access.token,
                local_files_only=self._is_local,
            )
        return Path(path)

    def _complete_blob(self, snapshot: Snapshot, name: str) -> None:
        """Download the files that are not in the cache.

        huggingface_hub does this too, but since its version 2 begins anew after each interrupted run.
        """
        access = self.access
        folder = self._cache_dir() / repo_folder_name(repo_id=self.repo_id, repo_type="model")
        if (folder / "snapshots" / snapshot.commit / name).exists():
            return
        url = hf_hub_url(self.repo_id, name, revision=snapshot.commit)
        about = get_hf_file_metadata(url, token=access.token)
        if about.etag is None or about.size is None:  # hf_hub_download has the error for such a server
            return
        blob = folder / "blobs" / about.etag
        blob.parent.mkdir(parents=True, exist_ok=True)
        part = blob.with_name(f"{about.etag}.llama-cpp-eagle3.incomplete")
        with WeakFileLock(f"{part}.lock"):
            if blob.exists():
                return
            with naming(part), part.open("ab") as file:
                if file.tell() > about.size:
                    file.truncate(0)
                if file.tell():
                    _log.info("going on with '%s' at %d of %d bytes", name, file.tell(), about.size)
                if file.tell() < about.size:
                    http_get(
                        url,
                        file,
                        resume_size=file.tell(),
                        headers=build_hf_headers(token=access.token),
                        expected_size=about.size,
                        displayed_filename=name,
                    )
            os.replace(part, blob)
        Path(f"{part}.lock").unlink(missing_ok=True)

    def _listed(self) -> list[Snapshot]:
        """The repository's files as the hub lists them; without an answer, those in the cache."""
        api = huggingface_hub.HfApi(token=self.access.token)
        try:
            with self._errors():
                info = api.model_info(self.repo_id)
        except HubError as e:
            if not isinstance(e.__cause__, _network_errors()):
                raise
            self._is_local, self._unanswered = True, e
            snapshots = self._cached()
            if snapshots:
                _log.warning("%s: the copy in the cache is used", e)
            return snapshots
        return [Snapshot(str(info.sha), tuple(sorted(file.rfilename for file in info.siblings or ())))]

    def _cached(self) -> list[Snapshot]:
        """The snapshots on this machine, the newest first."""
        if self.access.local_dir is not None:  # there is no list of this repository's files there
            raise HubError(f"offline, give the paths of files in '{self.access.local_dir}' instead of repositories")
        found: list[Snapshot] = []
        if self._cache_dir().is_dir():
            repos = scan_cache_dir(self._cache_dir()).repos
            revisions = [r for repo in repos if repo.repo_id == self.repo_id for r in repo.revisions]
            for revision in sorted(revisions, key=lambda r: r.last_modified, reverse=True):
                files = sorted(f.file_path.relative_to(revision.snapshot_path).as_posix() for f in revision.files)
                found.append(Snapshot(revision.commit_hash, tuple(files)))
        return found

    def _cache_dir(self) -> Path:
        return Path(self.access.cache_dir or constants.HF_HUB_CACHE).expanduser()

    @contextmanager
    def _errors(self, name: str = "") -> Iterator[None]:
        """The error as what went wrong and what to do about it."""
        what = f"'{name}' of '{self.repo_id}'" if name else f"'{self.repo_id}'"
        token = "with your token" if self.access.token or get_token() else "without a token"
        page = f"{constants.ENDPOINT}/{self.repo_id}"
        try:
            yield
        except GatedRepoError as e:
            raise HubError(
                f"{what} is gated, and was refused {token}: accept its terms at {page}, then run `hf auth login`, set "
                "HF_TOKEN or use -hft TOKEN"
            ) from e
        except RepositoryNotFoundError as e:
            raise HubError(
                f"the hub has no model '{self.repo_id}', or it is private and was refused {token}: check the name at "
                f"{page}; for a private one run `hf auth login`, set HF_TOKEN or use -hft TOKEN"
            ) from e
        except EntryNotFoundError as e:
            raise HubError(f"{what} is not there: {_line(e)}") from e
        except HfHubHTTPError as e:
            raise HubError(f"the hub did not give {what}: {_line(e)}") from e
        except _network_errors() as e:
            if isinstance(e, OSError) and e.errno is not None and not isinstance(e, ConnectionError):
                raise  # the disk is full, a folder cannot be written
            kept = "; what has arrived is kept, and the next run goes on from there" if name else ""
            raise HubError(
                f"the hub did not answer for {what} ({constants.ENDPOINT}): {_line(e)}{kept}. Without a network "
                "take a model that is on this machine, by the path of its file"
            ) from e


def _line(error: BaseException) -> str:
    """An error's message in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _network_errors() -> tuple[type[Exception], ...]:
    """Errors of failed connections: those of requests, httpx or httpx2, whichever huggingface_hub uses."""
    errors: list[type[Exception]] = [OSError]
    for name in ("httpx", "httpx2"):
        with suppress(ModuleNotFoundError):
            errors.append(importlib.import_module(name).TransportError)
    return tuple(errors)
