# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Functional memory: every access takes effect at once, in program order.

Global memory is this process's own address space, seen through one NumPy view per element size; every access is
checked against the region table first. LDS and scratch live in the pool.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.engine_memory import EngineMemory
from mori_gemm_ar.emulator.memory_ops import Access
from mori_gemm_ar.emulator.regions import RegionTable
from mori_gemm_ar.errors import EmulatorError, MemoryFault

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.group import Group
    from mori_gemm_ar.emulator.node import Dispatch
    from mori_gemm_ar.emulator.pool import Pool

_BASE = 0x1000
_SPAN = (1 << 47) - 2 * _BASE
_HIGHEST = np.uint64(0xFFFFFFFFFFFFFFFF)
_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}


def _address_space(itemsize: int, misalignment: int) -> np.ndarray:
    start = _BASE + misalignment
    count = (_SPAN - misalignment) // itemsize
    memory = (ctypes.c_char * (count * itemsize)).from_address(start)
    return np.frombuffer(memory, dtype=_TYPES[itemsize])  # type: ignore[call-overload, no-any-return]


class AddressSpace:
    """Typed gathers and scatters on raw addresses."""

    def __init__(self) -> None:
        self._views: dict[tuple[int, int], np.ndarray] = {}

    def _view(self, itemsize: int, misalignment: int) -> np.ndarray:
        key = (itemsize, misalignment)
        if key not in self._views:
            self._views[key] = _address_space(itemsize, misalignment)
        return self._views[key]

    @staticmethod
    def _index(addresses: np.ndarray, itemsize: int, misalignment: int) -> np.ndarray:
        return ((addresses - np.uint64(_BASE + misalignment)) >> np.uint64(_SHIFT[itemsize])).view(np.int64)

    def _alignments(self, addresses: np.ndarray, itemsize: int) -> list[tuple[int, np.ndarray | None]]:
        """Misalignment classes of the addresses; None selects all."""
        if itemsize == 1:
            return [(0, None)]
        low = addresses & np.uint64(itemsize - 1)
        first = int(low[0])
        if (low == low[0]).all():
            return [(first, None)]
        return [(int(m), np.nonzero(low == m)[0]) for m in np.unique(low)]

    def gather(self, addresses: np.ndarray, itemsize: int) -> np.ndarray:
        """Read one item per address (1-D uint64)."""
        classes = self._alignments(addresses, itemsize)
        if classes[0][1] is None:
            m = classes[0][0]
            return self._view(itemsize, m)[self._index(addresses, itemsize, m)]
        out: np.ndarray = np.empty(len(addresses), _TYPES[itemsize])
        for m, chosen in classes:
            out[chosen] = self._view(itemsize, m)[self._index(addresses[chosen], itemsize, m)]
        return out

    def scatter(self, addresses: np.ndarray, itemsize: int, values: np.ndarray) -> None:
        """Write one item per address; of equal addresses the last one stays."""
        for m, chosen in self._alignments(addresses, itemsize):
            if chosen is None:
                self._view(itemsize, m)[self._index(addresses, itemsize, m)] = values
            else:
                self._view(itemsize, m)[self._index(addresses[chosen], itemsize, m)] = values[chosen]


def to_rows(data: np.ndarray, access: Access) -> list[np.ndarray]:
    """Loaded items to one uint32 (or half: uint16) array per register."""
    if access.nbytes >= 4:
        words = data.view(np.uint32).reshape(-1, access.registers)
        return [words[:, r] for r in range(access.registers)]
    kind = {(1, True): np.int8, (2, True): np.int16}.get((access.nbytes, access.signed), data.dtype.type)
    value = data.view(kind).astype(np.int32 if access.signed else np.uint32).view(np.uint32)
    return [value.astype(np.uint16)] if access.half >= 0 else [value]


def from_rows(rows: list[np.ndarray], access: Access) -> np.ndarray:
    """Registers to items of the stored size."""
    if access.nbytes >= 4:
        words = np.empty((len(rows[0]), access.registers), np.uint32)
        for r, row in enumerate(rows):
            words[:, r] = row
        return words if access.nbytes == 12 else words.view(_TYPES[access.nbytes])[:, 0]
    return rows[0].astype(_TYPES[access.nbytes])


class FunctionalMemory(EngineMemory):
    """Global memory of the node in functional mode."""

    weak = False

    def __init__(self, regions: RegionTable) -> None:
        self.regions = regions
        self.space = AddressSpace()
        # Told of scoped stores that take effect after their issue: pool, waves, addresses.
        self.landed: Callable[[Pool, np.ndarray, np.ndarray], None] | None = None

    # ---- events of the node, of interest to weaker memories ------------------------------------------------
    def submitted(self, gpu: int, idle: bool) -> None:
        """The host hands work to a GPU, which is `idle` or not."""

    def begin_dispatch(self, dispatch: Dispatch) -> None:
        """A kernel starts."""

    def begin_workgroup(self, pool: Pool, waves: slice, dispatch: Dispatch, number: int) -> None:
        """A workgroup is placed."""

    def leave_places(self, pool: Pool, waves: slice) -> None:
        """Another workgroup takes the places of these waves, which have ended."""

    def end_dispatch(self, dispatch: Dispatch) -> None:
        """A kernel has ended."""

    def gpu_idle(self, gpu: int) -> None:
        """All work of a GPU has ended."""

    def completes(self) -> bool:
        """Whether a kernel whose workgroups have ended is noticed as complete in this round."""
        return True

    def idle_round(self) -> bool:
        """No wave moved; returns whether memory did."""
        return False

    def choose(self, pool: Pool, order: np.ndarray) -> np.ndarray | None:
        """Which waves run next, all at one segment; None: all that stand furthest back.

        `order` holds each wave's segment, the highest int32 where it is not ready; raising it holds a wave back.
        """
        return None

    def preempts(self) -> bool:
        """Whether the running waves pause after a segment that published or waited."""
        return False

    def host_view(self, address: int, nbytes: int) -> bytes:
        """What the host reads while kernels run."""
        return ctypes.string_at(address, nbytes)

    # ---- checks ----------------------------------------------------------------------------------------------
    def check(self, g: Group, site: int, k, address: np.ndarray, nbytes: int) -> None:
        """Raise `MemoryFault` unless every active lane of the (n, 64) addresses stays in a known region."""
        if k is True:
            first = int(address.min())
            if self.regions.find(first, int(address.max()) - first + nbytes) is not None:
                return
            low, high = address.min(axis=1), address.max(axis=1)
        else:
            active = k.any(axis=1)
            low = np.where(k, address, _HIGHEST).min(axis=1)[active]
            high = np.where(k, address, np.uint64(0)).max(axis=1)[active]
        if self.regions.find(int(low.min()), int(high.max()) - int(low.min()) + nbytes) is not None:
            return
        start = end = 0
        for position, (first, last) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if start <= first and last <= end:
                continue
            region = self.regions.find(first, last - first + nbytes)
            if region is None:
                wave = position if k is True else int(np.nonzero(active)[0][position])
                self._check_lanes(g, site, wave, address[wave], True if k is True else k[wave], nbytes)
            else:
                start, end = region.address, region.end - nbytes

    def _check_lanes(self, g: Group, site: int, wave: int, address: np.ndarray, k, nbytes: int) -> None:
        for lane in range(64) if k is True else np.nonzero(k)[0].tolist():
            if self.regions.find(int(address[lane]), nbytes) is None:
                self.fault(g, site, wave, lane, int(address[lane]), nbytes)

    def fault(self, g: Group, site: int, wave: int, lane: int, address: int, nbytes: int) -> None:
        """Raise `MemoryFault` for one lane."""
        near = self.regions.nearest(address)
        hint = f"; nearest is {near.name} [{near.address:#x}, {near.end:#x})" if near else "; no region is known"
        raise MemoryFault(
            f"{g.where(site, wave)}, lane {lane}: "
            f"access of {nbytes} bytes at {address:#x} must lie in a known region{hint}"
        )

    # ---- vector accesses -------------------------------------------------------------------------------------
    def _locate(self, g: Group, site: int, k, address: np.ndarray, nbytes: int) -> np.ndarray:
        """Checked addresses of the active lanes, 1-D."""
        if address.shape != (g.n, 64):
            address = np.broadcast_to(address, (g.n, 64))
        flat = address.reshape(-1) if k is True else address[k]
        if len(flat):
            self.check(g, site, k, address, nbytes)
        return flat

    def load(self, g: Group, site: int, k, address: np.ndarray, access: Access, rows, policy: int) -> None:
        """Load into `rows` under mask `k`."""
        flat = self._locate(g, site, k, address, access.nbytes)
        if not len(flat):
            return
        if policy:
            g.note_poll(k, address)
        values = to_rows(self.read(g, flat, access), access)
        self.deliver(k, rows, values)

    def read(self, g: Group, flat: np.ndarray, access: Access) -> np.ndarray:
        """Items at checked addresses."""
        if access.nbytes == 12:
            parts = [self.space.gather(flat + np.uint64(4 * i), 4) for i in range(3)]
            return np.stack(parts, axis=1).reshape(-1)
        return self.space.gather(flat, access.nbytes)

    @staticmethod
    def deliver(k, rows, values: list[np.ndarray]) -> None:
        """Write one value array per register under the mask."""
        for row, value in zip(rows, values, strict=True):
            if k is True:
                row[...] = value.reshape(row.shape)
            else:
                row[k] = value

    @staticmethod
    def collect(g: Group, k, rows) -> list[np.ndarray]:
        """One value array per register from the active lanes."""
        return [row.reshape(-1) if k is True else row[k] for row in rows]

    def store(self, g: Group, site: int, k, address: np.ndarray, access: Access, rows, policy: int) -> None:
        """Store `rows` under mask `k`."""
        flat = self._locate(g, site, k, address, access.nbytes)
        if not len(flat):
            return
        self.write(g, flat, access, from_rows(self.collect(g, k, rows), access), policy)

    def write(self, g: Group, flat: np.ndarray, access: Access, items: np.ndarray, policy: int) -> None:
        """Write items to checked addresses."""
        if access.nbytes == 12:
            for i in range(3):
                self.space.scatter(flat + np.uint64(4 * i), 4, items[:, i])
        else:
            self.space.scatter(flat, access.nbytes, items)

    def lds_copy(
        self, g: Group, site: int, k, address: np.ndarray, inside, place: np.ndarray, access: Access, policy: int
    ) -> None:
        """Copy the active lanes' items to byte positions `place` of the pool's LDS; zeros where not `inside`."""
        self.land_copy(g.pool, place, self.copy_items(g, site, k, address, inside, access), access)

    def copy_items(self, g: Group, site: int, k, address: np.ndarray, inside, access: Access) -> np.ndarray:
        """What the active lanes copy, one row of dwords each."""
        words = access.nbytes // 4
        if inside is True:
            flat = self._locate(g, site, k, address, access.nbytes)
            return self.read(g, flat, access).view(np.uint32).reshape(-1, words)
        active = inside if k is True else inside & k
        data = np.zeros((g.n * 64, words), np.uint32)
        flat = self._locate(g, site, active, address, access.nbytes)
        if len(flat):
            data[active.reshape(-1)] = self.read(g, flat, access).view(np.uint32).reshape(-1, words)
        return data if k is True else data[k.reshape(-1)]

    @staticmethod
    def land_copy(pool: Pool, place: np.ndarray, items: np.ndarray, access: Access) -> None:
        """Write copied rows to LDS."""
        if access.nbytes == 16 and not (place & 15).any():
            pool.lds.view(np.complex128)[place >> 4] = items.view(np.complex128)[:, 0]
            return
        words = pool.lds.view(np.uint32)
        for word in range(access.nbytes // 4):
            words[(place >> 2) + word] = items[:, word]

    # ---- atomics ---------------------------------------------------------------------------------------------
    def atomic(
        self, g: Group, site: int, k, address: np.ndarray, operation: str, wide: bool, data, rows, policy: int
    ) -> None:
        """Read-modify-write lane by lane, in wave and lane order."""
        size = 8 if wide else 4
        flat = self._locate(g, site, k, address, size)
        if not len(flat):
            return
        self._check_home(g, site, k, flat)
        g.note_poll(k, address)
        values = self.collect(g, k, data)
        if wide:
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32) for low, high in pairs]
        old: np.ndarray = np.empty(len(flat), _TYPES[size])
        with self.exclusive(flat):
            for lane in range(len(flat)):
                where = flat[lane : lane + 1]
                old[lane] = current = self.space.gather(where, size)[0]
                new = modify(operation, current, [v[lane] for v in values])
                self.space.scatter(where, size, np.asarray([new], dtype=old.dtype))
        if rows is not None:
            self.deliver(k, rows, to_rows(old, Access(size, size // 4)))

    def exclusive(self, addresses: np.ndarray) -> AbstractContextManager[object]:
        """Held around a read-modify-write; memory that other processes map needs a lock here."""
        return nullcontext()

    def _check_home(self, g: Group, site: int, k, flat: np.ndarray) -> None:
        """Read-modify-write of peer memory is forbidden (rule 6 of the publication rules)."""
        gpus = np.repeat(g.gpus(), 64) if k is True else g.gpus()[np.nonzero(k)[0]]
        for address, gpu, position in zip(flat.tolist(), gpus.tolist(), range(len(flat)), strict=True):
            region = self.regions.find(address)
            if region is not None and region.home is not None and region.home != gpu:
                wave = position // 64 if k is True else int(np.nonzero(k)[0][position])
                raise EmulatorError(
                    f"{g.where(site, wave)}: read-modify-write of peer memory at {region.describe(address)}; "
                    f"it belongs to GPU {region.home}"
                )

    # ---- scalar loads and cache maintenance ------------------------------------------------------------------
    def scalar_load(self, g: Group, site: int, address: np.ndarray, count: int) -> np.ndarray:
        """`count` dwords per wave, as (n, count) uint32."""
        address = np.ascontiguousarray(np.broadcast_to(address, (g.n,))) & ~np.uint64(3)
        low, high = int(address.min()), int(address.max())
        if self.regions.find(low, high - low + 4 * count) is None:
            # Waves of one launch share their addresses: few differ.
            for value, wave in zip(*(found.tolist() for found in np.unique(address, return_index=True)), strict=True):
                if self.regions.find(value, 4 * count) is None:
                    self.fault(g, site, wave, 0, value, 4 * count)
        offsets = np.arange(count, dtype=np.uint64) * np.uint64(4)
        return self.space.gather((address[:, None] + offsets).reshape(-1), 4).reshape(g.n, count)

    def write_back(self, g: Group, site: int, policy: int) -> None:
        """Nothing to do: memory is always current."""

    def invalidate(self, g: Group, site: int, policy: int) -> None:
        """Nothing to do: nothing is cached."""

    def wait(self, g: Group, vmcnt: int) -> None:
        """Nothing to do: every access has taken effect."""


def modify(operation: str, old: np.generic, data: list[np.generic]) -> np.generic | int:
    """New memory value of an atomic. `cmpswap` takes (new, expected), as the instruction does."""
    size = old.dtype.itemsize
    bits, value = 8 * size, int(data[0])
    current, mask = int(old), (1 << bits) - 1

    def signed(number: int) -> int:
        return number - (1 << bits) if number >> (bits - 1) else number

    if operation == "cmpswap":
        return value if current == int(data[1]) else current
    if operation == "fadd":
        return (old.view(np.float32) + data[0].view(np.float32)).view(np.uint32)
    if operation == "fadd64":
        return (old.view(np.float64) + data[0].view(np.float64)).view(np.uint64)
    if operation == "pk_add_f16":
        pair = np.asarray([old]).view(np.float16) + np.asarray([data[0]]).view(np.float16)
        return pair.view(np.uint32)[0]
    if operation == "pk_add_bf16":
        from mori_gemm_ar.emulator.float_helpers import pack_bf16

        a, b = (np.asarray([x, int(x) << 16 & 0xFFFFFFFF], np.uint32) for x in (old, data[0]))
        total = (a & np.uint32(0xFFFF0000)).view(np.float32) + (b & np.uint32(0xFFFF0000)).view(np.float32)
        return pack_bf16(total[1:], total[:1])[0]
    results = {
        "swap": lambda: value,
        "add": lambda: current + value,
        "sub": lambda: current - value,
        "and": lambda: current & value,
        "or": lambda: current | value,
        "xor": lambda: current ^ value,
        "umin": lambda: min(current, value),
        "umax": lambda: max(current, value),
        "smin": lambda: min(signed(current), signed(value)),
        "smax": lambda: max(signed(current), signed(value)),
        "inc": lambda: 0 if current >= value else current + 1,
        "dec": lambda: value if current == 0 or current > value else current - 1,
    }
    return results[operation]() & mask
