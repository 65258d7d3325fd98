# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The functions of library.ll as FlyDSL callables. What each one does and orders is said there."""

from __future__ import annotations

from pathlib import Path

import flydsl.expr as fx
from flydsl.compiler.extern_link import link_extern
from flydsl.expr.extern import ffi

LIBRARY = Path(__file__).with_name("library.ll")

_TYPES = {"uint32": fx.Uint32, "int64": fx.Int64, "uint64": fx.Uint64, "float32": fx.Float32}


def device_function(name, arguments="", result="void", library=LIBRARY):
    """A function `mga_<name>` of a file of LLVM IR, with the types of its arguments and result."""
    extern = link_extern(ffi(f"mga_{name}", arguments.split(), result), bitcode_path=str(library))

    def call(*values):
        # A bare MLIR value carries no sign: give arguments and result the types that the signature names.
        typed = [_TYPES[kind](value) for kind, value in zip(arguments.split(), values, strict=True)]
        raw = extern(*typed)
        return None if result == "void" else _TYPES[result](raw)

    call.__name__ = name
    return call


load_system_u32 = device_function("load_system_u32", "int64", "uint32")
load_system_u64 = device_function("load_system_u64", "int64", "uint64")
store_system_u32 = device_function("store_system_u32", "int64 uint32")
store_system_u64 = device_function("store_system_u64", "int64 uint64")
load_agent_u32 = device_function("load_agent_u32", "int64", "uint32")
load_agent_u64 = device_function("load_agent_u64", "int64", "uint64")
store_agent_u32 = device_function("store_agent_u32", "int64 uint32")
store_agent_u64 = device_function("store_agent_u64", "int64 uint64")
release_system = device_function("release_system")
acquire_system = device_function("acquire_system")
release_agent = device_function("release_agent")
acquire_agent = device_function("acquire_agent")
arrive_agent = device_function("arrive_agent", "int64 uint32", "uint32")
count_agent = device_function("count_agent", "int64 uint32", "uint32")
claim_agent = device_function("claim_agent", "int64 uint32 uint32", "uint32")
realtime = device_function("realtime", result="uint64")
wait_epoch = device_function("wait_epoch", "int64 uint32 int64", "uint64")
wait_count = device_function("wait_count", "int64 uint32 int64", "uint32")
uniform = device_function("uniform_u32", "uint32", "uint32")
any_lane = device_function("any_u32", "uint32", "uint32")
pin = device_function("pin_u32", "uint32", "uint32")
pin_uniform_u32 = device_function("pin_uniform_u32", "uint32", "uint32")
pin_uniform_i64 = device_function("pin_uniform_u64", "int64", "int64")
load_scalar_f32 = device_function("load_scalar_f32", "int64", "float32")
