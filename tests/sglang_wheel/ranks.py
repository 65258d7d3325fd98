# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One rank of two under torchrun: SGLang's own RowParallelLinear, split, then fused by the plugin that it discovers.

The plugin has to be installed, so that SGLang's loader finds its entry point. Only what needs a GPU is this test's:
the product of the split path, and the shuffle that SGLang's weight processing leaves to aiter.
"""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

from tests.sglang_wheel import absent

absent.install()

import torch
import torch.distributed as dist
from sglang.srt import plugins
from sglang.srt.distributed import parallel_state
from sglang.srt.layers.linear import RowParallelLinear
from sglang.srt.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod
from sglang.srt.models.deepseek_v4 import MQALayer
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import derive_parallel_widths, get_forward, get_parallel

from mori_gemm_ar.gemm import preshuffle_b, quantize_1x128
from mori_gemm_ar.integrations import sglang as plugin
from mori_gemm_ar.integrations.sglang import hooks
from mori_gemm_ar.integrations.sglang.settings import Seam

N, K, WORLD = 256, 256, 2  # K of all ranks
ROWS = (1, 5, 24)
TOLERANCE = 3e-3
PREFIX = "model.layers.0.self_attn.wo_b"


class Method(Fp8LinearMethod):
    """SGLang's block-scaled fp8 with a product on the CPU."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """What SGLang does for aiter on gfx950: the shuffle in place, and the flags that tell of it."""
        self.plain = layer.weight.detach().clone()
        layer.weight.data.copy_(preshuffle_b(self.plain))
        layer.aiter_bpreshuffled = layer.weight.is_shuffled = True
        layer.calls = 0

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x times the weight, in fp32, rounded once."""
        layer.calls += 1
        data, scale = quantize_1x128(x)
        rows = data.float() * scale.t().repeat_interleave(128, 1)
        blocks = layer.weight_scale_inv.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (rows @ (self.plain.float() * blocks).t()).to(torch.bfloat16)


class Config(Fp8Config):
    """Hands out the method above."""

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        """For linear layers."""
        return Method(self)


def start() -> int:
    """SGLang's groups over gloo; returns the rank."""
    rank = int(os.environ["RANK"])
    parallel_state.init_distributed_environment(WORLD, rank, "env://", rank, "gloo", timeout=120)
    widths: dict[str, Any] = {
        "tp_size": WORLD,
        "attn_cp_size": 1,
        "attn_dp_size": 1,
        "moe_ep_size": 1,
        "moe_dp_size": 1,
    }
    derived = derive_parallel_widths(**widths, dcp_size=1, dcp_enabled=False)
    get_parallel().override_permanently(**{**widths, **derived}, pp_size=1, shared_experts_tp_size=None)
    parallel_state.initialize_model_parallel()
    return rank


def model_of(rank: int) -> torch.nn.Module:
    """A tree with one layer, its weights loaded by SGLang's loaders."""
    config = Config(is_checkpoint_fp8_serialized=True, weight_block_size=[128, 128])
    layer = RowParallelLinear(K, N, bias=False, quant_config=config, prefix=PREFIX)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(N, K, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(N // 128, K // 128, generator=generator) + 0.5
    for parameter, whole in ((layer.weight, weight), (layer.weight_scale_inv, scale)):
        parameter.weight_loader(parameter, whole)
    share = slice(rank * K // WORLD, (rank + 1) * K // WORLD)
    assert torch.equal(layer.weight.view(torch.uint8), weight[:, share].view(torch.uint8))
    layer.quant_method.process_weights_after_loading(layer)
    model = torch.nn.Module()
    model.self_attn = torch.nn.Module()
    model.self_attn.wo_b = layer
    return model


def inputs(rank: int) -> list[torch.Tensor]:
    """bf16 [M, K / WORLD] of this rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(rows, K // WORLD, generator=generator).bfloat16() for rows in ROWS]


def load(environment: dict[str, str]) -> None:
    """Let SGLang find and run its plugins, as it does first in each process."""
    for name in [name for name in os.environ if name.startswith("MORI_GEMM_AR_WO_B")]:
        del os.environ[name]
    os.environ.update(environment)
    plugins._plugins_loaded = False
    plugins.load_plugins()


def require_close(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """relL2 within the tolerance."""
    error = float((actual.double() - expected.double()).norm() / expected.double().norm())
    assert error < TOLERANCE, f"{what}: relL2={error:.2e} must be below {TOLERANCE}"
    print(f"{what}: relL2 {error:.2e}", flush=True)


def off(layer: Any, data: list[torch.Tensor]) -> list[torch.Tensor]:
    """SGLang with the plugin installed and off; returns its results."""
    load({})
    assert "mori_gemm_ar" in plugins.load_plugins_by_group(plugins.GENERAL_PLUGINS_GROUP), "pip install mori_gemm_ar"
    assert not HookRegistry._hooks and not hasattr(RowParallelLinear.forward, "__wrapped__"), "SGLang is untouched"
    assert plugin.arm(SimpleNamespace()) is False
    results = [layer(x)[0] for x in data]
    assert layer.calls == len(data)
    return results


def on(model: Any, layer: Any, data: list[torch.Tensor], split: list[torch.Tensor], log: list[str]) -> None:
    """SGLang with the plugin on: hooks in place, the layer armed, its results those of the split path."""
    load(
        {
            "MORI_GEMM_AR_WO_B": "1",
            "MORI_GEMM_AR_WO_B_SEAM": "linear",
            "MORI_GEMM_AR_WO_B_MIN_M": "1",
            "MORI_GEMM_AR_WO_B_MAX_M": str(max(ROWS)),
            "MORI_GEMM_AR_WO_B_DEVICE": "emulated",
        }
    )
    for seam in Seam:
        moved = [reason for reason in map(hooks.reason_moved, hooks.targets(seam)) if reason is not None]
        assert not moved, f"this SGLang moved what the plugin hooks; adapt hooks.py and its pin: {moved}"
    assert [hooks.reason_not_hooked(target) for target in hooks.targets(Seam.LINEAR)] == [None] * 3
    hooks._model_loaded(None, SimpleNamespace(model=model, is_draft_worker=False))
    rank = get_parallel().tp_group.rank_in_group
    assert log[-1:] == ([f"armed on 1 layers: {PREFIX.removeprefix('model.layers.0.')}"] if rank == 0 else []), log
    layer.calls = 0
    for x, expected in zip(data, split, strict=True):
        require_close(layer(x)[0], expected, f"RowParallelLinear, {x.shape[0]} rows")
    assert layer.calls == 0 and plugin.counters()["fused"] == len(data), "the op did the work"


def declines(layer: Any, x: torch.Tensor, expected: torch.Tensor) -> None:
    """SGLang's own ways to leave out or replace the sum are seen."""
    partial, _ = layer(x, skip_all_reduce=True)
    assert layer.calls == 1 and not torch.equal(partial, expected)
    with get_forward().scoped(mlp_reduce_scatter=True):
        again, _ = layer(x)
    assert torch.equal(again, partial)
    assert plugin.counters()["reasons"] == {"the caller defers the sum": 1, "a later step reduces": 1}


def attention(layer: Any, x: torch.Tensor, expected: torch.Tensor) -> None:
    """The other seam: DeepSeek V4's own method around the same layer."""
    target = hooks.targets(Seam.ATTENTION)[0]
    HookRegistry.register(target.path, target.hook, HookType.AROUND)
    HookRegistry.apply_hooks()
    assert hooks.reason_not_hooked(target) is None
    layer.calls, fused = 0, plugin.counters()["fused"]
    caller = SimpleNamespace(wo_b=layer, attn_tp_size=WORLD)
    out = MQALayer._project_wo_b(caller, x.view(x.shape[0], 2, -1))
    require_close(out, expected, f"MQALayer._project_wo_b, {x.shape[0]} rows")
    assert layer.calls == 0 and plugin.counters()["fused"] == fused + 1


def main() -> None:
    """All of it, on one rank."""
    rank = start()
    log: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("mori_gemm_ar.sglang")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    model, data = model_of(rank), inputs(rank)
    layer = model.self_attn.wo_b
    with torch.inference_mode():
        split = off(layer, data)
        on(model, layer, data, split, log)
        declines(layer, data[1], split[1])
        attention(layer, data[2], split[2])
        plugin.teardown()
        layer.calls = 0
        assert torch.equal(layer(data[0])[0], split[0]) and layer.calls == 1
    dist.barrier()
    if rank == 0:
        print("SGLang's RowParallelLinear, unmodified, split and fused: all as expected", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
