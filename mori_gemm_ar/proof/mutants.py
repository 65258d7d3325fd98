# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Mutants of emitted ISA: each leaves out, weakens or misplaces one part of a kernel's synchronisation."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mori_gemm_ar.audit.operations import LGKM_LIMIT, VM_LIMIT
from mori_gemm_ar.isa import Instruction, Kernel, parse_isa
from mori_gemm_ar.isa.cfg import is_branch
from mori_gemm_ar.proof.idle import idle_waits
from mori_gemm_ar.proof.pipelines import Pipeline, ProvedKernel


class Operator(enum.Enum):
    """What a mutant does. The value names it in reports and replay commands."""

    DROP_WRITEBACK = "drop-writeback"
    WEAKEN_WRITEBACK = "weaken-writeback"  # one scope down
    DROP_INVALIDATE = "drop-invalidate"
    WEAKEN_INVALIDATE = "weaken-invalidate"  # one scope down
    WEAKEN_SCOPE = "weaken-scope"  # a scoped load, store or atomic one scope down
    DROP_BARRIER = "drop-barrier"
    DROP_WAIT = "drop-wait"  # the vmcnt of a wait
    LOOSEN_WAIT = "loosen-wait"  # one more memory operation may be in flight
    DROP_LGKM = "drop-lgkm"  # the lgkmcnt of a wait
    LOOSEN_LGKM = "loosen-lgkm"  # one more LDS operation or scalar load may be in flight
    SKIP_POLL = "skip-poll"  # leave a polling loop after the first look
    PUBLISH_EARLY = "publish-early"  # the flag before the writeback
    RELEASE_ONCE = "release-once"  # of all workgroups only the first one writes back
    SKIP_TURN = "skip-turn"  # post to a queue out of turn


WAITS = frozenset({Operator.DROP_WAIT, Operator.LOOSEN_WAIT, Operator.DROP_LGKM, Operator.LOOSEN_LGKM})


class Role(enum.Enum):
    """What the source declares of a wait or barrier, in a comment that the emitted text keeps."""

    UNMARKED = ""
    HANDOVER = "handover"  # memory changes hands here
    PACING = "pacing"  # a barrier that only keeps waves together


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed ISA text. `line` is that of the original text, `kernel` its kernel's name in the pipeline."""

    kernel: str
    role: Role
    operator: Operator
    line: int
    original: str
    changed: str
    isa: str
    idle: str = ""  # why the compiler's wait never waits, if the counters prove that

    @property
    def name(self) -> str:
        """`all-reduce:drop-barrier@123`, as replay commands take it."""
        return f"{self.kernel}:{self.operator.value}@{self.line}"


_SPARE = "s100"  # a scalar register that no kernel of ours uses
_WEAKER = {"sc0 sc1": "sc1", "sc1": ""}


def _scope(text: str) -> str:
    flags = re.findall(r"\bsc[01]\b", text)
    return " ".join(f for f in ("sc0", "sc1") if f in flags)


def _rescope(text: str, scope: str) -> str:
    bare = re.sub(r"\s+sc[01]\b", "", text)
    return f"{bare} {scope}".rstrip()


def _without(i: Instruction, counter: str) -> str | None:
    """The wait without one counter; None when nothing else is left."""
    rest = [str(o) for o in i.operands if not str(o).startswith(counter)]
    return f"s_waitcnt {' '.join(rest)}" if rest else None


def _count(i: Instruction, counter: str) -> int | None:
    for operand in i.operands:
        if match := re.fullmatch(rf"{counter}\((\d+)\)", str(operand)):
            return int(match[1])
    return None


# Counter, the largest count that still waits, and what is done to it.
_COUNTERS = (
    ("vmcnt", VM_LIMIT - 1, Operator.DROP_WAIT, Operator.LOOSEN_WAIT),
    ("lgkmcnt", LGKM_LIMIT - 1, Operator.DROP_LGKM, Operator.LOOSEN_LGKM),
)


def _role(line: str) -> Role:
    comment = line.partition(";")[2].split()
    return next((role for role in Role if comment[:1] == [role.value]), Role.UNMARKED)


class _Maker:
    """Walks one kernel and yields its mutants."""

    def __init__(self, proved: ProvedKernel) -> None:
        self.name, self.lines = proved.name, proved.code.isa.splitlines()
        self.kernel: Kernel = parse_isa(proved.code.isa).kernel(proved.code.kernel)
        self.idle = idle_waits(self.kernel)

    def _mutant(self, operator: Operator, i: Instruction, changed: str, lines: list[str], idle: str = "") -> Mutant:
        role = _role(self.lines[i.line - 1])
        return Mutant(self.name, role, operator, i.line, i.text, changed, "\n".join(lines) + "\n", idle)

    def _with(self, operator: Operator, i: Instruction, changed: str | None, idle: str = "") -> Mutant:
        lines = list(self.lines)
        lines[i.line - 1] = f"\t{changed}" if changed else ""
        return self._mutant(operator, i, changed or "(deleted)", lines, idle)

    def all(self) -> Iterator[Mutant]:
        for i in self.kernel.instructions:
            yield from self._caches(i)
            yield from self._scopes(i)
            if i.name == "s_barrier":
                yield self._with(Operator.DROP_BARRIER, i, None)
            if i.name == "s_waitcnt":
                yield from self._waits(i)
        yield from self._polls()
        yield from self._early()
        yield from self._once()
        yield from self._turns()

    def _waits(self, i: Instruction) -> Iterator[Mutant]:
        for counter, largest, drop, loosen in _COUNTERS:
            count = _count(i, counter)
            if count is None:
                continue
            bound = self.idle.get((i.line, counter))
            # What is written by hand is there to wait. Loosened, an idle wait would be the same again.
            if bound is not None and _role(self.lines[i.line - 1]) is Role.UNMARKED:
                yield self._with(drop, i, _without(i, counter), f"idle: {counter} is at most {bound} there")
                continue
            yield self._with(drop, i, _without(i, counter))
            if count < largest:
                text = i.text.replace(f"{counter}({count})", f"{counter}({count + 1})")
                yield self._with(loosen, i, text)

    def _caches(self, i: Instruction) -> Iterator[Mutant]:
        operators = {
            "buffer_wbl2": (Operator.DROP_WRITEBACK, Operator.WEAKEN_WRITEBACK),
            "buffer_inv": (Operator.DROP_INVALIDATE, Operator.WEAKEN_INVALIDATE),
        }.get(i.name)
        if operators is None:
            return
        yield self._with(operators[0], i, None)
        weaker = _WEAKER.get(_scope(i.text))
        if weaker:
            yield self._with(operators[1], i, _rescope(i.text, weaker))

    def _scopes(self, i: Instruction) -> Iterator[Mutant]:
        if i.name.startswith("buffer_") or not ("_load_" in i.name or "_store_" in i.name):
            return
        scope = _scope(i.text)
        while scope in _WEAKER:
            scope = _WEAKER[scope]
            yield self._with(Operator.WEAKEN_SCOPE, i, _rescope(i.text, scope))

    def _polls(self) -> Iterator[Mutant]:
        """Backward branches of loops that repeat a scoped load."""
        for i in self.kernel.instructions:
            # A branch on an empty mask only saves time.
            if not is_branch(i) or i.target is None or i.name == "s_cbranch_execz":
                continue
            start = self.kernel.labels[i.target]
            body = self.kernel.instructions[start : i.index]
            polls = any("_load_" in b.name and b.has("sc1") for b in body)
            if start <= i.index and polls and not any("_store_" in b.name for b in body):
                yield self._with(Operator.SKIP_POLL, i, None)

    def _once(self) -> Iterator[Mutant]:
        """Let workgroup 0 alone execute a writeback."""
        first = self.kernel.instructions[0].line - 1
        group = self.kernel.descriptor.get("amdhsa_user_sgpr_count", 0)
        for i in self.kernel.instructions:
            if i.name != "buffer_wbl2" or not self._free_scc(i):
                continue
            lines = list(self.lines)
            label = f".Lonce{i.line}"
            lines[i.line - 1] = f"\ts_cmp_lg_u32 {_SPARE}, 0\n\ts_cbranch_scc1 {label}\n\t{i.text}\n{label}:"
            lines[first] = f"\ts_mov_b32 {_SPARE}, s{group}\n{lines[first]}"
            yield self._mutant(Operator.RELEASE_ONCE, i, "(by workgroup 0 only)", lines)

    def _free_scc(self, i: Instruction) -> bool:
        """Whether nobody reads the condition bit that stands at an instruction, as far as the text goes straight on."""
        for later in self.kernel.instructions[i.index + 1 :]:
            if later.name.startswith(("s_cmp_", "s_and_", "s_or_", "s_add_u", "s_sub_u")):
                return True
            if "scc" in later.name or later.name.startswith(("s_addc_", "s_subb_", "s_cselect_")):
                return False
            if is_branch(later):
                return later.name.startswith(("s_cbranch_exec", "s_cbranch_vcc"))
        return True

    def _turns(self) -> Iterator[Mutant]:
        """A queue's turn is looked for with agent scope and compared for equality; flags are ordered, not equal."""
        words = {str(i.operands[0]) for i in self.kernel.instructions if _looks_for_turn(i)}
        for i in self.kernel.instructions:
            if i.name.startswith("v_cmp_eq_u64") and {str(o) for o in i.operands[1:]} & words:
                yield self._with(Operator.SKIP_TURN, i, f"s_mov_b64 {i.operands[0]}, exec")

    def _early(self) -> Iterator[Mutant]:
        """Move each scoped store in front of the nearest writeback before it."""
        code = self.kernel.instructions
        for i in code:
            if "_store_" not in i.name or not i.has("sc1"):
                continue
            before = [b for b in code[: i.index] if b.name == "buffer_wbl2"]
            between = code[before[-1].index : i.index] if before else ()
            if before and not any("_load_" in b.name or "_store_" in b.name for b in between):
                lines = list(self.lines)
                lines[i.line - 1] = ""
                # What the store's operands need is computed after the writeback: move the writeback, not the store.
                writeback = lines[before[-1].line - 1]
                lines[before[-1].line - 1] = ""
                lines[i.line - 1] = f"\t{i.text}\n{writeback}"
                yield self._mutant(Operator.PUBLISH_EARLY, i, "(before the writeback)", lines)


def _looks_for_turn(i: Instruction) -> bool:
    return i.name == "global_load_dwordx2" and _scope(i.text) == "sc1"


def mutants_of(kernel: ProvedKernel) -> list[Mutant]:
    """All mutants of a kernel, in program order by operator of each line; texts that are equal once."""
    return list({mutant.isa: mutant for mutant in _Maker(kernel).all() if mutant.line >= kernel.since}.values())


def pipeline_mutants(pipeline: Pipeline) -> list[Mutant]:
    """The mutants of all kernels of a pipeline, kernel by kernel."""
    return [mutant for kernel in pipeline.kernels() for mutant in mutants_of(kernel)]
