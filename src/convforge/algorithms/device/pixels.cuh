// Pixels on their way: from vectors to the type of the sums, held in shared memory, and in squares of a layout to another.
#pragma once
#include "border.cuh"
#include "memory.cuh"

// Small unsigned integers become floats without a conversion: they are the last bits of 2^23, from which 2^23 is taken.
template <class T> constexpr bool IS_SMALL_UNSIGNED = false;
template <> constexpr bool IS_SMALL_UNSIGNED<unsigned char> = true;
template <> constexpr bool IS_SMALL_UNSIGNED<unsigned short> = true;

// Element e of a vector, less the zero point where there is one.
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

// Pixels that wait in shared memory: RAW, as they are stored, and not in the type of the sums, as where a constant border
// has a value that their type may not hold.
//
// BLANK: what stands outside the image is all zero bits.
constexpr bool BLANK = cfg::BORDER == ZEROS && !HAS_ZERO;

// Pixels may come by asynchronous copies of FILL of them.
template <bool RAW, int FILL> constexpr bool CAN_COPY = RAW && FILL * sizeof(x_t) >= 4;

// What is held of a pixel; of what stands outside the image, where there is none.
template <bool RAW, class T>
__device__ inline T held(const Conv &conv, const x_t *pixel) {
    if constexpr (RAW) return pixel == nullptr ? stored<T>::of(conv.outside) : *pixel;
    else return pixel == nullptr ? outside(conv) : centred(conv, *pixel);
}

// And what it is in the type of the sums.
template <bool RAW, class T>
__device__ inline acc_t taken(const Conv &conv, T value) {
    if constexpr (RAW) return centred(conv, value);
    else return value;
}

// Squares of SIDE pixels and SIDE channels of an image of any layout, strides and border, brought by 32 x LINES threads.
// CHANNELS of a row, with WHOLE_GROUP of a group, of which what is beyond the image's is zero; CHANNELS_LAST, in x channels lie side
// by side, else pixels. The rows are those of (N, height, width) pixels, whose first lies `top` and `left` of the image's.
//
// load_square(args, n, first, c, put);     from a pixel of image n and a channel on: put(pixel, channel, value), both
//                                           counted from there. Neighbouring threads read what lies side by side
template <int CHANNELS, int WHOLE_GROUP, bool CHANNELS_LAST>
struct PixelSquares {
    static constexpr int SIDE = 64, LINES = 8;

    // A pixel of the rows: where its first channel lies in x, if it is `seen`, in the image and not outside.
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

    // Of a pixel's channels every STEP-th from c on, handed one by one to put(which, value).
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
