// Shared by a compiled kernel and the scheduler: the position of a CUDA thread, and the services that it may call.
//
// All memory of one OS thread is in one region that is aligned to its size: this struct, dynamic shared memory, then
// the stacks. So a CUDA thread finds its State from the address of its own stack frame, which takes one instruction and
// no thread-local variable.
#pragma once

namespace emulator {

typedef unsigned long long bits_t;

constexpr bits_t REGION_BYTES = 1ull << 28;

struct Index {
    unsigned x, y, z;
};

// An operation and its place in the source.
struct Site {
    const char *what;
    const char *file;
    int line;
};

struct Corner;  // tensor_map.h

// Calls from a CUDA thread into the scheduler, with the place of the call.
struct Services {
    unsigned (*barrier)(Site site, int predicate);                                // number of true predicates
    unsigned (*ballot)(Site site, unsigned mask, int predicate);                  // a bit for each lane
    bits_t (*exchange)(Site site, unsigned mask, bits_t value, unsigned source);  // the value of lane `source`
    void (*copy)(Site site, void *shared, const void *global, unsigned bytes, int there);
    void (*commit)();
    void (*wait)(unsigned pending);
    void (*meet)(Site site, unsigned barrier, unsigned threads);
    void (*init_barrier)(Site site, unsigned long long *bar, unsigned arrivals);  // from here on: tma.h
    void (*arrive)(Site site, unsigned long long *bar);
    void (*expect)(Site site, unsigned long long *bar, unsigned bytes);
    void (*arrive_in)(Site site, unsigned long long *bar, unsigned block);
    void (*meet_cluster)(Site site);
    // `blocks`: a bit mask of blocks of the cluster; 0: the thread's own.
    void (*copy_box)(Site site, void *to, const void *map, const Corner *from, unsigned axes, unsigned long long *bar,
                     unsigned blocks);
    void (*await_bytes)(Site site, unsigned long long *bar, unsigned parity);
    void (*store_box)(Site site, const void *map, const void *shared, const Corner *to, unsigned axes);
    void (*commit_stores)();
    void (*await_stores)(unsigned pending);
    void (*multiply)(Site site, const char *instruction, const char *majors, void *sums, unsigned count, bits_t a,
                     bits_t b, bool adds);  // these three: products.h
    void (*commit_products)();
    void (*await_products)(Site site, unsigned pending);
    // Called by all lanes of a warp: fragments.h.
    void (*multiply_fragments)(Site site, const char *types, void *sums, const unsigned *a, const unsigned *b);
    void (*load_fragments)(Site site, unsigned *words, const void *row, bool transposed);
    void (*fail)(Site site);
    void (*out_of_bounds)(const void *where, bits_t index);  // of -fsanitize=bounds
    void (*mismatch)(const void *where, bits_t pointer);     // of -fsanitize=alignment,object-size
};

struct State {
    Index thread, block, block_size, grid_size;
    unsigned lane, rank;     // rank: of the block in its cluster
    unsigned waited;         // threads of the block that waited for earlier launches
    unsigned char *dynamic;  // the dynamic shared memory
    const Services *services;
};

__attribute__((always_inline)) inline State *here() {
#if defined(__x86_64__)
    bits_t inside;
    __asm__("movq %%rsp, %0" : "=r"(inside));
#else
    const bits_t inside = reinterpret_cast<bits_t>(__builtin_frame_address(0));
#endif
    return reinterpret_cast<State *>(inside & ~(REGION_BYTES - 1));
}

}  // namespace emulator
