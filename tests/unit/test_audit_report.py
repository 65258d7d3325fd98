# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Figures, cycles, published rows, the manifest's verdict and the command."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mori_gemm_ar.audit import Figures, KernelContract, Step, audit_kernel, contract_of, figures_of, undeclared, verdict
from mori_gemm_ar.audit.cycles import cycles_of, matrix_cycles
from mori_gemm_ar.audit.figures import CLASSES, PIPES
from mori_gemm_ar.audit.operations import decode
from mori_gemm_ar.audit.published import PUBLISHED
from mori_gemm_ar.cli import app
from mori_gemm_ar.commands.shipped import shipped_configs
from mori_gemm_ar.compile.store import CodeStore, default_store
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import parse_isa
from mori_gemm_ar.layout import AllReduceConfig, DType, Stage
from tests.unit.audit_texts import isa_text, kernel_of

DOCS = Path(__file__).resolve().parents[2] / "docs" / "audit.md"
CONFIG = AllReduceConfig(8, DType.BF16, Stage.TWO)


def figures(body: str, contract: KernelContract | None = None) -> Figures:
    kernel = kernel_of(body)
    contract = contract or undeclared("k")
    return figures_of(kernel, contract, audit_kernel(kernel, contract))


K_LOOP = """
    s_mov_b32 s4, 0
    .LBB0_1:
    ds_read_b128 v[4:7], v1
    buffer_load_dwordx4 v2, s[8:11], 0 offen lds
    s_waitcnt lgkmcnt(0)
    v_mfma_f32_16x16x32_bf16 v[8:11], v[4:5], v[6:7], v[8:11]
    v_mfma_f32_16x16x32_bf16 v[12:15], v[4:5], v[6:7], v[12:15]
    v_add_u32_e32 v2, 64, v2
    s_barrier
    s_add_i32 s4, s4, 1
    s_cmp_lt_u32 s4, 16
    s_cbranch_scc1 .LBB0_1
    global_store_dwordx4 v0, v[8:11], s[0:1]
"""


def test_the_fields_are_fixed() -> None:
    names = [field.name for field in dataclasses.fields(Figures)]
    assert names == [
        "name", "vgpr", "sgpr", "vgpr_spills", "scratch_bytes", "lds_bytes", "instructions", "per_k_step", "rules",
    ]  # fmt: skip
    text = DOCS.read_text(encoding="utf-8")
    for name in (*names, *(field.name for field in dataclasses.fields(Step)), *CLASSES, *PIPES):
        assert f"`{name}`" in text, f"docs/audit.md does not say what {name} is"


def test_a_step_of_a_matrix_loop() -> None:
    (step,) = figures(K_LOOP, KernelContract("k", mfma_per_k_step=1)).per_k_step
    assert (step.unit, step.per_iteration, step.instructions) == ("K step", 2.0, 5.0)
    wanted = {
        "mfma": 1.0,
        "valu": 0.5,
        "ds_read": 0.5,
        "global_to_lds": 0.5,
        "waits": 0.5,
        "barriers": 0.5,
        "scalar": 1.5,
    }
    assert {name: count for name, count in step.classes.items() if count} == wanted
    assert step.cycles == {"mfma": 16.0, "valu": 2.0, "lds": 8.0, "memory": 8.0}
    (step,) = figures(K_LOOP).per_k_step
    assert (step.unit, step.instructions) == ("iteration", 10.0)


def test_an_unrolled_matrix_kernel() -> None:
    body = "\n".join(["v_mfma_f32_16x16x32_bf16 v[8:11], v[4:5], v[6:7], v[8:11]", "s_nop 0"] * 4)
    (step,) = figures(body, KernelContract("k", mfma_per_k_step=2)).per_k_step
    assert (step.unit, step.per_iteration, step.classes["mfma"]) == ("K step", 2.0, 2.0)
    assert figures(body).per_k_step == ()


def test_an_iteration_of_a_memory_loop() -> None:
    body = """
        .LBB0_1:
        global_load_dwordx4 v[4:7], v1, s[0:1]
        s_waitcnt vmcnt(0)
        global_store_dwordx4 v1, v[4:7], s[2:3]
        s_add_i32 s4, s4, 1
        s_cmp_lt_u32 s4, s5
        s_cbranch_scc1 .LBB0_1
        global_store_dword v1, v4, s[2:3]
    """
    (step,) = figures(body).per_k_step
    assert (step.unit, step.instructions, step.cycles["memory"]) == ("pack iteration", 6.0, 32.0)


@pytest.mark.parametrize(
    ("text", "cycles"),
    [
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:23], v[0:3]", 32),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:11], v[16:19], v[0:3] cbsz:4 blgp:4", 16),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:19], v[0:3] blgp:4", 32),
        ("v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], v[0:3]", 16),
        ("v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]", 16),
        ("v_mfma_f32_32x32x16_bf16 v[0:15], v[16:19], v[20:23], v[0:15]", 32),
        ("v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[4:5], v[6:7], v[0:3]", 16),
        ("v_mfma_i32_16x16x32_i8 v[0:3], v[4:5], v[6:7], v[0:3]", 16),
        ("v_mfma_f32_16x16x4_f32 v[0:3], v4, v5, v[0:3]", 32),
    ],
)
def test_matrix_cycles_follow_the_peak_rates(text: str, cycles: int) -> None:
    assert matrix_cycles(kernel_of(text).instructions[0]) == cycles


def test_an_unknown_matrix_shape_is_an_error() -> None:
    with pytest.raises(IsaError, match="does not know the rate"):
        matrix_cycles(kernel_of("v_mfma_f32_16x16x32_wombat v[0:3], v[4:5], v[6:7], 0").instructions[0])


def test_other_cycles() -> None:
    def cycles(text: str) -> tuple[int, int, int, int]:
        i = kernel_of(text).instructions[0]
        return cycles_of(i, decode(i))

    assert cycles("v_add_f32_e32 v0, v1, v2") == (0, 4, 0, 0)
    assert cycles("v_exp_f32_e32 v0, v1") == (0, 16, 0, 0)
    assert cycles("ds_read_b128 v[0:3], v4") == (0, 0, 8, 0)
    assert cycles("buffer_load_dwordx4 v0, s[4:7], 0 offen lds") == (0, 0, 8, 16)
    assert cycles("s_load_dword s4, s[0:1], 0x0") == (0, 0, 0, 0)


def test_figures_are_what_the_manifest_says() -> None:
    code = CodeStore(None).get(CONFIG)  # compiled now: a stored manifest has the verdict of when it was compiled
    kernel = parse_isa(code.isa).kernel(code.kernel)
    got = figures_of(kernel, contract_of(CONFIG), audit_kernel(kernel, contract_of(CONFIG)))
    resources = code.manifest["resources"]
    for mine, theirs in (("vgpr", "vgpr"), ("sgpr", "sgpr"), ("vgpr_spills", "vgpr_spills"), ("lds_bytes", "lds_bytes"),
                         ("scratch_bytes", "scratch_bytes"), ("instructions", "instructions")):  # fmt: skip
        assert getattr(got, mine) == resources[theirs]
    # Stage in, gather, reduce: all links busy in each of them.
    assert [step.classes["vmem_load"] for step in got.per_k_step] == [8.0, 8.0, 8.0]
    assert code.manifest["audit"] == verdict(code.isa, code.kernel)
    assert code.manifest["audit"]["verdict"] == "pass"


def test_a_verdict_tells_what_is_wrong() -> None:
    bad = isa_text("global_atomic_add v0, v1, s[0:1] sc1", name="lsa_allreduce_w1_bf16_1stage")
    given = verdict(bad, "lsa_allreduce_w1_bf16_1stage")
    assert given["verdict"] == "fail"
    assert given["declared"] and not given["rules"]["peer_atomics"] and given["rules"]["no_spills"]
    assert any(text.startswith("peer_atomics: lsa_allreduce_w1_bf16_1stage: line 6:") for text in given["findings"])
    unknown = verdict(isa_text("v_wombat_b32 v0, v1"), "k")
    assert unknown["verdict"] is None and "does not know" in unknown["reason"]
    assert json.loads(json.dumps(given)) == given


def test_published_rows_are_named_by_contracts_that_exist() -> None:
    rows = [contract_of(config).peer_row for config in shipped_configs()]
    assert {row for row in rows if row} == {
        "LSA all-reduce 1-stage", "LSA all-reduce 2-stage", "GEMM blockscale 128x256", "GEMM ptpc 128x256",
        "GEMM ptpc 256x256", "GEMM mxfp8 256x256", "GEMM mxfp8 256x128 (narrow)",
    }  # fmt: skip
    assert {row for row in rows if row} <= PUBLISHED.keys()


# ---- the command --------------------------------------------------------------------------------------------------

runner = CliRunner()


def test_the_command_is_clean_on_a_shipped_kernel(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    result = runner.invoke(app, ["audit", "--kernel", CONFIG.kernel_name, "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "kernels 1, clean 1, findings 0" in result.output
    assert "published" in result.output and "static" in result.output
    (entry,) = json.loads(out.read_text())
    assert list(entry) == [field.name for field in dataclasses.fields(Figures)]
    assert entry["name"] == CONFIG.kernel_name
    assert all(found == [] for found in entry["rules"].values())


def test_the_command_names_rule_kernel_line_and_instruction(tmp_path: Path) -> None:
    code = default_store().get(CONFIG)
    broken = re.sub(r"\n\tbuffer_inv sc0 sc1\n", "\n\ts_nop 0\n", code.isa)
    assert broken != code.isa
    file = tmp_path / "broken.s"
    file.write_text(broken)
    good = tmp_path / "good.s"
    good.write_text(code.isa)
    result = runner.invoke(app, ["audit", str(good), str(file)])
    assert result.exit_code == 1
    assert "kernels 2, clean 1, findings 2" in result.output
    barrier = max(n for n, line in enumerate(broken.splitlines(), 1) if line == "\ts_barrier")
    assert f"acquire_after_wait: {CONFIG.kernel_name}: line {barrier}: s_barrier: " in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--kernel", "lsa_allreduce_w8_bf16_3stage"], "must be a shipped kernel, such as lsa_allreduce_w8_bf16_"),
        (["missing.s"], "must be readable text"),
        (["setup.py"], "must be ISA text for gfx950"),
    ],
)
def test_the_command_refuses_what_is_of_no_use(arguments: list[str], text: str) -> None:
    result = runner.invoke(app, ["audit", *arguments])
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())
