// Vectors, shared memory, asynchronous copies, barriers, and values kept in registers: a device half in PTX, and a host
// half for the emulator.
//
// load_vector<4>(x + i);            loads 4 neighbours by one instruction; store_vector(to, values) stores them
// DYNAMIC_SHARED(float, tile);      tile points to the block's dynamic shared memory, aligned to 16 bytes
// copy_async16(tile + i, x + j);    asynchronous from sm_80 on, immediate before
// copy_async16_l2_128b(tile + i, x + j, there);
//                                   the same; L2 fetches the whole line of 128 bytes: for rows that begin and end
//                                   within lines whose other parts a neighbour needs
// copy_async16_l1(tile + i, x + j, there);
//                                   the same through L1, for data that is read again
// copy_async_commit();              the copies since the last commit become one group
// copy_async_wait<1>();             waits for all groups but the last one; a barrier must follow for other threads
// load_shared16(tile + i);          loads 16 aligned bytes of shared memory; the compiler cannot keep them in registers
// pdl_wait();                       PDL: a kernel must read and write nothing before this call
// named_barrier<128>(1);            barrier 1 (of 1 to 15) for 128 threads of a block, in whole warps
// in_register(value);               forces a value or address into a register here. Otherwise the compiler recomputes
//                                   addresses for every load, which delays the first loads of a launch
// strided_loop<COUNT, THREADS>(thread, body);
//                                   a strided loop with a compile-time trip count
#pragma once
#include "types.cuh"

// Several neighbouring elements as one load or store of up to 16 bytes. The address is a multiple of the size. A Word
// is one instruction.
template <int BYTES> struct Word;
template <> struct Word<1> { unsigned char bits; };
template <> struct Word<2> { unsigned short bits; };
template <> struct Word<4> { unsigned bits; };
template <> struct alignas(8) Word<8> { unsigned bits[2]; };
template <> struct alignas(16) Word<16> { unsigned bits[4]; };

template <class T, int COUNT>
union Vector {
    Word<COUNT * sizeof(T)> word;
    T at[COUNT];
};

template <int COUNT, class T>
__device__ inline Vector<T, COUNT> load_vector(const T *from) {
    Vector<T, COUNT> values;
    values.word = *reinterpret_cast<const Word<COUNT * sizeof(T)> *>(from);
    return values;
}

template <int COUNT, class T>
__device__ inline void store_vector(T *to, const Vector<T, COUNT> &values) {
    *reinterpret_cast<Word<COUNT * sizeof(T)> *>(to) = values.word;
}

struct alignas(16) Quad {
    unsigned bits[4];
};

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

// The emulator refuses these words in a kernel's text. The empty comment hides them here.
extern /**/ __shared__ __align__(16) unsigned char dynamic_shared_memory[];
#define DYNAMIC_SHARED(type, name) type *const name = reinterpret_cast<type *>(dynamic_shared_memory)

// The address of shared memory in PTX's shared state space.
__device__ inline unsigned shared_address(const void *place) {
    return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// Copies 4, 8 or 16 bytes to shared memory, or zeros unless `there`. Both addresses are multiples of BYTES.
template <int BYTES>
__device__ inline void copy_async(void *shared, const void *global, bool there = true) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "copies move 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
    const unsigned target = shared_address(shared), bytes = there ? BYTES : 0;
    const size_t source = __cvta_generic_to_global(global);
    if constexpr (BYTES == 16)  // bypasses L1: pixels are read again from shared memory
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
__device__ inline void named_barrier(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}

// PDL (LaunchInfo.pdl, from sm_90 on): a launch may begin before the one before it has ended. Its blocks start when
// there is room and wait here until the results of the earlier launch are visible, so the launch overhead overlaps with
// the earlier launch. The trigger for the next launch comes first: that launch may start once all blocks of this one
// have started.
__device__ inline void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 16 bytes of shared memory, loaded here: values that are read repeatedly occupy no registers in between.
__device__ inline Quad load_shared16(const void *shared) {
    Quad quad;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad.bits[0]), "=r"(quad.bits[1]), "=r"(quad.bits[2]), "=r"(quad.bits[3])
                 : "r"(shared_address(shared)));
    return quad;
}

__device__ inline void copy_async16_l2_128b(void *shared, const void *global, bool there) {
#if __CUDA_ARCH__ < 800
    copy_async16(shared, global, there);
#else
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)),
                 "r"(there ? 16 : 0)
                 : "memory");
#endif
}

__device__ __forceinline__ void copy_async16_l1(void *shared, const void *global, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)),
                 "r"(there ? 16 : 0)
                 : "memory");
}

// Forces a number into a register here.
__device__ inline int in_register(int value) {
    asm volatile("" : "+r"(value));
    return value;
}
__device__ inline long long in_register(long long value) {
    asm volatile("" : "+l"(value));
    return value;
}

// The same for a pointer to global memory.
template <class T>
__device__ inline T *in_register(T *place) {
    size_t at = __cvta_generic_to_global(place);
    asm volatile("" : "+l"(at));
    return static_cast<T *>(__cvta_global_to_generic(at));
}

// The same for a pointer to shared memory.
template <class T>
__device__ inline T *shared_in_register(T *place) {
    unsigned at = shared_address(place);
    asm volatile("" : "+r"(at));
    return static_cast<T *>(__cvta_shared_to_generic(at));
}

#else  // the emulator: copies complete at the wait, not earlier

#define AT int line = __builtin_LINE(), const char *file = __builtin_FILE()

#define DYNAMIC_SHARED(type, name) type *const name = reinterpret_cast<type *>(emulator::here()->dynamic)

// The low bits of the real address, so that alignment is preserved.
inline unsigned shared_address(const void *place) {
    return static_cast<unsigned>(reinterpret_cast<size_t>(place) & (emulator::REGION_BYTES - 1));
}
template <int BYTES>
inline void copy_async(void *shared, const void *global, bool there = true, AT) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "copies move 4, 8 or 16 bytes");
    emulator::here()->services->copy({"copy_async", file, line}, shared, global, BYTES, there);
}
inline void copy_async16(void *shared, const void *global, bool there = true, AT) {
    copy_async<16>(shared, global, there, line, file);
}
inline void copy_async_commit() { emulator::here()->services->commit(); }
template <int PENDING = 0>
inline void copy_async_wait() {
    emulator::here()->services->wait(PENDING);
}

template <int COUNT>
inline void named_barrier(int barrier, AT) {
    emulator::here()->services->meet({"named_barrier", file, line}, barrier, COUNT);
}

inline void pdl_wait() { emulator::here()->waited++; }

inline Quad load_shared16(const void *shared) { return *static_cast<const Quad *>(shared); }

inline void copy_async16_l2_128b(void *shared, const void *global, bool there, AT) {
    copy_async16(shared, global, there, line, file);
}

inline void copy_async16_l1(void *shared, const void *global, bool there, AT) {
    copy_async16(shared, global, there, line, file);
}

template <class T>
inline T in_register(T value) {
    return value;
}
template <class T>
inline T *shared_in_register(T *place) {
    return place;
}

#undef AT

#endif

// Calls body(at, thread) for all at + thread < COUNT, with `at` a multiple of THREADS. Only the last pass tests, so
// that loads of several passes are in flight together.
template <int COUNT, int THREADS, class Body>
__device__ inline void strided_loop(int thread, Body body) {
    constexpr int PASSES = COUNT / THREADS;
#pragma unroll(PASSES <= 16 ? PASSES : 4)
    for (int pass = 0; pass < PASSES; pass++) body(pass * THREADS, thread);
    if (COUNT % THREADS > 0 && thread < COUNT % THREADS) body(PASSES * THREADS, thread);
}
