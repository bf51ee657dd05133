// CUDA's atomics. Blocks run on several OS threads, so they are atomic on the host too.
#pragma once

namespace emulator {

template <int BYTES> struct bits_of_size;
template <> struct bits_of_size<4> { typedef unsigned type; };
template <> struct bits_of_size<8> { typedef unsigned long long type; };

// Replaces *at by change(*at) and returns the old value.
template <class T, class Change>
inline T replace(T *at, Change change) {
    typedef typename bits_of_size<sizeof(T)>::type Bits;
    Bits *cell = reinterpret_cast<Bits *>(at), seen = __atomic_load_n(cell, __ATOMIC_RELAXED), next;
    T before;
    do {
        __builtin_memcpy(&before, &seen, sizeof(T));
        const T after = change(before);
        __builtin_memcpy(&next, &after, sizeof(T));
    } while (!__atomic_compare_exchange_n(cell, &seen, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}

template <class T>
inline T compare_and_swap(T *at, T expected, T value) {
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

}  // namespace emulator

#define ATOMIC(T, name, result) \
    inline T name(T *at, T value) { return emulator::replace(at, [=](T old) -> T { return result; }); }
#define INTEGER_ATOMICS(T)                              \
    ATOMIC(T, atomicAdd, old + value)                   \
    ATOMIC(T, atomicMax, old < value ? value : old)     \
    ATOMIC(T, atomicMin, value < old ? value : old)     \
    ATOMIC(T, atomicAnd, old & value)                   \
    ATOMIC(T, atomicOr, old | value)                    \
    ATOMIC(T, atomicXor, old ^ value)                   \
    ATOMIC(T, atomicExch, value)                        \
    inline T atomicCAS(T *at, T expected, T value) { return emulator::compare_and_swap(at, expected, value); }
INTEGER_ATOMICS(int)
INTEGER_ATOMICS(unsigned)
INTEGER_ATOMICS(unsigned long long)
ATOMIC(int, atomicSub, old - value)
ATOMIC(unsigned, atomicSub, old - value)
ATOMIC(float, atomicAdd, old + value)
ATOMIC(double, atomicAdd, old + value)
ATOMIC(float, atomicExch, value)
#undef INTEGER_ATOMICS
#undef ATOMIC

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
