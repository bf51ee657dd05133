// Squares of SIDE pixels and SIDE channels of a picture of any layout, strides and border, brought by 32 x LINES threads.
//
// The host says: CHANNELS of a row, with WHOLE_GROUP of a group, of which what is beyond the picture's is zero;
// CHANNELS_NEAR, in x channels lie side by side, else pixels. The rows are those of (N, height, width) pixels, whose
// first lies `top` and `left` of the picture's; `squares` are those of a picture's pixels.
//
// bring_square(args, n, first, c, put);     from a pixel of picture n and a channel on: put(pixel, channel, value), both
//                                           counted from there. Neighbouring threads read what lies side by side
#pragma once
#include "border.cuh"
#include "device.cuh"

constexpr int SIDE = 64, LINES = 8;

// A pixel of the rows: where its first channel lies in x, if it is `seen`, in the picture and not outside.
struct Source {
    const x_t *first;
    bool seen, inside;
};

template <class Args>
__device__ inline Source source_of(const Args &args, int n, int pixel) {
    const Conv &conv = args.conv;
    const bool seen = pixel < args.height * args.width;
    const int row = pixel / args.width;
    const int h = inside(row - args.top, conv.H), w = inside(pixel - row * args.width - args.left, conv.W);
    const bool there = seen && h >= 0 && w >= 0;
    return {conv.x + (there ? place(conv.x_strides, n, 0, h, w) : 0), seen, there};
}

// Of a pixel's channels every STEP-th from c on, handed one by one to put(which, value).
template <int STEP, class Args, class Put>
__device__ __forceinline__ void bring(const Args &args, const Source &source, int c, const Put &put) {
    const index_t stride = args.conv.x_strides.c;
    const x_t outside = BORDER == CONSTANT && source.seen ? stored<x_t>::of(args.conv.outside) : x_t{};
    const x_t *from = source.first + (GROUPS == 1 ? c * stride : 0);
#pragma unroll
    for (int i = 0; i < SIDE / STEP; i++, c += STEP) {
        const int group = GROUPS == 1 ? 0 : c / WHOLE_GROUP, in_group = c - group * WHOLE_GROUP;
        if (GROUPS > 1) from = source.first + (group * C_GROUP + in_group) * stride;
        x_t value{};
        if (c < CHANNELS && in_group < C_GROUP) value = source.inside ? *from : outside;
        if (GROUPS == 1) from += STEP * stride;
        put(i * STEP, value);
    }
}

template <class Args, class Put>
__device__ __forceinline__ void bring_square(const Args &args, int n, int first, int c0, const Put &put) {
    const int lane = threadIdx.x, line = threadIdx.y;
    if (CHANNELS_NEAR) {
#pragma unroll
        for (int i = 0; i < SIDE; i += LINES)
            bring<32>(args, source_of(args, n, first + line + i), c0 + lane,
                      [&](int c, x_t value) { put(line + i, lane + c, value); });
    } else {
#pragma unroll
        for (int i = 0; i < SIDE; i += 32)
            bring<LINES>(args, source_of(args, n, first + lane + i), c0 + line,
                         [&](int c, x_t value) { put(lane + i, line + c, value); });
    }
}
