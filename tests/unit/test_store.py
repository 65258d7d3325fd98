# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The store of code objects: format, keys, damage, and directories that cannot be written. No compiler needed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import warnings
from dataclasses import fields
from pathlib import Path

import pytest

from mori_gemm_ar.compile import store as store_module
from mori_gemm_ar.compile.store import CodeObject, CodeStore, content_key, default_store
from mori_gemm_ar.errors import ConfigError, MissingDependencyError
from mori_gemm_ar.layout import AllReduceConfig
from tests.unit.store_fakes import Builder, FakeConfig, fake_build, one_cache_warning

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config() -> FakeConfig:
    return FakeConfig()


# --- format and keys ---


def test_a_code_object_survives_the_file_format(config: FakeConfig) -> None:
    code = fake_build(config)
    assert CodeObject.from_bytes(code.to_bytes()) == code


def test_the_file_is_readable_text(tmp_path: Path, config: FakeConfig) -> None:
    store = CodeStore(tmp_path, fake_build)
    store.get(config)
    magic, header, isa = store.path(config).read_text().split("\n", 2)
    assert magic.startswith("mori_gemm_ar-code-object 1 ")
    assert json.loads(header)["kernel"] == config.key
    assert isa == fake_build(config).isa


def test_an_entry_is_built_once_and_read_later(tmp_path: Path, config: FakeConfig) -> None:
    builder = Builder()
    first = CodeStore(tmp_path, builder).get(config)
    second_store = CodeStore(tmp_path, builder)
    assert second_store.get(config) == first
    assert second_store.get(config) is second_store.get(config)
    assert builder.calls == [config.key]
    assert [path.name for path in second_store.entries()] == [f"{content_key(config.key)}.isa"]


def test_configs_have_entries_of_their_own(tmp_path: Path) -> None:
    store = CodeStore(tmp_path, fake_build)
    codes = {store.get(FakeConfig(f"fake_w{world}")).isa for world in (2, 3, 4)}
    assert len(codes) == len(store.entries()) == 3


def test_a_key_knows_no_rank(tmp_path: Path, config: FakeConfig) -> None:
    assert "rank" not in {field.name for field in fields(AllReduceConfig)}
    code = "import sys; from mori_gemm_ar.compile.store import content_key; print(content_key(sys.argv[1]))"
    keys = set()
    for rank in ("0", "7"):
        environment = os.environ | {"RANK": rank, "LOCAL_RANK": rank, "PYTHONHASHSEED": rank, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            [sys.executable, "-c", code, config.key], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        keys.add(run.stdout.strip())
    assert keys == {content_key(config.key)}


def test_a_key_depends_on_config_sources_compiler_and_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: FakeConfig
) -> None:
    keys = {content_key(config.key), content_key("other"), content_key(config.key, flydsl="9.9.9")}
    monkeypatch.setattr(store_module, "TARGET", "gfx942")
    keys.add(content_key(config.key))
    monkeypatch.undo()
    package = tmp_path / "mori_gemm_ar"
    shutil.copytree(store_module._PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(store_module, "_PACKAGE", package)
    digest = store_module.source_digest.__wrapped__
    digests = {digest()}
    assert digests == {store_module.source_digest()}
    for name in ("kernels/device/library.ll", "kernels/allreduce.py", "compile/backend.py", "layout/allreduce.py"):
        with (package / name).open("a") as file:
            file.write("\n")
        digests.add(digest())
    assert len(keys) == 4
    assert len(digests) == 5


def test_a_bad_timeout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lock_timeout_s=-1 must be >= 0"):
        CodeStore(tmp_path, fake_build, lock_timeout_s=-1)


# --- damage ---


def flip(data: bytes, index: int) -> bytes:
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


def other_key(data: bytes) -> bytes:
    code = CodeObject.from_bytes(data)
    return CodeObject("fake_w4-0000000000000000", code.kernel, code.isa, code.manifest).to_bytes()


DAMAGE = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "one byte long": lambda data: data + b"\n",
    "random": lambda data: os.urandom(len(data)),
    "bit in the magic": lambda data: flip(data, 3),
    "bit in the checksum": lambda data: flip(data, 40),
    "bit in the header": lambda data: flip(data, 120),
    "bit in the code": lambda data: flip(data, len(data) - 5),
    "not utf-8": lambda data: b"\xff\xfe" * 100,
    "other product": lambda data: b"\x80\x05\x95" + data,
    "other format version": lambda data: data.replace(b"code-object 1 ", b"code-object 2 ", 1),
    "other sources": other_key,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_rebuilt_with_one_warning(tmp_path: Path, config: FakeConfig, damage) -> None:
    path = CodeStore(tmp_path).path(config)
    CodeStore(tmp_path, fake_build).get(config)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    builder = Builder()
    store = CodeStore(tmp_path, builder)
    with one_cache_warning(str(path), "is rebuilt"):
        assert store.get(config) == fake_build(config)
    assert builder.calls == [config.key]
    assert path.read_bytes() == good
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CodeStore(tmp_path, builder).get(config)


def test_a_damaged_lock_file_does_not_matter(tmp_path: Path, config: FakeConfig) -> None:
    store = CodeStore(tmp_path, fake_build)
    store.path(config).with_suffix(".lock").write_bytes(os.urandom(100))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.get(config)


# --- directories that cannot be written ---


def assert_works_in_memory(root: Path, config: FakeConfig) -> None:
    builder = Builder()
    store = CodeStore(root, builder)
    with one_cache_warning(f"cache={root} must be", "kept in memory", "MORI_GEMM_AR_CACHE"):
        assert store.get(config) == fake_build(config)
        assert store.get(FakeConfig("another")).kernel == "another"
        store.get(config)
    assert builder.calls == [config.key, "another"]


def test_a_path_below_a_file(tmp_path: Path, config: FakeConfig) -> None:
    (tmp_path / "file").touch()
    assert_works_in_memory(tmp_path / "file" / "cache", config)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory(tmp_path: Path, config: FakeConfig) -> None:
    tmp_path.chmod(0o555)
    try:
        assert_works_in_memory(tmp_path, config)
    finally:
        tmp_path.chmod(0o755)


def test_a_directory_of_a_read_only_file_system(config: FakeConfig) -> None:
    assert_works_in_memory(Path("/proc/self/mori_gemm_ar"), config)


def test_a_read_only_directory_still_serves_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: FakeConfig
) -> None:
    CodeStore(tmp_path, fake_build).get(config)

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(store_module, "_acquire", refuse)
    monkeypatch.setattr(store_module, "_write", refuse)
    builder = Builder()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CodeStore(tmp_path, builder).get(config)
    assert builder.calls == []
    assert_works_in_memory(tmp_path, FakeConfig("cold"))


def test_a_full_disk(tmp_path: Path, config: FakeConfig) -> None:
    # Python ignores SIGXFSZ, so a write past the limit fails as one to a full disk does.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        assert_works_in_memory(tmp_path / "cache", config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]


def test_a_store_in_memory_says_nothing(config: FakeConfig) -> None:
    builder = Builder()
    store = CodeStore(None, builder)
    assert store.get(config) is store.get(config)
    assert store.path(config) is None
    assert store.entries() == []
    assert builder.calls == [config.key]


# --- the default store ---


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in (store_module.CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    store_module._store_at.cache_clear()
    return monkeypatch


def test_the_default_directory(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_store().root == tmp_path / "home" / ".cache" / "mori_gemm_ar"
    clean_environment.setenv("XDG_CACHE_HOME", "relative")
    assert default_store().root == tmp_path / "home" / ".cache" / "mori_gemm_ar"
    clean_environment.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_store().root == tmp_path / "xdg" / "mori_gemm_ar"
    clean_environment.setenv(store_module.CACHE_VARIABLE, str(tmp_path / "chosen"))
    assert default_store().root == tmp_path / "chosen"
    assert default_store() is default_store()


def test_no_home_gives_one_warning_and_memory(clean_environment: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    clean_environment.delenv("HOME")
    clean_environment.setattr(store_module.Path, "home", no_home)
    with one_cache_warning("MORI_GEMM_AR_CACHE"):
        assert default_store().root is None
        assert default_store() is default_store()


# --- without a compiler ---


@pytest.fixture
def no_flydsl(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "flydsl"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("compile.build", "compile.backend", "kernels.allreduce"):
        monkeypatch.delitem(sys.modules, f"mori_gemm_ar.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "flydsl", None)
    monkeypatch.setattr(store_module, "flydsl_version", lambda: None)


@pytest.mark.usefixtures("no_flydsl")
def test_a_miss_without_flydsl_names_the_extra(tmp_path: Path, config: FakeConfig) -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'mori_gemm_ar\[compile\]'"):
        CodeStore(tmp_path).get(config)
    assert CodeStore(tmp_path).entries() == []


def test_a_store_built_ahead_serves_without_flydsl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: FakeConfig
) -> None:
    monkeypatch.setattr(store_module, "flydsl_version", lambda: "0.5.0")
    built = CodeStore(tmp_path, fake_build).get(config)
    monkeypatch.setattr(store_module, "flydsl_version", lambda: None)
    builder = Builder()
    assert CodeStore(tmp_path, builder).get(config) == built
    assert builder.calls == []
    CodeStore(tmp_path, builder).get(FakeConfig("never_built"))
    assert builder.calls == ["never_built"]


def test_a_store_built_ahead_from_other_sources_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: FakeConfig
) -> None:
    monkeypatch.setattr(store_module, "flydsl_version", lambda: "0.5.0")
    CodeStore(tmp_path, fake_build).get(config)
    monkeypatch.setattr(store_module, "flydsl_version", lambda: None)
    monkeypatch.setattr(store_module, "source_digest", lambda: "changed")
    builder = Builder()
    CodeStore(tmp_path, builder).get(config)
    assert builder.calls == [config.key]
