"""Import llama_cpp first, so that the compiled module binds to the libllama that it has loaded.

In a clone the package's folder shadows the installed copy, but has no compiled module: then the installed copy's is
used, if it was compiled from the clone's sources.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ._version import LLAMA_CPP_PYTHON_VERSION
from .errors import LibraryMismatchError

_CORE = f"{__package__}._core"

COMMAND = "llama-cpp-eagle3"
"""The name of the program."""


def _advice(*options: str) -> str:
    """What to type. options: pip's."""
    command = " ".join(("pip install", *options, f"llama-cpp-python=={LLAMA_CPP_PYTHON_VERSION}"))
    return f'Type `{command}`, for a GPU with CMAKE_ARGS="-DGGML_CUDA=on" or "-DGGML_METAL=on" in front'


_ADVICE = _advice()
_ADVICE_IF_DAMAGED = _advice("--force-reinstall", "--no-deps", "--no-cache-dir")
"""Else pip is content with the version that it finds."""


def check_version(found: str) -> None:
    """Raise `LibraryMismatchError` unless `found` is the llama-cpp-python version that we were built for."""
    if found != LLAMA_CPP_PYTHON_VERSION:
        raise LibraryMismatchError(
            f"llama-cpp-eagle3 needs llama-cpp-python {LLAMA_CPP_PYTHON_VERSION}, found {found}. {_ADVICE}"
        )


def load() -> None:
    """Load libllama through llama_cpp, check it, and then load the compiled module against it.

    Raises:
        LibraryMismatchError: see `mismatches`.
    """
    try:
        with mismatches():
            _load()
    except LibraryMismatchError as e:
        raise e.with_traceback(None) from e.__cause__  # our own lines say nothing


@contextmanager
def mismatches() -> Iterator[None]:
    """Raise `LibraryMismatchError` where llama-cpp-python lacks a name too: our own command ends with a line.

    Raises:
        LibraryMismatchError: it does not fit. The status of our own command is 2.
    """
    try:
        yield
    except (ImportError, AttributeError, NameError, RuntimeError, FileNotFoundError) as e:
        error = e if isinstance(e, LibraryMismatchError) else _lack(e)
        if error is None:
            raise
        if not _is_command():
            raise error from (None if error is e else e)
        print(f"{COMMAND}: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _lack(e: Exception) -> LibraryMismatchError | None:
    """The error of a module of llama_cpp that is not there, or lacks a name or its library; None: it is another's."""
    if isinstance(e, ImportError):
        name = e.name
    elif isinstance(e, AttributeError):
        name = getattr(e.obj, "__name__", None) or type(e.obj).__module__
    else:  # the module that lacks a name of its own, or that loads libraries
        (*_, (frame, _)) = traceback.walk_tb(e.__traceback__)
        name = frame.f_globals.get("__name__")
        if not isinstance(e, NameError) and name != "llama_cpp._ctypes_extensions":
            return None
    if str(name).partition(".")[0] != "llama_cpp":
        return None
    return LibraryMismatchError(f"llama-cpp-python {LLAMA_CPP_PYTHON_VERSION} is damaged: {e}. {_ADVICE_IF_DAMAGED}")


def _is_command() -> bool:
    """Whether the process is our command, `llama-cpp-eagle3` or `python -m llama_cpp_eagle3`, which imports this."""
    before = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return Path(sys.argv[0]).stem == COMMAND or "".join(before).endswith(f"-m{__package__}")


def _load() -> None:
    try:
        with _short_waits():
            import llama_cpp

        version = getattr(llama_cpp, "__version__", None)  # a folder of that name is a package too
        check_version(version or f"{', '.join(getattr(llama_cpp, '__path__', ['a module']))} without a version")
        path = libllama_path()
    except LibraryMismatchError:
        raise
    except Exception as e:  # of any kind: it lacks a library, such as a driver's, or its own files are damaged
        is_missing = isinstance(e, ModuleNotFoundError) and e.name == "llama_cpp"
        if is_missing:
            raise LibraryMismatchError(f"llama-cpp-python is not installed. {_ADVICE}") from e
        why = f"cannot be imported: {' '.join(str(e).split()) or repr(e)}"
        is_others = isinstance(e, ModuleNotFoundError) and (e.name or "").partition(".")[0] != "llama_cpp"
        # a module of another package that it needs: pip fetches what is missing, unless --no-deps is said
        raise LibraryMismatchError(f"llama-cpp-python {why}. {_ADVICE if is_others else _ADVICE_IF_DAMAGED}") from e

    open_globally(str(path))
    try:
        if importlib.util.find_spec(_CORE) is None:
            _borrow_core(Path(__file__).parent)
        from . import _core  # noqa: F401
    except ModuleNotFoundError:
        raise
    except LibraryMismatchError:
        raise
    except ImportError as e:
        # all symbols are bound at load time, so loading fails here if libllama lacks one
        raise LibraryMismatchError(
            f"the compiled module does not fit the loaded libllama ({path}): {e}. {_ADVICE}"
        ) from e


@contextmanager
def _short_waits() -> Iterator[None]:
    """Let threads of llama.cpp that wait for each other sleep after some 50 us, if libgomp is loaded in this block.

    It reads its settings once. By default they wait awake for milliseconds: where another program has one of the
    processors, they keep it from the thread that they wait for, and a token takes several times as long. On other
    processors than x86 a round of waiting takes another time, so the default stays.
    """
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    if platform.machine() not in ("x86_64", "AMD64") or any(name in os.environ for name in names):
        yield
        return
    os.environ[names[0]] = "2000"
    try:
        yield
    finally:
        del os.environ[names[0]]


def open_globally(path: str) -> None:
    """Let the compiled module find libllama's symbols if the library's name is not enough.

    Linux and Windows find a loaded library by its name, which is in the compiled module. macOS resolves our undefined
    symbols in libraries that are open globally, and in those that these need.
    """
    if sys.platform == "darwin":
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def libllama() -> ctypes.CDLL:
    """The library that llama_cpp has loaded, for which it has no public name."""
    import llama_cpp

    library: ctypes.CDLL = llama_cpp.llama_cpp._lib
    return library


def libllama_path() -> Path:
    """Its file, for which ctypes has no public name either."""
    return Path(libllama()._name)


def _borrow_core(package: Path) -> None:
    """Import the compiled modules of an installed copy as ours."""
    here = f"Python imports llama_cpp_eagle3 from '{package}', which has no compiled module"
    install = f"`pip install {package.parent}` (again, if you did already), or run Python in another folder"
    spec = _find_core(package)
    if spec is None or spec.loader is None or spec.origin is None:
        version = ".".join(map(str, sys.version_info[:2]))
        raise LibraryMismatchError(f"{here}, and no installed copy has one for Python {version}. Type {install}")
    core = importlib.util.module_from_spec(spec)
    sys.modules[_CORE] = core
    try:
        spec.loader.exec_module(core)
        digest = getattr(core, "SOURCES_DIGEST", "")
        if not _is_compiled_from(digest, package, Path(spec.origin).parent):
            raise LibraryMismatchError(
                f"{here}, and that of '{spec.origin}' was compiled from other sources. Type {install}"
            )
    except BaseException:
        del sys.modules[_CORE]
        raise
    sys.modules[__package__]._core = core  # type: ignore[attr-defined]
    # modules that were compiled with it are imported later, where they are needed
    sys.modules[__package__].__path__.append(str(Path(spec.origin).parent))


def _find_core(package: Path) -> ModuleSpec | None:
    """The compiled module of the first copy of the package that has one for this Python."""
    for entry in sys.path:
        folder = Path(entry or ".") / package.name
        if folder.is_dir() and not folder.samefile(package):
            spec = PathFinder.find_spec(_CORE, [str(folder)])
            if spec is not None:
                return spec
    return None


def _is_compiled_from(digest: str, package: Path, installed: Path) -> bool:
    """Whether a module is that of the sources beside a package; without these, whether its stubs are the package's."""
    sources = sources_digest(package.parent)
    if sources is not None:
        return digest == sources
    stubs = [folder / "_core.pyi" for folder in (package, installed)]
    return all(s.is_file() for s in stubs) and stubs[0].read_bytes() == stubs[1].read_bytes()


def sources_digest(root: Path) -> str | None:
    """Digest of the C++ sources in a clone, as CMakeLists.txt makes it; None if there are none."""
    files = [f for f in (root / "csrc").rglob("*") if f.suffix in (".cpp", ".h")]
    if not files:
        return None
    files += [f for f in (root / "vendor").rglob("*") if f.is_file()]
    digests = {f.relative_to(root).as_posix(): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    return hashlib.sha256("".join(f"{name} {digests[name]}\n" for name in sorted(digests)).encode()).hexdigest()
