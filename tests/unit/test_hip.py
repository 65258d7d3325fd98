# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The HIP binding: checked calls, errors that name them, the library that is opened, and what is taken from torch."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from mori_gemm_ar.errors import HipError, MissingDependencyError
from mori_gemm_ar.runtime import hip as hip_module
from mori_gemm_ar.runtime.hip import Hip, find_library
from mori_gemm_ar.runtime.rocm import _DeviceBytes
from tests.unit.rocm_fakes import FakeHip

IMAGE = b"\x7fELF" + bytes(36) + (64).to_bytes(8, "little") + bytes(16)  # an ELF header that ends the file


@pytest.fixture
def fake(tmp_path: Path) -> FakeHip:
    return FakeHip(tmp_path)


def test_devices(fake: FakeHip) -> None:
    assert fake.hip.version() == "7.14.60850"
    assert fake.hip.device_count() == 8
    assert fake.hip.arch(3) == "gfx950:sramecc+:xnack-"


@pytest.mark.parametrize("name", [b"", b"\xff\xfe", b"AMD Instinct", b"gfx950 and more"])
def test_properties_in_another_layout_are_noticed(fake: FakeHip, name: bytes) -> None:
    fake.raw.fake_arch(name)
    with pytest.raises(HipError, match="is no architecture; this HIP lays out its properties in another way"):
        fake.hip.arch(0)


def test_the_offset_of_the_architecture_is_that_of_the_header() -> None:
    """tinygrad generates its structures from HIP's header."""
    header = pytest.importorskip("tinygrad.runtime.autogen.hip", reason="tinygrad ships HIP's structures")
    properties = header.hipDeviceProp_tR0600
    assert properties.gcnArchName.offset == hip_module.GCN_ARCH_NAME_OFFSET
    assert ctypes.sizeof(properties) <= hip_module._PROPERTIES_BYTES


def test_memory(fake: FakeHip) -> None:
    memory = ctypes.create_string_buffer(64)
    address = ctypes.addressof(memory)
    fake.hip.fill(address, 7, 64, stream=5)
    assert memory.raw == b"\7" * 64
    fake.hip.write(address + 8, b"data")
    assert fake.hip.read(address + 7, 6) == b"\7data\7"
    assert fake.log[-4:] == ["memset 64", "stream_synchronize 0x5", "memcpy 4 kind 1", "memcpy 6 kind 2"]
    host, device = fake.hip.allocate_host(100)
    assert host == device != 0
    fake.hip.free_host(host)
    assert fake.log[-2:] == ["host_malloc 100 0x40000003", "host_free"]


def test_arguments_may_hold_any_byte(fake: FakeHip) -> None:
    arguments = bytes(range(80))
    function = fake.hip.function(0, "digest", IMAGE, "kernel")
    fake.hip.launch(function, (3, 2, 1), (512, 1, 1), arguments, 9)
    assert fake.log[-1] == f"launch kernel 3,2,1 512,1,1 0 0x9 {arguments.hex()}"
    fake.hip.launch(function, (1, 1, 1), (64, 1, 1), b"", 0)
    assert fake.log[-1].split() == ["launch", "kernel", "1,1,1", "64,1,1", "0", "(nil)"]


def test_a_module_is_loaded_once_for_each_device(fake: FakeHip) -> None:
    for device in (0, 1, 0, 1):
        fake.hip.function(device, "digest", IMAGE, "kernel")
    assert sum(line.startswith("module") for line in fake.log) == 2


def test_an_error_names_the_call_and_gives_hips_text(fake: FakeHip) -> None:
    with pytest.raises(HipError) as caught:
        fake.hip.function(0, "digest", b"not an ELF file", "gemm")
    text = "hipModuleLoadData (kernel gemm) failed with error 209: no kernel image is available for execution on the"
    assert str(caught.value).startswith(text)
    fake.fail("hipModuleLaunchKernel", 2)
    with pytest.raises(HipError, match=r"^hipModuleLaunchKernel \(gemm\) failed with error 2: out of memory$"):
        fake.hip.launch(0, (1, 1, 1), (1, 1, 1), b"", 0, "gemm")


def test_every_call_is_checked(fake: FakeHip) -> None:
    memory = ctypes.create_string_buffer(8)
    address = ctypes.addressof(memory)
    calls = {
        "hipInit": lambda: Hip(fake.path),
        "hipRuntimeGetVersion": fake.hip.version,
        "hipGetDeviceCount": fake.hip.device_count,
        "hipGetDevicePropertiesR0600": lambda: fake.hip.arch(0),
        "hipDeviceSynchronize": fake.hip.synchronize,
        "hipStreamSynchronize": lambda: fake.hip.synchronize(1),
        "hipModuleLoadData": lambda: fake.hip.function(0, "a", IMAGE, "k"),
        "hipModuleGetFunction": lambda: fake.hip.function(0, "b", IMAGE, "k"),
        "hipModuleLaunchKernel": lambda: fake.hip.launch(0, (1, 1, 1), (1, 1, 1), b"", 0),
        "hipEventCreateWithFlags": fake.hip.create_event,
        "hipEventRecord": lambda: fake.hip.follow(1, 2, 3),
        "hipStreamWaitEvent": lambda: fake.hip.follow(1, 2, 3),
        "hipEventDestroy": lambda: fake.hip.destroy_event(1),
        "hipMemsetAsync": lambda: fake.hip.fill(address, 0, 8, 0),
        "hipMemcpy": lambda: fake.hip.read(address, 8),
        "hipHostMalloc": lambda: fake.hip.allocate_host(8),
        "hipHostGetDevicePointer": lambda: fake.hip.allocate_host(8),
        "hipHostFree": lambda: fake.hip.free_host(address),
    }
    assert calls.keys() == hip_module._SIGNATURES.keys()
    for name, call in calls.items():
        fake.fail(name)
        with pytest.raises(HipError, match=rf"^{name}( \(.*\))? failed with error 2: out of memory$"):
            call()
    lines = [line.split()[0] for line in fake.log]
    assert lines.count("host_malloc") == lines.count("host_free")


def test_a_library_that_is_not_there_or_lacks_a_call(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match=r"library='.*libnone\.so' must be loadable .*install ROCm"):
        Hip(str(tmp_path / "libnone.so"))
    with pytest.raises(MissingDependencyError, match=r"must have hipInit; install ROCm 6 or later"):
        Hip("libc.so.6")


def test_the_library_that_is_loaded_already_is_the_one(fake: FakeHip) -> None:
    assert Path(find_library()).name == "libamdhip64.so"
    assert find_library() in Path("/proc/self/maps").read_text()


def test_torch_still_has_what_the_rocm_target_takes_from_it() -> None:
    names = ("device", "current_device", "current_stream", "is_current_stream_capturing", "CUDAGraph", "graph")
    assert all(hasattr(torch.cuda, name) for name in (*names, "device_count"))
    assert hasattr(torch.version, "hip")
    described = _DeviceBytes(0x1000, 16).__cuda_array_interface__
    assert described == {"shape": (16,), "typestr": "|u1", "data": (0x1000, False), "version": 2}
