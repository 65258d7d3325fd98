# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Which target a machine gets: what is seen, the rule, and the vote. A GPU is never silently replaced by emulation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import CollectiveSetupError, ConfigError, MissingDependencyError
from mori_gemm_ar.runtime import LocalWorld, RankContext, select
from mori_gemm_ar.runtime.emulated import EmulatedTarget
from mori_gemm_ar.runtime.select import DeviceKind, Offers, choose_device, gfx_name, lacks_of_rocm, probe, vote_device

NOTHING = Offers()
FULL = Offers(gpus=("gfx950",) * 8, torch_hip="7.1.25424", torch_gpus=8, mori="1.2.4")


def node(**changes: Any) -> Offers:
    return dataclasses.replace(FULL, **changes)


CHOICES: list[tuple[str, Offers, DeviceKind]] = [
    ("auto", NOTHING, DeviceKind.EMULATED),
    ("auto", Offers(mori="1.2.4", torch_hip="7.1"), DeviceKind.EMULATED),
    ("auto", FULL, DeviceKind.ROCM),
    ("auto", node(gpus=("gfx1036", "gfx950")), DeviceKind.ROCM),
    ("auto", node(mori="1.3.0"), DeviceKind.ROCM),
    ("auto", node(mori="2.0.0+rocm7.2"), DeviceKind.ROCM),
    ("rocm", FULL, DeviceKind.ROCM),
    ("emulated", NOTHING, DeviceKind.EMULATED),
    ("emulated", FULL, DeviceKind.EMULATED),
]


@pytest.mark.parametrize(("device", "offers", "kind"), CHOICES)
def test_the_choice(device: str, offers: Offers, kind: DeviceKind) -> None:
    assert choose_device(device, offers) is kind


REFUSALS: list[tuple[str, Offers, type[Exception], str]] = [
    (
        "auto",
        node(mori=None),
        MissingDependencyError,
        r"amd-mori must be installed; pip install 'mori_gemm_ar\[rocm\]'",
    ),
    ("auto", node(mori="1.2.3"), MissingDependencyError, r"amd-mori=1\.2\.3 must be 1\.2\.4 or later"),
    ("auto", node(torch_hip=None, torch_gpus=0), MissingDependencyError, "torch must be a ROCm build"),
    ("auto", node(torch_gpus=0), MissingDependencyError, "torch must show a GPU; check HIP_VISIBLE_DEVICES"),
    ("auto", node(driver="/dev/kfd may not be opened"), MissingDependencyError, "kfd may not be opened; add the user"),
    ("auto", node(gpus=("gfx942",)), ConfigError, r"an AMD GPU must be a gfx950 \(MI355X\), found gfx942"),
    ("rocm", NOTHING, ConfigError, "an AMD GPU must be a gfx950 .*, found none.* torch must be .* amd-mori must be"),
    ("cuda", FULL, ConfigError, "device='cuda' must be one of 'auto', 'rocm', 'emulated'"),
    ("", FULL, ConfigError, "device='' must be one of"),
]


@pytest.mark.parametrize(("device", "offers", "error", "text"), REFUSALS)
def test_never_a_silent_emulation(device: str, offers: Offers, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        choose_device(device, offers)
    if device in ("auto", "rocm"):
        assert str(caught.value).endswith("To run on the CPU, say device='emulated'")


def test_every_lack_says_how_to_end_it() -> None:
    lacks = lacks_of_rocm(node(driver="/dev/kfd may not be opened", torch_hip=None, torch_gpus=0, mori=None))
    assert len(lacks) == 3
    assert all(lack.what and lack.way_out for lack in lacks)


# --- what is seen ---


def machine(root: Path, versions: tuple[int, ...], driver: bool = True) -> Path:
    for index, version in enumerate(versions):
        folder = root / "sys/class/kfd/kfd/topology/nodes" / str(index)
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"cpu_cores_count 0\nsimd_count 8\ngfx_target_version {version}\nx 1\n")
    (root / "dev").mkdir()
    if driver:
        (root / "dev/kfd").touch()
    return root


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90500, "gfx950"),
        (90402, "gfx942"),
        (90010, "gfx90a"),
        (90006, "gfx906"),
        (110003, "gfx1103"),
        (120001, "gfx1201"),
    ],
)
def test_the_drivers_numbers(version: int, name: str) -> None:
    assert gfx_name(version) == name


def test_a_node_with_two_cpus_and_two_gpus(tmp_path: Path) -> None:
    offers = probe(machine(tmp_path, (0, 0, 90500, 90500)))
    assert offers.gpus == ("gfx950", "gfx950")
    assert offers.wanted
    assert offers.driver is None


def test_a_container_that_was_not_given_the_hosts_gpus(tmp_path: Path) -> None:
    assert choose_device("auto", probe(machine(tmp_path, (0, 90500), driver=False))) is DeviceKind.EMULATED


def test_a_driver_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path, (90500,))
    monkeypatch.setattr(select.os, "access", lambda path, mode: False)
    offers = probe(root)
    assert offers.driver == f"{root}/dev/kfd may not be opened"
    with pytest.raises(MissingDependencyError, match="may not be opened"):
        choose_device("auto", offers)


def test_a_machine_without_the_driver(tmp_path: Path) -> None:
    offers = probe(tmp_path)
    assert (offers.gpus, offers.torch_gpus) == ((), 0)
    assert choose_device("auto", offers) is DeviceKind.EMULATED


def test_strange_topology_is_no_gpu(tmp_path: Path) -> None:
    root = machine(tmp_path, (0,))
    (root / "sys/class/kfd/kfd/topology/nodes/0/properties").write_bytes(b"\xff\xfe garbage\n")
    (root / "sys/class/kfd/kfd/topology/nodes/1/properties").mkdir(parents=True)
    assert probe(root).gpus == ()


# --- the vote ---


def test_ranks_that_agree() -> None:
    assert LocalWorld(3).run(lambda ctx: vote_device(ctx, "auto", NOTHING)) == [DeviceKind.EMULATED] * 3


def test_ranks_that_would_choose_differently() -> None:
    def body(ctx: RankContext) -> str:
        with pytest.raises(ConfigError) as caught:
            vote_device(ctx, "auto", FULL if ctx.rank == 1 else NOTHING)
        return str(caught.value)

    text = "device must be equal on all ranks; got rank 0: emulated, rank 1: rocm, rank 2: emulated"
    assert LocalWorld(3).run(body) == [text] * 3


def test_a_rank_that_cannot_choose_is_named_on_all() -> None:
    def body(ctx: RankContext) -> None:
        kind = MissingDependencyError if ctx.rank == 1 else CollectiveSetupError
        with pytest.raises(kind, match="amd-mori must be installed"):
            vote_device(ctx, "auto", node(mori=None) if ctx.rank == 1 else FULL)

    LocalWorld(3).run(body)


def test_an_op_compares_its_targets() -> None:
    """Whatever a world's `target` does."""

    class Other(EmulatedTarget):
        name = "rocm"

    def body(ctx: RankContext) -> None:
        if ctx.rank == 1:
            ctx.target = lambda device="auto": Other(ctx)  # type: ignore[method-assign,assignment]
        with pytest.raises(ConfigError, match="device must be equal on all ranks; got rank 0: emulated, rank 1: rocm"):
            AllReduceOp.create(ctx, 256, dtypes=(torch.bfloat16,))

    LocalWorld(2).run(body)
