# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Arrays in global memory: a wave-uniform address and one 32-bit byte offset per lane, so the address stays scalar.

Indices count elements or packs and are unsigned; an array is at most 4 GiB long. Accesses are plain: they order
nothing and are ordered by the barrier that stands between writer and reader.
"""

from __future__ import annotations

import flydsl.expr as fx

from mori_gemm_ar.layout import PACK_BYTES


def _bytes_at(address, align):
    kind = fx.PointerType.get(fx.Int8.ir_type, fx.AddressSpace.Global, align)
    return fx.inttoptr(kind, fx.Int64(address))


class ElementArray:
    """Single elements of one DSL type; `align` is what is known of the address."""

    def __init__(self, element, address, align):
        self.element = element
        self.base = _bytes_at(address, align)

    def _at(self, index):
        return self.base + fx.Int64(fx.Uint32(index) * (self.element.width // 8))

    def load(self, index):
        return fx.generic_load(self._at(index), dtype=self.element)

    def load_vector(self, index, part, count):
        """The element as a vector of `count` smaller ones."""
        return fx.generic_load(self._at(index), dtype=part, count=count)

    def store(self, index, value):
        fx.generic_store(self._at(index), value)


class PackArray:
    """16-byte packs of four words. The caller owes that an index is inside."""

    def __init__(self, address, align=PACK_BYTES):
        self.base = _bytes_at(address, align)

    def _at(self, index):
        return self.base + fx.Int64(fx.Uint32(index) * PACK_BYTES)

    def load(self, index):
        return fx.generic_load(self._at(index), dtype=fx.Int32, count=4)

    def store(self, index, pack):
        fx.generic_store(self._at(index), pack)


class BoundedPackArray:
    """As PackArray, and the hardware checks each index: past the end a load gives zeros and a store does nothing.

    Takes four scalar registers instead of two.
    """

    def __init__(self, address, packs, align=PACK_BYTES):
        nbytes = fx.Int64(fx.Uint32(packs) * PACK_BYTES)
        pointer = fx.rocdl.make_buffer_ptr(_bytes_at(address, align), num_records_bytes=nbytes)
        self.resource = fx.rocdl.get_buffer_rsrc(pointer)

    def load(self, index):
        kind = fx.Vector.make_type(4, fx.Int32)
        offset = fx.Uint32(index) * PACK_BYTES
        return fx.Vector(fx.rocdl.raw_ptr_buffer_load(kind, self.resource, offset, 0))

    def store(self, index, pack):
        offset, zero = fx.Uint32(index) * PACK_BYTES, fx.Int32(0)
        fx.rocdl.raw_ptr_buffer_store(pack, self.resource, offset.ir_value(), zero.ir_value())
