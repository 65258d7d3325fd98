; SPDX-License-Identifier: MIT
; Copyright (c) 2026 mori_gemm_ar contributors
;
; Device functions that FlyDSL lacks. Everything that gives a memory access an order or a scope stands here and
; nowhere else. Addresses are i64 and mean global memory. "system" reaches other GPUs and the host (sc0 sc1),
; "agent" reaches the other XCDs of this GPU (sc1). A relaxed access orders nothing; fences do.

target datalayout = "e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-p7:160:256:256:32-p8:128:128:128:48-p9:192:256:256:32-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-v2048:2048-n32:64-S32-A5-G1-ni:7:8:9"
target triple = "amdgcn-amd-amdhsa"

; ---- relaxed atomic accesses ----

define i32 @mga_load_system_u32(i64 %address) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  %v = load atomic i32, ptr addrspace(1) %p monotonic, align 4
  ret i32 %v
}

define i64 @mga_load_system_u64(i64 %address) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  %v = load atomic i64, ptr addrspace(1) %p monotonic, align 8
  ret i64 %v
}

define void @mga_store_system_u32(i64 %address, i32 %value) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  store atomic i32 %value, ptr addrspace(1) %p monotonic, align 4
  ret void
}

define void @mga_store_system_u64(i64 %address, i64 %value) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  store atomic i64 %value, ptr addrspace(1) %p monotonic, align 8
  ret void
}

define i32 @mga_load_agent_u32(i64 %address) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  %v = load atomic i32, ptr addrspace(1) %p syncscope("agent") monotonic, align 4
  ret i32 %v
}

define i64 @mga_load_agent_u64(i64 %address) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  %v = load atomic i64, ptr addrspace(1) %p syncscope("agent") monotonic, align 8
  ret i64 %v
}

define void @mga_store_agent_u32(i64 %address, i32 %value) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  store atomic i32 %value, ptr addrspace(1) %p syncscope("agent") monotonic, align 4
  ret void
}

define void @mga_store_agent_u64(i64 %address, i64 %value) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  store atomic i64 %value, ptr addrspace(1) %p syncscope("agent") monotonic, align 8
  ret void
}

; ---- fences ----

define void @mga_release_system() #0 {
  fence release
  ret void
}

define void @mga_acquire_system() #0 {
  fence acquire
  ret void
}

define void @mga_release_agent() #0 {
  fence syncscope("agent") release
  ret void
}

define void @mga_acquire_agent() #0 {
  fence syncscope("agent") acquire
  ret void
}

; ---- read-modify-writes, on this GPU's own memory only ----

; Arrival counter that wraps to 0 after %limit: the arrival that reads %limit is the last one. Acquire and release.
define i32 @mga_arrive_agent(i64 %address, i32 %limit) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  %old = atomicrmw uinc_wrap ptr addrspace(1) %p, i32 %limit syncscope("agent") acq_rel
  ret i32 %old
}

; The same without order: fences of the scope that is needed stand around it.
define i32 @mga_count_agent(i64 %address, i32 %limit) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  %old = atomicrmw uinc_wrap ptr addrspace(1) %p, i32 %limit syncscope("agent") monotonic
  ret i32 %old
}

; Compare-and-swap without order; returns the old value, so the caller won if that equals %expected.
define i32 @mga_claim_agent(i64 %address, i32 %expected, i32 %value) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  %pair = cmpxchg ptr addrspace(1) %p, i32 %expected, i32 %value syncscope("agent") monotonic monotonic, align 4
  %old = extractvalue { i32, i1 } %pair, 0
  ret i32 %old
}

; ---- time and control ----

; Ticks of the 100 MHz counter that all GPUs of a node share.
define i64 @mga_realtime() #0 {
  %t = call i64 @llvm.amdgcn.s.memrealtime()
  ret i64 %t
}

; Polls the 64-bit word (epoch << 32 | tag) at %address until its epoch is at or past %epoch, wrap-safe, on every
; active lane, or until %budget ticks have passed. Returns the last word that this lane saw. Orders nothing: an acquire
; has to follow. The loop is one for the wave, so the lanes stay together and the time is read by scalar code.
define i64 @mga_wait_epoch(i64 %address, i32 %epoch, i64 %budget) #0 {
entry:
  %p = inttoptr i64 %address to ptr addrspace(1)
  %start = call i64 @llvm.amdgcn.s.memrealtime()
  %deadline = add i64 %start, %budget
  br label %poll

poll:
  %word = load atomic i64, ptr addrspace(1) %p monotonic, align 8
  %high = lshr i64 %word, 32
  %seen = trunc i64 %high to i32
  %ahead = sub i32 %seen, %epoch
  %now = call i64 @llvm.amdgcn.s.memrealtime()
  %over = sub i64 %now, %deadline
  %over.high = lshr i64 %over, 32
  %over.sign = trunc i64 %over.high to i32
  %both = and i32 %ahead, %over.sign
  %waiting = icmp slt i32 %both, 0
  %lanes = call i64 @llvm.amdgcn.ballot.i64(i1 %waiting)
  %again = icmp ne i64 %lanes, 0
  br i1 %again, label %poll, label %done

done:
  ret i64 %word
}

; Polls the 64-bit word at %address, which a copy engine adds to, until its low half is at or past %count, wrap-safe, on
; every active lane, or until %budget ticks have passed. 0, or 1 when the budget ran out first. Orders nothing: an
; acquire has to follow.
define i32 @mga_wait_count(i64 %address, i32 %count, i64 %budget) #0 {
entry:
  %p = inttoptr i64 %address to ptr addrspace(1)
  %start = call i64 @llvm.amdgcn.s.memrealtime()
  %deadline = add i64 %start, %budget
  br label %poll

poll:
  %word = load atomic i64, ptr addrspace(1) %p monotonic, align 8
  %seen = trunc i64 %word to i32
  %ahead = sub i32 %seen, %count
  %now = call i64 @llvm.amdgcn.s.memrealtime()
  %over = sub i64 %now, %deadline
  %over.high = lshr i64 %over, 32
  %over.sign = trunc i64 %over.high to i32
  %both = and i32 %ahead, %over.sign
  %waiting = icmp slt i32 %both, 0
  %lanes = call i64 @llvm.amdgcn.ballot.i64(i1 %waiting)
  %again = icmp ne i64 %lanes, 0
  br i1 %again, label %poll, label %done

done:
  %short = icmp slt i32 %ahead, 0
  %late = zext i1 %short to i32
  ret i32 %late
}

; The value of the first active lane, in a scalar register. The caller owes that all lanes hold the same value.
define i32 @mga_uniform_u32(i32 %value) #0 {
  %first = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %value)
  ret i32 %first
}

; 1 where the value is other than 0 in any active lane, else 0; in a scalar register.
define i32 @mga_any_u32(i32 %value) #0 {
  %set = icmp ne i32 %value, 0
  %lanes = call i64 @llvm.amdgcn.ballot.i64(i1 %set)
  %some = icmp ne i64 %lanes, 0
  %any = zext i1 %some to i32
  ret i32 %any
}

; The value itself, of unknown origin: what is computed from it is computed after this call and not ahead of a loop.
define i32 @mga_pin_u32(i32 %value) #0 {
  %same = call i32 asm sideeffect "", "=v,0"(i32 %value)
  ret i32 %same
}

; The same for values that all lanes share and that stay in scalar registers.
define i32 @mga_pin_uniform_u32(i32 %value) #0 {
  %same = call i32 asm sideeffect "", "=s,0"(i32 %value)
  ret i32 %same
}

define i64 @mga_pin_uniform_u64(i64 %value) #0 {
  %same = call i64 asm sideeffect "", "=s,0"(i64 %value)
  ret i64 %same
}

; A scalar load. The caller owes that all lanes give one address and that nothing writes there while the kernel runs.
define float @mga_load_scalar_f32(i64 %address) #0 {
  %p = inttoptr i64 %address to ptr addrspace(4)
  %v = load float, ptr addrspace(4) %p, align 4, !invariant.load !0
  ret float %v
}

declare i64 @llvm.amdgcn.s.memrealtime()
declare i32 @llvm.amdgcn.readfirstlane.i32(i32)
declare i64 @llvm.amdgcn.ballot.i64(i1)

attributes #0 = { alwaysinline nounwind }

!0 = !{}
