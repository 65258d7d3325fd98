# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""SGLang plugin without SGLang: what it loads, its variables, the layers it takes, its hooks in a fake package."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.integrations import sglang as plugin
from mori_gemm_ar.integrations.sglang import hooks
from mori_gemm_ar.integrations.sglang.layers import Shape, named_layers, operands, shape_or_reason
from mori_gemm_ar.integrations.sglang.settings import ATTRIBUTE, Seam, Settings, switched_on
from tests.unit import fake_sglang

ROOT = Path(__file__).resolve().parents[2]
SWITCH = "MORI_GEMM_AR_WO_B"


@pytest.fixture(autouse=True)
def _nothing_active() -> Iterator[None]:
    yield
    hooks.ACTIVE.clear()


# ---- what it loads -------------------------------------------------------------------------------------------------
def modules_after(value: str | None) -> set[str]:
    """Modules that a fresh interpreter holds once the plugin was loaded and run with the switch at that value."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(SWITCH)}
    environment |= {} if value is None else {SWITCH: value}
    code = "import json, sys; from mori_gemm_ar.integrations.sglang import register; register(); "
    run = subprocess.run(
        [sys.executable, "-c", code + "print(json.dumps(sorted(sys.modules)))"],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
    )
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout))


@pytest.mark.parametrize("value", [None, "0", "yes"])
def test_sglang_plugin_loads_next_to_nothing_while_off(value: str | None) -> None:
    loaded = modules_after(value)
    assert {name for name in loaded if name.startswith("mori_gemm_ar")} == {
        "mori_gemm_ar",
        "mori_gemm_ar.errors",
        "mori_gemm_ar.integrations",
        "mori_gemm_ar.integrations.sglang",
        "mori_gemm_ar.integrations.sglang.settings",
    }
    others = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert not others & {"torch", "numpy", "sglang", "flydsl", "mori", "typer", "rich"}


def test_sglang_plugin_says_why_a_bad_switch_is_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SWITCH, "true")
    plugin.register()
    assert caplog.messages == [
        f"off, SGLang runs as it is: {SWITCH}='true' must be 1, or 0 or unset; set it alike on all ranks"
    ]


# ---- variables -----------------------------------------------------------------------------------------------------
def test_sglang_plugin_settings() -> None:
    assert Settings.from_environment({SWITCH: "1", "OTHER": "x"}) == Settings()
    given = {
        "SEAM": "linear",
        "LAYERS": "wo_b, o_proj",
        "MIN_M": "1",
        "MAX_M": "64",
        "WIRE": "fp8",
        "MODE": "split-lsa",
        "DEVICE": "emulated",
        "TIMEOUT_S": "2.5",
        "VOTE_S": "5",
        "CAPTURE": "1",
        "COPY": "0",
        "CHECK": "10",
        "AGREE": "1",
        "HISTOGRAM": "610",
    }
    settings = Settings.from_environment({f"{SWITCH}_{name}": value for name, value in given.items()})
    assert settings == Settings(
        Seam.LINEAR, ("wo_b", "o_proj"), 1, 64, "fp8", "split-lsa", "emulated", 2.5, 5.0, True, False, 10, True, 610
    )
    assert len(given) == len(Settings.__dataclass_fields__), "each setting has a variable and is read"
    assert switched_on({SWITCH: "1"}) and not switched_on({SWITCH: "0"}) and not switched_on({})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("MINM", "1", "MORI_GEMM_AR_WO_B_MINM must be one of MORI_GEMM_AR_WO_B_SEAM, "),
        ("SEAM", "mlp", "SEAM='mlp' must be one of 'attention', 'linear'"),
        ("LAYERS", "a,,b", "LAYERS='a,,b' must be names of layers, separated by commas, each once"),
        ("LAYERS", "a,a", "each once"),
        ("MIN_M", "0", "MIN_M='0' must be a whole number of 1 or more"),
        ("MAX_M", "-1", "must be a whole number"),
        ("MAX_M", "1e3", "must be a whole number"),
        ("WIRE", "bf16", "WIRE='bf16' must be one of 'exact', 'fp8', 'fp8-both'"),
        ("DEVICE", "auto", "DEVICE='auto' must be one of 'rocm', 'emulated'"),
        ("TIMEOUT_S", "nan", "must be a number of seconds above 0 and up to 86400"),
        ("VOTE_S", "soon", "must be a number of seconds above 0 and up to 86400"),
        ("AGREE", "true", "AGREE='true' must be 1, or 0 or unset"),
    ],
)
def test_sglang_plugin_refuses_settings(name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_environment({f"{SWITCH}_{name}": value})
    assert text in str(caught.value)


# ---- layers --------------------------------------------------------------------------------------------------------
N, K = 256, 128
RANKS = (0, 1)
ROW_SCALE = torch.ones(2, 1)


def layer(**changes: Any) -> SimpleNamespace:
    """`wo_b` of DeepSeek V4-Pro as SGLang leaves it on gfx950."""
    values: dict[str, Any] = {
        "weight": torch.zeros(N, K).to(torch.float8_e4m3fn),
        "weight_scale_inv": ROW_SCALE,
        "output_size": N,
        "input_size_per_partition": K,
        "reduce_results": True,
        "use_dp_attention_reduce": False,
        "input_is_parallel": True,
        "bias": None,
        "tp_group": SimpleNamespace(ranks=[0, 1]),
        "aiter_bpreshuffled": True,
    }
    return SimpleNamespace(**{**values, **changes})


def mxfp8(**changes: Any) -> SimpleNamespace:
    """The same of V4.1-Flash by SGLang's aiter route."""
    values = {
        "block_fp8_mxfp8_ready": True,
        "mxfp8_aiter_preshuffled": True,
        "weight_scale_mx_e8m0": torch.zeros(8, 4, dtype=torch.uint8),
        "weight_scale_inv": torch.ones(8, 4),
    }
    return layer(**{**values, **changes})


def test_sglang_plugin_takes_layers() -> None:
    assert shape_or_reason(layer(), RANKS) == Shape(N, K, "blockscale", "preshuffled")
    plain = layer(aiter_bpreshuffled=False, keep_plain_weight_layout=True)
    assert shape_or_reason(plain, RANKS) == Shape(N, K, "blockscale", "row")
    assert shape_or_reason(mxfp8(), RANKS) == Shape(N, K, "mxfp8", "preshuffled")
    assert shape_or_reason(mxfp8(mxfp8_aiter_preshuffled=False), RANKS) == Shape(N, K, "mxfp8", "row")
    for taken in (layer(), mxfp8()):
        weight, scale = operands(taken)
        assert weight.data_ptr() == taken.weight.data_ptr()
        own = taken.weight_scale_mx_e8m0 if hasattr(taken, "weight_scale_mx_e8m0") else taken.weight_scale_inv
        assert scale.data_ptr() == own.data_ptr()


def tagged(weight: torch.Tensor) -> torch.Tensor:
    """A weight with the scales of another GEMM."""
    weight._mxscale_w_scale = torch.zeros(1)  # type: ignore[attr-defined]
    return weight


E4M3 = torch.float8_e4m3fn
REFUSED: list[tuple[Callable[..., SimpleNamespace], dict[str, Any], str]] = [
    (layer, {"reduce_results": False}, "reduce_results is off"),
    (layer, {"use_dp_attention_reduce": True}, "data-parallel attention"),
    (layer, {"tp_group": SimpleNamespace(ranks=[0, 2])}, "its group is not the tensor-parallel group"),
    (layer, {"tp_group": None}, "its group is not the tensor-parallel group"),
    (layer, {"input_is_parallel": False}, "its input is not split over the ranks yet"),
    (layer, {"bias": torch.zeros(N)}, "it has a bias"),
    (layer, {"weight": torch.zeros(N, K)}, "its weight is torch.float32, not torch.float8_e4m3fn"),
    (layer, {"weight": torch.zeros(N, K).to(torch.float8_e4m3fnuz)}, "its weight is torch.float8_e4m3fnuz"),
    (layer, {"weight": None}, "its weight is None"),
    # A shuffled weight kept as [N/16, ...]: its first dimension is not N.
    (layer, {"weight": torch.zeros(N // 16, 16 * K).to(E4M3)}, "is not a contiguous (256, 128)"),
    (layer, {"weight": torch.zeros(K, N).to(E4M3).t()}, "is not a contiguous (256, 128)"),
    (layer, {"weight": tagged(torch.zeros(N, K).to(E4M3))}, "SGLANG_DSV4_DENSE_MXSCALE gives it other scales"),
    (layer, {"weight_scale_inv": torch.ones(2, 1, dtype=torch.uint8)}, "weight_scale_inv is torch.uint8"),
    (layer, {"weight_scale_inv": torch.ones(1, 2)}, "weight_scale_inv (1, 2) is not a contiguous (2, 1)"),
    (layer, {"weight_scale_inv": torch.ones(4, 1)[::2]}, "is not a contiguous (2, 1)"),
    (layer, {"aiter_bpreshuffled": False}, "nothing tells the order of its weight"),
    (layer, {"aiter_bpreshuffled": 1}, "nothing tells the order of its weight"),
    (mxfp8, {"mxfp8_native_ready": True}, "lane order of SGLang's native route"),
    (mxfp8, {"mxfp8_aiter_preshuffled": None}, "mxfp8_aiter_preshuffled is missing"),
    (mxfp8, {"weight_scale_mx_e8m0": torch.zeros(8, 4)}, "weight_scale_mx_e8m0 is torch.float32, not torch.uint8"),
    (mxfp8, {"weight_scale_mx_e8m0": torch.zeros(256, 4, dtype=torch.uint8)}, "is not a contiguous (8, 4)"),
]


@pytest.mark.parametrize(("make", "changes", "text"), REFUSED)
def test_sglang_plugin_refuses_layers(make: Callable[..., Any], changes: dict[str, Any], text: str) -> None:
    reason = shape_or_reason(make(**changes), RANKS)
    assert isinstance(reason, str) and text in reason


def test_sglang_plugin_finds_layers_by_name() -> None:
    names = ["a.wo_b", "a.wo_b.inner", "a.swo_b", "b.o_proj", "c.wo_b"]
    tree = [(name, layer()) for name in names] + [("d.wo_b", object())]
    model = SimpleNamespace(named_modules=lambda: iter(tree))
    assert [name for name, _ in named_layers(model, ("wo_b",))] == ["a.wo_b", "c.wo_b"]
    assert [name for name, _ in named_layers(model, ("o_proj", "wo_b"))] == ["a.wo_b", "b.o_proj", "c.wo_b"]


# ---- hooks ---------------------------------------------------------------------------------------------------------
class Armed:
    """Notes what it is called with; fuses unless told not to."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.out: Any = "fused"

    def call(self, x: Any, site: Any) -> Any:
        """As `ArmedLayer.call`."""
        self.calls.append((x, site.deferred, site.own_output, site.other_reduce))
        return self.out


def test_sglang_plugin_hooks_the_attention_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    armed_with: list[Any] = []
    with fake_sglang.fake_sglang() as registered:
        hooks.install({SWITCH: "1"})
        assert {target: kind.value for target, (_, kind) in registered.items()} == {
            "sglang.srt.models.deepseek_v4.MQALayer._project_wo_b": "around",
            "sglang.srt.layers.quantization.fp8.Fp8LinearMethod.process_weights_after_loading": "after",
            "sglang.srt.model_executor.model_runner.ModelRunner.load_model": "after",
        }
        fake_sglang.apply(registered)
        assert [hooks.reason_not_hooked(target) for target in hooks.targets(Seam.ATTENTION)] == [None] * 3
        wo_b = SimpleNamespace()
        attention = fake_sglang.class_of(hooks.targets(Seam.ATTENTION)[0].path)(wo_b)
        x = torch.ones(2, 3, 4)
        assert attention._project_wo_b(x) == ("split", x, False)
        armed = wo_b._mori_gemm_ar = Armed()
        assert attention._project_wo_b(x) == "fused" and armed.calls[0][0].shape == (2, 12)
        assert attention._project_wo_b((x, x), defer_all_reduce=True) == "fused"
        assert armed.calls[1] == ((x, x), True, False, False)
        armed.out = None
        assert attention._project_wo_b(x, True) == ("split", x, True)
        monkeypatch.setattr(hooks, "arm_active", lambda model, server: armed_with.append((model, server)))
        monkeypatch.setattr("mori_gemm_ar.integrations.sglang.server.SglangServer", lambda runner: runner)
        runner = fake_sglang.class_of(hooks.LOADED.path)()
        runner.load_model()
        with monkeypatch.context() as moved:
            moved.setattr("mori_gemm_ar.integrations.sglang.server.SglangServer", lambda runner: runner.moved)
            runner.load_model()  # another SGLang: off, and the model is loaded
        runner.is_draft_worker = True
        runner.load_model()
    assert armed_with == [("model", runner)], "once, and not for the draft model"
    assert ATTRIBUTE in vars(wo_b)


def test_sglang_plugin_hooks_row_parallel_linear() -> None:
    with fake_sglang.fake_sglang() as registered:
        hooks.install({SWITCH: "1", f"{SWITCH}_SEAM": "linear"})
        assert "sglang.srt.models.deepseek_v4.MQALayer._project_wo_b" not in registered
        fake_sglang.apply(registered)
        linear = fake_sglang.class_of(hooks.targets(Seam.LINEAR)[0].path)()
        assert linear.forward("x", forward_batch="batch") == (("split", "x", False, "batch", None), None)
        armed = linear._mori_gemm_ar = Armed()
        assert linear.forward("x") == ("fused", None)
        assert linear.forward("x", True) == linear.forward("x", forward_batch="b", output_tensor="o") == ("fused", None)
        assert armed.calls == [("x", False, False, False), ("x", True, False, False), ("x", False, True, True)]
        armed.out = None
        assert linear.forward("x", output_tensor="o") == (("split", "x", False, None, "o"), None)


def test_sglang_plugin_tells_what_moved(caplog: pytest.LogCaptureFixture) -> None:
    """A missing method and other parameters; only the method where ranks vote is hooked then, to say so there."""
    project, weights, loaded = hooks.targets(Seam.ATTENTION)
    with fake_sglang.fake_sglang() as registered:
        del fake_sglang.class_of(project.path)._project_wo_b
        hooks.install({SWITCH: "1"})
        assert list(registered) == [loaded.path]
        assert hooks.ACTIVE[0].refusal is not None and project.path in hooks.ACTIVE[0].refusal
        assert len(caplog.messages) == 1 and "must exist as in SGLang 0.5.23" in caplog.messages[0]
    with fake_sglang.fake_sglang() as registered:
        fake_sglang.class_of(weights.path).process_weights_after_loading = lambda self, layer, device: None
        fake_sglang.class_of(loaded.path).load_model = lambda self, path: None
        hooks.install({SWITCH: "1"})
        assert registered == {}
        assert "it takes ('self', 'layer', 'device'); " in str(hooks.ACTIVE[0].refusal)
        assert "it takes ('self', 'path')" in str(hooks.ACTIVE[0].refusal)


def refusal_of_arming(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What this rank tells in the first vote."""
    told: list[Any] = []
    monkeypatch.setattr(
        "mori_gemm_ar.integrations.sglang.construct.arm", lambda model, server, settings, refusal: told.append(refusal)
    )
    assert hooks.arm_active("model", "server") is None
    return told[0]


def test_sglang_plugin_takes_a_missing_hook_to_the_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    project = hooks.targets(Seam.ATTENTION)[0]
    with fake_sglang.fake_sglang() as registered:
        hooks.install({SWITCH: "1"})
        fake_sglang.apply(registered, but=project.path)
        assert f"the hook of {project.path} must be installed" in refusal_of_arming(monkeypatch)
        fake_sglang.apply({project.path: registered[project.path]})
        assert refusal_of_arming(monkeypatch) is None


def test_sglang_plugin_takes_a_bad_setting_to_the_vote(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with fake_sglang.fake_sglang() as registered:
        hooks.install({SWITCH: "1", f"{SWITCH}_MIN_M": "many"})
        fake_sglang.apply(registered)
        assert "MIN_M='many' must be a whole number" in refusal_of_arming(monkeypatch)


def test_sglang_plugin_is_tested_with_the_version_it_is_made_for() -> None:
    wheel = (ROOT / "tests" / "sglang_wheel" / "requirements-alone.txt").read_text(encoding="utf-8")
    assert f"\nsglang=={hooks.PINNED}\n" in wheel


def test_sglang_plugin_without_anything_armed() -> None:
    assert plugin.counters() == {} and plugin.arm(None) is False
    plugin.teardown()
    assert plugin.try_fused(layer(), torch.ones(1, K)) is None
