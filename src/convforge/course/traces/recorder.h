// Records which thread reads and writes which bytes. It implements the functions that the host's compiler calls at
// every access under -fsanitize=thread, and wraps the copies of the emulator. Included before the kernel.
//
// Registers and local arrays are on a thread's stack and are left out. Accesses to shared memory are only counted.
#pragma once

#define UNSEEN __attribute__((no_sanitize("thread")))

namespace emulator {

// The same struct as in runtime.py.
struct Access {
    bits_t address;
    unsigned block, thread, bytes, is_write;
};

struct Recorder {
    Access *next, *end;
    bits_t shared, shared_bytes;  // static shared memory of the OS thread that runs the blocks
    bits_t lost;                  // accesses for which there was no room
    bits_t shared_reads, shared_writes, shared_bytes_read, shared_bytes_written;
    const Services *plain;
    Services services;
};

extern "C" {
__attribute__((visibility("default"), used)) Recorder emulator_recorder = {};
}

UNSEEN inline unsigned linear(const Index &at, const Index &size) { return (at.z * size.y + at.y) * size.x + at.x; }

UNSEEN inline void note(bits_t address, unsigned bytes, bool is_write) {
    Recorder &r = emulator_recorder;
    State *state = here();
    const bits_t dynamic = reinterpret_cast<bits_t>(state->dynamic);
    if (address - r.shared < r.shared_bytes || address - dynamic < (256u << 10)) {
        (is_write ? r.shared_writes : r.shared_reads)++;
        (is_write ? r.shared_bytes_written : r.shared_bytes_read) += bytes;
        return;
    }
    if ((address & ~(REGION_BYTES - 1)) == reinterpret_cast<bits_t>(state)) return;  // a stack, or the arguments
    if (r.next == r.end) {
        r.lost++;
        return;
    }
    *r.next++ = {address, linear(state->block, state->grid_size), linear(state->thread, state->block_size), bytes,
                 is_write};
}

UNSEEN inline bits_t number(const void *place) { return reinterpret_cast<bits_t>(place); }

// Asynchronous copies of a thread: they read global memory and write shared memory without a load or store of its own.
UNSEEN inline void copy(Site site, void *shared, const void *global, unsigned bytes, int there) {
    if (there) note(number(global), bytes, false);
    note(number(shared), bytes, true);
    emulator_recorder.plain->copy(site, shared, global, bytes, there);
}

// Boxes that a thread loads or stores count as accesses of that thread.
UNSEEN inline TensorMap noted_box(const void *described, const Corner &corner, bool is_write) {
    TensorMap map;
    __builtin_memcpy(&map, described, sizeof map);
    each_of_box(map, corner, [&](unsigned, const unsigned char *at) {
        if (at) note(number(at), map.unit, is_write);
    });
    return map;
}

UNSEEN inline void copy_box(Site site, void *to, const void *map, const Corner *from, unsigned axes,
                            unsigned long long *bar, unsigned blocks) {
    emulator_recorder.shared_writes++;
    emulator_recorder.shared_bytes_written += box_bytes(noted_box(map, *from, false));
    emulator_recorder.plain->copy_box(site, to, map, from, axes, bar, blocks);
}

UNSEEN inline void store_box(Site site, const void *map, const void *shared, const Corner *to, unsigned axes) {
    emulator_recorder.shared_reads++;
    emulator_recorder.shared_bytes_read += box_bytes(noted_box(map, *to, true));
    emulator_recorder.plain->store_box(site, map, shared, to, axes);
}

// A product of a warpgroup reads both operands once. Each thread counts as one load of its share.
UNSEEN inline void multiply(Site site, const char *instruction, const char *majors, void *sums, unsigned count,
                            bits_t a, bits_t b, bool adds) {
    constexpr unsigned ROWS = 64, ROW_BYTES = 32, THREADS = 128;
    emulator_recorder.shared_reads++;
    emulator_recorder.shared_bytes_read += (ROWS + 2 * count) * ROW_BYTES / THREADS;
    emulator_recorder.plain->multiply(site, instruction, majors, sums, count, a, b, adds);
}

// Called before a thread's first instruction, because the scheduler resets its services for every launch.
UNSEEN inline void begin_thread() {
    Recorder &r = emulator_recorder;
    if (here()->services == &r.services) return;
    r.plain = here()->services;
    r.services = *r.plain;
    r.services.copy = copy;
    r.services.copy_box = copy_box;
    r.services.store_box = store_box;
    r.services.multiply = multiply;
    here()->services = &r.services;
}

}  // namespace emulator

// Called by the compiler's code.
#define ACCESS(bytes)                                                                                                  \
    __attribute__((used)) UNSEEN inline void __tsan_read##bytes(void *at) {                                            \
        emulator::note(emulator::number(at), bytes, false);                                                            \
    }                                                                                                                  \
    __attribute__((used)) UNSEEN inline void __tsan_write##bytes(void *at) {                                           \
        emulator::note(emulator::number(at), bytes, true);                                                             \
    }                                                                                                                  \
    __attribute__((used)) UNSEEN inline void __tsan_unaligned_read##bytes(void *at) {                                  \
        emulator::note(emulator::number(at), bytes, false);                                                            \
    }                                                                                                                  \
    __attribute__((used)) UNSEEN inline void __tsan_unaligned_write##bytes(void *at) {                                 \
        emulator::note(emulator::number(at), bytes, true);                                                             \
    }
extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
__attribute__((used)) UNSEEN inline void __tsan_read_range(void *at, emulator::bits_t bytes) {
    emulator::note(emulator::number(at), bytes, false);
}
__attribute__((used)) UNSEEN inline void __tsan_write_range(void *at, emulator::bits_t bytes) {
    emulator::note(emulator::number(at), bytes, true);
}
// An atomic operation of the emulator (atomics.h) loads a cell, and stores the new value if the old one is unchanged.
#define ATOMIC(bits, type)                                                                                             \
    __attribute__((used)) UNSEEN inline type __tsan_atomic##bits##_load(const volatile type *at, int) {                \
        emulator::note(emulator::number(const_cast<const type *>(at)), sizeof(type), false);                           \
        return __atomic_load_n(at, __ATOMIC_RELAXED);                                                                  \
    }                                                                                                                  \
    __attribute__((used)) UNSEEN inline bool __tsan_atomic##bits##_compare_exchange_strong(                            \
        volatile type *at, type *expected, type value, int, int) {                                                     \
        emulator::note(emulator::number(const_cast<const type *>(at)), sizeof(type), true);                            \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);            \
    }
ATOMIC(32, unsigned)
ATOMIC(64, unsigned long long)
#undef ATOMIC
__attribute__((used)) UNSEEN inline void __tsan_init() {}
__attribute__((used)) UNSEEN inline void __tsan_func_entry(void *) {}
__attribute__((used)) UNSEEN inline void __tsan_func_exit() {}
}
#undef ACCESS
