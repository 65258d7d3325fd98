# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Device code of amd-mori for tests: a stand-in, and the real one where a clang can compile it without ROCm."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

STAND_IN = Path(__file__).with_name("mori_put.ll")
WRAPPER = "mori/_jit-sources/src/cco/device/cco_device_wrapper.cpp"
HEADER = "mori/_jit-sources/include/mori/cco/cco.hpp"
CLANGS = (*(f"clang-{version}" for version in range(23, 17, -1)), "clang")
ARCHES = ("gfx950", "gfx942")  # a clang that knows no gfx950 makes code of the same kind for the other

# What the copy-engine part of the wrapper needs in front of it: a few type traits, and the wrapper's own casts.
PRELUDE = """
namespace std {
template <class T> struct is_volatile { static constexpr bool value = __is_same(T, volatile T); };
template <class T> struct is_trivially_copyable { static constexpr bool value = __is_trivially_copyable(T); };
template <class A, class B> inline constexpr bool is_same_v = __is_same(A, B);
}
#include "mori/cco/cco.hpp"
using namespace mori::cco;
using Sdma = ccoSdma;
inline __device__ const ccoDevComm* AsDevComm(uint64_t h) { return reinterpret_cast<const ccoDevComm*>(h); }
inline __device__ ccoWindow_t AsWindow(uint64_t h) { return reinterpret_cast<ccoWindow_t>(h); }
#define CCO_DEV extern "C" __device__ __attribute__((always_inline, visibility("default")))
"""


def compiled(wheel: Path, folder: Path) -> Path:
    """LLVM IR of the copy-engine functions in the wheel; skips the test without a clang that compiles for such a GPU.

    The options are those of mori's own build. Target attributes are left out, so that it fits whichever GPU.
    """
    clang = next((found for name in CLANGS if (found := shutil.which(name))), None)
    if clang is None:
        pytest.skip("needs clang 18 or later to compile amd-mori's device code")
    with zipfile.ZipFile(wheel) as archive:
        wrapper, header = (archive.read(name).decode() for name in (WRAPPER, HEADER))
    start = wrapper.index("#define CCO_DEF_SDMA_XFER")
    source, target = folder / "wrapper.hip", folder / "wrapper.ll"
    source.write_text(PRELUDE + wrapper[start : wrapper.index("#endif  // BUILD_CCO_SDMA", start)])
    (folder / "mori" / "cco").mkdir(parents=True)
    (folder / "mori" / "cco" / "cco.hpp").write_text(header)
    reason = ""
    for arch in ARCHES:
        command = [
            clang, "-x", "hip", "-S", "--cuda-device-only", "-emit-llvm", f"--offload-arch={arch}", "-fgpu-rdc",
            "-mcode-object-version=6", "-std=c++17", "-O2", "-D__HIP_PLATFORM_AMD__", "-DBUILD_CCO_SDMA=1",
            "-nogpulib", "-nogpuinc", "-I", str(folder), str(source), "-o", str(target),
        ]  # fmt: skip
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if run.returncode == 0:
            target.write_text(re.sub(r' "target-(?:cpu|features)"="[^"]*"', "", target.read_text()))
            return target
        reason = run.stderr
        if "invalid target ID" not in reason:
            break
    if "invalid target ID" in reason or "unsupported HIP gpu architecture" in reason:
        pytest.skip(f"{clang} compiles neither for {' nor for '.join(ARCHES)}")
    raise AssertionError(f"{clang} must compile amd-mori's device code: {reason[-2000:]}")
