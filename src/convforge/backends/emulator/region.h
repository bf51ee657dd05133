// The memory of one OS thread that runs blocks: its state, dynamic shared memory between forbidden pages, and a stack
// for every CUDA thread, each above a forbidden page. Regions are kept and reused.
#pragma once
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "state.h"
#include "switch.h"
#include "tensor_map.h"

namespace emulator {

constexpr unsigned MOST_THREADS = 1024, WARP = 32, MOST_WARPS = MOST_THREADS / WARP;
#if defined(__x86_64__)
constexpr bits_t PAGE = 4096;
#else
constexpr bits_t PAGE = 65536;  // the largest in use on any system, a multiple of the others
#endif
constexpr bits_t DYNAMIC_BYTES = 256 << 10;
constexpr bits_t STACK_BYTES = 64 << 10;
// An odd number of pages from stack to stack, so that their tops are in different cache lines.
constexpr bits_t STACK_STEP = STACK_BYTES + PAGE;
constexpr unsigned char POISON = 0xff;  // a NaN, or -1

// An asynchronous copy in flight.
struct Copy {
    void *shared;
    const void *global;
    unsigned bytes;
    int there;
    unsigned group;
};

// A box, or in im2col mode rows of pixels, in flight to or from shared memory.
struct Box {
    unsigned char *shared;
    TensorMap map;
    Corner from;
};

constexpr unsigned MOST_BYTE_BARRIERS = 128, MOST_BOXES = 32;

// An mbarrier: it counts arrivals and bytes in its current phase.
struct ByteBarrier {
    const void *at;
    unsigned phase, arrivals, arrived;
    bits_t expected, asked;
    unsigned box_count;
    Box boxes[MOST_BOXES];
};

constexpr unsigned WARPGROUP = 128, MOST_WARPGROUPS = MOST_THREADS / WARPGROUP, MOST_PRODUCTS = 128;

// A matrix product of a warpgroup, computed when all its threads have issued it.
struct Product {
    const char *instruction, *majors;
    bits_t a, b;
    bool adds, done;
    unsigned count, group, threads;  // sums of a thread; the group; threads that have issued it
    void *sums[WARPGROUP];
};

// Products in flight, in a ring; `first` and `next` only increase.
struct Warpgroup {
    unsigned first, next;
    Product products[MOST_PRODUCTS];
};

enum Status : unsigned char {
    NEW, RUNNABLE, AT_BARRIER, AT_CLUSTER, IN_WARP, AWAITS_BYTES, MEETS, AWAITS_PRODUCTS, RETURNED
};

// One CUDA thread.
struct Fiber {
    Context context;
    Index index;
    int stack;  // -1: none yet
    Status status;
    Site site;              // where it waits
    unsigned mask, source;  // of a warp operation; also a predicate
    bits_t value;
    const void *awaits;  // an mbarrier
    Copy *copies;
    unsigned copy_count, copy_room, group;
    unsigned product, product_group;  // issued so far
    Box *stores;                      // boxes to be stored
    unsigned *store_groups;
    unsigned store_count, store_room, store_group;
};

struct Warp {
    unsigned exist, runnable, returned, waiting;  // bit by lane; waiting: in an operation of the warp
};

struct Error {
    int kind;  // 0: none; 1: of a thread; 2: of a block; 3: of the launch
    Index block, thread;
    char text[512];
};

// A launch, as described by the host.
struct Job {
    void (*enter)(const void *args);
    void *(*anchor)();
    bits_t shared_offset, shared_bytes;  // offset of the anchor in static shared memory, and its size
    const void *args;
    bits_t args_bytes;
    Index grid, block;
    bits_t dynamic_bytes;
    bits_t order, seed, pdl;
    bits_t cluster;  // blocks of one, along x
};

enum Order { FORWARD, BACKWARD, SHUFFLED };

struct Cluster;  // clusters.h

struct Region {
    State state;
    const Job *job;
    Error *error;
    Context scheduler;
    unsigned current, threads, waiting, returned, yes;
    Cluster *cluster;  // nullptr: each block runs by itself
    unsigned at_cluster;
    bool ran, ended;  // since the block's turn began; before the others of its cluster
    unsigned char *shared;                    // static
    unsigned char *shared_page, *shared_end;  // the pages of dynamic shared memory
    bits_t random;
    Region *next_free;
    int most_stacks, free_count;
    short free_stacks[MOST_THREADS];
    Warp warps[MOST_WARPS];
    Fiber fibers[MOST_THREADS];
    unsigned byte_barrier_count;
    ByteBarrier byte_barriers[MOST_BYTE_BARRIERS];
    Warpgroup warpgroups[MOST_WARPGROUPS];
    alignas(64) unsigned char args[4096];
    alignas(64) unsigned char signal_stack[64 << 10];
};

constexpr bits_t HEAD_BYTES = (sizeof(Region) + PAGE - 1) / PAGE * PAGE;
constexpr bits_t GAP_BYTES = 1 << 20;  // forbidden, on either side of dynamic shared memory
constexpr bits_t DYNAMIC_START = HEAD_BYTES + GAP_BYTES;
constexpr bits_t STACKS_START = DYNAMIC_START + DYNAMIC_BYTES + GAP_BYTES;
static_assert(STACKS_START + MOST_THREADS * STACK_STEP <= REGION_BYTES, "a region holds the stacks of a block");

inline Region *region() { return reinterpret_cast<Region *>(here()); }
inline unsigned char *bytes_of(Region *r) { return reinterpret_cast<unsigned char *>(r); }
inline Fiber &current(Region *r) { return r->fibers[r->current]; }

inline unsigned random_below(Region *r, unsigned limit) {  // splitmix64
    bits_t z = r->random += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return static_cast<unsigned>((z ^ (z >> 31)) % limit);
}

// Makes a waiting thread runnable.
inline void wake(Region *r, unsigned thread) {
    r->fibers[thread].status = RUNNABLE;
    r->warps[thread / WARP].runnable |= 1u << thread % WARP;
}

// Switches to the scheduler until this thread runs again.
inline void leave(Region *r) { switch_stack(&current(r).context, &r->scheduler); }

inline void start_waiting(Region *r, Status status, Site site, unsigned mask) {
    Fiber &fiber = current(r);
    fiber.status = status;
    fiber.site = site;
    fiber.mask = mask;
}

inline bool in_shared(const Region *r, const void *at, unsigned bytes) {
    const unsigned char *start = static_cast<const unsigned char *>(at);
    return (start >= r->shared && start + bytes <= r->shared + r->job->shared_bytes) ||
           (start >= r->state.dynamic && start + bytes <= r->state.dynamic + r->job->dynamic_bytes);
}

// Lowest address of the stack of number `i`; the page below is forbidden.
inline unsigned char *stack(Region *r, int i) { return bytes_of(r) + STACKS_START + PAGE + i * STACK_STEP; }

constexpr int MOST_REGIONS = 1024;
static pthread_mutex_t regions_lock = PTHREAD_MUTEX_INITIALIZER;
static Region *free_regions;
static Region *all_regions[MOST_REGIONS];  // read by the signal handler
static int region_count;

// The region that contains an address, or null.
inline Region *region_of(bits_t address) {
    Region *found = reinterpret_cast<Region *>(address & ~(REGION_BYTES - 1));
    const int count = __atomic_load_n(&region_count, __ATOMIC_ACQUIRE);
    for (int i = 0; i < count; i++)
        if (all_regions[i] == found) return found;
    return nullptr;
}

inline Region *new_region() {
    if (region_count == MOST_REGIONS) return nullptr;
    // Twice the size contains an aligned region; untouched pages take no memory.
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *raw = mmap(nullptr, 2 * REGION_BYTES, PROT_NONE, flags, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    const bits_t start = reinterpret_cast<bits_t>(raw), aligned = (start + REGION_BYTES - 1) & ~(REGION_BYTES - 1);
    if (aligned > start) munmap(raw, aligned - start);
    if (aligned < start + REGION_BYTES)
        munmap(reinterpret_cast<void *>(aligned + REGION_BYTES), start + REGION_BYTES - aligned);
    Region *r = reinterpret_cast<Region *>(aligned);
    if (mprotect(r, HEAD_BYTES, PROT_READ | PROT_WRITE)) {
        munmap(r, REGION_BYTES);
        return nullptr;
    }
    for (Fiber &fiber : r->fibers) fiber.stack = -1;
    r->shared_end = r->shared_page = bytes_of(r) + DYNAMIC_START + DYNAMIC_BYTES;
    all_regions[region_count] = r;
    __atomic_store_n(&region_count, region_count + 1, __ATOMIC_RELEASE);
    return r;
}

// A region for the calling OS thread, or null if the system has no memory.
inline Region *take_region() {
    pthread_mutex_lock(&regions_lock);
    Region *r = free_regions;
    if (r)
        free_regions = r->next_free;
    else
        r = new_region();
    pthread_mutex_unlock(&regions_lock);
    return r;
}

inline void give_region(Region *r) {
    pthread_mutex_lock(&regions_lock);
    r->next_free = free_regions;
    free_regions = r;
    pthread_mutex_unlock(&regions_lock);
}

// Reserves dynamic shared memory of this size for blocks. It ends at a forbidden page, or less than 16 bytes before
// one, because it begins at a multiple of 16. The rest of its first page is filled with poison, which is checked later.
inline bool place_dynamic(Region *r, bits_t nbytes) {
    r->state.dynamic = r->shared_end - (nbytes + 15) / 16 * 16;
    unsigned char *page = r->shared_end - (nbytes + PAGE - 1) / PAGE * PAGE;
    const bits_t opened = r->shared_page > page ? r->shared_page - page : 0;
    const bits_t closed = page > r->shared_page ? page - r->shared_page : 0;
    if (opened && mprotect(page, opened, PROT_READ | PROT_WRITE)) return false;
    if (closed && mprotect(r->shared_page, closed, PROT_NONE)) return false;
    r->shared_page = page;
    return true;
}

// A stack for a CUDA thread. The one released last is reused first, because it is in the cache.
inline int take_stack(Region *r) {
    if (r->free_count) return r->free_stacks[--r->free_count];
    const int i = r->most_stacks;
    if (mprotect(stack(r, i), STACK_BYTES, PROT_READ | PROT_WRITE)) return -1;
    r->most_stacks = i + 1;
    return i;
}

inline void give_stack(Region *r, Fiber &fiber) {
    r->free_stacks[r->free_count++] = static_cast<short>(fiber.stack);
    fiber.stack = -1;
}

}  // namespace emulator
