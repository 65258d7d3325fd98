# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The golden table of cache policies: what each aux number and each scoped function compiles to on gfx950.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx
import pytest
from flydsl._mlir import ir

from mori_gemm_ar.audit.operations import Access, Kind, decode
from mori_gemm_ar.audit.policies import AUX, Policy
from mori_gemm_ar.compile.build import build_kernel
from mori_gemm_ar.isa import parse_isa
from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.kernel import DeviceKernel


@fx.struct
class Arguments:
    address: fx.Int64


def _accesses(body, name: str) -> list[tuple[str, Access]]:
    @flyc.kernel(name=name, known_block_size=[64, 1, 1])
    def kernel(arguments: Arguments):
        body(arguments)

    isa = build_kernel(DeviceKernel(name, kernel, Arguments, 64), key=name).isa
    ops = [decode(i) for i in parse_isa(isa).kernel(name).instructions]
    return [(op.name, op.access) for op in ops if op.access is not None and op.access.space != "scalar"]


@pytest.mark.parametrize("aux", AUX)
def test_aux_numbers_of_buffer_accesses(aux: int) -> None:
    def body(arguments):
        kind = fx.PointerType.get(fx.Int8.ir_type, fx.AddressSpace.Global, 16)
        pointer = fx.rocdl.make_buffer_ptr(fx.inttoptr(kind, arguments.address), num_records_bytes=fx.Int64(4096))
        resource = fx.rocdl.get_buffer_rsrc(pointer)
        offset, zero = fx.Int32(fx.thread_idx.x) * 16, fx.Int32(0).ir_value()
        four = fx.Vector.make_type(4, fx.Int32)
        loaded = fx.Vector(fx.rocdl.raw_ptr_buffer_load(four, resource, offset, 0, aux=aux))
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), aux)
        fx.rocdl.raw_ptr_buffer_store(loaded, resource, (offset + 1024).ir_value(), zero, aux=number)

    found = _accesses(body, f"aux_{aux}")
    assert [(name, access.kind, access.policy) for name, access in found] == [
        ("buffer_load_dwordx4", Kind.LOAD, AUX[aux]),
        ("buffer_store_dwordx4", Kind.STORE, AUX[aux]),
    ]


SCOPED = {
    "load_system_u64": ("global_load_dwordx2", Policy.SYSTEM),
    "load_agent_u32": ("global_load_dword", Policy.SC1),
    "store_system_u64": ("global_store_dwordx2", Policy.SYSTEM),
    "store_agent_u32": ("global_store_dword", Policy.SC1),
    "claim_agent": ("global_atomic_cmpswap", Policy.SC0),
}


@pytest.mark.parametrize("name", SCOPED)
def test_scoped_accesses(name: str) -> None:
    function = getattr(library, name)

    def body(arguments):
        if name.startswith("load"):
            value = function(arguments.address)
            wide = name.endswith("u64")
            (library.store_agent_u64 if wide else library.store_agent_u32)(arguments.address + 64, value)
        elif name == "claim_agent":
            function(arguments.address, 0, 1)
        else:
            function(arguments.address, 5)

    mnemonic, policy = SCOPED[name]
    found = [(n, access.policy) for n, access in _accesses(body, name)]
    assert (mnemonic, policy) in [(n, Policy.SC0 if "atomic" in n else p) for n, p in found]


def test_fences() -> None:
    def body(arguments):
        library.store_agent_u32(arguments.address, 1)
        library.release_system()
        library.store_system_u32(arguments.address, 1)
        library.acquire_system()
        library.store_agent_u32(arguments.address + 8, 1)
        library.release_agent()
        library.store_agent_u32(arguments.address + 8, 1)
        library.acquire_agent()
        library.store_agent_u32(arguments.address + 16, 1)

    fences = [(name, access.policy) for name, access in _accesses(body, "fences") if access.space == "cache"]
    assert fences == [
        ("buffer_wbl2", Policy.SYSTEM),
        ("buffer_inv", Policy.SYSTEM),
        ("buffer_wbl2", Policy.SC1),
        ("buffer_inv", Policy.SC1),
    ]


def test_reach_orders_the_scopes() -> None:
    assert [p.reach for p in (Policy.PLAIN, Policy.SC0, Policy.NT, Policy.SC1, Policy.SYSTEM)] == [0, 0, 0, 1, 2]
    assert Policy.SYSTEM.scoped and not Policy.SC0.scoped
