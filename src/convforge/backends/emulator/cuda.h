// CUDA C++'s keywords for the host's compiler, so that it compiles a kernel's source unchanged.
//
// Each CUDA thread is a fiber; barriers and warp operations are calls into the scheduler. Included before the kernel.
// There are no standard headers here, because they would take longer to compile than most kernels.
#pragma once
#include "state.h"
#include "tensor_map.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
// The host finds it by name.
#define __constant__ __attribute__((visibility("default")))
// An OS thread runs one block at a time, so thread-local variables are the block's static shared memory.
#define __shared__ static __thread

typedef __SIZE_TYPE__ size_t;

typedef emulator::Index uint3;
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define threadIdx (static_cast<const emulator::Index &>(emulator::here()->thread))
#define blockIdx (static_cast<const emulator::Index &>(emulator::here()->block))
#define blockDim (static_cast<const emulator::Index &>(emulator::here()->block_size))
#define gridDim (static_cast<const emulator::Index &>(emulator::here()->grid_size))
constexpr int warpSize = 32;

#include "arithmetic.h"
#include "atomics.h"
#include "vectors.h"

// Each operation knows the line of its call, because default arguments are evaluated at the caller.
#define AT int line = __builtin_LINE(), const char *file = __builtin_FILE()
#define SITE(what) {what, file, line}

// Barriers of the block.
inline void __syncthreads(AT) { emulator::here()->services->barrier(SITE("__syncthreads"), 0); }
inline int __syncthreads_count(int predicate, AT) {
    return emulator::here()->services->barrier(SITE("__syncthreads_count"), predicate);
}
inline int __syncthreads_or(int predicate, AT) {
    return emulator::here()->services->barrier(SITE("__syncthreads_or"), predicate) != 0;
}
inline int __syncthreads_and(int predicate, AT) {
    return emulator::here()->services->barrier(SITE("__syncthreads_and"), !predicate) == 0;
}

// Operations of the warp. `mask` names the lanes that take part; lanes that have returned are ignored.
inline void __syncwarp(unsigned mask = 0xffffffff, AT) {
    emulator::here()->services->ballot(SITE("__syncwarp"), mask, 0);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, AT) {
    return emulator::here()->services->ballot(SITE("__ballot_sync"), mask, predicate);
}
inline int __any_sync(unsigned mask, int predicate, AT) {
    return emulator::here()->services->ballot(SITE("__any_sync"), mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate, AT) {
    return emulator::here()->services->ballot(SITE("__all_sync"), mask, !predicate) == 0;
}

namespace emulator {

template <class T>
inline T exchange(Site site, unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    bits_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = here()->services->exchange(site, mask, bits, source);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

}  // namespace emulator

// A warp is cut into segments of `width` lanes, a power of two. A lane whose source is outside its segment keeps its
// own value.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, AT) {
    const unsigned lane = emulator::here()->lane, first = lane & ~(width - 1u);
    return emulator::exchange(SITE("__shfl_sync"), mask, value, first | (source & (width - 1u)));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, AT) {
    const unsigned lane = emulator::here()->lane, first = lane & ~(width - 1u);
    return emulator::exchange(SITE("__shfl_up_sync"), mask, value, lane - first >= delta ? lane - delta : lane);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, AT) {
    const unsigned lane = emulator::here()->lane, last = lane | (width - 1u);
    return emulator::exchange(SITE("__shfl_down_sync"), mask, value, last - lane >= delta ? lane + delta : lane);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, AT) {
    const unsigned lane = emulator::here()->lane, other = lane ^ lanes;
    return emulator::exchange(SITE("__shfl_xor_sync"), mask, value, other <= (lane | (width - 1u)) ? other : lane);
}

inline unsigned __reduce_max_sync(unsigned mask, unsigned value, AT) {
    unsigned largest = 0;
    for (unsigned left = mask; left; left &= left - 1)
        largest = max(largest, emulator::exchange(SITE("__reduce_max_sync"), mask, value, __builtin_ctz(left)));
    return largest;
}

// Ends a kernel early.
inline void __trap(AT) { emulator::here()->services->fail(SITE("__trap")); }
#define assert(condition) \
    ((condition) ? void() : emulator::here()->services->fail({"assert(" #condition ")", __FILE__, __LINE__}))
extern "C" int printf(const char *format, ...);

#undef AT
#undef SITE

namespace emulator {
static __thread char anchor[16];
}

// Handlers of the checks that the host's compiler inserts into the kernel, and functions that the host calls.
extern "C" {
inline __attribute__((used)) void __ubsan_handle_out_of_bounds(void *where, void *index) {
    emulator::here()->services->out_of_bounds(where, reinterpret_cast<emulator::bits_t>(index));
}
inline __attribute__((used)) void __ubsan_handle_type_mismatch_v1(void *where, void *pointer) {
    emulator::here()->services->mismatch(where, reinterpret_cast<emulator::bits_t>(pointer));
}
// An address in the calling OS thread's static shared memory.
__attribute__((visibility("default"), used)) inline void *emulator_anchor() { return emulator::anchor; }
}
