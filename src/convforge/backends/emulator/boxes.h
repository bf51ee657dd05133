// The tensor memory accelerator: boxes of an array, and the barriers that count their bytes.
//
// A phase of a barrier is over once as many bytes have been asked for as were announced, and somebody waits for them:
// then the boxes land, and not sooner, so that a kernel that does not wait reads poison or what lay there before. A
// thread that waits for what nobody has asked for yet lets the others run.
#pragma once
#include "faults.h"

namespace emulator {

inline unsigned box_bytes(const TensorMap &map) { return map.box[0] * map.box[1] * map.box[2] * map.unit; }

[[noreturn]] inline void refuse(Region *r, Site site, const char *fault) {
    describe(r, "%s: %s, %s:%d", site.what, fault, site.file, site.line);
    abandon(r);
}

inline ByteBarrier &barrier_at(Region *r, Site site, const void *at) {
    for (unsigned i = 0; i < r->byte_barrier_count; i++)
        if (r->byte_barriers[i].at == at) return r->byte_barriers[i];
    refuse(r, site, "nobody called init_barrier for this barrier");
}

inline void init_barrier(Site site, unsigned long long *at) {
    Region *r = region();
    if (!in_shared(r, at, 8) || reinterpret_cast<bits_t>(at) % 8)
        refuse(r, site, "a barrier is 8 bytes of shared memory, at a multiple of 8");
    if (r->byte_barrier_count == MOST_BYTE_BARRIERS) refuse(r, site, "more barriers than the emulator has room for");
    r->byte_barriers[r->byte_barrier_count++] = {at, 0, false, 0, 0, 0, {}};
}

// Whether the phase that is under way may end.
inline bool all_asked(const ByteBarrier &bar) { return bar.announced && bar.asked == bar.expected; }

inline void wake_waiting(Region *r, const ByteBarrier &bar) {
    for (unsigned t = 0; all_asked(bar) && t < r->threads; t++) {
        Fiber &fiber = r->fibers[t];
        if (fiber.status != AWAITS_BYTES || fiber.awaits != bar.at) continue;
        fiber.status = RUNNABLE;
        r->warps[t / WARP].runnable |= 1u << t % WARP;
    }
}

inline void expect(Site site, unsigned long long *at, unsigned bytes) {
    Region *r = region();
    ByteBarrier &bar = barrier_at(r, site, at);
    if (bar.announced) refuse(r, site, "nobody has waited for the bytes that were announced before");
    bar.announced = true;
    bar.expected = bytes;
    wake_waiting(r, bar);
}

inline void copy_box(Site site, void *to, const void *described, int x, int y, int z, unsigned long long *at) {
    Region *r = region();
    ByteBarrier &bar = barrier_at(r, site, at);
    TensorMap map;
    memcpy(&map, described, sizeof map);
    if (!in_shared(r, to, box_bytes(map))) refuse(r, site, "the box does not lie in shared memory");
    if (reinterpret_cast<bits_t>(to) % 128) refuse(r, site, "the box must begin at a multiple of 128 bytes");
    if (static_cast<long long>(x) * map.unit % 16) refuse(r, site, "x must be a multiple of 16 bytes");
    if (bar.box_count == MOST_BOXES) refuse(r, site, "more boxes under way than the emulator has room for");
    bar.boxes[bar.box_count++] = {to, map, {x, y, z}};
    bar.asked += box_bytes(map);
    if (bar.announced && bar.asked > bar.expected) refuse(r, site, "more bytes are asked for than were announced");
    wake_waiting(r, bar);
}

// Copy a box; zeros where it leaves the array.
inline void land(const Box &box) {
    const TensorMap &map = box.map;
    unsigned char *to = static_cast<unsigned char *>(box.to);
    const long long first = box.at[0] < 0 ? -static_cast<long long>(box.at[0]) : 0, left = map.sizes[0] - box.at[0];
    const long long last = left < map.box[0] ? left : map.box[0];
    const unsigned row = map.box[0] * map.unit;
    memset(to, 0, box_bytes(map));
    for (unsigned i = 0; i < map.box[2]; i++)
        for (unsigned j = 0; j < map.box[1]; j++) {
            const long long z = box.at[2] + static_cast<long long>(i), y = box.at[1] + static_cast<long long>(j);
            if (z < 0 || z >= map.sizes[2] || y < 0 || y >= map.sizes[1] || last <= first) continue;
            const unsigned char *from = map.address + z * map.strides[1] + y * map.strides[0];
            memcpy(to + (i * map.box[1] + j) * row + first * map.unit, from + (box.at[0] + first) * map.unit,
                   (last - first) * map.unit);
        }
}

inline void await_bytes(Site site, unsigned long long *at, unsigned parity) {
    Region *r = region();
    ByteBarrier &bar = barrier_at(r, site, at);
    while ((bar.phase & 1) == (parity & 1)) {  // else that phase is over
        if (all_asked(bar)) {
            for (unsigned i = 0; i < bar.box_count; i++) land(bar.boxes[i]);
            bar.phase++;
            bar.announced = false;
            bar.expected = bar.asked = bar.box_count = 0;
        } else {
            start_waiting(r, AWAITS_BYTES, site, 0);
            current(r).awaits = at;
            leave(r);
        }
    }
}

// A block that ends while boxes are under way: they would land in the shared memory of another.
inline bool nothing_is_under_way(Region *r) {
    for (unsigned i = 0; i < r->byte_barrier_count; i++) {
        const ByteBarrier &bar = r->byte_barriers[i];
        if (!bar.announced && !bar.asked) continue;
        describe(r, "%llu bytes are announced and %llu asked for, and nobody waits for them", bar.expected, bar.asked);
        r->error->kind = 2;
        return false;
    }
    return true;
}

}  // namespace emulator
