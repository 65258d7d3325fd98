; SPDX-License-Identifier: MIT
; Copyright (c) 2026 mori_gemm_ar contributors
;
; Stands in for amd-mori's device bitcode: the put that our kernels call, with its name and types, on the structures of
; cco.hpp in amd-mori 1.2.4. Like the original it waits without a bound; it posts one packet, of up to 2^30 bytes.

target datalayout = "e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-p7:160:256:256:32-p8:128:128:128:48-p9:192:256:256:32-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-v2048:2048-n32:64-S32-A5-G1-ni:7:8:9"
target triple = "amdgcn-amd-amdhsa"

define i32 @cco_sdma_put__thread_ns(i64 %comm, i32 %peer, i64 %dst.window, i64 %dst.offset, i64 %src.window, i64 %src.offset, i64 %bytes, i32 %queue, i32 %flags) #0 {
entry:
  ; The count of queues to each peer stands at +168 of ccoDevComm, the table of handles at +176.
  %comm.p = inttoptr i64 %comm to ptr
  %count.p = getelementptr i8, ptr %comm.p, i64 168
  %count = load i32, ptr %count.p, align 8
  %table.p = getelementptr i8, ptr %comm.p, i64 176
  %table = load i64, ptr %table.p, align 8
  %first = mul i32 %peer, %count
  %index = add i32 %first, %queue
  %wide = zext i32 %index to i64
  %entry.offset = shl i64 %wide, 3
  %entry.address = add i64 %table, %entry.offset
  %entry.p = inttoptr i64 %entry.address to ptr addrspace(1)
  %handle = load i64, ptr addrspace(1) %entry.p, align 8
  %unknown = icmp uge i32 %queue, %count
  %empty = icmp eq i64 %bytes, 0
  %nothing = or i1 %unknown, %empty
  br i1 %nothing, label %done, label %place

place:
  ; ccoWindowDevice: base, stride in units of 4 GiB at +8, the own rank at +12.
  %dst.p = inttoptr i64 %dst.window to ptr
  %dst.base = load i64, ptr %dst.p, align 8
  %dst.stride.p = getelementptr i8, ptr %dst.p, i64 8
  %dst.stride = load i32, ptr %dst.stride.p, align 8
  %dst.units = mul i32 %dst.stride, %peer
  %dst.wide = zext i32 %dst.units to i64
  %dst.far = shl i64 %dst.wide, 32
  %dst.start = add i64 %dst.base, %dst.far
  %dst = add i64 %dst.start, %dst.offset
  %src.p = inttoptr i64 %src.window to ptr
  %src.base = load i64, ptr %src.p, align 8
  %src.stride.p = getelementptr i8, ptr %src.p, i64 8
  %src.stride = load i32, ptr %src.stride.p, align 8
  %src.rank.p = getelementptr i8, ptr %src.p, i64 12
  %src.rank = load i32, ptr %src.rank.p, align 4
  %src.units = mul i32 %src.stride, %src.rank
  %src.wide = zext i32 %src.units to i64
  %src.far = shl i64 %src.wide, 32
  %src.start = add i64 %src.base, %src.far
  %src = add i64 %src.start, %src.offset
  %h = inttoptr i64 %handle to ptr addrspace(1)
  %ring = load i64, ptr addrspace(1) %h, align 8
  %h.rptr = getelementptr i8, ptr addrspace(1) %h, i64 8
  %rptr.address = load i64, ptr addrspace(1) %h.rptr, align 8
  %rptr = inttoptr i64 %rptr.address to ptr addrspace(1)
  %h.wptr = getelementptr i8, ptr addrspace(1) %h, i64 16
  %wptr.address = load i64, ptr addrspace(1) %h.wptr, align 8
  %wptr = inttoptr i64 %wptr.address to ptr addrspace(1)
  %h.doorbell = getelementptr i8, ptr addrspace(1) %h, i64 24
  %doorbell.address = load i64, ptr addrspace(1) %h.doorbell, align 8
  %doorbell = inttoptr i64 %doorbell.address to ptr addrspace(1)
  %h.reserved = getelementptr i8, ptr addrspace(1) %h, i64 32
  %reserved.address = load i64, ptr addrspace(1) %h.reserved, align 8
  %reserved = inttoptr i64 %reserved.address to ptr addrspace(1)
  %h.committed = getelementptr i8, ptr addrspace(1) %h, i64 40
  %committed.address = load i64, ptr addrspace(1) %h.committed, align 8
  %committed = inttoptr i64 %committed.address to ptr addrspace(1)
  %base = atomicrmw add ptr addrspace(1) %reserved, i64 32 syncscope("agent") monotonic
  %end = add i64 %base, 32
  br label %room

room:
  %read = load atomic i64, ptr addrspace(1) %rptr monotonic, align 8
  %used = sub i64 %end, %read
  %full = icmp ugt i64 %used, 262144
  br i1 %full, label %room, label %write

write:
  %inside = and i64 %base, 262143
  %unit = add i64 %ring, %inside
  %unit.p = inttoptr i64 %unit to ptr addrspace(1)
  %unit.q = getelementptr i8, ptr addrspace(1) %unit.p, i64 16
  %bytes.low = trunc i64 %bytes to i32
  %count.field = sub i32 %bytes.low, 1
  %src.low = trunc i64 %src to i32
  %src.shifted = lshr i64 %src, 32
  %src.high = trunc i64 %src.shifted to i32
  %dst.low = trunc i64 %dst to i32
  %dst.shifted = lshr i64 %dst, 32
  %dst.high = trunc i64 %dst.shifted to i32
  %a = insertelement <4 x i32> <i32 1, i32 0, i32 0, i32 0>, i32 %count.field, i32 1
  %low = insertelement <4 x i32> %a, i32 %src.low, i32 3
  %b = insertelement <4 x i32> zeroinitializer, i32 %src.high, i32 0
  %c = insertelement <4 x i32> %b, i32 %dst.low, i32 1
  %high = insertelement <4 x i32> %c, i32 %dst.high, i32 2
  store <4 x i32> %low, ptr addrspace(1) %unit.p, align 16
  store <4 x i32> %high, ptr addrspace(1) %unit.q, align 16
  br label %turn

turn:
  %at = load atomic i64, ptr addrspace(1) %committed syncscope("agent") monotonic, align 8
  %mine = icmp eq i64 %at, %base
  br i1 %mine, label %commit, label %turn

commit:
  call void asm sideeffect "s_waitcnt vmcnt(0)", "~{memory}"()
  store atomic i64 %end, ptr addrspace(1) %wptr syncscope("agent") monotonic, align 8
  store atomic i64 %end, ptr addrspace(1) %doorbell monotonic, align 8
  store atomic i64 %end, ptr addrspace(1) %committed syncscope("agent") monotonic, align 8
  br label %done

done:
  ret i32 0
}

attributes #0 = { alwaysinline nounwind }
