// Pixels that wait in shared memory. From the prelude: RAW, whether they are held as they are stored, and not in the type
// of the sums, as where a constant border has a value that their type may not hold; and FILL, how many of them a copy
// brings.
#pragma once
#include "border.cuh"

// Whether what stands outside the picture is all zero bits, and copies of vectors are possible.
constexpr bool BLANK = BORDER == ZEROS && !HAS_ZERO, COPIES = RAW && FILL * sizeof(x_t) >= 4;

// What is held of a pixel; of what stands outside the picture, where there is none.
template <class T>
__device__ inline T held(const Conv &conv, const x_t *pixel) {
    if constexpr (RAW) return pixel == nullptr ? stored<T>::of(conv.outside) : *pixel;
    else return pixel == nullptr ? outside(conv) : centred(conv, *pixel);
}

// And what it is in the type of the sums.
template <class T>
__device__ inline acc_t taken(const Conv &conv, T value) {
    if constexpr (RAW) return centred(conv, value);
    else return value;
}
