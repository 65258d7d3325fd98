# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A selection of waves: its registers, and the memory operations that generated code calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.emit import Binding
from mori_gemm_ar.emulator.memory import from_rows, modify, to_rows
from mori_gemm_ar.emulator.memory_ops import Access
from mori_gemm_ar.emulator.translate import Segment
from mori_gemm_ar.errors import EmulatorError, MemoryFault

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.pool import Pool

_NONE = np.uint64(0)
_VIEW = {"u": np.uint32, "i": np.int32, "f": np.float32, "w": np.uint16, "j": np.int16, "h": np.float16}
_ITEM = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}


def _aligned(index: np.ndarray, nbytes: int) -> bool:
    """Whether all byte positions are multiples of the item size, a power of two."""
    return nbytes != 12 and not int(np.bitwise_or.reduce(index)) & (nbytes - 1)


def gather_bytes(memory: np.ndarray, index: np.ndarray, nbytes: int) -> np.ndarray:
    """Items at byte positions of a uint8 array."""
    if _aligned(index, nbytes):
        return memory.view(_ITEM[nbytes])[index >> _SHIFT[nbytes]]
    if not (index & 3).any():
        words = memory.view(np.uint32)
        parts = [words[(index >> 2) + i] for i in range(nbytes // 4)]
        return np.stack(parts, axis=1).reshape(-1)
    parts = [memory[index + i] for i in range(nbytes)]
    raw = np.stack(parts, axis=1).reshape(-1)
    return raw.view(_ITEM[nbytes if nbytes < 4 else 4])


def scatter_bytes(memory: np.ndarray, index: np.ndarray, access: Access, items: np.ndarray) -> None:
    """Write items at byte positions of a uint8 array."""
    nbytes = access.nbytes
    if _aligned(index, nbytes):
        memory.view(_ITEM[nbytes])[index >> _SHIFT[nbytes]] = items
        return
    raw = np.ascontiguousarray(items).view(np.uint8).reshape(len(index), nbytes)
    for i in range(nbytes):
        memory[index + i] = raw[:, i]


class Group:
    """A selection of waves that run one segment together; also what generated code calls for memory access."""

    __slots__ = ("_bound", "dense", "n", "pool", "sel", "waves")

    def __init__(self, pool: Pool, waves: np.ndarray) -> None:
        self.pool = pool
        self.waves = waves
        self.n = len(waves)
        self.dense = int(waves[-1]) - int(waves[0]) + 1 == self.n
        self.sel = slice(int(waves[0]), int(waves[-1]) + 1) if self.dense else waves
        self._bound: dict[tuple[str, int], np.ndarray] = {}

    # ---- registers -------------------------------------------------------------------------------------------
    def bind(self, segment: Segment) -> tuple:
        """Arrays for the names of a segment; views of the register file when the waves are contiguous."""
        if self.dense:
            key = (segment.number, int(self.waves[0]), int(self.waves[-1]))
            cached = self.pool.bound.get(key)
            if cached is None:
                cached = self.pool.bound[key] = tuple(self._array(b) for b in segment.bindings)
            return cached
        self._bound = {}
        return tuple(self._array(b) for b in segment.bindings)

    def _base(self, file: str, index: int) -> np.ndarray:
        pool = self.pool
        source = {"v": lambda: pool.V[index], "s": lambda: pool.S[index], "scc": lambda: pool.scc}[file]()
        if self.dense:
            return source[self.sel]
        key = (file, index)
        if key not in self._bound:
            self._bound[key] = source[self.sel]
        return self._bound[key]

    def _array(self, b: Binding) -> np.ndarray:
        if b.file == "scc":
            return self._base("scc", 0)
        if b.file == "v":
            row = self._base("v", b.index).view(_VIEW[b.view])
            return row if b.half < 0 else row[:, b.half :: 2]
        pair = self._base("s", b.index >> 1)
        value = pair.view(np.uint64)[:, 0] if b.file == "p" else pair[:, b.index & 1].view(_VIEW[b.view])
        return value[:, None] if b.column else value

    def write_back_registers(self, segment: Segment) -> None:
        """Copy what a segment wrote back to the register file (waves that are not contiguous)."""
        if self.dense:
            return
        pool = self.pool
        for file, index in segment.written:
            key = (file, index >> 1) if file == "s" else (file, index)
            if key in self._bound:
                target = {"v": pool.V, "s": pool.S}[file][key[1]] if file != "scc" else pool.scc
                target[self.sel] = self._bound[key]

    # ---- facts -----------------------------------------------------------------------------------------------
    def gpus(self) -> np.ndarray:
        """GPU of each wave."""
        return self.pool.wave_gpu[self.sel]

    def xcc_id(self) -> np.ndarray:
        """XCD of each wave: workgroups are dealt round-robin to eight dies."""
        return self.pool.wave_xcd[self.sel].astype(np.uint32)

    def clock(self) -> int:
        """`s_memrealtime`: ticks of 10 ns."""
        return self.pool.node.clock.ticks

    def where(self, site: int, wave: int) -> str:
        """`kernel k_0, line 12: global_load_dword ..., GPU 1, workgroup (0, 0, 0), wave 3`."""
        pool = self.pool
        number = int(self.waves[wave])
        instruction = pool.program.instruction(site)
        return f"kernel {pool.program.kernel.name}, {instruction}, {pool.describe_wave(number)}"

    def note_poll(self, k, address: np.ndarray) -> None:
        """Remember what the lanes of a wave read in a scoped load, for the watchdog."""
        self.pool.polled[self.sel] = (
            np.broadcast_to(address, (self.n, 64)) if k is True else np.where(k, address, _NONE)
        )

    # ---- global memory ---------------------------------------------------------------------------------------
    def load(self, site: int, k, address, access: Access, rows, policy: int) -> None:
        """Vector load."""
        self.pool.memory.load(self, site, k, address, access, rows, policy)

    def store(self, site: int, k, address, access: Access, rows, policy: int) -> None:
        """Vector store."""
        self.pool.memory.store(self, site, k, address, access, rows, policy)

    def atomic(self, site: int, k, address, operation: str, wide: bool, data, rows, policy: int) -> None:
        """Vector read-modify-write."""
        self.pool.memory.atomic(self, site, k, address, operation, wide, data, rows, policy)

    def scalar_load(self, site: int, address, count: int) -> np.ndarray:
        """Scalar load."""
        return self.pool.memory.scalar_load(self, site, address, count)

    def write_back(self, site: int, policy: int) -> None:
        """`buffer_wbl2`."""
        self.pool.memory.write_back(self, site, policy)

    def invalidate(self, site: int, policy: int) -> None:
        """`buffer_inv`."""
        self.pool.memory.invalidate(self, site, policy)

    def wait_memory(self, vmcnt: int) -> None:
        """`s_waitcnt vmcnt`."""
        self.pool.memory.wait(self, vmcnt)

    def wait_lds(self, lgkmcnt: int) -> None:
        """`s_waitcnt lgkmcnt`: LDS accesses take effect at once."""

    # ---- buffers ---------------------------------------------------------------------------------------------
    def _buffer(self, base, records, lane_offset, scalar_offset, immediate: int, nbytes: int):
        """Address of each lane; and None if all bytes of all lanes lie inside, else each lane's offset and the size."""
        if ((base >> np.uint64(48)) & np.uint64(0x3FFF)).any():
            raise EmulatorError(f"kernel {self.pool.program.kernel.name}: structured buffers are not modelled")
        scalar = np.asarray(scalar_offset).astype(np.uint64).reshape(-1, 1)
        start = (base & np.uint64(0xFFFFFFFFFFFF))[:, None]
        limit = (records & np.uint64(0xFFFFFFFF))[:, None]
        if (scalar > limit).any():
            # The hardware compares the lane's part with the size minus the scalar part, which must not wrap around.
            raise EmulatorError(
                f"kernel {self.pool.program.kernel.name}: the scalar offset of a buffer access must not exceed its size"
            )
        lane = np.zeros((1, 1), np.uint32) if lane_offset is None else lane_offset
        fixed = scalar + np.uint64(immediate)
        address = np.broadcast_to((start + fixed) + lane, (self.n, 64))
        if int(lane.max()) + int(fixed.max()) + nbytes <= int(limit.min()):
            return address, None
        return address, (np.broadcast_to(fixed + lane, (self.n, 64)), limit)

    def _buffer_parts(self, address, outside, access: Access, rows):
        """The registers of a partly outside access one by one: (lanes inside, address, access, registers)."""
        offset, limit = outside
        part = Access(min(4, access.nbytes), 1, access.signed, access.half)
        for n, row in enumerate(rows):
            valid = offset + np.uint64(4 * n + part.nbytes) <= limit
            yield valid, address + np.uint64(4 * n), part, (row,)

    def buffer_load(
        self, site: int, k, base, records, lane_offset, scalar_offset, immediate, access, rows, policy
    ) -> None:
        """Vector load through a descriptor; dwords past its end read 0."""
        address, outside = self._buffer(base, records, lane_offset, scalar_offset, immediate, access.nbytes)
        if outside is None:
            return self.load(site, k, address, access, rows, policy)
        for valid, place, part, row in self._buffer_parts(address, outside, access, rows):
            np.copyto(row[0], row[0].dtype.type(0), where=k)
            self.load(site, valid if k is True else valid & k, place, part, row, policy)
        return None

    def buffer_store(
        self, site: int, k, base, records, lane_offset, scalar_offset, immediate, access, rows, policy
    ) -> None:
        """Vector store through a descriptor; dwords past its end are dropped."""
        address, outside = self._buffer(base, records, lane_offset, scalar_offset, immediate, access.nbytes)
        if outside is None:
            return self.store(site, k, address, access, rows, policy)
        for valid, place, part, row in self._buffer_parts(address, outside, access, rows):
            self.store(site, valid if k is True else valid & k, place, part, row, policy)
        return None

    def buffer_range(self, base, records, lane_offset, scalar_offset, immediate, nbytes: int):
        """Address of each lane, and whether all its bytes lie inside (True: in every lane)."""
        address, outside = self._buffer(base, records, lane_offset, scalar_offset, immediate, nbytes)
        if outside is None:
            return address, True
        inside = outside[0] + np.uint64(nbytes) <= outside[1]
        return address, True if inside.all() else inside

    def buffer_atomic(
        self, site: int, k, base, records, lane_offset, scalar_offset, immediate, operation: str, data, rows, policy
    ) -> None:
        """Read-modify-write through a descriptor; nothing happens past its end, and 0 comes back."""
        address, inside = self.buffer_range(base, records, lane_offset, scalar_offset, immediate, 4)
        if inside is not True:
            for row in rows or ():
                np.copyto(row, np.uint32(0), where=~inside & k)
            k = inside & k
        self.atomic(site, k, address, operation, False, data, rows, policy)

    # ---- LDS and scratch -------------------------------------------------------------------------------------
    def _lds_index(self, site: int, k, address, access: Access) -> np.ndarray:
        """Byte position of each active lane in the pool's LDS."""
        pool = self.pool
        address = np.broadcast_to(address, (self.n, 64))
        high = address if k is True else address[k]
        if high.size and int(high.max()) + access.nbytes > pool.lds_bytes:
            wide = address.astype(np.int64)
            wave, lane = np.argwhere((wide + access.nbytes > pool.lds_bytes) & (True if k is True else k))[0]
            raise MemoryFault(
                f"{self.where(site, int(wave))}, lane {lane}: LDS access at {int(address[wave, lane]):#x} "
                f"must lie below {pool.lds_bytes:#x}"
            )
        flat = address + pool.wave_lds[self.sel][:, None]
        return flat.reshape(-1) if k is True else flat[k]

    def lds_load(self, site: int, k, address, access: Access, rows) -> None:
        """LDS read."""
        index = self._lds_index(site, k, address, access)
        if len(index):
            self.pool.memory.deliver(k, rows, to_rows(gather_bytes(self.pool.lds, index, access.nbytes), access))

    def lds_store(self, site: int, k, address, access: Access, rows) -> None:
        """LDS write."""
        index = self._lds_index(site, k, address, access)
        if len(index):
            scatter_bytes(self.pool.lds, index, access, from_rows(self.pool.memory.collect(self, k, rows), access))

    def lds_copy(self, site: int, k, address, inside, target, access: Access, policy: int) -> None:
        """Copy to LDS, lane l to target + l * size; lanes that are not `inside` their buffer write zeros."""
        lanes = np.arange(64, dtype=np.uint32) * np.uint32(access.nbytes)
        place = target.astype(np.uint32).reshape(-1, 1) + lanes
        place = self._lds_index(site, k, place, access)
        if len(place):
            address = np.broadcast_to(address, (self.n, 64))
            self.pool.memory.lds_copy(self, site, k, address, inside, place, access, policy)

    def lds_atomic(self, site: int, k, address, operation: str, data, rows) -> None:
        """LDS read-modify-write, lane by lane."""
        access = Access(4, 1)
        index = self._lds_index(site, k, address, access)
        full = [np.broadcast_to(d, (self.n, 64)) for d in data]
        values = self.pool.memory.collect(self, k, full)
        old = np.empty(len(index), np.uint32)
        words = self.pool.lds.view(np.uint32)
        for lane, position in enumerate(index.tolist()):
            old[lane] = words[position >> 2]
            words[position >> 2] = modify(operation, old[lane], [v[lane] for v in values])
        if rows is not None and len(index):
            self.pool.memory.deliver(k, rows, [old])

    def _scratch_index(self, site: int, k, offset, access: Access) -> np.ndarray:
        pool = self.pool
        offset = np.broadcast_to(offset, (self.n, 64)).astype(np.int64)
        outside = (offset + access.nbytes > pool.scratch_bytes) & k
        if outside.any():
            wave, lane = np.argwhere(outside)[0]
            raise MemoryFault(
                f"{self.where(site, int(wave))}, lane {lane}: scratch access at {int(offset[wave, lane]):#x} "
                f"must lie below {pool.scratch_bytes:#x}"
            )
        lane = np.asarray(self.waves)[:, None] * 64 + np.arange(64)
        flat = lane * pool.scratch_bytes + offset
        return flat.reshape(-1) if k is True else flat[k]

    def scratch_load(self, site: int, k, offset, access: Access, rows) -> None:
        """Read of a lane's private memory."""
        index = self._scratch_index(site, k, offset, access)
        if len(index):
            self.pool.memory.deliver(k, rows, to_rows(gather_bytes(self.pool.scratch, index, access.nbytes), access))

    def scratch_store(self, site: int, k, offset, access: Access, rows) -> None:
        """Write of a lane's private memory."""
        index = self._scratch_index(site, k, offset, access)
        if len(index):
            scatter_bytes(self.pool.scratch, index, access, from_rows(self.pool.memory.collect(self, k, rows), access))
