# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Memory behind a hardware descriptor: each lane gives a 32-bit byte offset, and the end is checked for free.

Past the end a load gives zeros, a copy to LDS writes zeros, and a store does nothing.
"""

from __future__ import annotations

import flydsl.expr as fx

from mori_gemm_ar.kernels.device import assembly


class Buffer:
    """`nbytes` bytes (32-bit) from a wave-uniform address on. An offset is the sum of a lane's and a scalar part."""

    def __init__(self, address, nbytes, align=16):
        kind = fx.PointerType.get(fx.Int8.ir_type, fx.AddressSpace.Global, align)
        pointer = fx.rocdl.make_buffer_ptr(
            fx.inttoptr(kind, fx.Int64(address)), num_records_bytes=fx.Int64(fx.Uint32(nbytes))
        )
        self.resource = fx.rocdl.get_buffer_rsrc(pointer)

    def load(self, element, count, lane_offset, scalar_offset=0):
        """`count` elements as a vector, or one as a scalar."""
        kind = element.ir_type if count == 1 else fx.Vector.make_type(count, element)
        raw = fx.rocdl.raw_ptr_buffer_load(kind, self.resource, fx.Int32(lane_offset), fx.Int32(scalar_offset))
        return element(raw) if count == 1 else fx.Vector(raw)

    def store(self, value, lane_offset, scalar_offset=0):
        """Store a vector or scalar."""
        offsets = (fx.Int32(part).ir_value() for part in (lane_offset, scalar_offset))
        fx.rocdl.raw_ptr_buffer_store(value, self.resource, *offsets)

    def copy_to_lds(self, lds_address, lane_offset, scalar_offset=0, immediate=0):
        """16 bytes per lane to lds_address + immediate + 16 * lane; see assembly.copy_to_lds for what is owed."""
        assembly.copy_to_lds(self.resource, lds_address, 16, lane_offset, scalar_offset, immediate)
