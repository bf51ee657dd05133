// Values that are worked out where they stand. A compiler would rather work out an address again for every load, from the
// launch's arguments, than keep it in a register: between a launch's beginning and its first load that is most of the way.
#pragma once

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

// A number, in its register from here on.
__device__ inline int settled(int value) {
    asm volatile("" : "+r"(value));
    return value;
}
__device__ inline long long settled(long long value) {
    asm volatile("" : "+l"(value));
    return value;
}

// A place in global memory, likewise.
template <class T>
__device__ inline T *settled(T *place) {
    size_t at = __cvta_generic_to_global(place);
    asm volatile("" : "+l"(at));
    return static_cast<T *>(__cvta_global_to_generic(at));
}

#else  // the emulator

template <class T>
inline T settled(T value) {
    return value;
}

#endif
