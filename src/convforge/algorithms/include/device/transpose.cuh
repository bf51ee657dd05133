// Transposes of 16-bit numbers by a warp, in registers.
//
// turn_matrix(word);    transposes a matrix of 8 x 8 numbers (movmatrix, sm_75): with lane = 4 * g + t, a lane gives
//                       columns 2 t and 2 t + 1 of row g, and gets rows 2 t and 2 t + 1 of column g
// turn_lanes(words);    four neighbouring lanes exchange words: lane t of them gets word t of each, in their order
#pragma once
#include "device.cuh"

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

__device__ __forceinline__ unsigned turn_matrix(unsigned word) {
    unsigned turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
    return turned;
}

#else  // the emulator: two shuffles

inline unsigned turn_matrix(unsigned word) {
    const int lane = emulator::here()->lane, g = lane / 4, t = lane % 4;
    unsigned turned = 0;
    for (int i = 0; i < 2; i++) {
        const unsigned pair = __shfl_sync(0xffffffffu, word, 4 * (2 * t + i) + g / 2);
        turned |= (pair >> g % 2 * 16 & 0xffffu) << 16 * i;
    }
    return turned;
}

#endif

__device__ __forceinline__ void turn_lanes(unsigned (&words)[4]) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
        const bool upper = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            unsigned &low = words[bit == 1 ? 2 * i : i], &high = words[bit == 1 ? 2 * i + 1 : i + 2];
            const unsigned given = __shfl_xor_sync(0xffffffffu, upper ? low : high, bit);
            (upper ? low : high) = given;
        }
    }
}
