# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Code objects and the store that keeps them: content-keyed files, shared by all processes and Python versions.

A file is one line `mori_gemm_ar-code-object 1 <sha256 of the rest>`, one line of JSON and the ISA text. The JSON holds
the hash of the HSACO, which stands in a file of its own beside it. A key says what the code was made from and nothing
about who asks, so all ranks find one entry. Standard library only.
"""

from __future__ import annotations

import dataclasses
import enum
import fcntl
import hashlib
import importlib.metadata
import json
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Protocol

from mori_gemm_ar.compile.hsaco import hsaco_digest
from mori_gemm_ar.errors import CacheWarning, ConfigError, MissingDependencyError
from mori_gemm_ar.isa.text import TARGET

CACHE_VARIABLE = "MORI_GEMM_AR_CACHE"
LOCK_TIMEOUT_S = 120.0  # one build takes seconds; a holder that is alive after this is stuck
_POLL_S = 0.02
_SUFFIX = ".isa"
_HSACO_SUFFIX = ".hsaco"
MANIFEST = "manifest.json"  # its presence makes a directory an ahead-of-time store
_MAGIC = "mori_gemm_ar-code-object 1"
_PACKAGE = Path(__file__).resolve().parents[1]
# Layout too: control offsets and enum values are compiled in.
_SOURCES = ("kernels", "compile", "layout")


class CodeForm(enum.Enum):
    """What a target runs; every code object has the ISA text, which says where the arguments lie."""

    ISA = "isa"  # text, for the emulator
    HSACO = "hsaco"  # text, and the ELF file that HIP loads


class Config(Protocol):
    """How to build a kernel; `key` is unique for each config and a legal file name."""

    @property
    def key(self) -> str: ...


@dataclass(frozen=True)
class CodeObject:
    """One compiled kernel, for all ranks. The manifest is JSON data: config, arguments, versions, hashes, resources."""

    key: str
    kernel: str  # symbol name
    isa: str
    manifest: dict[str, Any]
    hsaco: bytes | None = None

    def has(self, form: CodeForm) -> bool:
        """Whether a target of this form can run it."""
        return form is CodeForm.ISA or self.hsaco is not None

    def to_bytes(self) -> bytes:
        """The file format, which leaves the HSACO out."""
        header = json.dumps({"key": self.key, "kernel": self.kernel, "manifest": self.manifest}, sort_keys=True)
        body = f"{header}\n{self.isa}".encode()
        return f"{_MAGIC} {hashlib.sha256(body).hexdigest()}\n".encode() + body

    @classmethod
    def from_bytes(cls, data: bytes) -> CodeObject:
        """Read the file format; ValueError tells what is wrong with the data."""
        first, _, body = data.partition(b"\n")
        magic, _, digest = first.rpartition(b" ")
        if magic != _MAGIC.encode():
            raise ValueError("it is not a code object of this library and version")
        if digest.decode("ascii", "replace") != hashlib.sha256(body).hexdigest():
            raise ValueError("it is damaged: the checksum differs")
        header, _, isa = body.partition(b"\n")
        fields = json.loads(header)
        return cls(fields["key"], fields["kernel"], isa.decode(), fields["manifest"])


def isa_digest(isa: str) -> str:
    """SHA-256 of an ISA text, as the manifest gives it."""
    return hashlib.sha256(isa.encode()).hexdigest()


@cache
def source_digest() -> str:
    """Hash of all our files that decide what FlyDSL is asked to compile."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_PACKAGE / folder).rglob("*")):
            if path.suffix in (".py", ".ll"):
                digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0".encode())
                digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def flydsl_version() -> str | None:
    """Version of the installed FlyDSL, found without importing it; None when there is none."""
    try:
        return importlib.metadata.version("flydsl")
    except importlib.metadata.PackageNotFoundError:
        return None


def content_key(config_key: str, flydsl: str | None = None) -> str:
    """`config_key` and a hash of our sources, the FlyDSL version (the installed one by default) and the target."""
    parts = (source_digest(), flydsl or flydsl_version() or "none", TARGET)
    return f"{config_key}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


class CodeStore:
    """Code objects of one directory, built on demand and at most once for all processes that share it.

    `root=None` keeps them in memory only, and so does a directory that cannot be written, with one warning. A damaged
    or foreign entry is rebuilt with one warning. A directory with a manifest.json was built ahead of time: what it
    holds is used whichever FlyDSL is installed, as long as our sources are those it was built from. Safe for threads.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        builder: Callable[[Any, CodeForm], CodeObject] | None = None,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        if lock_timeout_s < 0:
            raise ConfigError(f"lock_timeout_s={lock_timeout_s} must be >= 0; use 0 not to wait at all")
        self.root = None if root is None else Path(root)
        self._build = builder or _build_on_demand
        self._lock_timeout_s = lock_timeout_s
        self._loaded: dict[str, CodeObject] = {}
        self._mutex = threading.Lock()
        self._complained = False

    def get(self, config: Config, form: CodeForm = CodeForm.ISA) -> CodeObject:
        """The code object of a config: from memory, from the directory, or built and then kept in both.

        Raises MissingDependencyError when it has to be built and FlyDSL, or the linker that HSACO takes, is missing.
        """
        key = content_key(config.key)
        with self._mutex:
            code = self._loaded.get(key)
            if code is None or not code.has(form):
                code = self._loaded[key] = self._load_or_build(config, key, form)
            return code

    def path(self, config: Config) -> Path | None:
        """Where the entry of a config stands or would stand; None for a store in memory."""
        return None if self.root is None else self.root / f"{content_key(config.key)}{_SUFFIX}"

    def entries(self) -> list[Path]:
        """The files of all entries, in order of name."""
        return [] if self.root is None else sorted(self.root.glob(f"*{_SUFFIX}"))

    def held(self) -> list[CodeObject]:
        """All entries of our sources in good order, each in the richest form that is there. No config is needed."""
        found = []
        for path in self.entries():
            for form in reversed(CodeForm):
                code, _ = _read(path, path.name.removesuffix(_SUFFIX), form)
                if code is not None and self._is_ours(code, str((code.manifest.get("config") or {}).get("key"))):
                    found.append(code)
                    break
        return found

    @property
    def ahead_of_time(self) -> bool:
        """Whether the directory was built by `python -m mori_gemm_ar build`."""
        return self.root is not None and (self.root / MANIFEST).is_file()

    # --- how an entry comes to be ---

    def _load_or_build(self, config: Config, key: str, form: CodeForm) -> CodeObject:
        path = self.path(config)
        if path is None:
            return self._build(config, form)
        code, _ = _read(path, key, form)
        if code is None and (flydsl_version() is None or self.ahead_of_time):
            code = self._find_built_ahead(config.key, form)
        if code is not None:
            return code
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _acquire(path.with_suffix(".lock"), self._lock_timeout_s)
        except OSError as error:
            self._complain(error)
            return self._build(config, form)
        with lock:  # closing the file releases the lock
            # Another process may have built it while we waited, or repaired what we saw damaged.
            code, fault = _read(path, key, form)
            return code or self._build_and_write(config, path, form, fault)

    def _build_and_write(self, config: Config, path: Path, form: CodeForm, fault: str | None) -> CodeObject:
        if fault is not None:
            _warn(f"cache entry {path} is rebuilt: {fault}")
        code = self._build(config, form)
        try:
            # The HSACO first: an entry that names a hash finds that file.
            if code.hsaco is not None:
                _write(path.with_suffix(_HSACO_SUFFIX), code.hsaco)
            _write(path, code.to_bytes())
        except OSError as error:
            self._complain(error)
        return code

    def _find_built_ahead(self, config_key: str, form: CodeForm) -> CodeObject | None:
        """Any version of FlyDSL will do, as long as our sources are the same."""
        for path in self.entries():
            if path.name.startswith(f"{config_key}-"):
                code, _ = _read(path, path.name.removesuffix(_SUFFIX), form)
                if code is not None and self._is_ours(code, config_key):
                    return code
        return None

    @staticmethod
    def _is_ours(code: CodeObject, config_key: str) -> bool:
        return code.key == content_key(config_key, flydsl=str(code.manifest.get("flydsl")))

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            _warn(
                f"cache={self.root} must be a writable directory ({error}); code objects are kept in memory, and every "
                f"process builds its own; set {CACHE_VARIABLE} to another directory"
            )


def default_store() -> CodeStore:
    """This process's store in $MORI_GEMM_AR_CACHE, else in the user's cache directory, else in memory."""
    return _store_at(_default_root())


@cache
def _store_at(root: Path | None) -> CodeStore:
    if root is None:
        _warn(f"no home directory is known, so code objects are kept in memory; set {CACHE_VARIABLE} to a directory")
    return CodeStore(root)


def _default_root() -> Path | None:
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG rule: a relative or empty value counts as unset
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "mori_gemm_ar"


def _build_on_demand(config: Any, form: CodeForm) -> CodeObject:
    try:
        from mori_gemm_ar.compile.build import build
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "flydsl":
            raise
        raise MissingDependencyError(
            f"config={config.key} must be in the store as {form.value} or be compiled, and FlyDSL is not installed; "
            "pip install 'mori_gemm_ar[compile]' or copy a store that was built ahead of time"
        ) from error
    return build(config, form)


# --- files ---


def _read(path: Path, key: str, form: CodeForm) -> tuple[CodeObject | None, str | None]:
    """(code object, None), (None, None) when there is none of this form, (None, fault) when it is of no use."""
    try:
        code = CodeObject.from_bytes(path.read_bytes())
        if code.key != key:
            return None, f"it holds {code.key}, made from other sources"
        digest = code.manifest.get("hsaco_sha256")
        if form is CodeForm.ISA:
            return code, None
        if digest is None:
            return None, None
        hsaco = path.with_suffix(_HSACO_SUFFIX).read_bytes()
    except FileNotFoundError as error:
        return None, None if error.filename == str(path) else "its HSACO is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, str(error)
    if hsaco_digest(hsaco) != digest:
        return None, "its HSACO is damaged: the checksum differs"
    return dataclasses.replace(code, hsaco=hsaco), None


def _write(path: Path, data: bytes) -> None:
    """Replace the file at once; readers see the old one or the new one. The caller holds the entry's lock."""
    for leftover in path.parent.glob(f"{path.name}.*.tmp"):  # of a process that was killed while it wrote
        leftover.unlink(missing_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp makes it private; the cache may be shared by a group of users
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _acquire(path: Path, timeout_s: float) -> IO[bytes]:
    """The lock file, open and locked: the system unlocks it when the holder dies. Not locked after the timeout."""
    deadline = time.monotonic() + timeout_s
    file = path.open("ab")
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    _warn(f"lock {path} was not free within {timeout_s:g} s; going on without it")
                    return file
            time.sleep(_POLL_S)
    except BaseException:
        file.close()
        raise


def _warn(text: str) -> None:
    warnings.warn(text, CacheWarning, stacklevel=2)
