// Boxes of a picture, brought to shared memory by the tensor memory accelerator (sm_90 and later): one thread asks, no
// register waits, and a barrier in shared memory counts the bytes as they land.
//
// BOX_SHARED(Box, boxes);                   the block's dynamic shared memory, of a multiple of 128 bytes
// init_barrier(bar); barriers_are_there();  one thread, then a barrier of the block. A phase is over once so many threads
//                                           have arrived, one where no number is given, and all bytes are there
// prefetch_map(map);                        the first box need not wait for the map
// expect_bytes(bar, bytes);                 one thread, once a phase: how many bytes will come; then
// copy_box(to, map, x, y, z, bar);          ask for the box that begins at (x, y, z) of the map, counted in its units, x
//                                           fastest; zeros come where the array is not. `to` is a multiple of 128, x
//                                           times the unit's bytes one of 16, else the GPU reports an illegal instruction
// await_bytes(bar, parity);                 until phase 0, 1, 2, ... has landed: the lowest bit of its number
// copies_may_overwrite();                   who wrote to a box that copies will overwrite, before the barrier after which
//                                           they are asked for
#pragma once
#include "device.cuh"

// How an array lies in memory, as the host's runtime encodes it (tensor_map). It must be a kernel's own argument: the
// first member of the struct, so that it is aligned as it must be.
struct alignas(64) Map {
    unsigned char bytes[128];
};

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

extern __shared__ __align__(128) unsigned char boxes_in_shared_memory[];
#define BOX_SHARED(type, name) type *const name = reinterpret_cast<type *>(boxes_in_shared_memory)

__device__ inline void init_barrier(unsigned long long *bar) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(bar)) : "memory");
}
__device__ inline void init_barrier(unsigned long long *bar, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
__device__ inline void barriers_are_there() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void prefetch_map(const Map &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ inline void expect_bytes(unsigned long long *bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
__device__ inline void copy_box(void *to, const Map &map, int x, int y, int z, unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(bar))
        : "memory");
}
__device__ inline void copies_may_overwrite() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void await_bytes(unsigned long long *bar, unsigned parity) {
    asm volatile(
        "{\n.reg .pred landed;\nagain:\nmbarrier.try_wait.parity.shared.b64 landed, [%0], %1;\n@!landed bra again;\n}" ::"r"(
            shared_address(bar)),
        "r"(parity)
        : "memory");
}

#else  // the emulator: a box lands when somebody waits for it, and not a moment sooner

#define BOX_SHARED(type, name) DYNAMIC_SHARED(type, name)
#define AT int line = __builtin_LINE(), const char *file = __builtin_FILE()

inline void init_barrier(unsigned long long *bar, int arrivals = 1, AT) {
    emulator::here()->services->init_barrier({"init_barrier", file, line}, bar, arrivals);
}
inline void barriers_are_there() {}
inline void prefetch_map(const Map &) {}
inline void expect_bytes(unsigned long long *bar, unsigned bytes, AT) {
    emulator::here()->services->expect({"expect_bytes", file, line}, bar, bytes);
}
inline void copy_box(void *to, const Map &map, int x, int y, int z, unsigned long long *bar, AT) {
    const emulator::Corner from{{x, y, z}};
    emulator::here()->services->copy_box({"copy_box", file, line}, to, &map, &from, 3, bar, 0);
}
inline void copies_may_overwrite() {}
inline void await_bytes(unsigned long long *bar, unsigned parity, AT) {
    emulator::here()->services->await_bytes({"await_bytes", file, line}, bar, parity);
}

#undef AT

#endif
