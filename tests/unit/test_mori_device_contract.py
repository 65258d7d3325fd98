# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What we link of amd-mori's device code against the source of amd-mori 1.2.4: symbol, types, and where bitcode is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mori_gemm_ar.compile import mori_bitcode
from mori_gemm_ar.layout.copy_queue import MAX_PUT_BYTES, PUT_SYMBOL
from tests.unit.mori_source import DEVICE_PARTS, parts_of, wheel

PACKAGE = Path(mori_bitcode.__file__).parents[1]
STAND_IN = Path(__file__).parents[1] / "kernel" / "mori_put.ll"
# dc, peer, window and offset of the target, the same of the source, bytes, queue, flags
ARGUMENTS = ["uint64", "int32", "uint64", "uint64", "uint64", "uint64", "uint64", "int32", "int32"]
C_TYPES = {"uint64_t": "uint64", "int": "int32"}
LLVM_TYPES = {"i64": "uint64", "i32": "int32"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return parts_of(wheel(tmp_path_factory), DEVICE_PARTS)


def faults(texts: dict[str, str]) -> list[str]:
    """Disagreements with what our code relies on."""
    found = []
    wrapper = re.sub(r"\\\n", " ", texts["wrapper"])
    made = re.search(
        r"#define CCO_DEF_SDMA_XFER\(OP, TAG, COOP, SIG\)\s*CCO_DEV (\w+) (\S+)\((.*?)\) \{(.*?)#undef", wrapper, re.S
    )
    if made is None or made[1] != "int" or made[2] != "cco_sdma_##OP##__##TAG":
        return ["the wrapper makes no cco_sdma_<op>__<tag>"]
    arguments = [C_TYPES.get(part.split()[0], part) for part in made[3].split(",")]
    if arguments != ARGUMENTS:
        found.append(f"the wrapper's put takes {arguments}")
    names = [part.split()[1] for part in made[3].split(",")]
    if names != ["dc", "peer", "dW", "dO", "sW", "sO", "n", "qid", "flags"]:
        found.append(f"the wrapper's put takes {names}")
    if "CCO_DEF_SDMA_XFER(put, thread_ns, ccoCoopThread, false)" not in made[4]:
        found.append(f"the wrapper makes no {PUT_SYMBOL}")
    if "always_inline" not in texts["wrapper"].partition("#define CCO_DEV ")[2].partition("\n")[0]:
        found.append("functions of the wrapper are not always inlined")
    listed = re.search(r"_sdma_xfer_args = \[(.*?)\]", texts["table"])
    types = {"_U64": "uint64", "_I32": "int32"}
    if listed is None or [types.get(part.strip()) for part in listed[1].split(",")] != ARGUMENTS:
        found.append("the table has other arguments for a put")
    lookup = texts["lookup"]
    for text in (
        f'os.environ.get("{mori_bitcode.BITCODE_VARIABLE}")',
        "def find_cco_bitcode(cov: int",
        f"_FLYDSL_COV = {mori_bitcode.CODE_OBJECT_VERSION}",
        '_BC_FILENAME = "libmori_cco_device.bc"',
        "raise FileNotFoundError(",
    ):
        if text not in lookup:
            found.append(f"the lookup no longer says: {text}")
    limit = re.search(r"CCO_SDMA_MAX_COPY_BYTES = (0x[0-9a-f]+)", texts["header"])
    if limit is None or int(limit[1], 16) < MAX_PUT_BYTES:
        found.append("mori splits a put of ours")
    waits = texts["header"].count("if constexpr (CCO_SDMA_BREAK_ON_RETRIES)")
    if "constexpr bool CCO_SDMA_BREAK_ON_RETRIES = false;" not in texts["header"] or waits < 2:
        found.append("waits of a put are bounded in another way than the pages say")
    return found


def test_the_put_is_as_we_call_it(texts: dict[str, str]) -> None:
    assert faults(texts) == []


def changed(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text, f"the source no longer has {old!r}"
        return text.replace(old, new)

    return change


CHANGES: dict[str, tuple[str, Callable[[str], str], str]] = {
    "other order": ("wrapper", changed("uint64_t dW, uint64_t dO,", "uint64_t dO, uint64_t dW,"), "put takes"),
    "other types": ("wrapper", changed("int qid, int flags", "int qid, uint64_t flags"), "put takes"),
    "no put": ("wrapper", changed("(put, thread_ns,", "(put, lane_ns,"), f"no {PUT_SYMBOL}"),
    "a call": ("wrapper", changed("always_inline", "noinline"), "not always inlined"),
    "other table": ("table", changed("_xfer_args = [_U64, _I32", "_xfer_args = [_U64, _U64"), "other arguments"),
    "other variable": ("lookup", changed('"MORI_CCO_BC"', '"MORI_BC"'), "MORI_CCO_BC"),
    "other lookup": ("lookup", changed("def find_cco_bitcode(cov", "def find_bitcode(cov"), "find_cco_bitcode"),
    "other code object": ("lookup", changed("_FLYDSL_COV = 6", "_FLYDSL_COV = 7"), "_FLYDSL_COV = 6"),
    "smaller copies": ("header", changed("= 0x3fffffe0ull", "= 0x3fffe0ull"), "splits"),
    "other waits": ("header", changed("BREAK_ON_RETRIES = false", "BREAK_ON_RETRIES = true"), "another way"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_source_is_noticed(texts: dict[str, str], name: str) -> None:
    part, change, fault = CHANGES[name]
    found = faults(texts | {part: change(texts[part])})
    assert any(fault in text for text in found), found


def test_our_binding_and_the_stand_in_have_these_types() -> None:
    binding = (PACKAGE / "kernels" / "device" / "mori.py").read_text()
    (given,) = re.findall(r'_PUT_ARGUMENTS = "(.*?)"\.split\(\)', binding)
    assert given.split() == ARGUMENTS
    signature = re.search(rf"^define i32 @{PUT_SYMBOL}\((.*?)\)", STAND_IN.read_text(), re.M)
    assert signature is not None
    assert [LLVM_TYPES[part.split()[0]] for part in signature[1].split(",")] == ARGUMENTS
