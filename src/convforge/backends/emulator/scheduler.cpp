// Runs the blocks of a grid: one fiber for each CUDA thread, one block on each OS thread. clusters.h runs the blocks of
// a cluster.
//
// A CUDA thread runs until it returns or waits: at a barrier, in an operation of its warp, for bytes, or for products
// of its warpgroup. Then the next one runs. Warps run one after the other, each until all its lanes have returned or
// wait. The caller chooses the order of warps and lanes. When no thread can run, either all wait at the same barrier,
// which then opens, or the kernel is wrong. A missing barrier shows as poison or old values in some order.
#include <dlfcn.h>
#include <link.h>

#include "tma.h"
#include "faults.h"
#include "fragments.h"
#include "region.h"

namespace emulator {

static void begin_thread() {
    Region *r = region();
    r->job->enter(r->args);
    current(r).status = RETURNED;
    leave(r);
    __builtin_unreachable();
}

static Index index_of(bits_t linear, Index size) {
    return {static_cast<unsigned>(linear % size.x), static_cast<unsigned>(linear / size.x % size.y),
            static_cast<unsigned>(linear / size.x / size.y)};
}

static bool same_text(const char *a, const char *b) { return a == b || !strcmp(a, b); }

static bool same_site(const Site &a, const Site &b) {
    return a.line == b.line && same_text(a.what, b.what) && same_text(a.file, b.file);
}

static unsigned barrier(Site site, int predicate) {
    Region *r = region();
    start_waiting(r, AT_BARRIER, site, 0);
    r->waiting++;
    current(r).value = predicate != 0;
    leave(r);
    return r->yes;
}

// Values of a lane's source for operations in which each lane gets the ballot, or in which the last lane works for all.
constexpr unsigned VOTE = WARP, TOGETHER = WARP + 1, ALL = 0xffffffffu;

// The lanes of a warp in this operation, if all that it waits for have arrived; else 0. `own` is the bit of a lane that
// has just arrived, or 0.
static unsigned arrived(Region *r, unsigned w, const Fiber &first, unsigned own) {
    const Warp &warp = r->warps[w];
    const unsigned expected = first.source == TOGETHER ? ALL : first.mask & warp.exist & ~warp.returned;
    if (expected & ~(warp.waiting | own)) return 0;
    for (unsigned left = expected; left; left &= left - 1) {
        const Fiber &other = r->fibers[w * WARP + __builtin_ctz(left)];
        if (other.status != IN_WARP || other.mask != first.mask || !same_site(other.site, first.site)) return 0;
    }
    return expected;
}

// Completes an operation of a warp: every lane gets the value of its source, or the ballot.
static void complete(Region *r, unsigned w, unsigned lanes, const Fiber &first) {
    Fiber *fibers = r->fibers + w * WARP;
    bits_t values[WARP], ballot = 0;
    const bool votes = first.source == VOTE;
    if (first.source == TOGETHER) {
        const Together *given[WARP];
        for (unsigned i = 0; i < WARP; i++) given[i] = reinterpret_cast<const Together *>(fibers[i].value);
        given[0]->work(r, first.site, given);
    }
    for (unsigned left = lanes; left; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        values[lane] = fibers[lane].value;
        ballot |= (values[lane] & 1) << lane;
    }
    for (unsigned left = lanes; left; left &= left - 1) {
        Fiber &fiber = fibers[__builtin_ctz(left)];
        const unsigned source = fiber.source % WARP;
        // A source that is absent gives poison.
        fiber.value = votes ? ballot : lanes >> source & 1 ? values[source] : ~0ull;
        fiber.status = RUNNABLE;
    }
    r->warps[w].runnable |= lanes;
    r->warps[w].waiting &= ~lanes;
}

static bits_t in_warp(Site site, unsigned mask, bits_t value, unsigned source) {
    Region *r = region();
    Fiber &fiber = current(r);
    const unsigned w = r->current / WARP, lane = 1u << r->current % WARP;
    if (!(mask & lane)) {
        describe(r, "a lane calls %s with mask 0x%08x, which does not name it, %s:%d", site.what, mask, site.file,
                 site.line);
        abandon(r);
    }
    start_waiting(r, IN_WARP, site, mask);
    fiber.value = value;
    fiber.source = source;
    if (const unsigned lanes = arrived(r, w, fiber, lane)) {
        complete(r, w, lanes, fiber);
        r->warps[w].runnable &= ~lane;  // it runs already
        return fiber.value;
    }
    r->warps[w].waiting |= lane;
    leave(r);
    return fiber.value;
}

static unsigned ballot(Site site, unsigned mask, int predicate) {
    return static_cast<unsigned>(in_warp(site, mask, predicate != 0, VOTE));
}

static bits_t exchange(Site site, unsigned mask, bits_t value, unsigned source) {
    return in_warp(site, mask, value, source & 31);
}

static void multiply_fragments(Site site, const char *types, void *sums, const unsigned *a, const unsigned *b) {
    const Fragments mine{{multiply_all}, types, sums, a, b};
    in_warp(site, ALL, reinterpret_cast<bits_t>(static_cast<const Together *>(&mine)), TOGETHER);
}

static void load_fragments(Site site, unsigned *words, const void *row, bool transposed) {
    const MatrixRow mine{{load_all}, words, static_cast<const unsigned char *>(row), transposed};
    in_warp(site, ALL, reinterpret_cast<bits_t>(static_cast<const Together *>(&mine)), TOGETHER);
}

static void copy(Site site, void *shared, const void *global, unsigned bytes, int there) {
    Region *r = region();
    Fiber &fiber = current(r);
    const char *fault = nullptr;
    if (!in_shared(r, shared, bytes)) fault = "its target is not in shared memory";
    if (reinterpret_cast<bits_t>(shared) % bytes || reinterpret_cast<bits_t>(global) % bytes)
        fault = "its addresses must be multiples of its size";
    if (fault) {
        describe(r, "%s of %u bytes: %s, %s:%d", site.what, bytes, fault, site.file, site.line);
        abandon(r);
    }
    if (fiber.copy_count == fiber.copy_room) {
        fiber.copy_room = fiber.copy_room ? 2 * fiber.copy_room : 16;
        fiber.copies = static_cast<Copy *>(realloc(fiber.copies, fiber.copy_room * sizeof(Copy)));
        if (!fiber.copies) abort();  // no memory
    }
    fiber.copies[fiber.copy_count++] = {shared, global, bytes, there, fiber.group};
}

static void commit() { current(region()).group++; }

// Completes the copies of all groups but the last `pending`. Copies that nobody waits for never complete.
static void wait(unsigned pending) {
    Fiber &fiber = current(region());
    unsigned kept = 0;
    for (unsigned i = 0; i < fiber.copy_count; i++) {
        const Copy &one = fiber.copies[i];
        if (one.group + pending >= fiber.group)
            fiber.copies[kept++] = one;
        else if (one.there)
            memcpy(one.shared, one.global, one.bytes);
        else
            memset(one.shared, 0, one.bytes);
    }
    fiber.copy_count = kept;
}

// Named barrier (bar.sync) of this number of threads of a block.
static void meet(Site site, unsigned number, unsigned threads) {
    Region *r = region();
    start_waiting(r, MEETS, site, 0);
    current(r).source = number;
    unsigned there = 0;
    for (unsigned t = 0; t < r->threads; t++) there += r->fibers[t].status == MEETS && r->fibers[t].source == number;
    if (there < threads) {
        leave(r);
        return;
    }
    for (unsigned t = 0; t < r->threads; t++)
        if (r->fibers[t].status == MEETS && r->fibers[t].source == number) wake(r, t);
    r->warps[r->current / WARP].runnable &= ~(1u << r->current % WARP);  // it runs already
}

static const Services services = {
    barrier, ballot, exchange, copy, commit, wait, meet, init_barrier, arrive, expect, arrive_in, meet_cluster, copy_box,
    await_bytes, store_box, commit_stores, await_stores, multiply, commit_products, await_products, multiply_fragments,
    load_fragments, fail, out_of_bounds, mismatch,
};

// Runs a thread until it returns or waits. False: it failed.
static bool resume(Region *r, unsigned thread) {
    Fiber &fiber = r->fibers[thread];
    const unsigned w = thread / WARP;
    r->current = thread;
    r->state.thread = fiber.index;
    r->state.lane = thread % WARP;
    if (fiber.stack < 0) {
        fiber.stack = take_stack(r);
        if (fiber.stack < 0) {
            describe(r, "the system has no memory left for the stacks of a block's threads");
            r->error->kind = 3;
            return false;
        }
        // Stacks start at different offsets in their pages, again for the cache.
        unsigned char *bottom = stack(r, fiber.stack), *top = bottom + STACK_BYTES - fiber.stack % 16 * 192;
        prepare(&fiber.context, bottom, top, begin_thread);
    }
    fiber.status = RUNNABLE;
    r->ran = true;
    switch_stack(&r->scheduler, &fiber.context);
    if (r->error->kind) return false;
    if (fiber.status != RETURNED) return true;
    give_stack(r, fiber);
    r->returned++;
    r->warps[w].returned |= 1u << thread % WARP;
    // It may have been the last lane that an operation of its warp waited for.
    for (unsigned left = r->warps[w].waiting; left; left &= left - 1) {
        const Fiber &other = r->fibers[w * WARP + __builtin_ctz(left)];
        if (const unsigned lanes = arrived(r, w, other, 0)) complete(r, w, lanes, other);
    }
    return true;
}

static bool run_warp(Region *r, unsigned w) {
    Warp &warp = r->warps[w];
    while (warp.runnable) {
        unsigned lane = __builtin_ctz(warp.runnable);
        if (r->job->order == BACKWARD) lane = 31 - __builtin_clz(warp.runnable);
        if (r->job->order == SHUFFLED) {
            const unsigned turn = random_below(r, WARP);
            const unsigned transposed = warp.runnable >> turn | (turn ? warp.runnable << (WARP - turn) : 0);
            lane = (__builtin_ctz(transposed) + turn) % WARP;
        }
        warp.runnable &= ~(1u << lane);
        if (!resume(r, w * WARP + lane)) return false;
    }
    return true;
}

// Describes a deadlock: which threads wait where. The error is reported at the first of these places.
static void describe_stuck(Region *r) {
    char text[sizeof r->error->text];
    size_t used = 0;
    text[0] = 0;
    bool counted[MOST_THREADS] = {};
    bool awaited = false, meets = false;
    unsigned shown = 0, first = 0;
    for (unsigned t = 0; t < r->threads && shown < 4; t++) {
        const Fiber &fiber = r->fibers[t];
        if (counted[t] || fiber.status == RETURNED) continue;
        unsigned count = 0;
        for (unsigned other = t; other < r->threads; other++)
            if (r->fibers[other].status == fiber.status && same_site(r->fibers[other].site, fiber.site))
                counted[other] = true, count++;
        const Index at = fiber.index;
        awaited |= fiber.status == AWAITS_BYTES;
        meets |= fiber.status == MEETS || fiber.status == AWAITS_PRODUCTS || fiber.status == AT_CLUSTER;
        if (!shown++) first = t;
        used += snprintf(text + used, sizeof text - used, "%s%u of %u threads wait at %s, %s:%d, first (%u, %u, %u)",
                         used ? "; " : "", count, r->threads, fiber.site.what, fiber.site.file, fiber.site.line, at.x,
                         at.y, at.z);
        if (used >= sizeof text) used = sizeof text - 1;
    }
    if (r->returned) snprintf(text + used, sizeof text - used, "; %u have returned", r->returned);
    r->state.thread = r->fibers[first].index;
    const char *why = r->waiting ? "divergent barrier: " : "a warp waits for lanes that do not come: ";
    if (meets) why = "threads wait for others that do not come: ";
    if (awaited) why = "a thread waits for bytes that do not come: ";
    describe(r, "%s%s", why, text);
}

// Opens the barrier if all threads wait at it. False: they do not.
static bool open_barrier(Region *r) {
    if (r->waiting < r->threads) return false;
    unsigned yes = 0;
    for (unsigned t = 0; t < r->threads; t++) {
        if (!same_site(r->fibers[t].site, r->fibers[0].site)) return false;
        yes += static_cast<unsigned>(r->fibers[t].value);
    }
    r->yes = yes;
    r->waiting = 0;
    for (unsigned w = 0; w * WARP < r->threads; w++) r->warps[w].runnable = r->warps[w].exist;
    return true;
}

static bool anyone_can_run(const Region *r) {
    for (unsigned w = 0; w * WARP < r->threads; w++)
        if (r->warps[w].runnable) return true;
    return false;
}

// Checks that nobody wrote to the pages around dynamic shared memory.
static bool around_is_poison(Region *r, const unsigned char *start, const unsigned char *end) {
    if (start == end || (*start == POISON && !memcmp(start, start + 1, end - start - 1))) return true;
    while (*start == POISON) start++;
    describe(r, "dynamic shared memory has %llu bytes; byte %lld of it was written", r->job->dynamic_bytes,
             static_cast<long long>(start - r->state.dynamic));
    r->error->kind = 2;
    return false;
}

static bool run_block(Region *r) {
    const unsigned warps = (r->threads + WARP - 1) / WARP;
    memset(r->shared, POISON, r->job->shared_bytes);
    memset(r->shared_page, POISON, r->shared_end - r->shared_page);
    r->waiting = r->returned = r->state.waited = r->byte_barrier_count = r->at_cluster = 0;
    r->ran = false;
    for (unsigned t = 0; t < r->threads; t++) {
        Fiber &fiber = r->fibers[t];
        fiber.status = NEW;
        fiber.copy_count = fiber.group = fiber.product = fiber.product_group = 0;
        fiber.store_count = fiber.store_group = 0;
    }
    for (unsigned i = 0; i * WARPGROUP < r->threads; i++) r->warpgroups[i].first = r->warpgroups[i].next = 0;
    for (unsigned w = 0; w < warps; w++) {
        const unsigned lanes = r->threads - w * WARP < WARP ? r->threads - w * WARP : WARP;
        const unsigned exist = lanes == WARP ? ~0u : (1u << lanes) - 1;
        r->warps[w] = {exist, exist, 0, 0};
    }
    do {
        unsigned turn[MOST_WARPS];
        for (unsigned w = 0; w < warps; w++) {
            turn[w] = r->job->order == BACKWARD ? warps - 1 - w : w;
            if (r->job->order != SHUFFLED) continue;
            const unsigned other = random_below(r, w + 1);
            turn[w] = turn[other], turn[other] = w;
        }
        for (unsigned i = 0; i < warps; i++)
            if (!run_warp(r, turn[i])) return false;
        if (r->returned == r->threads) break;
    } while (anyone_can_run(r) || open_barrier(r) || others_go_on(r));
    if (r->returned < r->threads) {
        describe_stuck(r);
        return false;
    }
    if (r->job->pdl && r->state.waited < r->threads) {
        describe(r, "it is launched early, but %u threads never call pdl_wait", r->threads - r->state.waited);
        r->error->kind = 2;
        return false;
    }
    return nothing_is_under_way(r) && no_product_is_under_way(r) &&
           around_is_poison(r, r->shared_page, r->state.dynamic) &&
           around_is_poison(r, r->state.dynamic + r->job->dynamic_bytes, r->shared_end);
}

// Runs the blocks of this rank in clusters [begin, end), or blocks [begin, end) without clusters.
static void run_blocks(Region *r, const Job &job, bits_t begin, bits_t end) {
    const bits_t clusters = static_cast<bits_t>(job.grid.x) * job.grid.y * job.grid.z / job.cluster;
    for (bits_t i = begin; i < end; i++) {
        const bits_t linear = (job.order == BACKWARD ? clusters - 1 - i : i) * job.cluster + r->state.rank;
        r->state.block = index_of(linear, job.grid);
        r->random = job.seed * 0x9e3779b97f4a7c15ull + linear;
        const bool well = run_block(r);
        for (unsigned t = 0; t < r->threads && !well; t++)
            if (r->fibers[t].stack >= 0) give_stack(r, r->fibers[t]);
        if (r->cluster ? !end_block(*r->cluster, r, well, i + 1 == end) : !well) return;
    }
}

// The work of one OS thread: the blocks of a rank.
struct Share {
    const Job *job;
    bits_t begin, end;
    Error *error;
    Cluster *cluster;
    unsigned rank;
};

static void no_memory(Error *error) {
    error->kind = 3;
    snprintf(error->text, sizeof error->text, "the system has no memory left for a block's threads");
}

// A region prepared for a share, or null if the system has no memory.
static Region *ready(const Share &share) {
    const Job *job = share.job;
    Region *r = take_region();
    share.error->kind = 0;
    if (!r || job->args_bytes > sizeof r->args || !place_dynamic(r, job->dynamic_bytes)) {
        no_memory(share.error);
        if (r) give_region(r);
        return nullptr;
    }
    r->job = job;
    r->error = share.error;
    r->threads = job->block.x * job->block.y * job->block.z;
    for (unsigned t = 0; t < r->threads; t++) r->fibers[t].index = index_of(t, job->block);
    memcpy(r->args, job->args, job->args_bytes);
    r->shared = static_cast<unsigned char *>(job->anchor()) - job->shared_offset;
    r->state.block_size = job->block;
    r->state.grid_size = job->grid;
    r->state.services = &services;
    r->state.rank = share.rank;
    r->cluster = share.cluster;
    r->random = job->seed;
    r->ended = false;
    return r;
}

static void run_share(const Share &share) {
    Region *r = ready(share);
    if (!r) {
        if (share.cluster) no_block(*share.cluster, share.rank);
        return;
    }
    stack_t ours, theirs;
    memset(&ours, 0, sizeof ours);
    ours.ss_sp = r->signal_stack;
    ours.ss_size = sizeof r->signal_stack;
    sigaltstack(&ours, &theirs);
    watch();
    if (!share.cluster || join(*share.cluster, r)) run_blocks(r, *share.job, share.begin, share.end);
    unwatch();
    sigaltstack(&theirs, nullptr);
    r->error = nullptr;
    give_region(r);
}

static void *run_other(void *share) {
    run_share(*static_cast<Share *>(share));
    return nullptr;
}

}  // namespace emulator

using namespace emulator;

extern "C" {

// Runs blocks [begin, end) of a grid on the calling OS thread, or clusters with an OS thread for each of their blocks.
// error->kind is 0 on success.
__attribute__((visibility("default"))) void emulator_run(const Job *job, bits_t begin, bits_t end, Error *error) {
    const unsigned size = static_cast<unsigned>(job->cluster);
    if (size == 1) return run_share({job, begin, end, error, nullptr, 0});
    Cluster cluster{};
    cluster.size = size;
    Error errors[MOST_OF_CLUSTER];
    Share shares[MOST_OF_CLUSTER];
    pthread_t threads[MOST_OF_CLUSTER];
    unsigned begun = 0;
    for (unsigned i = 0; i < size; i++) shares[i] = {job, begin, end, errors + i, &cluster, i};
    for (unsigned i = 1; i < size; i++, begun++)
        if (pthread_create(threads + i, nullptr, run_other, shares + i)) {
            no_memory(errors + i);
            no_block(cluster, i);
            break;
        }
    run_share(shares[0]);
    for (unsigned i = 1; i <= begun; i++) pthread_join(threads[i], nullptr);
    *error = errors[cluster.failed_first];
}

// Finds the offset of the anchor of a kernel's library in its static shared memory, and the size of that memory.
__attribute__((visibility("default"))) int emulator_measure(void *(*anchor)(), bits_t *offset, bits_t *nbytes) {
    struct Found {
        bits_t anchor, *offset, *nbytes;
    } found = {reinterpret_cast<bits_t>(anchor()), offset, nbytes};
    return dl_iterate_phdr(
        [](dl_phdr_info *library, size_t, void *into) {
            const Found *found = static_cast<Found *>(into);
            const bits_t start = reinterpret_cast<bits_t>(library->dlpi_tls_data);
            for (int i = 0; start && i < library->dlpi_phnum; i++) {
                const bits_t length = library->dlpi_phdr[i].p_memsz;
                if (library->dlpi_phdr[i].p_type != PT_TLS || found->anchor - start >= length) continue;
                *found->offset = found->anchor - start;
                *found->nbytes = length;
                return 1;
            }
            return 0;
        },
        &found);
}

// Size of the variable that a library exports at this address, or 0 if there is none.
__attribute__((visibility("default"))) bits_t emulator_symbol_bytes(const void *address) {
    Dl_info info;
    const ElfW(Sym) *symbol = nullptr;
    void *into = &symbol;
    if (!dladdr1(address, &info, reinterpret_cast<void **>(into), RTLD_DL_SYMENT) || !symbol) return 0;
    return info.dli_saddr == address ? symbol->st_size : 0;
}
}
