; SPDX-License-Identifier: MIT
; Copyright (c) 2026 mori_gemm_ar contributors
;
; How kernels give work to copy engines. A queue is known by the address of its handle, seven 64-bit words:
; ring +0, read pointer +8, write pointer +16, doorbell +24, reserved +32, committed +40, last seen read pointer +48.
; Positions only grow; the ring has 262144 bytes. layout/copy_queue.py states the same as data.
;
; The caller owes: the source of a put is released at agent scope (system scope where a peer owns it) before the put;
; lanes of one wave that call together name different queues; what a put reads and writes is left alone until a drain,
; or until the signal has arrived. All waits end after a budget in ticks of the 100 MHz clock. A put that ran out of it
; leaves a hole in its queue, in which every later put gets stuck: the queue is lost.

target datalayout = "e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-p7:160:256:256:32-p8:128:128:128:48-p9:192:256:256:32-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-v2048:2048-n32:64-S32-A5-G1-ni:7:8:9"
target triple = "amdgcn-amd-amdhsa"

; Handle of queue %index in a table of pointers.
define i64 @mga_sdma_queue(i64 %table, i32 %index) #0 {
  %wide = zext i32 %index to i64
  %offset = shl i64 %wide, 3
  %address = add i64 %table, %offset
  %p = inttoptr i64 %address to ptr addrspace(1)
  %handle = load i64, ptr addrspace(1) %p, align 8
  ret i64 %handle
}

; Copies %bytes from %src to %dst. 0, or 1 when the budget ran out first. Nothing is posted for no bytes.
define i32 @mga_sdma_put(i64 %handle, i64 %dst, i64 %src, i64 %bytes, i64 %budget) #0 {
  %late = call i32 @mga_sdma_post(i64 %handle, i64 %dst, i64 %src, i64 %bytes, i64 0, i64 0, i64 %budget)
  ret i32 %late
}

; The same; when the bytes have landed, the engine adds 1 to the 64-bit word at %signal. No bytes: the signal alone.
define i32 @mga_sdma_put_signal(i64 %handle, i64 %dst, i64 %src, i64 %bytes, i64 %signal, i64 %budget) #0 {
  %late = call i32 @mga_sdma_post(i64 %handle, i64 %dst, i64 %src, i64 %bytes, i64 1, i64 %signal, i64 %budget)
  ret i32 %late
}

; Reserves ring space, then waits for its turn and for room. Packets are written in the own turn, and the lanes that
; have theirs post while others wait: a wave never holds a turn that another wave's turn depends on.
define internal i32 @mga_sdma_post(i64 %uniform, i64 %dst, i64 %src, i64 %bytes, i64 %signals, i64 %signal, i64 %budget) #0 {
entry:
  ; A value of its own in each lane, or the reservation would be combined over the lanes.
  %handle = call i64 asm sideeffect "", "=v,0"(i64 %uniform)
  %rounded = add i64 %bytes, 134217727
  %copies = lshr i64 %rounded, 27
  %units = add i64 %copies, %signals
  %size = shl i64 %units, 5
  %some = icmp ne i64 %units, 0
  br i1 %some, label %reserve, label %nothing

nothing:
  ret i32 0

reserve:
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
  %h.seen = getelementptr i8, ptr addrspace(1) %h, i64 48
  %base = atomicrmw add ptr addrspace(1) %reserved, i64 %size syncscope("agent") monotonic
  %end = add i64 %base, %size
  %hint = load atomic i64, ptr addrspace(1) %h.seen syncscope("agent") monotonic, align 8
  %start = call i64 @llvm.amdgcn.s.memrealtime()
  %deadline = add i64 %start, %budget
  br label %turns

turns:
  %todo = phi i1 [ true, %reserve ], [ %rest, %turned ]
  %late = phi i32 [ 0, %reserve ], [ %late.next, %turned ]
  %known = phi i64 [ %hint, %reserve ], [ %read, %turned ]
  %first = load atomic i64, ptr addrspace(1) %committed syncscope("agent") monotonic, align 8
  br label %check

check:
  %at = phi i64 [ %first, %turns ], [ %at.next, %look ]
  %read = phi i64 [ %known, %turns ], [ %read.next, %look ]
  %now = call i64 @llvm.amdgcn.s.memrealtime()
  %over = sub i64 %now, %deadline
  %over.high = lshr i64 %over, 32
  %over.sign = trunc i64 %over.high to i32
  %expired = icmp sge i32 %over.sign, 0
  %turn = icmp eq i64 %at, %base
  %used = sub i64 %end, %read
  %room = icmp ule i64 %used, 262144
  %able = and i1 %turn, %room
  %ready = and i1 %able, %todo
  %go = or i1 %ready, %expired
  %lanes = call i64 @llvm.amdgcn.ballot.i64(i1 %go)
  %again = icmp eq i64 %lanes, 0
  br i1 %again, label %look, label %act

look:
  call void @llvm.amdgcn.s.sleep(i32 1)
  %at.next = load atomic i64, ptr addrspace(1) %committed syncscope("agent") monotonic, align 8
  %read.next = load atomic i64, ptr addrspace(1) %rptr monotonic, align 8
  br label %check

act:
  br i1 %ready, label %copying, label %turned

copying:
  %copied = icmp ne i64 %copies, 0
  br i1 %copied, label %copy, label %signalling

copy:
  %place = phi i64 [ %base, %copying ], [ %place.next, %copy ]
  %from = phi i64 [ %src, %copying ], [ %from.next, %copy ]
  %to = phi i64 [ %dst, %copying ], [ %to.next, %copy ]
  %left = phi i64 [ %bytes, %copying ], [ %left.next, %copy ]
  %short = icmp ult i64 %left, 134217728
  %count = select i1 %short, i64 %left, i64 134217728
  %count.low = trunc i64 %count to i32
  %count.field = sub i32 %count.low, 1
  %from.low = trunc i64 %from to i32
  %from.shifted = lshr i64 %from, 32
  %from.high = trunc i64 %from.shifted to i32
  %to.low = trunc i64 %to to i32
  %to.shifted = lshr i64 %to, 32
  %to.high = trunc i64 %to.shifted to i32
  %c.1 = insertelement <4 x i32> <i32 1, i32 0, i32 0, i32 0>, i32 %count.field, i32 1
  %c.2 = insertelement <4 x i32> %c.1, i32 %from.low, i32 3
  %c.3 = insertelement <4 x i32> zeroinitializer, i32 %from.high, i32 0
  %c.4 = insertelement <4 x i32> %c.3, i32 %to.low, i32 1
  %c.5 = insertelement <4 x i32> %c.4, i32 %to.high, i32 2
  call void @mga_sdma_unit(i64 %ring, i64 %place, <4 x i32> %c.2, <4 x i32> %c.5)
  %place.next = add i64 %place, 32
  %from.next = add i64 %from, %count
  %to.next = add i64 %to, %count
  %left.next = sub i64 %left, %count
  %more = icmp ne i64 %left.next, 0
  br i1 %more, label %copy, label %signalling

signalling:
  %signalled = icmp ne i64 %signals, 0
  br i1 %signalled, label %add, label %commit

add:
  %add.place = sub i64 %end, 32
  %signal.low = trunc i64 %signal to i32
  %signal.shifted = lshr i64 %signal, 32
  %signal.high = trunc i64 %signal.shifted to i32
  ; 1577058314 = 47 << 25 | 10: a 64-bit addition
  %a.1 = insertelement <4 x i32> <i32 1577058314, i32 0, i32 0, i32 1>, i32 %signal.low, i32 1
  %a.2 = insertelement <4 x i32> %a.1, i32 %signal.high, i32 2
  call void @mga_sdma_unit(i64 %ring, i64 %add.place, <4 x i32> %a.2, <4 x i32> zeroinitializer)
  br label %commit

commit:
  ; No writeback: the ring is uncached.
  call void asm sideeffect "s_waitcnt vmcnt(0)", "~{memory}"()
  store atomic i64 %end, ptr addrspace(1) %wptr syncscope("agent") monotonic, align 8
  store atomic i64 %end, ptr addrspace(1) %doorbell monotonic, align 8
  ; Whoever sees the turn passed on must not ring a doorbell that this one could overtake.
  call void asm sideeffect "s_waitcnt vmcnt(0)", "~{memory}"()
  store atomic i64 %end, ptr addrspace(1) %committed syncscope("agent") monotonic, align 8
  %fresh = icmp ne i64 %read, %hint
  br i1 %fresh, label %remember, label %turned

remember:
  store atomic i64 %read, ptr addrspace(1) %h.seen syncscope("agent") monotonic, align 8
  br label %turned

turned:
  %open = xor i1 %ready, true
  %left.over = and i1 %todo, %open
  %missed = and i1 %left.over, %expired
  %missed.word = zext i1 %missed to i32
  %late.next = or i32 %late, %missed.word
  %on = xor i1 %expired, true
  %rest = and i1 %left.over, %on
  %rest.lanes = call i64 @llvm.amdgcn.ballot.i64(i1 %rest)
  %any = icmp ne i64 %rest.lanes, 0
  br i1 %any, label %turns, label %done

done:
  ret i32 %late.next
}

; Writes one unit of the ring at a position.
define internal void @mga_sdma_unit(i64 %ring, i64 %position, <4 x i32> %low, <4 x i32> %high) #0 {
  %inside = and i64 %position, 262143
  %address = add i64 %ring, %inside
  %p = inttoptr i64 %address to ptr addrspace(1)
  %q = getelementptr i8, ptr addrspace(1) %p, i64 16
  store <4 x i32> %low, ptr addrspace(1) %p, align 16
  store <4 x i32> %high, ptr addrspace(1) %q, align 16
  ret void
}

; Waits until the engine has finished everything committed so far: 0, or 1 when the budget ran out first. Orders what
; the engine wrote before what the caller publishes next; who reads it here needs an acquire of system scope.
define i32 @mga_sdma_drain(i64 %handle, i64 %budget) #0 {
entry:
  %h = inttoptr i64 %handle to ptr addrspace(1)
  %h.rptr = getelementptr i8, ptr addrspace(1) %h, i64 8
  %rptr.address = load i64, ptr addrspace(1) %h.rptr, align 8
  %rptr = inttoptr i64 %rptr.address to ptr addrspace(1)
  %h.committed = getelementptr i8, ptr addrspace(1) %h, i64 40
  %committed.address = load i64, ptr addrspace(1) %h.committed, align 8
  %committed = inttoptr i64 %committed.address to ptr addrspace(1)
  %target = load atomic i64, ptr addrspace(1) %committed syncscope("agent") monotonic, align 8
  %start = call i64 @llvm.amdgcn.s.memrealtime()
  %deadline = add i64 %start, %budget
  br label %poll

poll:
  %read = load atomic i64, ptr addrspace(1) %rptr monotonic, align 8
  %ahead = sub i64 %read, %target
  %ahead.high = lshr i64 %ahead, 32
  %ahead.sign = trunc i64 %ahead.high to i32
  %now = call i64 @llvm.amdgcn.s.memrealtime()
  %over = sub i64 %now, %deadline
  %over.high = lshr i64 %over, 32
  %over.sign = trunc i64 %over.high to i32
  %both = and i32 %ahead.sign, %over.sign
  %waiting = icmp slt i32 %both, 0
  %lanes = call i64 @llvm.amdgcn.ballot.i64(i1 %waiting)
  %again = icmp ne i64 %lanes, 0
  br i1 %again, label %poll, label %done

done:
  %short = icmp slt i32 %ahead.sign, 0
  %late = zext i1 %short to i32
  ret i32 %late
}

declare i64 @llvm.amdgcn.s.memrealtime()
declare i64 @llvm.amdgcn.ballot.i64(i1)
declare void @llvm.amdgcn.s.sleep(i32 immarg)

attributes #0 = { alwaysinline nounwind }
