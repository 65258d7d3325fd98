# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Rows of the instruction tables, and the spellings in which a row is tried.

A row names the types of its results and sources in the order of the text. Beside types there are
    results:  `mask` a lane mask in a scalar pair, `scc`, `exec`; `f16:lo`, `f16:hi`,
         `f16:sel` (chosen by op_sel) a half
              that leaves the other alone; `f16x2` two elements, given as two values
    sources:  `+f32` the old destination, `mask` one bit per lane, `scc`, `exec`, `lane` the number of the lane;
              `f16x2` a pair of elements, `mix` float32 or a float16 half
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.kernel.instruction_values import WIDTH

IMPLICIT = ("scc", "exec", "lane")


@dataclass(frozen=True)
class Row:
    """One mnemonic. `reference` maps decoded sources to the result, or to a tuple of results.

    `ulps`: accepted distance of a float result. `note`: what the manual leaves open, and what is tested instead.
    """

    name: str
    results: str
    sources: str
    reference: Callable
    forms: tuple[str, ...]
    ulps: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        if not self.forms:
            raise ValueError(f"{self.name} has no spelling")


# ---- spellings -----------------------------------------------------------------------------------------------
_SOURCE32, _SOURCE64 = ("v1", "v5", "v8"), ("v[2:3]", "v[6:7]", "v[10:11]")
_SCALAR32, _SCALAR64 = ("s3", "s5", "s7"), ("s[8:9]", "s[10:11]", "s[12:13]")
_SDWA = "dst_sel:DWORD dst_unused:UNUSED_PAD"


def _wide(kind: str) -> bool:
    return WIDTH[kind.split(":")[0].lstrip("+")] == 64


def _constants(kind: str) -> tuple[str, str]:
    """An inline constant and a literal of a type."""
    if kind in ("f64", "i64", "u64", "b64"):
        return "0.5" if kind == "f64" else "-9", "0x40340000" if kind == "i64" else "0xc0340000"
    if kind in ("f32", "f16", "r32", "r16"):
        return "-4.0", "0x3f9d70a4" if kind.endswith("32") else "0x3555"
    return "-9", "0x89abcdef" if WIDTH[kind] == 32 else "0xabcd"


def _plain(kinds: list[str], results: list[str]) -> tuple[str, list[str]]:
    """Destination and vector sources of the default spelling."""
    destination = "v[14:15]" if results[0] in WIDTH and _wide(results[0]) else "v12"
    names = [(_SOURCE64 if _wide(k) else _SOURCE32)[n] for n, k in enumerate(kinds)]
    return destination, names


def spell(results: str, sources: str, encoding: str, floats: bool = False, clamp: bool = False) -> tuple[str, ...]:
    """Spellings of a vector instruction: `vop1`, `vop2`, `vop3`, or `vopc` for comparisons.

    floats: also with neg and abs on float sources. clamp: also with clamp.
    """
    kinds = [k for k in sources.split() if k[0] != "+" and k not in IMPLICIT]
    d, names = _plain(kinds, results.split())
    forms = _compare_forms(kinds, names) if encoding == "vopc" else _result_forms(encoding, d, kinds, names)
    if encoding in ("vop1", "vop2"):
        forms += _sdwa_forms(kinds, results.split()[0], names, d)
    tail = "" if encoding == "vop3" else "_e64"
    d = "s[20:21]" if encoding == "vopc" else d
    if floats:
        for n, kind in enumerate(kinds):
            changed = [f"-{names[n]}", f"|{names[n]}|", f"-|{names[n]}|"] + (
                [f"|{_scalar(kinds, 0)}|"] if n == 0 else []
            )
            for text in changed * (kind in ("f16", "f32", "f64", "r16", "r32")):
                forms.append(f"{tail} {d}, " + ", ".join([*names[:n], text, *names[n + 1 :]]))
    if clamp:
        forms.append(f"{tail} {d}, " + ", ".join(names) + " clamp")
    return tuple(forms)


def _scalar(kinds: list[str], position: int) -> str:
    return (_SCALAR64 if _wide(kinds[position]) else _SCALAR32)[position]


def _sdwa_forms(kinds: list[str], result: str, names: list[str], d: str) -> list[str]:
    """Sub-words of integers and halves, kept and cleared surroundings of the result."""
    if any(_wide(kind) for kind in (*kinds, result)) or result not in WIDTH:
        return []
    choices = {"f32": ("DWORD",) * 3, "f16": ("WORD_1", "WORD_0", "DWORD"), "r16": ("WORD_1", "WORD_0", "DWORD")}
    choices |= {"r32": choices["f32"], "bf16": choices["f16"]}
    forms = []
    for n, (unused, part) in enumerate(
        (("UNUSED_PRESERVE", "WORD_1"), ("UNUSED_PAD", "BYTE_3"), ("UNUSED_PRESERVE", "BYTE_0"))
    ):
        part = "DWORD" if result == "f32" else "WORD_1" if result == "f16" else part
        picked = []
        for kind, name in zip(kinds, names, strict=True):
            integer = kind not in choices
            selection = choices.get(kind, ("BYTE_2", "WORD_1", "BYTE_0"))[n - len(picked)]
            picked.append(f"sext({name}) {selection}" if integer and n else f"{name} {selection}")
        forms.append(sdwa(*picked, d=d, sel=f"dst_sel:{part} dst_unused:{unused}"))
    return forms


def _result_forms(encoding: str, d: str, kinds: list[str], names: list[str]) -> list[str]:
    first, rest = ("", names[1:]) if encoding == "vop3" else ("_e32", names[1:])
    inline, literal = _constants(kinds[0])
    tail = "" if encoding == "vop3" else "_e64"
    forms = [f"{first} {d}, " + ", ".join(names)]
    forms += [f"{first} {d}, " + ", ".join([x, *rest]) for x in (_scalar(kinds, 0), inline)]
    if encoding != "vop3":
        forms.append(f"{first} {d}, " + ", ".join([literal, *rest]))
    for n, name in enumerate(names):
        if _wide(kinds[n]) == d.startswith("v["):
            forms.append(f"{first} {name}, " + ", ".join(names))
        if n:
            forms.append(f"{tail} {d}, " + ", ".join([*names[:n], _scalar(kinds, n), *names[n + 1 :]]))
            forms.append(f"{tail} {d}, " + ", ".join([*names[:n], _constants(kinds[n])[0], *names[n + 1 :]]))
    if len(kinds) == 2 and encoding == "vop2":
        forms.append(f"{tail} {d}, " + ", ".join(names))
    if len(kinds) == 3:
        choices = [(name, _scalar(kinds, n), _constants(kinds[n])[0]) for n, name in enumerate(names)]
        for mix in ((1, 2, 0), (0, 2, 1), (0, 1, 2), (0, 2, 2), (1, 0, 2), (2, 0, 1)):
            forms.append(f"{tail} {d}, " + ", ".join(choices[n][which] for n, which in enumerate(mix)))
    if len(set(kinds)) == 1 and len(kinds) > 1:
        forms.append(f"{first} {names[0]}, " + ", ".join([names[0]] * len(names)))
    return forms


def _compare_forms(kinds: list[str], names: list[str]) -> list[str]:
    inline, literal = _constants(kinds[0])
    forms = [f"_e32 vcc, {names[0]}, {names[1]}", f"_e32 vcc, {_scalar(kinds, 0)}, {names[1]}"]
    forms += [f"_e32 vcc, {x}, {names[1]}" for x in (inline, literal)]
    forms += [f"_e64 s[20:21], {names[0]}, {x}" for x in (names[1], _scalar(kinds, 1), _constants(kinds[1])[0])]
    forms += [f"_e64 s[20:21], {x}, {names[1]}" for x in (_scalar(kinds, 0), inline)]
    return forms + [f"_e64 s[20:21], {_scalar(kinds, 0)}, {_constants(kinds[1])[0]}"]


def sdwa(*sources: str, d: str = "v12", sel: str = _SDWA) -> str:
    """`sdwa("v1 WORD_1", "sext(v5) BYTE_0")`: an SDWA spelling with the selection of each source."""
    names, selections = zip(*(source.split() for source in sources), strict=True)
    chosen = " ".join(f"src{n}_sel:{selection}" for n, selection in enumerate(selections))
    return f"_sdwa {d}, {', '.join(names)} {sel} {chosen}".replace("  ", " ")


def scalar(results: str, sources: str) -> tuple[str, ...]:
    """Spellings of a scalar instruction with a destination."""
    kinds = [k for k in sources.split() if k[0] != "+" and k not in IMPLICIT]
    d = "s[20:21]" if _wide(results.split()[0]) else "s20"
    names = [_scalar(kinds, n) for n in range(len(kinds))]
    forms = [f" {d}, " + ", ".join(names)]
    for n, kind in enumerate(kinds):
        others = [", ".join([*names[:n], x, *names[n + 1 :]]) for x in _constants(kind)]
        forms += [f" {d}, {text}" for text in others]
        if _wide(kind) == (d != "s20"):
            forms.append(f" {names[n]}, " + ", ".join(names))
    special = "vcc" if _wide(kinds[0]) else "m0"
    forms.append(f" {d}, " + ", ".join([special, *names[1:]]))
    return tuple(forms)
