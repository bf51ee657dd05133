// Blocks of a cluster (sm_90 and later): neighbours on the chip that bring numbers to each other's shared memory. All have
// the same at the same addresses.
//
// block_of_cluster();                       0, 1, ...: the number of a thread's block
// cluster_meets();                          all threads of all blocks: once when barriers are there, once when nobody will
//                                           touch another block's shared memory any more
// arrive_in(block, bar, yes);               by a predicate, at the barrier that another block, or its own, has at `bar`. It
//                                           says that shared memory was read; for what was written it would take a fence
//                                           of the whole GPU (.release.cluster)
// copy_box_to(blocks, to, map, x, y, z[, v], bar);
//                                           ask for a box for several blocks, bit by bit; the barrier that each has at
//                                           `bar` counts its bytes
// copy_pixels_to(blocks, to, map, c, w, h, n, right, down, bar);
//                                           the same of pixels, in im2col mode
//
// Of kernels whose blocks work alone or in pairs (PAIRED), by warpgroups:
// blocks_begin<PAIRED>();                   all threads, once barriers are there
// stage_is_read<PAIRED>(bar, yes);          by a predicate: all threads of a warpgroup call it, and the first ones arrive
#pragma once
#include "tensor_copies.cuh"

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

__device__ inline int block_of_cluster() {
    int number;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
    return number;
}
__device__ inline void cluster_meets() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ inline void arrive_in(int block, unsigned long long *bar, bool yes) {
    asm volatile(
        "{\n.reg .pred yes;\n.reg .b32 there;\nsetp.ne.b32 yes, %2, 0;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "@yes mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(bar)),
        "r"(block), "r"(static_cast<int>(yes))
        : "memory");
}
__device__ inline void copy_box_to(int blocks, void *to, const Map &map, int x, int y, int z, unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(bar)), "h"(static_cast<unsigned short>(blocks))
        : "memory");
}
__device__ inline void copy_box_to(int blocks, void *to, const Map &map, int x, int y, int z, int v,
                                   unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(v), "r"(shared_address(bar)), "h"(static_cast<unsigned short>(blocks))
        : "memory");
}
__device__ inline void copy_pixels_to(int blocks, void *to, const Map &map, int c, int w, int h, int n, int right,
                                      int down, unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8}, %9;" ::"r"(shared_address(to)),
        "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(shared_address(bar)),
        "h"(static_cast<unsigned short>(right)), "h"(static_cast<unsigned short>(down)),
        "h"(static_cast<unsigned short>(blocks))
        : "memory");
}

#else  // the emulator

#define AT int line = __builtin_LINE(), const char *file = __builtin_FILE()

inline int block_of_cluster() { return emulator::here()->rank; }
inline void cluster_meets(AT) { emulator::here()->services->meet_cluster({"cluster_meets", file, line}); }
inline void arrive_in(int block, unsigned long long *bar, bool yes, AT) {
    if (yes) emulator::here()->services->arrive_in({"arrive_in", file, line}, bar, block);
}
inline void copy_box_to(int blocks, void *to, const Map &map, int x, int y, int z, unsigned long long *bar, AT) {
    const emulator::Corner from{{x, y, z}};
    emulator::here()->services->copy_box({"copy_box_to", file, line}, to, &map, &from, 3, bar, blocks);
}
inline void copy_box_to(int blocks, void *to, const Map &map, int x, int y, int z, int v, unsigned long long *bar, AT) {
    const emulator::Corner from{{x, y, z, v}};
    emulator::here()->services->copy_box({"copy_box_to", file, line}, to, &map, &from, 4, bar, blocks);
}
inline void copy_pixels_to(int blocks, void *to, const Map &map, int c, int w, int h, int n, int right, int down,
                           unsigned long long *bar, AT) {
    const emulator::Corner from{{c, w, h, n}, right, down};
    emulator::here()->services->copy_box({"copy_pixels_to", file, line}, to, &map, &from, 4, bar, blocks);
}

#undef AT

#endif

// All threads of a block, or of a pair of blocks, go on once barriers are there.
template <bool PAIRED>
__device__ inline void blocks_begin() {
    if (PAIRED) cluster_meets();
    else __syncthreads();
}

// A warpgroup has read a stage: what this holds next may come. Of a pair, both blocks must have read it.
template <bool PAIRED>
__device__ inline void stage_is_read(unsigned long long *bar, bool yes) {
    constexpr int BLOCKS = PAIRED ? 2 : 1;
    const int thread = threadIdx.x % 128;
    if (PAIRED) arrive_in(thread % BLOCKS, bar, thread < BLOCKS && yes);
    else arrive_when(bar, thread == 0 && yes);
}
