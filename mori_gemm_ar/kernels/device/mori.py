# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The verbs of `sdma` by amd-mori's own device code, linked from its bitcode.

A queue is known by the address of its record (layout.copy_queue.RECORD_WORDS), which holds what mori's put takes: it
names memory by window and offset, so source and target lie in the window. mori's put posts; whether it can is waited
for before, and whether it has landed behind, by polls of ours that end. What remains unbounded: two users of one queue
whose engine has died can both find room for one more packet, and then one of them waits in mori's code.
"""

from __future__ import annotations

from pathlib import Path

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.compiler.extern_link import link_extern
from flydsl.expr.extern import ffi

from mori_gemm_ar.kernels.device import sdma
from mori_gemm_ar.kernels.device.library import device_function
from mori_gemm_ar.layout.copy_queue import MAX_PUT_BYTES, PUT_SYMBOL, RECORD_BYTES, RECORD_OFFSETS

LIBRARY = Path(__file__).with_name("mori.ll")

_word = device_function("mori_word", "int64 int64", "int64", LIBRARY)
_ready = device_function("mori_ready", "int64 int64", "uint32", LIBRARY)
_PUT_ARGUMENTS = "uint64 int32 uint64 uint64 uint64 uint64 uint64 int32 int32".split()
_RING_AT_ONCE = 0  # flags of a put: ring the doorbell now


class MoriSubmit:
    """queue, put and drain of one amd-mori bitcode file; lanes that call together name different queues."""

    def __init__(self, bitcode):
        self._post = link_extern(ffi(PUT_SYMBOL, _PUT_ARGUMENTS, "int32"), bitcode_path=str(bitcode))

    def queue(self, table, index):
        """Record of a queue in a table of records."""
        return table + fx.Int64(fx.Uint32(index)) * RECORD_BYTES

    @flyc.jit
    def put(self, record, dst, src, nbytes, budget):
        """Copy between places in windows; 0, or 1 when the budget ran out, and then what is left was not posted."""
        late = fx.Uint32(0)
        for part in range(fx.Int32((nbytes + (MAX_PUT_BYTES - 1)) // MAX_PUT_BYTES)):
            start = fx.Int64(part) * MAX_PUT_BYTES
            # Unsigned, so that mori's own splitting is seen to be of no use, and its code is inlined.
            size = fx.Int64(fx.min(fx.Uint64(nbytes - start), fx.Uint64(MAX_PUT_BYTES)))
            late = self.post(late, record, dst + start, src + start, size, budget)
        return late

    @flyc.jit
    def post(self, late, record, dst, src, size, budget):
        if late == 0:
            late = _ready(self.word(record, "handle"), budget)
        if late == 0:
            window, comm = self.word(record, "window"), self.word(record, "comm")
            to, from_ = dst - self.word(record, "peer_window"), src - self.word(record, "own_window")
            peer, queue = fx.Int32(self.word(record, "peer")), fx.Int32(self.word(record, "queue"))
            self._post(comm, peer, window, to, window, from_, size, queue, fx.Int32(_RING_AT_ONCE))
        return late

    def drain(self, record, budget):
        """Wait until the engine has finished everything committed; 0, or 1 when the budget ran out."""
        return sdma.drain(self.word(record, "handle"), budget)

    @staticmethod
    def word(record, name):
        return _word(record, fx.Int64(RECORD_OFFSETS[name]))
