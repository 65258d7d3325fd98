# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`python -m mori_gemm_ar build`: a store with a manifest, which loads without FlyDSL and beside another FlyDSL."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mori_gemm_ar.commands.build import ElementType, LayerOptions, Op, configs_of
from mori_gemm_ar.compile.ahead import build_store
from mori_gemm_ar.compile.hsaco import find_linker, read_hsaco
from mori_gemm_ar.compile.store import CodeForm, CodeObject, CodeStore, isa_digest, source_digest
from mori_gemm_ar.errors import ConfigError, MissingDependencyError
from mori_gemm_ar.layout import AllReduceConfig, BLayout, DType, QuantizeConfig, Recipe, Stage
from mori_gemm_ar.plan import LayerSpec

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = [AllReduceConfig(2, DType.BF16, stage) for stage in Stage]


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mori_gemm_ar", "build", *arguments],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store for two ranks and bf16, made by the command."""
    try:
        find_linker()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("ahead") / "store"
    run = command("--op", "allreduce", "--world", "2", "--dtype", "bf16", "--out", str(folder))
    assert run.returncode == 0, run.stderr
    assert f"2 kernels in {folder}, described in {folder}/manifest.json" in run.stdout
    assert run.stderr.splitlines() == [f"{n + 1}/2 {config.key}" for n, config in enumerate(CONFIGS)]
    return folder


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def test_the_manifest_ties_everything(folder: Path) -> None:
    document = manifest(folder)
    assert (document["format"], document["sources"]) == (1, source_digest())
    assert {entry["kernel"] for entry in document["entries"]} == {config.key for config in CONFIGS}
    files = {"manifest.json"}
    for entry in document["entries"]:
        isa, hsaco = (folder / entry["files"][form] for form in ("isa", "hsaco"))
        files |= {isa.name, hsaco.name}
        code = CodeObject.from_bytes(isa.read_bytes())
        assert entry["isa_sha256"] == isa_digest(code.isa) == code.manifest["isa_sha256"]
        assert entry["hsaco_sha256"] == hashlib.sha256(hsaco.read_bytes()).hexdigest() == code.manifest["hsaco_sha256"]
        assert read_hsaco(hsaco.read_bytes(), entry["kernel"]).kernarg_bytes == 80
        assert entry["config"]["type"] == "AllReduceConfig"
        assert [argument["name"] for argument in entry["arguments"]][:3] == ["base", "stride", "rank"]
        assert entry["arch"] == "gfx950"
        assert {"verdict"} <= entry["audit"].keys()
        assert entry["audit"]["verdict"] is not None or entry["audit"]["reason"]
    assert {path.name for path in folder.iterdir()} == files
    assert str(ROOT) not in (folder / "manifest.json").read_text()


def test_a_second_run_keeps_what_is_there(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    times = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.*s*o")}
    assert command("--world", "2", "--dtype", "bf16", "--out", str(folder)).returncode == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.*s*o")} == times


LOAD = """
import importlib.abc, importlib.metadata, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("flydsl", "typer", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
version = importlib.metadata.version

def installed(name):
    if name != "flydsl":
        return version(name)
    if FLYDSL is None:
        raise importlib.metadata.PackageNotFoundError(name)
    return FLYDSL

importlib.metadata.version = installed
sys.path.insert(0, ROOT)
import torch
from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.compile import default_store
from mori_gemm_ar.compile.store import CodeForm
from mori_gemm_ar.layout import AllReduceConfig, DType, Stage
from mori_gemm_ar.runtime import LocalWorld

def body(rank):
    with AllReduceOp.create(rank, 4096, dtypes=(torch.bfloat16,)) as op:
        return float(op(torch.full((100,), rank.rank + 1.0, dtype=torch.bfloat16))[99])

print(LocalWorld(2).run(body))
for stage in Stage:
    code = default_store().get(AllReduceConfig(2, DType.BF16, stage), CodeForm.HSACO)
    print(code.hsaco[:4], code.manifest["flydsl"])
print(sorted({"flydsl", "typer", "rich"} & {name.partition(".")[0] for name in sys.modules}))
try:
    default_store().get(AllReduceConfig(3, DType.BF16, stage))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("flydsl", [None, "9.9.9"], ids=["no FlyDSL", "another FlyDSL"])
def test_it_loads_without_our_flydsl(folder: Path, flydsl: str | None) -> None:
    """Nothing is compiled, nor are FlyDSL, typer and rich imported; a directory that cannot be written will do."""
    script = f"FLYDSL = {flydsl!r}; ROOT = {str(ROOT)!r}\n{LOAD}"
    environment = os.environ | {"MORI_GEMM_AR_CACHE": str(folder), "OPENBLAS_NUM_THREADS": "1"}

    def files() -> set[str]:
        return {path.name for path in folder.iterdir() if path.suffix != ".lock"}

    before = files()
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    built_with = manifest(folder)["entries"][0]["flydsl"]
    *lines, last = run.stdout.splitlines()
    assert lines == ["[3.0, 3.0]", *[f"b'\\x7fELF' {built_with}"] * 2, "[]"]
    assert last.startswith("MissingDependencyError config=lsa_allreduce_w3_bf16_2stage must be in the store as isa or")
    assert files() == before


def test_isa_only_needs_no_linker(tmp_path: Path) -> None:
    run = command(
        "--world", "1", "--dtype", "fp32", "--isa-only", "--out", str(tmp_path), MORI_GEMM_AR_LINKER="/none/ld.lld"
    )
    assert run.returncode == 0, run.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".isa"}
    assert all(entry["files"].keys() == {"isa"} for entry in manifest(tmp_path)["entries"])
    store = CodeStore(tmp_path)
    assert store.ahead_of_time
    assert len(store.held()) == 2


LAYER = (
    "--op", "gemm-allreduce", "--world", "2", "--n", "256", "--k", "128", "--m-max", "256", "--quant", "ptpc",
    "--b-layout", "row", "--mode", "fused-sdma",
)  # fmt: skip
LOAD_LAYER = (
    LOAD[: LOAD.index("from mori_gemm_ar.ar import")]
    + """
from mori_gemm_ar.op import GemmAllReduceOp
from mori_gemm_ar.runtime import LocalWorld

def body(rank):
    layer = dict(n=256, k=128, m_max=256, quant="ptpc", b_layout="row", mode="fused-sdma")
    with GemmAllReduceOp.create(rank, **layer, device="emulated") as op:
        a, b = (torch.ones(256, 128).to(torch.float8_e4m3fn) for _ in range(2))
        out = op(a, b, torch.ones(256), torch.ones(256))
        return float(out.min()), float(out.max()), op.plan(256).mode.value

print(LocalWorld(2).run(body))
print(sorted({"flydsl", "typer", "rich"} & {name.partition(".")[0] for name in sys.modules}))
"""
)


def test_a_layer_loads_without_flydsl(tmp_path: Path) -> None:
    """All that the op creates and tests itself with."""
    assert command(*LAYER, "--isa-only", "--out", str(tmp_path)).returncode == 0
    kernels = {entry["kernel"] for entry in manifest(tmp_path)["entries"]}
    assert {"sdma_scatter_w2_bf16", "fused_sdma_w2_gemm_ptpc_128x256_n256_k128_row"} <= kernels
    assert all(entry["audit"]["declared"] and entry["audit"]["verdict"] == "pass" for entry in
               manifest(tmp_path)["entries"])  # fmt: skip
    script = f"FLYDSL = None; ROOT = {str(ROOT)!r}\n{LOAD_LAYER}"
    environment = os.environ | {"MORI_GEMM_AR_CACHE": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["[(256.0, 256.0, 'fused-sdma'), (256.0, 256.0, 'fused-sdma')]", "[]"]


def test_every_config_of_a_layer_is_built() -> None:
    layer = LayerOptions(512, 256, 4096, "blockscale", "row")
    configs = configs_of(Op.GEMM_ALLREDUCE, [2, 4, 2], [], layer)
    assert len(configs) == len(set(configs))
    for world in (2, 4):
        spec = LayerSpec(world, 512, 256, 4096, Recipe.BLOCKSCALE, BLayout.ROW)
        assert {*spec.kernels(), QuantizeConfig(Recipe.BLOCKSCALE, 256)} <= set(configs)


FAILURES = {
    "no rows": ((*LAYER[:8], *LAYER[10:]), 2, "m_max must be given for op='gemm-allreduce'"),
    "a rule": ((*LAYER, "--n", "500"), 2, "n=500 must be a multiple of 16"),
    "a name": ((*LAYER, "--mode", "fused"), 2, "mode='fused' must be one of"),
    "an option of another op": (("--n", "512"), 2, "n must be left out for op='allreduce'"),
    "no linker": (("--linker", "/none/ld.lld"), 2, "error: linker='/none/ld.lld' must be an executable file"),
    "bad linker": (("--linker", "false"), 1, "lld invocation failed"),
    "world": (("--world", "9"), 2, "--world"),
    "dtype": (("--dtype", "fp8"), 2, "fp8"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_says_so(tmp_path: Path, name: str) -> None:
    arguments, status, text = FAILURES[name]
    run = command("--world", "2", "--dtype", "bf16", "--out", str(tmp_path / "store"), *arguments)
    assert run.returncode == status, run.stderr
    assert text in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="must be a writable directory"):
        build_store(tmp_path / "file" / "store", CONFIGS, CodeForm.ISA)


def test_every_config_of_an_op_is_built() -> None:
    """An op loads both stages of each type that it was created for."""
    assert [element.value for element in ElementType] == [dtype.label for dtype in DType]
    configs = configs_of(Op.ALLREDUCE, None, list(DType))
    assert len(configs) == len(set(configs)) == 8 * 3 * 2
    assert configs_of(Op.ALLREDUCE, [2, 2], [DType.BF16, DType.BF16]) == CONFIGS
