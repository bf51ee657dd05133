// An asynchronous copy of 16 bytes for which the second level cache reads their whole line of 128 bytes: for who brings
// rows in pieces that begin and end within lines, as neighbours ask for what is left of them.
//
// copy_of_line16(tile + i, x + j, there);    as copy_async16 of device.cuh, which it is before sm_80
#pragma once
#include "device.cuh"

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

__device__ inline void copy_of_line16(void *shared, const void *global, bool there) {
#if __CUDA_ARCH__ < 800
    copy_async16(shared, global, there);
#else
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)),
                 "r"(there ? 16 : 0)
                 : "memory");
#endif
}

#else

inline void copy_of_line16(void *shared, const void *global, bool there, int line = __builtin_LINE(),
                           const char *file = __builtin_FILE()) {
    copy_async16(shared, global, there, line, file);
}

#endif
