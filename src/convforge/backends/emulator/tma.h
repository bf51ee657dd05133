// The tensor memory accelerator: copies of boxes and of pixels in im2col mode, and the mbarriers that count their bytes
// and arrivals.
//
// A phase of a barrier ends when all arrivals have come, all expected bytes have been requested, and somebody waits:
// only then the boxes land, so that a kernel that does not wait reads poison or old values. A thread that waits for
// bytes that nobody has requested yet lets the others run. Boxes to be stored are read when their thread waits for
// that; in the backward order when the store is issued.
#pragma once
#include "clusters.h"

namespace emulator {

inline ByteBarrier &barrier_at(Region *r, Site site, const void *at) {
    for (unsigned i = 0; i < r->byte_barrier_count; i++)
        if (r->byte_barriers[i].at == at) return r->byte_barriers[i];
    refuse(site, "nobody called mbarrier_init for this barrier");
}

inline void init_barrier(Site site, unsigned long long *at, unsigned arrivals) {
    Region *r = region();
    if (!in_shared(r, at, 8) || reinterpret_cast<bits_t>(at) % 8)
        refuse(site, "a barrier is 8 bytes of shared memory, at a multiple of 8");
    if (!arrivals) refuse(site, "a barrier waits for at least one arrival");
    for (unsigned i = 0; i < r->byte_barrier_count; i++)
        if (r->byte_barriers[i].at == at) refuse(site, "this barrier is there already");
    if (r->byte_barrier_count == MOST_BYTE_BARRIERS) refuse(site, "more barriers than the emulator has room for");
    ByteBarrier &bar = r->byte_barriers[r->byte_barrier_count++];
    bar.at = at, bar.arrivals = arrivals;
    bar.phase = bar.arrived = bar.box_count = 0;
    bar.expected = bar.asked = 0;
}

// True if the current phase may end.
inline bool all_there(const ByteBarrier &bar) { return bar.arrived == bar.arrivals && bar.asked == bar.expected; }

inline void next_phase(ByteBarrier &bar) {
    bar.phase++;
    bar.arrived = bar.box_count = 0;
    bar.expected = bar.asked = 0;
}

inline void something_came(Region *r, ByteBarrier &bar) {
    if (!all_there(bar)) return;
    if (!bar.asked) next_phase(bar);  // arrivals alone: no bytes have to land
    for (unsigned t = 0; t < r->threads; t++)
        if (r->fibers[t].status == AWAITS_BYTES && r->fibers[t].awaits == bar.at) wake(r, t);
}

inline void arrived_at(Region *r, Site site, ByteBarrier &bar) {
    if (bar.arrived == bar.arrivals) {
        if (all_there(bar)) refuse(site, "nobody has waited for the bytes that were announced before");
        refuse(site, "more threads arrive than the barrier was made for");
    }
    bar.arrived++;
}

inline void arrive(Site site, unsigned long long *at) {
    Region *r = region();
    ByteBarrier &bar = barrier_at(r, site, at);
    arrived_at(r, site, bar);
    something_came(r, bar);
}

inline void arrive_in(Site site, unsigned long long *at, unsigned block) {
    Region *r = region(), *other = block_of_cluster(r, site, block);
    ByteBarrier &bar = barrier_at(other, site, there(r, other, site, at));
    arrived_at(other, site, bar);
    something_came(other, bar);
}

inline void expect(Site site, unsigned long long *at, unsigned bytes) {
    Region *r = region();
    ByteBarrier &bar = barrier_at(r, site, at);
    arrived_at(r, site, bar);
    bar.expected += bytes;
    something_came(r, bar);
}

// The box of a copy, after checks.
inline Box box_of(Region *r, Site site, const void *described, const void *shared, const Corner &from, unsigned axes) {
    Box box;
    memcpy(&box.map, described, sizeof box.map);
    box.shared = static_cast<unsigned char *>(const_cast<void *>(shared));
    box.from = from;
    if (box.map.axes != axes) refuse(site, "the map has another number of axes");
    if (!in_shared(r, shared, box_bytes(box.map))) refuse(site, "the box does not lie in shared memory");
    if (reinterpret_cast<bits_t>(shared) % 128) refuse(site, "the box must begin at a multiple of 128 bytes");
    if (static_cast<long long>(from.at[0]) * box.map.unit % 16) refuse(site, "x must be a multiple of 16 bytes");
    return box;
}

inline void ask(Region *r, Site site, const Box &box, ByteBarrier &bar) {
    if (bar.box_count == MOST_BOXES) refuse(site, "more boxes under way than the emulator has room for");
    bar.boxes[bar.box_count++] = box;
    bar.asked += box_bytes(box.map);
    if (bar.arrived == bar.arrivals && bar.asked > bar.expected)
        refuse(site, "more bytes are asked for than were announced");
    something_came(r, bar);
}

inline void copy_box(Site site, void *to, const void *map, const Corner *from, unsigned axes, unsigned long long *bar,
                     unsigned blocks) {
    Region *r = region();
    Box box = box_of(r, site, map, to, *from, axes);
    if (box.map.im2col && (from->right | from->down) & ~255) refuse(site, "a tap is 0 to 255 pixels away");
    if (!blocks) ask(r, site, box, barrier_at(r, site, bar));
    for (unsigned i = 0; blocks >> i; i++) {
        if (!(blocks >> i & 1)) continue;
        Region *other = block_of_cluster(r, site, i);
        box.shared = static_cast<unsigned char *>(there(r, other, site, to));
        ask(other, site, box, barrier_at(other, site, there(r, other, site, bar)));
    }
}

// Swizzles an address in shared memory: permutes 16-byte pieces within rows of 128 bytes.
inline unsigned char *swizzled(unsigned char *at, unsigned swizzle) {
    const bits_t bits = reinterpret_cast<bits_t>(at), mask = swizzle / 16 - (swizzle > 0);
    return reinterpret_cast<unsigned char *>(bits ^ (bits >> 7 & mask) << 4);
}

// Rounds to TF32, which has 10 bits of mantissa.
inline unsigned rounded_tf32(unsigned bits) {
    if ((bits & 0x7fffffffu) >= 0x7f800000u) return bits & ~0x1fffu;
    return (bits + 0x1000u) & ~0x1fffu;
}

// Completes a copy, with zeros outside the array.
inline void land(const Box &box) {
    each_of_box(box.map, box.from, [&](unsigned offset, const unsigned char *from) {
        unsigned char *to = swizzled(box.shared + offset, box.map.swizzle);
        if (from) memcpy(to, from, box.map.unit);
        else memset(to, 0, box.map.unit);
        if (!box.map.rounds) return;
        unsigned bits;
        memcpy(&bits, to, 4);
        bits = rounded_tf32(bits);
        memcpy(to, &bits, 4);
    });
}

inline void store(const Box &box) {
    each_of_box(box.map, box.from, [&](unsigned offset, unsigned char *to) {
        if (to) memcpy(to, swizzled(box.shared + offset, box.map.swizzle), box.map.unit);
    });
}

inline void await_bytes(Site site, unsigned long long *at, unsigned parity) {
    Region *r = region();
    ByteBarrier &bar = barrier_at(r, site, at);
    while ((bar.phase & 1) == (parity & 1)) {  // else that phase has ended
        if (all_there(bar)) {
            for (unsigned i = 0; i < bar.box_count; i++) land(bar.boxes[i]);
            next_phase(bar);
        } else {
            start_waiting(r, AWAITS_BYTES, site, 0);
            current(r).awaits = at;
            leave(r);
        }
    }
}

// Stores the boxes of a thread, in order.
inline void await_stores(unsigned pending) {
    Fiber &fiber = current(region());
    unsigned kept = 0;
    for (unsigned i = 0; i < fiber.store_count; i++) {
        if (fiber.store_groups[i] + pending < fiber.store_group) {
            store(fiber.stores[i]);
            continue;
        }
        fiber.stores[kept] = fiber.stores[i];
        fiber.store_groups[kept++] = fiber.store_groups[i];
    }
    fiber.store_count = kept;
}

inline void commit_stores() { current(region()).store_group++; }

inline void store_box(Site site, const void *map, const void *shared, const Corner *to, unsigned axes) {
    Region *r = region();
    const Box box = box_of(r, site, map, shared, *to, axes);
    if (box.map.im2col) refuse(site, "the map is one of pixels, not of boxes");
    if (r->job->order == BACKWARD) return store(box);
    Fiber &fiber = current(r);
    if (fiber.store_count == fiber.store_room) {
        fiber.store_room = fiber.store_room ? 2 * fiber.store_room : 16;
        fiber.stores = static_cast<Box *>(realloc(fiber.stores, fiber.store_room * sizeof(Box)));
        fiber.store_groups = static_cast<unsigned *>(realloc(fiber.store_groups, fiber.store_room * sizeof(unsigned)));
        if (!fiber.stores || !fiber.store_groups) abort();  // no memory
    }
    fiber.stores[fiber.store_count] = box;
    fiber.store_groups[fiber.store_count++] = fiber.store_group;
}

// Refuses a block that ends while boxes are in flight, because they would access the shared memory of another block.
inline bool nothing_is_under_way(Region *r) {
    for (unsigned i = 0; i < r->byte_barrier_count; i++) {
        const ByteBarrier &bar = r->byte_barriers[i];
        if (!bar.expected && !bar.asked) continue;
        describe(r, "%llu bytes are announced and %llu asked for, and nobody waits for them", bar.expected, bar.asked);
        r->error->kind = 2;
        return false;
    }
    for (unsigned t = 0; t < r->threads; t++) {
        if (!r->fibers[t].store_count) continue;
        describe(r, "%u boxes are to be stored, and nobody waits until they are read", r->fibers[t].store_count);
        r->error->kind = 2;
        return false;
    }
    return true;
}

}  // namespace emulator
