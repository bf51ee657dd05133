// prefetch_l2(from, bytes);   asks the L2 cache for bytes of global memory, at least one, by one instruction; nothing waits
//                             for them. Neighbours that share 16 aligned bytes with them come too. Only from sm_90 on
#pragma once

__device__ inline void prefetch_l2(const void *from, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const size_t address = __cvta_generic_to_global(from), first = address & ~size_t{15};
    const unsigned size = (static_cast<unsigned>(address - first) + bytes + 15) & ~15u;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(first), "r"(size) : "memory");
#endif
}
