# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""From a config to a code object. Imports FlyDSL: import this module on demand only."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.audit import verdict
from mori_gemm_ar.compile.backend import ARCH, FLYDSL_VERSION, Compiled, compile_kernel
from mori_gemm_ar.compile.hsaco import find_linker, hsaco_digest, linker_version, require_same_code
from mori_gemm_ar.compile.mori_bitcode import bitcode_of
from mori_gemm_ar.compile.store import CodeForm, CodeObject, content_key, isa_digest, source_digest
from mori_gemm_ar.errors import CompileError, ConfigError, IsaError, MoriGemmArError
from mori_gemm_ar.isa import parse_isa
from mori_gemm_ar.kernels.allreduce import all_reduce_kernel
from mori_gemm_ar.kernels.bands import bands_kernel
from mori_gemm_ar.kernels.gemm.fused import fused_kernel
from mori_gemm_ar.kernels.gemm.kernel import gemm_kernel
from mori_gemm_ar.kernels.gemm.small import small_gemm_kernel
from mori_gemm_ar.kernels.hwcheck.assembly_text import assembly_kernel
from mori_gemm_ar.kernels.hwcheck.copies import copies_kernel
from mori_gemm_ar.kernels.hwcheck.litmus import litmus_kernel
from mori_gemm_ar.kernels.hwcheck.loads import load_kernel
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.kernels.pull import pull_kernel
from mori_gemm_ar.kernels.quantize import quantize_kernel
from mori_gemm_ar.kernels.sdma import sdma_kernel
from mori_gemm_ar.kernels.sdma_wire import sdma_wire_kernel
from mori_gemm_ar.kernels.stream import stream_kernel
from mori_gemm_ar.kernels.wire import wire_kernel
from mori_gemm_ar.layout import AllReduceConfig
from mori_gemm_ar.layout.bands import BandsConfig
from mori_gemm_ar.layout.fused import FusedConfig
from mori_gemm_ar.layout.gemm import GemmConfig, QuantizeConfig, SmallGemmConfig
from mori_gemm_ar.layout.hwcheck import (
    AssemblyConfig,
    BufferingConfig,
    CopiesConfig,
    EngineConfig,
    LoadConfig,
    MessageConfig,
)
from mori_gemm_ar.layout.pull import PullConfig
from mori_gemm_ar.layout.sdma import SdmaConfig
from mori_gemm_ar.layout.stream import StreamConfig


def _all_reduce(config: AllReduceConfig) -> DeviceKernel:
    return wire_kernel(config) if config.wire.lossy else all_reduce_kernel(config)


def _sdma(config: SdmaConfig) -> DeviceKernel:
    bitcode = bitcode_of(config.bitcode) if config.bitcode else None
    return sdma_wire_kernel(config, bitcode) if config.wire.lossy else sdma_kernel(config, bitcode)


_KERNELS: dict[type, Callable[[Any], DeviceKernel]] = {
    AllReduceConfig: _all_reduce,
    GemmConfig: gemm_kernel,
    SmallGemmConfig: small_gemm_kernel,
    QuantizeConfig: quantize_kernel,
    SdmaConfig: _sdma,
    FusedConfig: fused_kernel,
    BandsConfig: bands_kernel,
    PullConfig: pull_kernel,
    StreamConfig: stream_kernel,
    AssemblyConfig: assembly_kernel,
    MessageConfig: litmus_kernel,
    BufferingConfig: litmus_kernel,
    EngineConfig: litmus_kernel,
    CopiesConfig: copies_kernel,
    LoadConfig: load_kernel,
}


def build(config: Any, form: CodeForm = CodeForm.ISA, *, linker: str | os.PathLike[str] | None = None) -> CodeObject:
    """Compile the kernel of a config; equal configs give equal code, whatever the form, but for sources that commute.

    `linker` is for HSACO; None looks for one, see `find_linker`. Raises ConfigError for a config that has no kernel,
    CompileError when FlyDSL or the linker fails and MissingDependencyError when there is no linker.
    """
    factory = _KERNELS.get(type(config))
    if factory is None:
        names = ", ".join(sorted(kind.__name__ for kind in _KERNELS))
        raise ConfigError(f"config={config!r} must be one of {names}; only those have a kernel")
    try:
        return build_kernel(
            factory(config), content_key(config.key), config=_config_fields(config), form=form, linker=linker
        )
    except IsaError as error:
        if not getattr(config, "bitcode", ""):
            raise
        # What is left of a call is an operand that no kernel of ours has.
        raise CompileError(
            f"bitcode={config.bitcode} must have been made for {ARCH}, so that its put is inlined into "
            f"{config.kernel_name}: {error}; make it with --offload-arch={ARCH}, or use cco_device='own'"
        ) from error


def build_kernel(
    kernel: DeviceKernel,
    key: str,
    config: Mapping[str, Any] | None = None,
    *,
    form: CodeForm = CodeForm.ISA,
    linker: str | os.PathLike[str] | None = None,
) -> CodeObject:
    """Compile one kernel under a key of the caller's choice; `config` goes into the manifest."""
    link_with = find_linker(linker) if form is CodeForm.HSACO else None
    try:
        compiled = compile_kernel(
            _launcher(kernel), *_placeholders(kernel), waves_per_simd=kernel.waves_per_simd, linker=link_with
        )
    except MoriGemmArError as error:
        if link_with is None or not isinstance(error, CompileError):
            raise
        raise CompileError(f"kernel={kernel.name}, linker={link_with}: {error}") from error
    except Exception as error:
        raise CompileError(f"kernel={kernel.name} must compile for {ARCH}, but FlyDSL failed: {error}") from error
    manifest = _manifest(kernel, compiled.isa, dict(config or {}))
    if link_with is not None:
        manifest |= _hsaco_manifest(kernel.name, compiled, linker_version(link_with))
    return CodeObject(key=key, kernel=kernel.name, isa=compiled.isa, manifest=manifest, hsaco=compiled.hsaco)


def _launcher(kernel: DeviceKernel) -> Any:
    # The placeholder keeps FlyDSL from launching. The grid is no kernel argument, so any value will do.
    @flyc.jit
    def launch(arguments, placeholder: fx.Pointer, grid: fx.Int32):  # type: ignore[no-untyped-def]
        kernel.function(arguments).launch(grid=(grid, 1, 1), block=(kernel.threads, 1, 1))

    return launch


def _placeholders(kernel: DeviceKernel) -> tuple[Any, ...]:
    zeros = dict.fromkeys(kernel.argument_types, 0)
    return kernel.arguments(**zeros), flyc.from_c_void_p(fx.Int8, None), 1


def _config_fields(config: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": type(config).__name__, "key": config.key}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            value = _config_fields(value)
        fields[field.name] = value.name if isinstance(value, Enum) else value
    return fields


def _manifest(kernel: DeviceKernel, isa: str, config: dict[str, Any]) -> dict[str, Any]:
    code = parse_isa(isa).kernel(kernel.name)
    types = kernel.argument_types
    if len(code.args) != len(types):
        raise CompileError(f"kernel={kernel.name} must take {len(types)} arguments, but its ISA takes {len(code.args)}")
    arguments = []
    for (name, kind), slot in zip(types.items(), code.args, strict=True):
        if slot.size * 8 != int(kind[1:]):
            raise CompileError(f"kernel={kernel.name}: argument {name} must be {kind}, but has {slot.size} bytes")
        arguments.append({"name": name, "type": kind, "offset": slot.offset, "size": slot.size})
    return {
        "config": config,
        "arguments": arguments,
        "arch": ARCH,
        "flydsl": FLYDSL_VERSION,
        "sources": source_digest(),
        "isa_sha256": isa_digest(isa),
        "audit": verdict(isa, kernel.name),
        "resources": {
            "threads": kernel.threads,
            "instructions": len(code.instructions),
            "vgpr": code.metadata["vgpr_count"],
            "sgpr": code.metadata["sgpr_count"],
            "agpr": code.metadata["agpr_count"],
            "vgpr_spills": code.metadata["vgpr_spill_count"],
            "sgpr_spills": code.metadata["sgpr_spill_count"],
            "scratch_bytes": code.scratch_bytes,
            "lds_bytes": code.lds_bytes,
        },
    }


def _hsaco_manifest(kernel: str, compiled: Compiled, linker: str) -> dict[str, Any]:
    assert compiled.hsaco is not None
    require_same_code(compiled.hsaco, parse_isa(compiled.isa).kernel(kernel))
    return {"hsaco_sha256": hsaco_digest(compiled.hsaco), "hsaco_bytes": len(compiled.hsaco), "linker": linker}
