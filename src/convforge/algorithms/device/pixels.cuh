// Pixels: conversion of vectors to acc_t, storage in shared memory, and squares for a change of layout.
#pragma once
#include "border.cuh"
#include "memory.cuh"

// Small unsigned integers become floats without a conversion: they are the last bits of 2^23 + value, minus 2^23.
template <class T> constexpr bool IS_SMALL_UNSIGNED = false;
template <> constexpr bool IS_SMALL_UNSIGNED<unsigned char> = true;
template <> constexpr bool IS_SMALL_UNSIGNED<unsigned short> = true;

// Element e of a vector as acc_t, minus the zero point if there is one.
template <int COUNT>
__device__ inline acc_t centred(const Conv &conv, const Vector<x_t, COUNT> &values, int e) {
    constexpr bool IN_FLOATS = !HAS_ZERO && sizeof(acc_t) == 4;
    if constexpr (IN_FLOATS && IS_SMALL_UNSIGNED<x_t> && COUNT * sizeof(x_t) % 4 == 0) {
        const union {
            Vector<x_t, COUNT> vector;
            unsigned words[COUNT * sizeof(x_t) / 4];
        } both = {values};
        const int byte = e * sizeof(x_t);
        const unsigned selector = sizeof(x_t) == 1 ? 0x7440 + byte % 4 : 0x7410 + byte % 4 * 0x11;
        return float_of(__byte_perm(both.words[byte / 4], 0x4b000000u, selector)) - 8388608.0f;
    }
    return centred(conv, values.at[e]);
}

// Pixels in shared memory are RAW, in the type of storage, or converted to acc_t, if a constant border's value may not
// be representable in the type of storage.
//
// BLANK: pixels outside the image are all zero bits.
constexpr bool BLANK = cfg::BORDER == ZEROS && !HAS_ZERO;

// True if FILL pixels may be copied by one asynchronous copy.
template <bool RAW, int FILL> constexpr bool CAN_COPY = RAW && FILL * sizeof(x_t) >= 4;

// The value held for a pixel, or for the outside of the image if `pixel` is null.
template <bool RAW, class T>
__device__ inline T held(const Conv &conv, const x_t *pixel) {
    if constexpr (RAW) return pixel == nullptr ? stored<T>::of(conv.outside) : *pixel;
    else return pixel == nullptr ? outside(conv) : centred(conv, *pixel);
}

// Converts a held value to acc_t.
template <bool RAW, class T>
__device__ inline acc_t taken(const Conv &conv, T value) {
    if constexpr (RAW) return centred(conv, value);
    else return value;
}

// Copies squares of SIDE pixels and SIDE channels of an image of any layout, strides and border, by 32 x LINES threads.
// A row has CHANNELS channels, each group padded with zeros to WHOLE_GROUP. CHANNELS_LAST: channels of x are
// contiguous, else pixels. The rows are those of (N, height, width) pixels, which begin `top` and `left` of the image.
//
// load_square(args, n, first, c, put);     from pixel `first` of image n and channel c on: calls put(pixel, channel,
//                                          value) with positions in the square. Neighbouring threads read neighbours
template <int CHANNELS, int WHOLE_GROUP, bool CHANNELS_LAST>
struct PixelSquares {
    static constexpr int SIDE = 64, LINES = 8;

    // A pixel of the rows: the offset of its first channel in x; `seen` if it is inside the image.
    struct Source {
        const x_t *first;
        bool seen, inside;
    };

    template <class Args>
    __device__ static inline Source source_of(const Args &args, int n, int pixel) {
        const Conv &conv = args.conv;
        const bool seen = pixel < args.height * args.width;
        const int row = pixel / args.width;
        const int h = inside(row - args.top, conv.H), w = inside(pixel - row * args.width - args.left, conv.W);
        const bool there = seen && h >= 0 && w >= 0;
        return {conv.x + (there ? offset_of(conv.x_strides, n, 0, h, w) : 0), seen, there};
    }

    // Passes every STEP-th channel of a pixel, from c on, to put(index, value).
    template <int STEP, class Args, class Put>
    __device__ static __forceinline__ void load(const Args &args, const Source &source, int c, const Put &put) {
        const index_t stride = args.conv.x_strides.c;
        const x_t outside = cfg::BORDER == CONSTANT && source.seen ? stored<x_t>::of(args.conv.outside) : x_t{};
        const x_t *from = source.first + (cfg::GROUPS == 1 ? c * stride : 0);
#pragma unroll
        for (int i = 0; i < SIDE / STEP; i++, c += STEP) {
            const int group = cfg::GROUPS == 1 ? 0 : c / WHOLE_GROUP, in_group = c - group * WHOLE_GROUP;
            if (cfg::GROUPS > 1) from = source.first + (group * cfg::C_GROUP + in_group) * stride;
            x_t value{};
            if (c < CHANNELS && in_group < cfg::C_GROUP) value = source.inside ? *from : outside;
            if (cfg::GROUPS == 1) from += STEP * stride;
            put(i * STEP, value);
        }
    }

    template <class Args, class Put>
    __device__ static __forceinline__ void load_square(const Args &args, int n, int first, int c0, const Put &put) {
        const int lane = threadIdx.x, line = threadIdx.y;
        if (CHANNELS_LAST) {
#pragma unroll
            for (int i = 0; i < SIDE; i += LINES)
                load<32>(args, source_of(args, n, first + line + i), c0 + lane,
                          [&](int c, x_t value) { put(line + i, lane + c, value); });
        } else {
#pragma unroll
            for (int i = 0; i < SIDE; i += 32)
                load<LINES>(args, source_of(args, n, first + lane + i), c0 + line,
                             [&](int c, x_t value) { put(lane + i, line + c, value); });
        }
    }
};
