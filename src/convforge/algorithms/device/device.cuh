// Intrinsics that standard C++ has no word for: a device half in PTX, and a host half for the emulator.
//
// DYNAMIC_SHARED(float, tile);      tile points to the block's dynamic shared memory, aligned to 16 bytes
// copy_async16(tile + i, x + j);    asynchronous from sm_80 on, at once before that
// copy_async_commit();              what was asked for since the last commit is one group
// read_here(tile + i);              16 bytes of shared memory, aligned so, that no compiler keeps in registers
// copy_async_wait<1>();             until all groups but the last one have landed; then a barrier, as ever
// wait_for_earlier();               for kernels that are launched early: nothing is read or written before it
// threads_meet<128>(1);             so many threads of a block, whole warps, meet at a barrier with a number, 1 to 15
#pragma once

struct alignas(16) Quad {
    unsigned bits[4];
};

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
#define DYNAMIC_SHARED(type, name) type *const name = reinterpret_cast<type *>(dynamic_shared_memory)

// The address that PTX knows a place in shared memory by.
__device__ inline unsigned shared_address(const void *place) {
    return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// Copy 4, 8 or 16 bytes to shared memory; zeros where the source is not `there`. Both addresses are multiples of BYTES.
template <int BYTES>
__device__ inline void copy_async(void *shared, const void *global, bool there = true) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "copies move 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
    const unsigned target = shared_address(shared), bytes = there ? BYTES : 0;
    const size_t source = __cvta_generic_to_global(global);
    if constexpr (BYTES == 16)  // past L1: the pixels are read again from shared memory
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(BYTES), "r"(bytes)
                     : "memory");
#else
    if constexpr (BYTES == 16)
        *static_cast<uint4 *>(shared) = there ? *static_cast<const uint4 *>(global) : make_uint4(0, 0, 0, 0);
    else if constexpr (BYTES == 8)
        *static_cast<uint2 *>(shared) = there ? *static_cast<const uint2 *>(global) : make_uint2(0, 0);
    else
        *static_cast<unsigned *>(shared) = there ? *static_cast<const unsigned *>(global) : 0;
#endif
}
__device__ inline void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING = 0>
__device__ inline void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

__device__ inline void copy_async16(void *shared, const void *global, bool there = true) {
    copy_async<16>(shared, global, there);
}

template <int COUNT>
__device__ inline void threads_meet(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}

// A launch may begin before the one in front of it has ended (LaunchInfo.early; from sm_90 on): its blocks come as soon
// as there is room, and stand here until all that the earlier launch wrote is there. So what a launch costs is spent
// beside the launch before it. The next one is called first: it may come once all blocks of this one have.
__device__ inline void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 16 bytes of shared memory, read here and now: what is read again and again takes no registers in between.
__device__ inline Quad read_here(const void *shared) {
    Quad quad;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad.bits[0]), "=r"(quad.bits[1]), "=r"(quad.bits[2]), "=r"(quad.bits[3])
                 : "r"(shared_address(shared)));
    return quad;
}

#else  // the emulator: copies land at the wait, and not a moment sooner

#define DYNAMIC_SHARED(type, name) type *const name = reinterpret_cast<type *>(emulator::here()->dynamic)

// Bits of the real address, so that it is a multiple of what that is a multiple of.
inline unsigned shared_address(const void *place) {
    return static_cast<unsigned>(reinterpret_cast<size_t>(place) & (emulator::REGION_BYTES - 1));
}
template <int BYTES>
inline void copy_async(void *shared, const void *global, bool there = true, int line = __builtin_LINE(),
                       const char *file = __builtin_FILE()) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "copies move 4, 8 or 16 bytes");
    emulator::here()->services->copy({"copy_async", file, line}, shared, global, BYTES, there);
}
inline void copy_async16(void *shared, const void *global, bool there = true, int line = __builtin_LINE(),
                         const char *file = __builtin_FILE()) {
    copy_async<16>(shared, global, there, line, file);
}
inline void copy_async_commit() { emulator::here()->services->commit(); }
template <int PENDING = 0>
inline void copy_async_wait() {
    emulator::here()->services->wait(PENDING);
}

template <int COUNT>
inline void threads_meet(int barrier, int line = __builtin_LINE(), const char *file = __builtin_FILE()) {
    emulator::here()->services->meet({"threads_meet", file, line}, barrier, COUNT);
}

inline void wait_for_earlier() { emulator::here()->waited++; }

inline Quad read_here(const void *shared) { return *static_cast<const Quad *>(shared); }

#endif
