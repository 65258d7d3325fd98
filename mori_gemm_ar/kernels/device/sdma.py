# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The functions of sdma.ll as FlyDSL callables: work for copy engines. What each one orders, and owes, is said there.

queue(table, index): handle of a queue. put(handle, dst, src, bytes, budget), put_signal(handle, dst, src, bytes,
signal, budget) and drain(handle, budget) give 0, or 1 when the budget ran out. Each runs once per active lane; lanes
that call together name different queues.
"""

from __future__ import annotations

from pathlib import Path

from mori_gemm_ar.kernels.device.library import device_function

LIBRARY = Path(__file__).with_name("sdma.ll")


def _function(name, arguments, result):
    return device_function(f"sdma_{name}", arguments, result, LIBRARY)


queue = _function("queue", "int64 uint32", "int64")
put = _function("put", "int64 int64 int64 int64 int64", "uint32")
put_signal = _function("put_signal", "int64 int64 int64 int64 int64 int64", "uint32")
drain = _function("drain", "int64 int64", "uint32")
