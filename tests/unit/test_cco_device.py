# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`cco_device`: who may post to copy engines, what is refused and where, and an op whose puts are not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp, CopyEngines, collective
from mori_gemm_ar.compile.build import build
from mori_gemm_ar.compile.mori_bitcode import BITCODE_VARIABLE, bitcode_of, digest_of, find_bitcode
from mori_gemm_ar.emulator import EVERYWHERE, EngineFaults, EngineSettings
from mori_gemm_ar.errors import (
    CollectiveError,
    CollectiveSetupError,
    CompileError,
    ConfigError,
    CopyEngineTimeout,
    MissingDependencyError,
)
from mori_gemm_ar.layout import DType
from mori_gemm_ar.layout.copy_queue import PUT_SYMBOL
from mori_gemm_ar.layout.sdma import CcoDevice, SdmaConfig, SdmaPhase, Transport, sdma_config, sdma_window
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.kernel.mori_bitcode import STAND_IN, compiled
from tests.unit.mori_source import wheel
from tests.unit.rocm_fakes import FakeNode, RocmWorld, StandInStore, run

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "default_store", StandInStore)
    monkeypatch.setenv("MORI_ENABLE_SDMA", "1")
    monkeypatch.setenv(BITCODE_VARIABLE, str(STAND_IN))


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, 2)


def create(world: Any, **arguments: Any) -> AllReduceOp:
    defaults = {"dtypes": (BF16,), "timeout_s": 1.0, "transport": "sdma", "queues": CopyEngines(2, "mori")}
    return AllReduceOp.create(world, 4096, **{**defaults, **arguments})


# --- an op ---


@pytest.fixture(scope="module")
def wheel_bitcode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(wheel(tmp_path_factory), tmp_path_factory.mktemp("mori"))


@pytest.mark.parametrize("wire", ["exact", "fp8", "fp8-both"])
def test_an_op_runs_by_the_put_of_mori(node: FakeNode, wire: str) -> None:
    """Self-test, a tensor outside the window, in place, and the op's own buffer."""
    run_by_mori(node, wire, STAND_IN)


@pytest.mark.parametrize("wire", ["exact", "fp8-row"])
def test_an_op_runs_by_what_the_wheel_compiles_to(
    node: FakeNode, wire: str, wheel_bitcode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BITCODE_VARIABLE, str(wheel_bitcode))
    run_by_mori(node, wire, wheel_bitcode)


def run_by_mori(node: FakeNode, wire: str, bitcode: Path) -> None:
    columns = 144 if wire == "fp8-row" else 131

    def body(ctx: RankContext, world: RocmWorld) -> list[str]:
        with create(world, wire=wire) as op:
            for step, x in enumerate((torch.empty(7, columns, dtype=BF16), op.buffer((6, columns), BF16))):
                x.fill_(ctx.rank + 1.0 + step)
                y = op(x, out=x if step == 0 else None)
                op.check()
                assert bool((y == 3 + 2 * step).all())
            assert (
                op.plan(7 * columns, BF16, columns=columns if wire == "fp8-row" else None).transport is Transport.SDMA
            )
            return [code.kernel for code in op._codes.values()]

    suffix = f"_mori_{digest_of(bitcode)}"
    for names in run(node, body):
        submitting = [name for name in names if name.startswith(("sdma_scatter", "sdma_reduce"))]
        assert [name.endswith(suffix) for name in submitting] == [True] * 2
        assert not [name for name in names if name.startswith("sdma_gather") and "mori" in name]


def test_input_outside_the_window_is_copied_into_it_first(node: FakeNode) -> None:
    """mori's put names memory by window and offset."""

    def body(ctx: RankContext, world: RocmWorld) -> tuple[bool, bool]:
        with create(world) as op:
            window, target = op._require_window(), world.targets[0]
            sources = []
            for x in (torch.full((64,), 5.0, dtype=BF16), op.buffer((64,), BF16).fill_(5.0)):
                target.submitted.clear()
                y = op(x)
                op.check()
                assert bool((y == 10).all())
                launched = node.fake.launches(ctx.rank)[-3]
                sources.append(int.from_bytes(launched.arguments[24:32], "little") == window.at("input"))
            return sources[0], sources[1]

    assert run(node, body) == [(True, True)] * 2


FAULTS = {"dead": EngineFaults(dead=EVERYWHERE), "idle": EngineFaults(no_data=EVERYWHERE)}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_engines_that_fail_are_found_by_create(node: FakeNode, faults: EngineFaults) -> None:
    def body(ctx: RankContext) -> str:
        with pytest.raises((CopyEngineTimeout, CollectiveError)) as caught:
            create(RocmWorld(ctx, node))
        return str(caught.value)

    texts = LocalWorld(2, engines=EngineSettings(faults=faults)).run(body)
    said = "its own copy engine to rank {}" if faults.dead else "scatter leg by copy engine, rank {0} to rank"
    assert all(said.format(1 - rank) in text for rank, text in enumerate(texts)), texts


# --- refusals, on every rank and before anything is allocated ---


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"transport": "lsa"}, "cco_device='mori' must go with copy engines, but none are used with transport='lsa'"),
        ({"transport": "auto"}, "transport='auto', stage=None and max_bytes=4096; use transport='sdma'"),
    ],
)
def test_without_copy_engines_it_is_refused(node: FakeNode, arguments: dict[str, Any], reason: str) -> None:
    def body(ctx: RankContext, world: RocmWorld) -> str:
        with pytest.raises(ConfigError) as caught:
            create(world, **arguments)
        assert not world.log
        return str(caught.value)

    assert all(reason in text for text in run(node, body))


def test_emulated_queues_are_not_mori_s() -> None:
    def body(ctx: RankContext) -> str:
        with pytest.raises(ConfigError) as caught:
            create(ctx, device="emulated")
        return str(caught.value)

    texts = LocalWorld(2).run(body)
    assert all(text.startswith("cco_device='mori' must run on device='rocm'") for text in texts)


def test_the_emulated_target_copies_in_order_and_has_no_records() -> None:
    def body(ctx: RankContext) -> None:
        target = ctx.target("emulated")
        source, copy = torch.arange(8), torch.zeros(8, dtype=torch.int64)
        target.copy(copy.data_ptr(), source.data_ptr(), 64)
        assert torch.equal(copy, source)
        with target.record(), pytest.raises(ConfigError, match="must not be called while recording"):
            target.copy(copy.data_ptr(), source.data_ptr(), 64)
        comm = target.communicator(4096)
        with pytest.raises(ConfigError, match="emulated queues are not amd-mori's"):
            comm.create_dev_comm(1).put_records(None, 0)
        comm.destroy()

    LocalWorld(2).run(body)


def test_a_rank_without_bitcode_stops_all(node: FakeNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = tmp_path / "libmori_cco_device.bc"
    find = find_bitcode

    def body(ctx: RankContext, world: RocmWorld) -> str:
        with pytest.raises((MissingDependencyError, CollectiveSetupError)) as caught:
            create(world)
        assert not world.log
        return f"{type(caught.value).__name__}: {caught.value}"

    class OneRank:
        calls = 0

        def __call__(self) -> Path:
            self.calls += 1
            if self.calls == 2:
                monkeypatch.setenv(BITCODE_VARIABLE, str(missing))
            return find()

    monkeypatch.setattr("mori_gemm_ar.runtime.rocm.find_bitcode", OneRank())
    texts = sorted(run(node, body))
    assert texts[0].startswith("CollectiveSetupError: rank ")
    assert texts[1].startswith(f"MissingDependencyError: bitcode={missing} must be a readable file")
    assert "cco_device='own'" in texts[1]


def test_ranks_with_different_devices_are_told(node: FakeNode) -> None:
    def body(ctx: RankContext, world: RocmWorld) -> str:
        with pytest.raises(ConfigError) as caught:
            create(world, queues=CopyEngines(1, "mori" if ctx.rank else "own"))
        return str(caught.value)

    assert all("queues, wire and cco_device must be equal on all ranks" in text for text in run(node, body))


def test_a_world_of_one_only_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BITCODE_VARIABLE)

    def body(ctx: RankContext, world: RocmWorld) -> CcoDevice:
        with create(world) as op:
            x = torch.ones(8, dtype=BF16)
            y = op(x)
            op.check()
            assert bool((y == 1).all())
            return op._options.cco_device

    assert run(FakeNode(tmp_path, 1), body, 1) == [CcoDevice.OWN]


@pytest.mark.parametrize("value", ["Mori", "", None, 1])
def test_another_device_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"cco_device=.* must be one of 'own', 'mori'"):
        CopyEngines(1, value)  # type: ignore[arg-type]


def test_a_queue_count_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="queues=9 must be"):
        CopyEngines(9)
    assert CopyEngines.of(3) == CopyEngines(3, "own")


# --- compile key ---


def test_the_key_names_the_bitcode() -> None:
    digest = "0123456789ab"
    keys = {sdma_config(8, DType.BF16, phase, bitcode=bitcode).key for phase in SdmaPhase for bitcode in ("", digest)}
    assert keys == {
        "sdma_scatter_w8_bf16", f"sdma_scatter_w8_bf16_mori_{digest}", "sdma_reduce_w8_bf16",
        f"sdma_reduce_w8_bf16_mori_{digest}", "sdma_gather_w8_bf16",
    }  # fmt: skip
    for wrong in ("0123", digest.upper(), digest + "0", 7):
        with pytest.raises(ConfigError, match="must be '' or the first 12 hexadecimal digits"):
            SdmaConfig(8, DType.BF16, SdmaPhase.SCATTER, bitcode=wrong)  # type: ignore[arg-type]


def test_only_an_op_that_needs_records_has_a_place_for_them() -> None:
    own, mori = (sdma_window(4096, 2, device=device) for device in CcoDevice)
    assert "records" not in own.names
    assert mori.region("records").nbytes == 2 * 8 * 64
    assert mori.regions[: len(own.regions)] == own.regions


# --- bitcode ---


def test_the_named_file_is_taken_and_known_by_its_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    digest = digest_of(STAND_IN)
    assert find_bitcode() == STAND_IN
    assert bitcode_of(digest) == STAND_IN
    other = tmp_path / "other.ll"
    other.write_text(STAND_IN.read_text() + "; changed\n")
    monkeypatch.setenv(BITCODE_VARIABLE, str(other))
    with pytest.raises(ConfigError, match=f"must have a SHA-256 that starts with {digest}"):
        bitcode_of(digest)


def test_a_file_without_the_put_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "no_sdma.bc"
    path.write_bytes(b"BC\xc0\xde cco_lsa_ptr")
    monkeypatch.setenv(BITCODE_VARIABLE, str(path))
    with pytest.raises(MissingDependencyError, match=rf"must define {PUT_SYMBOL}, but does not; .*BUILD_CCO_SDMA=1"):
        find_bitcode()


def test_bitcode_that_is_not_inlined_is_a_compile_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As that of another GPU is not."""
    path = tmp_path / "gfx942.ll"
    text = STAND_IN.read_text()
    path.write_text(text.replace("alwaysinline nounwind", "noinline nounwind"))
    assert path.read_text() != text
    monkeypatch.setenv(BITCODE_VARIABLE, str(path))
    with pytest.raises(CompileError, match=r"must have been made for gfx950, so that its put is inlined into sdma_sc"):
        build(sdma_config(2, DType.BF16, SdmaPhase.SCATTER, bitcode=digest_of(path)))


def test_without_mori_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BITCODE_VARIABLE)
    with pytest.raises(MissingDependencyError, match=rf"libmori_cco_device\.bc must be found.*set {BITCODE_VARIABLE}"):
        find_bitcode()
