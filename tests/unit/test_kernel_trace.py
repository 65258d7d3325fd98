# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Traces of rocprofv3: columns as its documentation shows them for several versions, medians, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmark import kernel_trace
from benchmark.kernel_trace import Dispatch, command, kernel_times, read_traces
from benchmark.report import PREFIX
from mori_gemm_ar.errors import ConfigError

# ROCm 7: agents have names, a stream and the resources stand in the row.
NEW = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"'
)
# ROCm 6.2: numbers of agents, other resources.
OLD = (
    '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp",'
    '"Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",'
    '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"'
)


def new_row(kernel: str, agent: int, start: int, us: float, kind: str = "KERNEL_DISPATCH") -> str:
    end = start + round(us * 1000)
    return f'"{kind}","Agent {agent}",1,0,7,1,10,"{kernel}",1,{start},{end},0,0,8,0,16,512,1,1,131072,1,1'


def old_row(kernel: str, start: int, end: int) -> str:
    return f'"KERNEL_DISPATCH",1,139690710949888,15,"{kernel}",0,{start},{end},0,0,4,4,1,1024,1024,1'


def write(path: Path, header: str, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def test_medians_of_a_folder_of_ranks(tmp_path: Path) -> None:
    """One file for each process below the host's folder; the first runs on each GPU do not count."""
    for agent, first in ((4, 100.0), (5, 300.0)):
        rows = [new_row("fused", agent, 1000 * i, us) for i, us in enumerate((first, 10.0 + agent, 20.0 + agent))]
        rows.append(new_row("tail, of (a, b)", agent, 9000, 5.0))
        write(tmp_path / "host" / f"{agent}_kernel_trace.csv", NEW, *rows)
    write(tmp_path / "host" / "4_agent_info.csv", '"Node_Id"', "0")
    found = {time.kernel: time for time in kernel_times(read_traces(tmp_path), skip=1)}
    assert list(found) == ["fused"], "one run on each GPU, and that is skipped"
    assert (found["fused"].agents, found["fused"].count) == (2, 4)
    assert found["fused"].p50_us == pytest.approx(19.5)  # of 14, 15, 24, 25
    assert found["fused"].p95_us == pytest.approx(24.85)
    everything = {time.kernel: time.p50_us for time in kernel_times(read_traces(tmp_path))}
    assert everything == {"fused": pytest.approx(24.5), "tail, of (a, b)": 5.0}


def test_columns_of_an_older_version(tmp_path: Path) -> None:
    path = write(
        tmp_path / "199_kernel_trace.csv", OLD, old_row("matrixTranspose(float*, int)", 671599758568, 671599825328)
    )
    assert read_traces(path) == [Dispatch("matrixTranspose(float*, int)", "1", 671599758568, 671599825328)]


def test_other_records_are_not_kernels(tmp_path: Path) -> None:
    rows = (new_row("copy", 1, 0, 9.0, kind="MEMORY_COPY"), new_row("gemm", 1, 50, 2.0))
    path = write(tmp_path / "kernel_trace.csv", NEW, *rows)
    assert [dispatch.kernel for dispatch in read_traces(path)] == ["gemm"]


@pytest.mark.parametrize(
    ("header", "rows", "text"),
    [
        (NEW.replace("End_Timestamp", "Stop"), (), "lacks End_Timestamp"),
        (NEW, (), "with kernels in it"),
        (NEW, (new_row("gemm", 1, 0, 1.0).replace(",0,1000,", ",zero,1000,"),), "must be a kernel trace"),
        (NEW, ('"KERNEL_DISPATCH","Agent 1"',), "must be a kernel trace"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, header: str, rows: tuple[str, ...], text: str) -> None:
    path = write(tmp_path / "1_kernel_trace.csv", header, *rows)
    with pytest.raises(ConfigError, match=text):
        read_traces(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a kernel trace"):
        read_traces(tmp_path / "none.csv")


def test_the_traced_command_stands_behind_the_options(tmp_path: Path) -> None:
    found = command(tmp_path, ["python", "bench.py", "--m", "64"])
    assert found[:2] == ["rocprofv3", "--kernel-trace"]
    assert found[found.index("--output-format") + 1] == "csv"
    assert found[found.index("--") + 1 :] == ["python", "bench.py", "--m", "64"]


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "1_kernel_trace.csv", NEW, *(new_row("gemm", 1, i, 7.0) for i in range(3)))
    result = CliRunner().invoke(kernel_trace.app, ["show", str(tmp_path), "--skip", "1"])
    assert result.exit_code == 0
    row = json.loads(result.stdout.removeprefix(PREFIX))
    assert row["kernels"] == [{"kernel": "gemm", "agents": 1, "count": 2, "p50_us": 7.0, "p95_us": 7.0}]
    assert CliRunner().invoke(kernel_trace.app, ["show", str(tmp_path), "--skip", "3"]).exit_code == 2
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(kernel_trace.app, ["run", str(tmp_path), "--", "true"])
    assert result.exit_code == 2
    assert "rocprofv3 must be on PATH" in result.stderr


def test_a_profiler_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that writes what rocprofv3 would; the command's own failure is the exit status."""
    write(tmp_path / "made.csv", NEW, new_row("gemm", 1, 0, 3.0))
    script = tmp_path / "rocprofv3"
    script.write_text(
        '#!/bin/sh\nmkdir -p "$5/host"\ncp "${0%/*}/made.csv" "$5/host/9_kernel_trace.csv"\nshift 6\nexec "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    result = CliRunner().invoke(kernel_trace.app, ["run", str(tmp_path / "out"), "--skip", "0", "--", "true"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.removeprefix(PREFIX))["kernels"][0]["p50_us"] == 3.0
    failed = CliRunner().invoke(kernel_trace.app, ["run", str(tmp_path / "out"), "--", "sh", "-c", "exit 7"])
    assert failed.exit_code == 7
