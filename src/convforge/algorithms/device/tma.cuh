// The tensor memory accelerator (TMA) and clusters, sm_90 and later. One thread issues the copy of a box of an array,
// no registers are needed, and a barrier in shared memory counts the bytes as they land.
//
// TMA_SHARED(Box, boxes);              the block's dynamic shared memory, aligned to 128 bytes
// mbarrier_init(bar); mbarrier_init_fence();
//                                      by one thread, then a barrier of the block. A phase ends when the given number
//                                      of threads (1 by default) have arrived and all expected bytes have landed
// prefetch_tensormap(map);             prefetches the map for the first copy
// mbarrier_expect_tx(bar, bytes);      by one thread, once a phase: the number of expected bytes; then
// tma_load(to, map, x, y, z, bar);     copies the box at (x, y, z), in units of the map, x fastest. Elements outside
//                                      the array are zeros. `to` is a multiple of 128, and x times the unit's bytes
//                                      a multiple of 16; else the GPU reports an illegal instruction
// mbarrier_wait(bar, parity);          waits for the end of a phase; `parity` is the lowest bit of its number
// fence_proxy_async();                 by threads that wrote to a box that copies will overwrite, before the barrier
//                                      that precedes these copies
// mbarrier_arrive_if(bar, yes);        predicated: with a branch the compiler would wait for wgmma in flight
// tma_load(to, map, x, y, z, v, bar);  with four axes
// tma_load_im2col(to, map, c, w, h, n, right, down, bar);
//                                      im2col mode: from the window at (w, h, n), its tap `right` and `down` of the
//                                      first one, on through the windows of the map
// tma_store(map, from, x, y[, z, v]);  stores a box of shared memory; elements outside the array are skipped
// tma_store_commit();                  the stores since the last commit become one group
// tma_store_wait_read<1>();            waits until all groups but the last one (0: all, the default) have been read:
//                                      their shared memory may be overwritten
// tma_store_wait();                    waits until they are in memory
//
// The blocks of a cluster run on neighbouring SMs and can write to each other's shared memory. All use the same
// addresses.
// cluster_rank();                      number of a thread's block: 0, 1, ...
// cluster_sync();                      barrier of all threads of all blocks: after the barriers are initialised, and
//                                      before a block exits whose shared memory others may still access
// mbarrier_arrive_remote_if(block, bar, yes);
//                                      predicated: arrives at the barrier `bar` of another block, or of its own. It
//                                      orders reads of shared memory only; writes would need a fence of cluster
//                                      scope (.release.cluster)
// tma_load_multicast(blocks, to, map, x, y, z[, v], bar);
//                                      copies a box to several blocks (a bit mask); the barrier `bar` of each counts
//                                      its bytes
// tma_load_im2col_multicast(blocks, to, map, c, w, h, n, right, down, bar);
//                                      the same in im2col mode
//
// For kernels whose blocks work alone or in pairs (PAIRED), by warpgroups:
// cluster_begin<PAIRED>();             by all threads, after the barriers are initialised
// release_stage<PAIRED>(bar, yes);     predicated: called by all threads of a warpgroup; its first ones arrive
#pragma once
#include "memory.cuh"

// Describes an array in memory, as the host's runtime encodes it (tensor_map). It must be the first member of a
// kernel's argument struct, for its alignment.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

// The emulator refuses these words in a kernel's text. The empty comment hides them here.
extern /**/ __shared__ __align__(128) unsigned char tma_shared_memory[];
#define TMA_SHARED(type, name) type *const name = reinterpret_cast<type *>(tma_shared_memory)

__device__ inline void mbarrier_init(unsigned long long *bar) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(bar)) : "memory");
}
__device__ inline void mbarrier_init(unsigned long long *bar, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void prefetch_tensormap(const TensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ inline void mbarrier_expect_tx(unsigned long long *bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
__device__ inline void tma_load(void *to, const TensorMap &map, int x, int y, int z, unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(bar))
        : "memory");
}
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void mbarrier_wait(unsigned long long *bar, unsigned parity) {
    asm volatile(
        "{\n.reg .pred landed;\nagain:\nmbarrier.try_wait.parity.shared.b64 landed, [%0], %1;\n@!landed bra again;\n}" ::"r"(
            shared_address(bar)),
        "r"(parity)
        : "memory");
}

__device__ inline void mbarrier_arrive_if(unsigned long long *bar, bool yes) {
    asm volatile(
        "{\n.reg .pred yes;\nsetp.ne.b32 yes, %1, 0;\n@yes mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(
            shared_address(bar)),
        "r"(static_cast<int>(yes))
        : "memory");
}
__device__ inline void tma_load(void *to, const TensorMap &map, int x, int y, int z, int v, unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(v), "r"(shared_address(bar))
        : "memory");
}
__device__ inline void tma_load_im2col(void *to, const TensorMap &map, int c, int w, int h, int n, int right, int down,
                                   unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(shared_address(to)),
        "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(shared_address(bar)),
        "h"(static_cast<unsigned short>(right)), "h"(static_cast<unsigned short>(down))
        : "memory");
}
__device__ inline void tma_store(const TensorMap &map, const void *from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
                 "r"(shared_address(from)), "r"(x), "r"(y)
                 : "memory");
}
__device__ inline void tma_store(const TensorMap &map, const void *from, int x, int y, int z, int v) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(v)
                 : "memory");
}
__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING = 0>
__device__ inline void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ inline void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Clusters.
__device__ inline int cluster_rank() {
    int number;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
    return number;
}
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ inline void mbarrier_arrive_remote_if(int block, unsigned long long *bar, bool yes) {
    asm volatile(
        "{\n.reg .pred yes;\n.reg .b32 there;\nsetp.ne.b32 yes, %2, 0;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "@yes mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(bar)),
        "r"(block), "r"(static_cast<int>(yes))
        : "memory");
}
__device__ inline void tma_load_multicast(int blocks, void *to, const TensorMap &map, int x, int y, int z, unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(bar)), "h"(static_cast<unsigned short>(blocks))
        : "memory");
}
__device__ inline void tma_load_multicast(int blocks, void *to, const TensorMap &map, int x, int y, int z, int v,
                                   unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(v), "r"(shared_address(bar)), "h"(static_cast<unsigned short>(blocks))
        : "memory");
}
__device__ inline void tma_load_im2col_multicast(int blocks, void *to, const TensorMap &map, int c, int w, int h, int n, int right,
                                      int down, unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8}, %9;" ::"r"(shared_address(to)),
        "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(shared_address(bar)),
        "h"(static_cast<unsigned short>(right)), "h"(static_cast<unsigned short>(down)),
        "h"(static_cast<unsigned short>(blocks))
        : "memory");
}

#else  // the emulator: a box lands when a thread waits for it, not earlier

#define TMA_SHARED(type, name) DYNAMIC_SHARED(type, name)
#define AT int line = __builtin_LINE(), const char *file = __builtin_FILE()


inline void mbarrier_init(unsigned long long *bar, int arrivals = 1, AT) {
    emulator::here()->services->init_barrier({"mbarrier_init", file, line}, bar, arrivals);
}
inline void mbarrier_init_fence() {}
inline void prefetch_tensormap(const TensorMap &) {}
inline void mbarrier_expect_tx(unsigned long long *bar, unsigned bytes, AT) {
    emulator::here()->services->expect({"mbarrier_expect_tx", file, line}, bar, bytes);
}
inline void tma_load(void *to, const TensorMap &map, int x, int y, int z, unsigned long long *bar, AT) {
    const emulator::Corner from{{x, y, z}};
    emulator::here()->services->copy_box({"tma_load", file, line}, to, &map, &from, 3, bar, 0);
}
inline void fence_proxy_async() {}
inline void mbarrier_wait(unsigned long long *bar, unsigned parity, AT) {
    emulator::here()->services->await_bytes({"mbarrier_wait", file, line}, bar, parity);
}

// Boxes to be stored are read when their thread waits for that.
inline void mbarrier_arrive_if(unsigned long long *bar, bool yes, AT) {
    if (yes) emulator::here()->services->arrive({"mbarrier_arrive_if", file, line}, bar);
}
inline void tma_load(void *to, const TensorMap &map, int x, int y, int z, int v, unsigned long long *bar, AT) {
    const emulator::Corner from{{x, y, z, v}};
    emulator::here()->services->copy_box({"tma_load", file, line}, to, &map, &from, 4, bar, 0);
}
inline void tma_load_im2col(void *to, const TensorMap &map, int c, int w, int h, int n, int right, int down,
                        unsigned long long *bar, AT) {
    const emulator::Corner from{{c, w, h, n}, right, down};
    emulator::here()->services->copy_box({"tma_load_im2col", file, line}, to, &map, &from, 4, bar, 0);
}
inline void tma_store(const TensorMap &map, const void *from, int x, int y, AT) {
    const emulator::Corner to{{x, y}};
    emulator::here()->services->store_box({"tma_store", file, line}, &map, from, &to, 2);
}
inline void tma_store(const TensorMap &map, const void *from, int x, int y, int z, int v, AT) {
    const emulator::Corner to{{x, y, z, v}};
    emulator::here()->services->store_box({"tma_store", file, line}, &map, from, &to, 4);
}
inline void tma_store_commit() { emulator::here()->services->commit_stores(); }
template <int PENDING = 0>
inline void tma_store_wait_read() {
    emulator::here()->services->await_stores(PENDING);
}
inline void tma_store_wait() { emulator::here()->services->await_stores(0); }

inline int cluster_rank() { return emulator::here()->rank; }
inline void cluster_sync(AT) { emulator::here()->services->meet_cluster({"cluster_sync", file, line}); }
inline void mbarrier_arrive_remote_if(int block, unsigned long long *bar, bool yes, AT) {
    if (yes) emulator::here()->services->arrive_in({"mbarrier_arrive_remote_if", file, line}, bar, block);
}
inline void tma_load_multicast(int blocks, void *to, const TensorMap &map, int x, int y, int z, unsigned long long *bar, AT) {
    const emulator::Corner from{{x, y, z}};
    emulator::here()->services->copy_box({"tma_load_multicast", file, line}, to, &map, &from, 3, bar, blocks);
}
inline void tma_load_multicast(int blocks, void *to, const TensorMap &map, int x, int y, int z, int v, unsigned long long *bar, AT) {
    const emulator::Corner from{{x, y, z, v}};
    emulator::here()->services->copy_box({"tma_load_multicast", file, line}, to, &map, &from, 4, bar, blocks);
}
inline void tma_load_im2col_multicast(int blocks, void *to, const TensorMap &map, int c, int w, int h, int n, int right, int down,
                           unsigned long long *bar, AT) {
    const emulator::Corner from{{c, w, h, n}, right, down};
    emulator::here()->services->copy_box({"tma_load_im2col_multicast", file, line}, to, &map, &from, 4, bar, blocks);
}

#undef AT

#endif

// A stage of a ring of COUNT stages, and the parity of the current phase of its barriers.
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

// Waits until the barriers of the block, or of a pair of blocks, are initialised.
template <bool PAIRED>
__device__ inline void cluster_begin() {
    if (PAIRED) cluster_sync();
    else __syncthreads();
}

// Releases a stage that a warpgroup has read, so that it can be loaded again. In a pair, both blocks must release it.
template <bool PAIRED>
__device__ inline void release_stage(unsigned long long *bar, bool yes) {
    constexpr int BLOCKS = PAIRED ? 2 : 1;
    const int thread = threadIdx.x % 128;
    if (PAIRED) mbarrier_arrive_remote_if(thread % BLOCKS, bar, thread < BLOCKS && yes);
    else mbarrier_arrive_if(bar, thread == 0 && yes);
}
