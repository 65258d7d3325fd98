; SPDX-License-Identifier: MIT
; Copyright (c) 2026 mori_gemm_ar contributors
;
; What bounds the put of amd-mori's own device code, whose waits for its turn and for room have no bound. A record says
; what that put takes for one queue, in 64-bit words; layout/copy_queue.py states the same as data.

target datalayout = "e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-p7:160:256:256:32-p8:128:128:128:48-p9:192:256:256:32-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-v2048:2048-n32:64-S32-A5-G1-ni:7:8:9"
target triple = "amdgcn-amd-amdhsa"

; Word %offset of a record, which the host wrote before the launch.
define i64 @mga_mori_word(i64 %record, i64 %offset) #0 {
  %address = add i64 %record, %offset
  %p = inttoptr i64 %address to ptr addrspace(1)
  %word = load i64, ptr addrspace(1) %p, align 8
  ret i64 %word
}

; Waits until nobody is between reserving and committing, and one more unit has room in the ring: 0, or 1 when the
; budget ran out first. A put by the queue's only user then waits for nothing.
define i32 @mga_mori_ready(i64 %handle, i64 %budget) #0 {
entry:
  %h = inttoptr i64 %handle to ptr addrspace(1)
  %h.rptr = getelementptr i8, ptr addrspace(1) %h, i64 8
  %rptr.address = load i64, ptr addrspace(1) %h.rptr, align 8
  %rptr = inttoptr i64 %rptr.address to ptr addrspace(1)
  %h.reserved = getelementptr i8, ptr addrspace(1) %h, i64 32
  %reserved.address = load i64, ptr addrspace(1) %h.reserved, align 8
  %reserved = inttoptr i64 %reserved.address to ptr addrspace(1)
  %h.committed = getelementptr i8, ptr addrspace(1) %h, i64 40
  %committed.address = load i64, ptr addrspace(1) %h.committed, align 8
  %committed = inttoptr i64 %committed.address to ptr addrspace(1)
  %start = call i64 @llvm.amdgcn.s.memrealtime()
  %deadline = add i64 %start, %budget
  br label %poll

poll:
  %taken = load atomic i64, ptr addrspace(1) %reserved syncscope("agent") monotonic, align 8
  %passed = load atomic i64, ptr addrspace(1) %committed syncscope("agent") monotonic, align 8
  %read = load atomic i64, ptr addrspace(1) %rptr monotonic, align 8
  %end = add i64 %taken, 32
  %used = sub i64 %end, %read
  %room = icmp ule i64 %used, 262144
  %idle = icmp eq i64 %taken, %passed
  %able = and i1 %room, %idle
  %now = call i64 @llvm.amdgcn.s.memrealtime()
  %over = sub i64 %now, %deadline
  %over.high = lshr i64 %over, 32
  %over.sign = trunc i64 %over.high to i32
  %open = icmp slt i32 %over.sign, 0
  %short = xor i1 %able, true
  %waiting = and i1 %short, %open
  %lanes = call i64 @llvm.amdgcn.ballot.i64(i1 %waiting)
  %again = icmp ne i64 %lanes, 0
  br i1 %again, label %poll, label %done

done:
  %late = zext i1 %short to i32
  ret i32 %late
}

declare i64 @llvm.amdgcn.s.memrealtime()
declare i64 @llvm.amdgcn.ballot.i64(i1)

attributes #0 = { alwaysinline nounwind }
