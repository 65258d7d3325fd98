# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The load/store all-reduce in one and in two stages.

A rank's input goes into its window, the ranks meet, and everyone loads from everyone. The unit is a 16-byte pack;
pack i of a slice belongs to block i // threads % blocks in every phase and on every rank, so a block has to meet its
namesakes only. What a pack holds is summed in fp32 in rank order 0..W-1 and rounded once, hence equal bits everywhere.
The elements after the last whole pack are handled one by one by the first lanes of block 0.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.device.barrier import BlockBarrier
from mori_gemm_ar.kernels.device.memory import BoundedPackArray, ElementArray, PackArray
from mori_gemm_ar.kernels.device.windows import Windows
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout import PACK_BYTES, AllReduceConfig, DType, Gather, Phase, Stage

ELEMENTS = {DType.BF16: fx.BFloat16, DType.FP16: fx.Float16, DType.FP32: fx.Float32}
CALLER_ALIGN = 2  # src and dst may be views that start at any element
_PHASES = {Stage.ONE: (Phase.ENTRY, Phase.LEAVE), Stage.TWO: (Phase.ENTRY, Phase.MIDDLE)}
_FAILED = 3  # a phase number past the last one
WAVES_PER_SIMD = 8  # at most 64 vector registers, so that a block fits beside one of a GEMM


@fx.struct
class AllReduceArguments:
    """Kernel arguments in order: all that differs between ranks, sizes and calls."""

    base: fx.Int64  # rank 0's window
    stride: fx.Int64  # bytes from one rank's window to the next
    rank: fx.Uint32
    blocks: fx.Uint32  # grid size
    src: fx.Int64  # local input; the own window's input region itself means that nothing has to be staged
    dst: fx.Int64  # local result
    numel: fx.Uint32
    tag: fx.Uint32  # equal on all ranks of a call
    input_offset: fx.Int64  # payload regions of the window
    reduced_offset: fx.Int64
    budget: fx.Int64  # of one wait, in ticks of the 100 MHz clock
    error: fx.Int64  # error record


def sum_in_order(values, element):
    """fp32 sum in the order given, rounded once to `element`."""
    total = values[0].to(fx.Float32)
    for value in values[1:]:
        total = total + value.to(fx.Float32)
    return total.to(element)


def sum_of_packs(arrays, pack, element):
    """The pack of sums, as words, of the same pack of each array, in the order given."""
    loaded = [array.load(pack).bitcast(element) for array in arrays]
    return sum_in_order(loaded, element).bitcast(fx.Int32)


class Call:
    """What all phases share: sizes, this thread's place, and the ragged tail."""

    def __init__(self, config, arguments):
        self.config, self.arguments = config, arguments
        self.element = ELEMENTS[config.dtype]
        per_pack = PACK_BYTES // config.dtype.nbytes
        self.packs = fx.Int32(arguments.numel // per_pack)
        self.tail = fx.Int32(arguments.numel % per_pack)
        self.tail_start = self.packs * per_pack
        block, tid = fx.Int32(fx.block_idx.x), fx.Int32(fx.thread_idx.x)
        self.first = block * config.threads + tid
        self.jump = fx.Int32(arguments.blocks) * config.threads
        self.block, self.tid = block, tid

    def window_elements(self, address):
        """Elements at an address inside a window."""
        return ElementArray(self.element, address, align=self.config.dtype.nbytes)

    def caller_elements(self, address):
        """Elements at an address that the caller gave."""
        return ElementArray(self.element, address, CALLER_ALIGN)

    def owns_tail(self, first):
        """Whether this thread has an element of the tail; `first` is its number in the grid."""
        return first < self.tail

    @flyc.jit
    def copy_tail(self, source, target):
        """Copy the own element of the tail between two element arrays."""
        load, store, at = source.load, target.store, self.tail_start + self.first
        if self.owns_tail(self.first):
            store(at, load(at))


class _Identity(Call):
    """A world of one: copy."""

    @flyc.jit
    def run(self):
        load = PackArray(self.arguments.src, CALLER_ALIGN).load
        store = PackArray(self.arguments.dst, CALLER_ALIGN).store
        for pack in range(self.first, self.packs, self.jump):
            store(pack, load(pack))
        self.copy_tail(self.caller_elements(self.arguments.src), self.caller_elements(self.arguments.dst))


class Staged(Call):
    """A world of more than one: stage in, meet, work, meet again, work again.

    A stage is what follows each barrier: after_entry(first) returns the tail's sum or anything of its type, which
    after_second(first, tail) gets. `first` is the first pack of this thread.
    """

    def __init__(self, config, arguments):
        super().__init__(config, arguments)
        self.world = config.world
        self.windows = Windows(config.world, arguments.base, arguments.stride, arguments.rank)
        self.barrier = BlockBarrier(self.windows, self.block, self.tid, arguments, _PHASES[config.stage])
        self.own_input = self.windows.own + arguments.input_offset

    @flyc.jit
    def run(self):
        self.stage_in()
        number, tail = fx.Int32(0), self.element(0.0)
        # One barrier code for both phases: half the code to fetch, to audit and to mutate.
        while number < len(_PHASES[self.config.stage]):
            if self.barrier.meet(number):
                # Pinned, or this thread's addresses are computed ahead of the barriers and held through them.
                first = fx.Int32(library.pin(self.first))
                if library.uniform(number) == 0:
                    tail = self.after_entry(first)
                else:
                    self.after_second(first, tail)
                number = number + 1
            else:
                number = fx.Int32(_FAILED)
        if number != _FAILED:
            self.barrier.publish()

    @flyc.jit
    def stage_in(self):
        """Copy the caller's input into the window, unless it lies there already."""
        if self.arguments.src != self.own_input:
            self.stage_packs()
            self.copy_tail(self.caller_elements(self.arguments.src), self.window_elements(self.own_input))

    def sum_packs(self, arrays, pack):
        return sum_of_packs(arrays, pack, self.element)

    def sum_tail(self, addresses, first):
        at = self.tail_start + first
        return sum_in_order([self.window_elements(address).load(at) for address in addresses], self.element)


class _OneStage(Staged):
    """Every rank sums everything. The leave barrier tells that nobody reads an input any more."""

    @flyc.jit
    def stage_packs(self):
        load = PackArray(self.arguments.src, CALLER_ALIGN).load
        store = PackArray(self.own_input).store
        for pack in range(self.first, self.packs, self.jump):
            store(pack, load(pack))

    @flyc.jit
    def after_entry(self, first):
        """Sum all packs, and the tail, into dst."""
        addresses = self.windows.in_rank_order(self.arguments.input_offset)
        inputs = [PackArray(address) for address in addresses]
        sum_packs, sum_tail = self.sum_packs, self.sum_tail
        store = PackArray(self.arguments.dst, CALLER_ALIGN).store
        store_element = self.caller_elements(self.arguments.dst).store
        for pack in range(first, self.packs, self.jump):
            store(pack, sum_packs(inputs, pack))
        if self.owns_tail(first):
            store_element(self.tail_start + first, sum_tail(addresses, first))
        return self.element(0.0)

    def after_second(self, first, tail):
        """Nothing is left to do."""


class TwoStage(Staged):
    """Rank r sums slice r, packs [r * part, (r + 1) * part), into its window; then all ranks gather the slices.

    The middle barrier tells that the slices are there and that nobody reads an input any more. `reduced` is safe from
    the next call because a rank enters that call's first barrier only when its whole gather is over.
    """

    def __init__(self, config, arguments):
        super().__init__(config, arguments)
        self.part = fx.Int32((fx.Uint32(self.packs) + (self.world - 1)) // self.world)
        self.own_reduced = self.windows.own + arguments.reduced_offset

    @flyc.jit
    def stage_packs(self):
        """All slices at once: the block that reads pack i of a slice, on any rank, meets the one that stages it."""
        load = BoundedPackArray(self.arguments.src, self.packs, CALLER_ALIGN).load
        store = BoundedPackArray(self.own_input, self.packs).store
        world, part = self.world, fx.Uint32(self.part)
        for pack in range(self.first, self.part, self.jump):
            places = [fx.Uint32(pack) + part * owner for owner in range(world)]
            loaded = [load(place) for place in places]
            for place, value in zip(places, loaded, strict=True):
                store(place, value)

    @flyc.jit
    def after_entry(self, first):
        """Sum the own slice into the window, and the tail into a register: peers may still read dst as an input."""
        addresses = self.windows.in_rank_order(self.arguments.input_offset)
        inputs = [PackArray(address) for address in addresses]
        sum_packs, sum_tail, store = self.sum_packs, self.sum_tail, PackArray(self.own_reduced).store
        start = self.part * fx.Int32(self.arguments.rank)
        for pack in range(start + first, fx.min(start + self.part, self.packs), self.jump):
            store(pack, sum_packs(inputs, pack))
        tail = self.element(0.0)
        if self.owns_tail(first):
            tail = sum_tail(addresses, first)
        return tail

    @flyc.jit
    def after_second(self, first, tail):
        """Gather the slices, and store the tail."""
        store = self.caller_elements(self.arguments.dst).store
        self.gather(first)
        if self.owns_tail(first):
            store(self.tail_start + first, tail)

    def gather(self, first):
        """Copy all slices to dst, each from the rank that owns it."""
        stations = self.windows.around_ring(self.arguments.reduced_offset, self.part)
        slices = [(PackArray(address), start) for address, start in stations]
        dst = BoundedPackArray(self.arguments.dst, self.packs, CALLER_ALIGN)
        if self.config.gather is Gather.INTERLEAVED:
            # W-1 different peers and the own slice, then the stores: all links are busy in every iteration.
            self.copy_slices(first, slices, dst)
        else:
            for one in slices:
                self.copy_slices(first, [one], dst)

    @flyc.jit
    def copy_slices(self, first, slices, dst):
        store = dst.store
        for pack in range(first, self.part, self.jump):
            places = [fx.Uint32(pack) + fx.Uint32(start) for _, start in slices]
            # A short slice is read past its end, inside the window; the bound of dst drops those stores.
            loaded = [array.load(place) for (array, _), place in zip(slices, places, strict=True)]
            for place, value in zip(places, loaded, strict=True):
                store(place, value)


_STAGED = {Stage.ONE: _OneStage, Stage.TWO: TwoStage}


def all_reduce_kernel(config: AllReduceConfig) -> DeviceKernel:
    """The kernel of a config: any rank, any size and any grid of `config.threads` threads, equal on all ranks."""
    if config.wire.lossy:
        raise ConfigError(f"wire={config.wire.value!r} must be 'exact' here; kernels.wire makes the others")
    phases = _Identity if config.world == 1 else _STAGED[config.stage]

    @flyc.kernel(name=config.kernel_name, known_block_size=[config.threads, 1, 1])
    def kernel(arguments: AllReduceArguments):
        phases(config, arguments).run()

    return DeviceKernel(config.kernel_name, kernel, AllReduceArguments, config.threads, WAVES_PER_SIMD)
