# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The static rules, one file for each subject. A rule takes a Subject and yields findings.

The name of a rule is the name of its function; its docstring says what it catches and names the lesson.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mori_gemm_ar.audit.findings import Finding
from mori_gemm_ar.audit.rules.accesses import cache_policy, peer_atomics, store_order, store_widths
from mori_gemm_ar.audit.rules.barriers import barrier_balance
from mori_gemm_ar.audit.rules.lds import lds_copies, lds_handover
from mori_gemm_ar.audit.rules.polling import acquire_after_count, acquire_after_wait, bounded_waits, wait_loops
from mori_gemm_ar.audit.rules.posting import doorbell_order
from mori_gemm_ar.audit.rules.publication import one_release, publish_order, released_end, writeback_wait
from mori_gemm_ar.audit.rules.registers import register_waits
from mori_gemm_ar.audit.rules.resources import no_spills, no_waterfall, register_ceiling
from mori_gemm_ar.audit.subject import Subject

Rule = Callable[[Subject], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    register_waits,
    wait_loops,
    bounded_waits,
    acquire_after_wait,
    acquire_after_count,
    publish_order,
    released_end,
    doorbell_order,
    writeback_wait,
    one_release,
    store_order,
    barrier_balance,
    lds_handover,
    lds_copies,
    cache_policy,
    store_widths,
    peer_atomics,
    no_waterfall,
    no_spills,
    register_ceiling,
)

__all__ = ["RULES", "Rule"]
