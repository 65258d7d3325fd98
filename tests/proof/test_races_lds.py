# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Races on LDS between the waves of a workgroup: barriers, waits, copies in flight, equal values, atomics."""

from __future__ import annotations

import pytest

from mori_gemm_ar.emulator import Node
from tests.proof.races import code, line_of, lines_of, make_node, modes, race, submit, without, words

EXCHANGE = """
    ds_write_b32 v1, v0
    s_waitcnt lgkmcnt(0)
    s_barrier
    v_xor_b32_e32 v6, 0x100, v1
    ds_read_b32 v2, v6
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v2, s[4:5]
"""


def start(seed: int | None, body: str, lds: int = 1024) -> Node:
    """A node with one workgroup of two waves."""
    node = make_node(1, seed)
    data = words(node, "data")
    submit(node, code(body, lds=lds), [data] * 3)
    return node


@modes
def test_what_another_wave_has_written_needs_a_wait_and_a_barrier(seed: int | None) -> None:
    start(seed, EXCHANGE).run()
    text = race(start(seed, without(EXCHANGE, "s_barrier")), "race on LDS + 0x", "no workgroup barrier between wave")
    body = code(without(EXCHANGE, "s_barrier"))
    assert set(lines_of(text)) == {line_of(body, "ds_write"), line_of(body, "ds_read")}
    late = without(EXCHANGE, "s_waitcnt lgkmcnt(0)")
    race(start(seed, late), "the barrier between them does not order it", "had not waited (lgkmcnt)")


@modes
def test_what_another_wave_reads_must_not_be_overwritten(seed: int | None) -> None:
    again = EXCHANGE + "{barrier}\nv_add_u32_e32 v2, 7, v0\nds_write_b32 v1, v2\ns_waitcnt lgkmcnt(0)"
    start(seed, again.format(barrier="s_barrier")).run()
    race(start(seed, again.format(barrier="")), "race on LDS", "no workgroup barrier between wave")
    unread = without(again.format(barrier="s_barrier"), "s_waitcnt lgkmcnt(0)", 1)
    race(start(seed, unread), "had not waited (lgkmcnt)")


def test_one_wave_alone_needs_nothing() -> None:
    start(None, "ds_write_b32 v1, v0\nds_read_b32 v2, v1\ns_waitcnt lgkmcnt(0)\nds_write_b32 v1, v2").run()


@modes
def test_waves_may_store_one_value_at_a_time(seed: int | None) -> None:
    """All waves clear a word. A read, or another value, still needs a barrier after all of them."""
    clear = "ds_write_b32 v3, v3\ns_waitcnt lgkmcnt(0)\n{barrier}\n{then}"
    change = "v_mov_b32_e32 v5, s12\nds_write_b32 v3, v5"
    start(seed, clear.format(barrier="s_barrier", then="ds_read_b32 v2, v3\ns_waitcnt lgkmcnt(0)")).run()
    race(start(seed, clear.format(barrier="", then="ds_read_b32 v2, v3")), "race on LDS + 0x0")
    race(start(seed, clear.format(barrier="", then=change)), "race on LDS + 0x0")
    race(start(seed, change), "race on LDS + 0x0")


@modes
def test_atomics_do_not_race_with_each_other(seed: int | None) -> None:
    clear = "ds_write_b32 v3, v3\ns_waitcnt lgkmcnt(0)\ns_barrier\n"
    count = "ds_add_u32 v3, v4\n{wait}\ns_barrier\nds_read_b32 v2, v3\ns_waitcnt lgkmcnt(0)"
    start(seed, clear + count.format(wait="s_waitcnt lgkmcnt(0)")).run()
    race(start(seed, clear + count.format(wait="")), "had not waited (lgkmcnt)")
    race(start(seed, clear + without(count.format(wait="s_waitcnt lgkmcnt(0)"), "s_barrier")), "no workgroup barrier")


# A copy of 64 dwords per wave from global memory, which the other wave reads.
COPY = """
    s_lshl_b32 s13, s12, 2
    s_mov_b32 m0, s13
    s_nop 0
    global_load_lds_dword v1, s[4:5]
    {wait}
    s_barrier
    v_xor_b32_e32 v6, {other}, v1
    ds_read_b32 v2, v6
    s_waitcnt lgkmcnt(0)
"""


@modes
def test_a_copy_lasts_until_its_wait(seed: int | None) -> None:
    """L6 in small: a barrier hands an LDS buffer on while copies into it are in flight."""
    start(seed, COPY.format(wait="s_waitcnt vmcnt(0)", other="0x100")).run()
    text = race(start(seed, COPY.format(wait="", other="0x100")), "had not waited (vmcnt)", "copy by kernel tiny")
    body = code(COPY.format(wait="", other="0x100"))
    assert lines_of(text) == (line_of(body, "global_load_lds"), line_of(body, "ds_read"))
    race(start(seed, COPY.format(wait="s_nop 0", other="0x100")), "race on LDS")
    race(
        start(seed, COPY.format(wait="s_nop 0", other="0")), "no s_waitcnt vmcnt between the copy and the access by the"
    )


@modes
def test_a_copy_must_not_land_in_what_another_wave_reads(seed: int | None) -> None:
    """The refill of a buffer needs a barrier after its readers."""
    refill = COPY.format(wait="s_waitcnt vmcnt(0)", other="0x100") + "{barrier}\nglobal_load_lds_dword v1, s[4:5]"
    start(seed, refill.format(barrier="s_barrier")).run()
    race(start(seed, refill.format(barrier="")), "race on LDS", "read by", "then write by", "global_load_lds")


@modes
@pytest.mark.parametrize(("in_flight", "clean"), [(0, True), (1, True), (2, False)])
def test_copies_behind_the_last_one_into_a_buffer_may_be_in_flight(
    seed: int | None, in_flight: int, clean: bool
) -> None:
    """Two copies, of which the first fills the buffer that the barrier hands on."""
    body = f"""
        s_lshl_b32 s13, s12, 2
        s_mov_b32 m0, s13
        s_nop 0
        global_load_lds_dword v1, s[4:5]
        s_add_u32 m0, s13, 0x200
        s_nop 0
        global_load_lds_dword v1, s[4:5]
        s_waitcnt vmcnt({in_flight})
        s_barrier
        v_xor_b32_e32 v6, 0x100, v1
        ds_read_b32 v2, v6
        s_waitcnt lgkmcnt(0)
    """
    node = start(seed, body, lds=2048)
    if clean:
        node.run()
    else:
        race(node, "race on LDS", "had not waited (vmcnt)")


@modes
def test_a_workgroup_does_not_race_with_the_one_that_had_its_lds_before(seed: int | None) -> None:
    node = make_node(1, seed)
    node.residency = 1
    data = words(node, "data", 8 * 128)
    spread = "s_lshl_b32 s13, s2, 9\nv_add_u32_e32 v7, s13, v1\n"
    submit(node, code(spread + EXCHANGE.replace("v1, v2, s[4:5]", "v7, v2, s[4:5]"), lds=1024), [data] * 3, blocks=4)
    node.run()
    assert data[:128].tolist() == [*range(64, 128), *range(64)]
