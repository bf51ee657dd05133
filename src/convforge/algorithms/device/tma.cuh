// The tensor memory accelerator (TMA) and clusters, sm_90 and later: one thread asks for a box of an array, no register
// waits, and a barrier in shared memory counts the bytes as they land.
//
// TMA_SHARED(Box, boxes);                   the block's dynamic shared memory, of a multiple of 128 bytes
// mbarrier_init(bar); mbarrier_init_fence();
//                                           one thread, then a barrier of the block. A phase is over once so many threads
//                                           have arrived, one where no number is given, and all bytes are there
// prefetch_tensormap(map);                  the first box need not wait for the map
// mbarrier_expect_tx(bar, bytes);           one thread, once a phase: how many bytes will come; then
// tma_load(to, map, x, y, z, bar);          ask for the box that begins at (x, y, z) of the map, counted in its units, x
//                                           fastest; zeros come where the array is not. `to` is a multiple of 128, x
//                                           times the unit's bytes one of 16, else the GPU reports an illegal instruction
// mbarrier_wait(bar, parity);               until phase 0, 1, 2, ... has landed: the lowest bit of its number
// fence_proxy_async();                      who wrote to a box that copies will overwrite, before the barrier after which
//                                           they are asked for
// mbarrier_arrive_if(bar, yes);             by a predicate: a branch would have the compiler wait for wgmma under way
// tma_load(to, map, x, y, z, v, bar);       with four axes
// tma_load_im2col(to, map, c, w, h, n, right, down, bar);
//                                           in im2col mode: from the window at (w, h, n), the tap `right` and `down` of
//                                           its first, and on through the windows of the map
// tma_store(map, from, x, y[, z, v]);       ask for a box of shared memory to be stored; what lies outside is left out
// tma_store_commit();                       those asked for since are one group
// tma_store_wait_read<1>();                 until all groups but the last one are read: their shared memory may be
//                                           written to again; 0, all, where no number is given
// tma_store_wait();                         until they are in memory
//
// Blocks of a cluster are neighbours on the chip that bring numbers to each other's shared memory. All have the same at the
// same addresses.
// cluster_rank();                           0, 1, ...: the number of a thread's block
// cluster_sync();                           all threads of all blocks: once when barriers are there, once when nobody will
//                                           touch another block's shared memory any more
// mbarrier_arrive_remote_if(block, bar, yes);
//                                           by a predicate, at the barrier that another block, or its own, has at `bar`. It
//                                           says that shared memory was read; for what was written it would take a fence
//                                           of the whole GPU (.release.cluster)
// tma_load_multicast(blocks, to, map, x, y, z[, v], bar);
//                                           ask for a box for several blocks, bit by bit; the barrier that each has at
//                                           `bar` counts its bytes
// tma_load_im2col_multicast(blocks, to, map, c, w, h, n, right, down, bar);
//                                           the same of pixels, in im2col mode
//
// Of kernels whose blocks work alone or in pairs (PAIRED), by warpgroups:
// cluster_begin<PAIRED>();                  all threads, once barriers are there
// release_stage<PAIRED>(bar, yes);          by a predicate: all threads of a warpgroup call it, and the first ones arrive
#pragma once
#include "memory.cuh"

// How an array lies in memory, as the host's runtime encodes it (tensor_map). It must be a kernel's own argument: the
// first member of the struct, so that it is aligned as it must be.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

// The empty comment keeps the emulator, which refuses these words in a kernel, from finding them here.
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

#else  // the emulator: a box lands when somebody waits for it, and not a moment sooner

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

// Boxes that are stored are read when their thread waits for that.
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

// All threads of a block, or of a pair of blocks, go on once barriers are there.
template <bool PAIRED>
__device__ inline void cluster_begin() {
    if (PAIRED) cluster_sync();
    else __syncthreads();
}

// A warpgroup has read a stage: what this holds next may come. Of a pair, both blocks must have read it.
template <bool PAIRED>
__device__ inline void release_stage(unsigned long long *bar, bool yes) {
    constexpr int BLOCKS = PAIRED ? 2 : 1;
    const int thread = threadIdx.x % 128;
    if (PAIRED) mbarrier_arrive_remote_if(thread % BLOCKS, bar, thread < BLOCKS && yes);
    else mbarrier_arrive_if(bar, thread == 0 && yes);
}
