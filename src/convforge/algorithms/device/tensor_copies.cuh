// What the tensor memory accelerator does besides bringing boxes of three axes (bulk.cuh): pixels of a convolution's
// windows, boxes of four axes, and boxes that it stores.
//
// arrive_when(bar, yes);                    by a predicate: a branch would have the compiler wait for wgmma under way
// copy_box(to, map, x, y, z, v, bar);       as in bulk.cuh, with four axes
// copy_pixels(to, map, c, w, h, n, right, down, bar);
//                                           in im2col mode: from the window at (w, h, n), the tap `right` and `down` of
//                                           its first, and on through the windows of the map
// store_box(map, from, x, y[, z, v]);       ask for a box of shared memory to be stored; what lies outside is left out
// stores_are_asked();                       those asked for since are one group
// stores_have_read<1>();                    until all groups but the last one are read: their shared memory may be
//                                           written to again; 0, all, where no number is given
// stores_are_done();                        until they are in memory
#pragma once
#include "bulk.cuh"

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

__device__ inline void arrive_when(unsigned long long *bar, bool yes) {
    asm volatile(
        "{\n.reg .pred yes;\nsetp.ne.b32 yes, %1, 0;\n@yes mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(
            shared_address(bar)),
        "r"(static_cast<int>(yes))
        : "memory");
}
__device__ inline void copy_box(void *to, const Map &map, int x, int y, int z, int v, unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(v), "r"(shared_address(bar))
        : "memory");
}
__device__ inline void copy_pixels(void *to, const Map &map, int c, int w, int h, int n, int right, int down,
                                   unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(shared_address(to)),
        "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(shared_address(bar)),
        "h"(static_cast<unsigned short>(right)), "h"(static_cast<unsigned short>(down))
        : "memory");
}
__device__ inline void store_box(const Map &map, const void *from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
                 "r"(shared_address(from)), "r"(x), "r"(y)
                 : "memory");
}
__device__ inline void store_box(const Map &map, const void *from, int x, int y, int z, int v) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(v)
                 : "memory");
}
__device__ inline void stores_are_asked() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING = 0>
__device__ inline void stores_have_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ inline void stores_are_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#else  // the emulator: boxes are read when their thread waits for that

#define AT int line = __builtin_LINE(), const char *file = __builtin_FILE()

inline void arrive_when(unsigned long long *bar, bool yes, AT) {
    if (yes) emulator::here()->services->arrive({"arrive_when", file, line}, bar);
}
inline void copy_box(void *to, const Map &map, int x, int y, int z, int v, unsigned long long *bar, AT) {
    const emulator::Corner from{{x, y, z, v}};
    emulator::here()->services->copy_box({"copy_box", file, line}, to, &map, &from, 4, bar, 0);
}
inline void copy_pixels(void *to, const Map &map, int c, int w, int h, int n, int right, int down,
                        unsigned long long *bar, AT) {
    const emulator::Corner from{{c, w, h, n}, right, down};
    emulator::here()->services->copy_box({"copy_pixels", file, line}, to, &map, &from, 4, bar, 0);
}
inline void store_box(const Map &map, const void *from, int x, int y, AT) {
    const emulator::Corner to{{x, y}};
    emulator::here()->services->store_box({"store_box", file, line}, &map, from, &to, 2);
}
inline void store_box(const Map &map, const void *from, int x, int y, int z, int v, AT) {
    const emulator::Corner to{{x, y, z, v}};
    emulator::here()->services->store_box({"store_box", file, line}, &map, from, &to, 4);
}
inline void stores_are_asked() { emulator::here()->services->commit_stores(); }
template <int PENDING = 0>
inline void stores_have_read() {
    emulator::here()->services->await_stores(PENDING);
}
inline void stores_are_done() { emulator::here()->services->await_stores(0); }

#undef AT

#endif

// A place in a ring of COUNT stages, and the parity of the phase that its barriers are in.
template <int COUNT>
struct Ring {
    int stage = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == COUNT) stage = 0, parity ^= 1;
    }
    __device__ __forceinline__ void skip(int count) {
        const int at = stage + count;
        stage = at % COUNT;
        parity ^= at / COUNT & 1;
    }
};
