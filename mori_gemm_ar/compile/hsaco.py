# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""HSACO, the ELF file that a GPU loads: the linker that makes it, and what stands in it. Standard library only."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mori_gemm_ar.errors import CompileError, MissingDependencyError
from mori_gemm_ar.isa import Kernel

LINKER_VARIABLE = "MORI_GEMM_AR_LINKER"
# Where ROCm keeps its linker below its root: packages of the distribution first, then the wheels of TheRock.
_IN_ROCM = ("llvm/bin/ld.lld", "lib/llvm/bin/ld.lld")
_ROCM_WHEELS = ("_rocm_sdk_devel", "_rocm_sdk_core")
_VERSION_TIMEOUT_S = 20.0

# ELF, and its AMDGPU supplement (LLVM's "User Guide for AMDGPU Backend").
_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DESCRIPTOR = struct.Struct("<III4xq20xIIIHH4x")
_CLASS_64, _LITTLE, _OS_HSA, _ABI_V6 = 2, 1, 64, 4
_DYN, _AMDGPU, _SHT_DYNSYM = 3, 224, 11
_MACH_MASK, _MACH_GFX950 = 0xFF, 0x4F
_VGPR_GRANULE, _ACCUM_GRANULE = 8, 4


def hsaco_digest(hsaco: bytes) -> str:
    """SHA-256 of an HSACO, as the manifest gives it."""
    return hashlib.sha256(hsaco).hexdigest()


# --- linker ---


def linkers() -> Iterator[Path]:
    """Linkers of this machine for gfx950, the best one first; none is tried out."""
    roots = [Path(root) for root in (os.environ.get("ROCM_PATH"), "/opt/rocm") if root]
    for name in _ROCM_WHEELS:
        spec = importlib.util.find_spec(name)
        roots.extend(Path(root) for root in (spec.submodule_search_locations or () if spec else ()))
    for root in roots:
        yield from (path for path in (root / tail for tail in _IN_ROCM) if os.access(path, os.X_OK))
    if (found := shutil.which("ld.lld")) is not None:
        yield Path(found)
    yield from sorted(_numbered(), key=lambda path: -int(path.name.rpartition("-")[2]))


def _numbered() -> Iterator[Path]:
    # Debian and Ubuntu: ld.lld-19
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for path in Path(folder or ".").glob("ld.lld-*"):
            if re.fullmatch(r"ld\.lld-\d+", path.name) and os.access(path, os.X_OK):
                yield path


def find_linker(given: str | os.PathLike[str] | None = None) -> Path:
    """The linker to use: `given`, else $MORI_GEMM_AR_LINKER, else ROCm's, else an `ld.lld` of the system.

    Raises MissingDependencyError when there is none.
    """
    chosen = given or os.environ.get(LINKER_VARIABLE)
    if chosen:
        command = shutil.which(chosen)
        if command is None:
            raise MissingDependencyError(
                f"linker={os.fspath(chosen)!r} must be an executable file; name ROCm's llvm/bin/ld.lld or another LLD"
            )
        return Path(command).absolute()
    for path in linkers():
        return path.absolute()
    raise MissingDependencyError(
        f"linker=None must be found in ROCm or on PATH, and there is none; install ROCm or LLD (Debian, Ubuntu: "
        f"apt install lld-19), or set {LINKER_VARIABLE} to a linker"
    )


def linker_version(linker: Path) -> str:
    """What the linker says about itself, in one line; its reason when it cannot be started."""
    try:
        run = subprocess.run([linker, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not start: {error}"
    return (run.stdout or run.stderr).strip().partition("\n")[0]


def make_toolkit(folder: Path, linker: Path) -> Path:
    """Lay out `folder` as the ROCm installation that LLVM looks for, with no more in it than a linker."""
    bin_folder = folder / "llvm" / "bin"
    bin_folder.mkdir(parents=True)
    # LLD decides by the name that it is called under which format it links.
    (bin_folder / "ld.lld").symlink_to(linker)
    return folder


# --- contents ---


@dataclass(frozen=True, slots=True)
class HsacoKernel:
    """What an HSACO says about one kernel: bytes of code and memory, and register granules."""

    code_bytes: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    vgprs: int  # rounded up to the allocation granule
    accum_offset: int


def read_hsaco(hsaco: bytes, kernel: str) -> HsacoKernel:
    """Check that this is a shared object for gfx950 which defines `kernel`; raises CompileError otherwise."""
    try:
        sections = _sections(hsaco)
        code_bytes, code, _ = _symbol(hsaco, sections, kernel)
        size, address, offset = _symbol(hsaco, sections, f"{kernel}.kd")
        if size != _DESCRIPTOR.size:
            raise ValueError(f"its descriptor has {size} bytes instead of {_DESCRIPTOR.size}")
        lds, scratch, kernarg, entry, rsrc3, rsrc1, _, _, _ = _DESCRIPTOR.unpack_from(hsaco, offset)
        if address + entry != code:
            raise ValueError(f"its descriptor enters at {address + entry:#x}, where the kernel does not start")
    except (ValueError, struct.error) as error:
        raise CompileError(
            f"HSACO of kernel={kernel} must be a shared object that a gfx950 can load, but {error}; "
            "link it with ROCm's linker or LLD 18 or later"
        ) from error
    vgprs = ((rsrc1 & 0x3F) + 1) * _VGPR_GRANULE
    return HsacoKernel(code_bytes, lds, scratch, kernarg, vgprs, ((rsrc3 & 0x3F) + 1) * _ACCUM_GRANULE)


def require_same_code(hsaco: bytes, kernel: Kernel) -> None:
    """Raise CompileError unless the HSACO holds this kernel of the ISA text, as far as its descriptor tells."""
    found = read_hsaco(hsaco, kernel.name)
    directives = kernel.descriptor
    count = len(kernel.instructions)
    claims = {
        "lds_bytes": (found.lds_bytes, kernel.lds_bytes),
        "scratch_bytes": (found.scratch_bytes, kernel.scratch_bytes),
        "kernarg_bytes": (found.kernarg_bytes, kernel.kernarg_bytes),
        "vgprs": (found.vgprs, -(-directives["amdhsa_next_free_vgpr"] // _VGPR_GRANULE) * _VGPR_GRANULE),
        "accum_offset": (found.accum_offset, directives["amdhsa_accum_offset"]),
        # An instruction has 4 or 8 bytes and may carry a literal of 4.
        "code_bytes": (found.code_bytes, min(max(found.code_bytes, 4 * count), 12 * count)),
    }
    for name, (have, want) in claims.items():
        if have != want:
            raise CompileError(
                f"HSACO of kernel={kernel.name} has {name}={have}, which must be {want} as its ISA text says; "
                "compile both anew"
            )


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    address: int
    offset: int
    nbytes: int
    link: int


def _sections(hsaco: bytes) -> list[_Section]:
    fields = _HEADER.unpack_from(hsaco)
    magic, wide, endian, _, osabi, abi, kind, machine, _, _, _, start, flags, _, _, _, size, count, _ = fields
    if magic != b"\x7fELF" or (wide, endian) != (_CLASS_64, _LITTLE):
        raise ValueError("it is not a 64-bit little-endian ELF file")
    if machine != _AMDGPU or flags & _MACH_MASK != _MACH_GFX950:
        raise ValueError(f"it is for machine {machine}, flags {flags:#x}")
    if (osabi, abi) != (_OS_HSA, _ABI_V6):
        raise ValueError(f"it is for system {osabi}, ABI {abi}, not code object version 6")
    if kind != _DYN:
        raise ValueError(f"its type is {kind}, not {_DYN} (DYN): it is not linked")
    if size != _SECTION.size:
        raise ValueError("it has no section table")
    sections = []
    for index in range(count):
        _, section, _, address, offset, nbytes, link, _, _, _ = _SECTION.unpack_from(hsaco, start + index * size)
        sections.append(_Section(section, address, offset, nbytes, link))
    return sections


def _symbol(hsaco: bytes, sections: list[_Section], name: str) -> tuple[int, int, int]:
    """(bytes, address, file offset) of an exported symbol."""
    wanted = name.encode() + b"\0"
    for table in (section for section in sections if section.kind == _SHT_DYNSYM):
        names = sections[table.link].offset
        for at in range(table.offset, table.offset + table.nbytes, _SYMBOL.size):
            text, _, _, home, value, nbytes = _SYMBOL.unpack_from(hsaco, at)
            if hsaco.startswith(wanted, names + text) and 0 < home < len(sections):
                return nbytes, value, value - sections[home].address + sections[home].offset
    raise ValueError(f"it exports no symbol {name}")
