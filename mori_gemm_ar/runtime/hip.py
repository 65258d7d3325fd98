# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The part of the HIP runtime that launches need, through ctypes. Every call is checked; an error names it.

One process must have one HIP runtime: torch's, when it has loaded one.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from mori_gemm_ar.errors import HipError, MissingDependencyError

_LIBRARY = "libamdhip64.so"
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "hipInit": (c_uint,),
    "hipRuntimeGetVersion": (POINTER(c_int),),
    "hipGetDeviceCount": (POINTER(c_int),),
    "hipGetDevicePropertiesR0600": (c_void_p, c_int),
    "hipDeviceSynchronize": (),
    "hipModuleLoadData": (POINTER(c_void_p), c_char_p),
    "hipModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "hipModuleLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p)),
    "hipStreamSynchronize": (c_void_p,),
    "hipStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "hipEventCreateWithFlags": (POINTER(c_void_p), c_uint),
    "hipEventRecord": (c_void_p, c_void_p),
    "hipEventDestroy": (c_void_p,),
    "hipMemsetAsync": (c_void_p, c_int, c_size_t, c_void_p),
    "hipMemcpy": (c_void_p, c_void_p, c_size_t, c_int),
    "hipHostMalloc": (POINTER(c_void_p), c_size_t, c_uint),
    "hipHostGetDevicePointer": (POINTER(c_void_p), c_void_p, c_uint),
    "hipHostFree": (c_void_p,),
}
_TO_DEVICE, _TO_HOST = 1, 2  # hipMemcpyKind
# Coherent: a store of a running kernel reaches the host without a cache writeback.
_HOST_FLAGS = 0x1 | 0x2 | 0x40000000  # portable, mapped, coherent
_DISABLE_TIMING = 0x2
# HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END
_PARAM_POINTER, _PARAM_SIZE, _PARAM_END = 1, 2, 3

# hipDeviceProp_tR0600: `name` comes first. The struct has 1472 bytes; later versions may append.
_PROPERTIES_BYTES, _NAME_BYTES = 8192, 256
GCN_ARCH_NAME_OFFSET = 1160


class Hip:
    """One HIP runtime. Calls act on the device that is current for the calling thread unless they name one.

    `library` is the path of libamdhip64; None takes the one that is loaded already, else the system's.
    """

    def __init__(self, library: str | None = None) -> None:
        self.library = library or find_library()
        try:
            self._lib = ctypes.CDLL(self.library)
        except OSError as error:
            raise MissingDependencyError(
                f"library={self.library!r} must be loadable ({error}); install ROCm's HIP runtime"
            ) from error
        for name, parameters in _SIGNATURES.items():
            function = getattr(self._lib, name, None)
            if function is None:
                raise MissingDependencyError(f"library={self.library!r} must have {name}; install ROCm 6 or later")
            function.argtypes, function.restype = parameters, c_int
        self._lib.hipGetErrorString.argtypes, self._lib.hipGetErrorString.restype = (c_int,), c_char_p
        self._modules: dict[tuple[int, str], tuple[int, bytes]] = {}
        self._call("hipInit", 0)

    def _call(self, name: str, *arguments: Any, about: str = "") -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            self.fail(name, code, about)

    def fail(self, name: str, code: int, about: str = "") -> NoReturn:
        """Raise `HipError` for the error code of a call."""
        text = (self._lib.hipGetErrorString(code) or b"unknown error").decode(errors="replace")
        raise HipError(f"{name}{f' ({about})' if about else ''} failed with error {code}: {text}")

    # --- devices ---

    def version(self) -> str:
        """Version of the runtime, such as 7.14.60850."""
        value = c_int()
        self._call("hipRuntimeGetVersion", byref(value))
        return f"{value.value // 10**7}.{value.value // 10**5 % 100}.{value.value % 10**5}"

    def device_count(self) -> int:
        """Number of devices that this process may use."""
        count = c_int()
        self._call("hipGetDeviceCount", byref(count))
        return count.value

    def arch(self, device: int) -> str:
        """Architecture with its features, such as `gfx950:sramecc+:xnack-`."""
        properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        self._call("hipGetDevicePropertiesR0600", properties, device, about=f"device {device}")
        field = properties.raw[GCN_ARCH_NAME_OFFSET : GCN_ARCH_NAME_OFFSET + _NAME_BYTES]
        name = field.partition(b"\0")[0].decode("ascii", "replace")
        if not re.fullmatch(r"gfx[0-9a-f]+(:[a-z]+[+-])*", name):
            raise HipError(
                f"hipGetDevicePropertiesR0600 (device {device}) gave gcnArchName={name!r}, which is no architecture; "
                "this HIP lays out its properties in another way"
            )
        return name

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for one stream, or for everything on the current device."""
        if stream is None:
            self._call("hipDeviceSynchronize")
        else:
            self._call("hipStreamSynchronize", stream)

    # --- kernels ---

    def function(self, device: int, digest: str, hsaco: bytes, kernel: str) -> int:
        """Handle of a kernel on the current device, whose number is `device`.

        A module is loaded once for each device and stays, with its image: recorded graphs hold its kernels.
        """
        if (device, digest) not in self._modules:
            handle = c_void_p()
            self._call("hipModuleLoadData", byref(handle), hsaco, about=f"kernel {kernel}")
            self._modules[device, digest] = (handle.value or 0, hsaco)
        module, _ = self._modules[device, digest]
        function = c_void_p()
        self._call("hipModuleGetFunction", byref(function), module, kernel.encode(), about=f"kernel {kernel}")
        return function.value or 0

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: bytes,
        stream: int,
        name: str = "",
    ) -> None:
        """Queue a kernel with a packed argument buffer, which HIP copies. `name` is for errors."""
        size = c_size_t(len(arguments))
        buffer = ctypes.create_string_buffer(arguments, len(arguments))
        extra = (c_void_p * 5)(
            _PARAM_POINTER, ctypes.addressof(buffer), _PARAM_SIZE, ctypes.addressof(size), _PARAM_END
        )
        self._call("hipModuleLaunchKernel", function, *grid, *block, 0, stream, None, extra, about=name)

    def prepare(self) -> PreparedLaunches:
        """Launches that will be made often; none yet."""
        return PreparedLaunches(self, self._lib.hipModuleLaunchKernel)

    # --- order between streams ---

    def create_event(self) -> int:
        """An event for `follow`; the caller destroys it."""
        event = c_void_p()
        self._call("hipEventCreateWithFlags", byref(event), _DISABLE_TIMING)
        return event.value or 0

    def destroy_event(self, event: int) -> None:
        """Give an event back."""
        self._call("hipEventDestroy", event)

    def follow(self, event: int, before: int, after: int) -> None:
        """Let what is queued on stream `after` from now on start when stream `before` has done what it has now."""
        self._call("hipEventRecord", event, before)
        self._call("hipStreamWaitEvent", after, event, 0)

    # --- memory ---

    def fill(self, address: int, value: int, nbytes: int, stream: int) -> None:
        """Set bytes of device memory, and wait for it."""
        self._call("hipMemsetAsync", address, value, nbytes, stream)
        self.synchronize(stream)

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy of device memory."""
        data = ctypes.create_string_buffer(nbytes)
        self._call("hipMemcpy", data, address, nbytes, _TO_HOST)
        return data.raw

    def write(self, address: int, data: bytes) -> None:
        """Copy to device memory."""
        self._call("hipMemcpy", address, data, len(data), _TO_DEVICE)

    def allocate_host(self, nbytes: int) -> tuple[int, int]:
        """Pinned, coherent host memory: its address for the host and for kernels."""
        host, device = c_void_p(), c_void_p()
        self._call("hipHostMalloc", byref(host), nbytes, _HOST_FLAGS)
        try:
            self._call("hipHostGetDevicePointer", byref(device), host, 0)
        except HipError:
            self.free_host(host.value or 0)
            raise
        return host.value or 0, device.value or 0

    def free_host(self, address: int) -> None:
        """Give pinned memory back."""
        self._call("hipHostFree", address)


class PreparedLaunches:
    """Launches with everything converted for HIP once. They own their arguments, which HIP copies at each run."""

    def __init__(self, hip: Hip, launch: Callable[..., int]) -> None:
        self._hip, self._launch = hip, launch
        self._stream = c_void_p(0)
        self._converted: list[tuple[Any, ...]] = []
        self._names: list[str] = []
        self._sizes: list[c_size_t] = []
        self.arguments: list[ctypes.Array[c_char]] = []  # of each launch; what stands in them counts at the next run

    def __len__(self) -> int:
        return len(self._names)

    def add(
        self, function: int, grid: tuple[int, int, int], block: tuple[int, int, int], arguments: bytes, name: str
    ) -> None:
        """One more launch. `name` is for errors."""
        buffer, size = ctypes.create_string_buffer(arguments, len(arguments)), c_size_t(len(arguments))
        extra = (c_void_p * 5)(
            _PARAM_POINTER, ctypes.addressof(buffer), _PARAM_SIZE, ctypes.addressof(size), _PARAM_END
        )
        dimensions = (c_uint(value) for value in (*grid, *block, 0))
        self._converted.append((c_void_p(function), *dimensions, self._stream, None, extra))
        self._names.append(name)
        self._sizes.append(size)
        self.arguments.append(buffer)

    def run(self, stream: int) -> None:
        """Queue all of them."""
        self._stream.value, launch = stream, self._launch
        for converted in self._converted:
            if code := launch(*converted):
                name = self._names[self._converted.index(converted)]
                self._hip.fail("hipModuleLaunchKernel", code, name)


def find_library() -> str:
    """Path or name of the HIP runtime to open: the loaded one, ROCm's, or what the system finds."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        maps = ""
    loaded = re.findall(rf"\S*/{re.escape(_LIBRARY)}[.0-9]*$", maps, re.MULTILINE)
    if loaded:
        return str(loaded[0])
    for root in (os.environ.get("ROCM_PATH"), "/opt/rocm"):
        if root and (path := Path(root, "lib", _LIBRARY)).is_file():
            return str(path)
    return _LIBRARY


@cache
def open_hip(library: str | None = None) -> Hip:
    """The HIP runtime of this process, opened once."""
    return Hip(library)
