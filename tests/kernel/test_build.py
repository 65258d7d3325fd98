# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The compiler: code objects, the process's environment, and what moves when FlyDSL does.

Annotations of @fx.struct are read as types, so this file does not postpone their evaluation.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import flydsl.compiler as flyc
import flydsl.expr as fx
import pytest
from flydsl.compiler.backends.rocm import RocmBackend

from mori_gemm_ar.compile import backend
from mori_gemm_ar.compile.build import _manifest, build, build_kernel
from mori_gemm_ar.compile.store import CodeObject, CodeStore, content_key, isa_digest
from mori_gemm_ar.errors import CompileError, ConfigError
from mori_gemm_ar.isa import parse_isa
from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout import AllReduceConfig, DType, Stage
from tests.kernel import flydsl_kernels

ROOT = Path(__file__).resolve().parents[2]
CONFIG = AllReduceConfig(2, DType.BF16, Stage.ONE)


@fx.struct
class OneAddress:
    address: fx.Int64


def device_kernel(function, name: str) -> DeviceKernel:
    kernel = flyc.kernel(function, name=name, known_block_size=[64, 1, 1])
    return DeviceKernel(name, kernel, OneAddress, 64)


# --- code objects ---


@pytest.mark.parametrize("stage", Stage)
def test_the_manifest_tells_all_that_a_launch_needs(stage: Stage) -> None:
    config = AllReduceConfig(8, DType.BF16, stage)
    code = build(config)
    assert code.key == content_key(config.key)
    assert code.kernel == config.kernel_name
    assert code.manifest["config"] == {
        "type": "AllReduceConfig",
        "key": config.key,
        "world": 8,
        "dtype": "BF16",
        "stage": stage.name,
        "threads": 512,
        "gather": "INTERLEAVED",
        "wire": "EXACT",
    }
    assert [(a["name"], a["type"], a["offset"]) for a in code.manifest["arguments"]] == [
        ("base", "i64", 0),
        ("stride", "i64", 8),
        ("rank", "u32", 16),
        ("blocks", "u32", 20),
        ("src", "i64", 24),
        ("dst", "i64", 32),
        ("numel", "u32", 40),
        ("tag", "u32", 44),
        ("input_offset", "i64", 48),
        ("reduced_offset", "i64", 56),
        ("budget", "i64", 64),
        ("error", "i64", 72),
    ]
    assert code.manifest["isa_sha256"] == isa_digest(code.isa)
    assert code.manifest["flydsl"] == backend.FLYDSL_VERSION
    assert CodeObject.from_bytes(code.to_bytes()) == code


def test_threads_are_compiled_in() -> None:
    kernel = parse_isa(build(AllReduceConfig(2, DType.BF16, Stage.ONE, threads=256)).isa).kernels.popitem()[1]
    assert kernel.metadata["max_flat_workgroup_size"] == 256


def test_the_text_says_nothing_about_this_machine() -> None:
    isa = build(CONFIG).isa
    assert str(ROOT) not in isa
    assert ".file" not in isa
    assert ".loc" not in isa


def test_threads_compile_one_after_the_other() -> None:
    configs = [AllReduceConfig(world, DType.FP32, Stage.TWO) for world in (2, 3, 4, 5)]
    before = dict(os.environ)
    with ThreadPoolExecutor(len(configs)) as pool:
        codes = list(pool.map(build, configs))
    assert codes == [build(config) for config in configs]
    assert dict(os.environ) == before


def test_a_config_without_a_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be one of AllReduceConfig"):
        build(CONFIG.key)


def test_a_kernel_that_does_not_compile_is_named() -> None:
    def kernel(arguments: OneAddress):
        raise ValueError("no such phase")

    with pytest.raises(CompileError, match=r"kernel=broken must compile for gfx950.*no such phase"):
        build_kernel(device_kernel(kernel, "broken"), key="broken")


def test_a_struct_that_disagrees_with_the_code_is_refused() -> None:
    code = build(CONFIG)

    class Shorter:
        __annotations__ = {"base": fx.Int64}

    class Narrower:
        __annotations__ = {argument["name"]: fx.Uint32 for argument in code.manifest["arguments"]}

    for arguments, reason in ((Shorter, "must take 1 arguments"), (Narrower, "base must be u32, but has 8 bytes")):
        with pytest.raises(CompileError, match=reason):
            _manifest(DeviceKernel(code.kernel, None, arguments, 512), code.isa, {})


def test_eight_cold_processes_compile_once(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from mori_gemm_ar.compile.store import CodeStore\n"
        "from mori_gemm_ar.layout import AllReduceConfig, DType, Stage\n"
        "code = CodeStore(sys.argv[2]).get(AllReduceConfig(2, DType.BF16, Stage.ONE))\n"
        "print(code.manifest['isa_sha256'], 'flydsl' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(ROOT), str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    answers = [process.communicate(timeout=120)[0].split() for process in processes]
    # Only a builder imports FlyDSL. Its text is the one that this process builds: nothing of a process enters it.
    assert {digest for digest, _ in answers} == {isa_digest(build(CONFIG).isa)}
    assert sorted(builds for _, builds in answers) == ["False"] * 7 + ["True"]
    assert len(CodeStore(tmp_path).entries()) == 1


# --- environment ---

FOREIGN_ENVIRONMENT = {
    "ARCH": "gfx942",
    "FLYDSL_GPU_ARCH": "gfx942",
    "FLYDSL_COMPILE_BACKEND": "rocm",
    "FLYDSL_COMPILE_OPT_LEVEL": "0",
    "FLYDSL_DEBUG_ENABLE_DEBUG_INFO": "1",
    "FLYDSL_RUNTIME_ENABLE_CACHE": "1",
    "FLYDSL_RUNTIME_RUN_ONLY": "1",
    "COMPILE_ONLY": "1",
}


def test_the_users_environment_changes_nothing_and_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = build(CONFIG)
    for name, value in FOREIGN_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FLYDSL_RUNTIME_CACHE_DIR", str(tmp_path / "flydsl"))
    monkeypatch.delenv("FLYDSL_KTRACE_ENABLE", raising=False)
    before = dict(os.environ)
    assert build(CONFIG) == expected
    assert dict(os.environ) == before
    assert not (tmp_path / "flydsl").exists()


def test_the_environment_comes_back_after_a_failure() -> None:
    def kernel(arguments: OneAddress):
        raise ValueError("no such phase")

    before = dict(os.environ)
    with pytest.raises(CompileError):
        build_kernel(device_kernel(kernel, "broken"), key="broken")
    assert dict(os.environ) == before


def test_another_code_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYDSL_COMPILE_LLVM_DIR", "/opt/llvm")
    with pytest.raises(CompileError, match=r"FLYDSL_COMPILE_LLVM_DIR='/opt/llvm' must be unset.*writeback"):
        build(CONFIG)


# --- what we use of FlyDSL below its documented surface ---


def test_the_compiled_module_still_holds_its_text() -> None:
    assert build(CONFIG).isa.startswith('\t.amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"\n')


@pytest.mark.parametrize("module", [None, "module {}", "gpu.module @a gpu.module @b"], ids=["moved", "none", "two"])
def test_a_moved_module_is_an_error(module: str | None) -> None:
    compiled = SimpleNamespace(_keepalive=SimpleNamespace(ir=module))
    with pytest.raises(CompileError, match=r"must return the text of one module.*\[compile\]"):
        backend._lowered(compiled)


@pytest.mark.parametrize("module", ["module {}", 'assembly = "a", assembly = "b"'], ids=["no text", "two texts"])
def test_a_moved_text_is_an_error(module: str) -> None:
    with pytest.raises(CompileError, match=r"must return one module with one assembly text.*\[compile\]"):
        backend._payload(module, "assembly")


def test_escapes_of_the_text_are_resolved() -> None:
    assert backend._payload(r'x bin = "\09.text\0A\22q\22 \\ \FF\00end"', "bin") == b'\t.text\n"q" \\ \xff\x00end'


def test_a_moved_last_pass_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RocmBackend, "pipeline_fragments", lambda self, *, compile_hints: ["canonicalize"])
    with pytest.raises(CompileError, match=r"'canonicalize', must be gpu-module-to-binary"):
        build(CONFIG)


# --- device library: one golden text for each function (scope and order to instructions) ---

GOLDEN = {
    "load_system_u32": ["global_load_dword {v} sc0 sc1"],
    "load_system_u64": ["global_load_dwordx2 {v} sc0 sc1"],
    "load_agent_u32": ["global_load_dword {v} sc1"],
    "load_agent_u64": ["global_load_dwordx2 {v} sc1"],
    "store_system_u32": ["global_store_dword {v} sc0 sc1"],
    "store_system_u64": ["global_store_dwordx2 {v} sc0 sc1"],
    "store_agent_u32": ["global_store_dword {v} sc1"],
    "store_agent_u64": ["global_store_dwordx2 {v} sc1"],
    "release_system": ["buffer_wbl2 sc0 sc1", "s_waitcnt vmcnt(0)"],
    "release_agent": ["buffer_wbl2 sc1", "s_waitcnt vmcnt(0)"],
    "acquire_system": ["buffer_inv sc0 sc1"],
    "acquire_agent": ["buffer_inv sc1"],
    "arrive_agent": [
        "buffer_wbl2 sc1",
        "s_waitcnt vmcnt(0)",
        "global_atomic_inc {v} sc0",
        "s_waitcnt vmcnt(0)",
        "buffer_inv sc1",
    ],
    "count_agent": ["global_atomic_inc {v} sc0"],
    "claim_agent": ["global_atomic_cmpswap {v} sc0"],
    "realtime": ["s_memrealtime {v}"],
    "uniform": ["v_readfirstlane_b32 {v}"],
}
ARGUMENTS = {
    "load": lambda a: (a,),
    "store": lambda a: (a, 7),
    "arrive": lambda a: (a, 7),
    "count": lambda a: (a, 7),
    "claim": lambda a: (a, 0, 1),
    "uniform": lambda a: (fx.thread_idx.x,),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_library_function(name: str) -> None:
    call = getattr(library, name)

    def kernel(arguments: OneAddress):
        make = ARGUMENTS.get(name.partition("_")[0], lambda address: ())
        result = call(*make(arguments.address))
        if fx.const_expr(result is not None):
            kind = fx.PointerType.get(result.dtype.ir_type, fx.AddressSpace.Global, 8)
            fx.generic_store(fx.inttoptr(kind, arguments.address + fx.Int64(64)), result, volatile=True)

    code = build_kernel(device_kernel(kernel, "golden"), key="golden")
    interesting = ("buffer_", "global_load", "global_store", "global_atomic", "s_memrealtime", "v_readfirstlane")
    text = []
    for instruction in parse_isa(code.isa).kernel("golden").instructions:
        waits = instruction.name == "s_waitcnt" and "vmcnt" in instruction.text
        if instruction.has("offset") or (waits and not text) or not (waits or instruction.name.startswith(interesting)):
            continue
        operands = "{v} " if instruction.operands and not waits else ""
        tail = "vmcnt(0)" if waits else " ".join(instruction.modifiers)
        text.append(f"{instruction.name} {operands}{tail}".replace(" off", "").strip())
    assert text[: len(GOLDEN[name])] == GOLDEN[name]


def test_every_library_function_is_covered() -> None:
    defined = set(re.findall(r"^define \S+ @mga_(\w+)\(", library.LIBRARY.read_text(), re.MULTILINE))
    assert defined == set(GOLDEN) - {"uniform"} | {
        "uniform_u32",
        "wait_epoch",  # in every all-reduce kernel
        "wait_count",  # in every streamed tail
        "any_u32",  # in every kernel that drives copy engines; no access to memory
        "load_scalar_f32",  # in every block-scaled GEMM
        "pin_u32",  # these emit nothing
        "pin_uniform_u32",
        "pin_uniform_u64",
    }


# --- test kernels ---


def test_the_test_kernels_compile_without_spills() -> None:
    for make in (
        flydsl_kernels.build_vector_add_branch,
        flydsl_kernels.build_vector_add_bounds,
        flydsl_kernels.build_rms_norm,
        flydsl_kernels.build_gemm_bf16,
    ):
        resources = make().manifest["resources"]
        assert resources["vgpr_spills"] == resources["sgpr_spills"] == resources["scratch_bytes"] == 0
