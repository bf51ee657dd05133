// pack_channels: packs the filter with the channels of a tap contiguous, flipped if the problem is a convolution in the
// mathematical sense. Numbers of NUMBER_BYTES are copied unchanged. With two PLANES they are int16 from -255 to 255,
// which are split into two bytes: w = floor(w / 2) - (-ceil(w / 2)).
//
// Threads   blockDim.x channels by blockDim.y taps a block, which copies a part of one filter: `channels` channels.
// Out       (PLANES, K, R, S, pitch), with zeros after the channels of a tap. The first of two planes is -ceil(w / 2).
// Shared    the part, if the taps of a channel are contiguous in w (`dense`): it is one run of memory, loaded in
//           16-byte vectors if `vectors`. For any other w each thread reads what it writes.
// Limit     memory: both sides are whole lines.
#include "memory.cuh"

typedef Word<cfg::NUMBER_BYTES> Number;
typedef Word<cfg::NUMBER_BYTES / cfg::PLANES> Packed;
static_assert(cfg::PLANES == 1 || cfg::NUMBER_BYTES == 2, "two bytes are of a number of 16 bits");
constexpr int PART_BYTES = 36864, IN_VECTOR = 16 / cfg::NUMBER_BYTES;

struct Packing {
    const Number *w;
    Packed *packed;
    long long strides[4];  // of w, in elements, in the order k, c, r, s
    long long pitch;       // of packed, from tap to tap
    int C, R, S, channels, parts, flip, dense, vectors;
};

// Stores a weight; `plane` is the distance of the second byte from the first. Both bytes are from -128 to 127.
template <int PLANES, class To, class From>
__device__ __forceinline__ void store(To &to, long long plane, const From &number) {
    if constexpr (PLANES == 1) {
        to = number;
    } else {
        const int w = static_cast<short>(number.bits), lower = w >> 1;
        to.bits = static_cast<unsigned char>(lower - w);
        (&to)[plane].bits = static_cast<unsigned char>(lower);
    }
}

extern "C" __global__ void pack_channels(const __grid_constant__ Packing args) {
    __shared__ __align__(16) unsigned char shared[PART_BYTES];
    Number *part = reinterpret_cast<Number *>(shared);
    const int threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int k = blockIdx.x / args.parts, c0 = blockIdx.x % args.parts * args.channels, taps = args.R * args.S;
    const int count = min(args.channels, args.C - c0);
    // Bytes: the last part may be followed by more than 8 zeros. Parts are multiples of 8 channels.
    const bool all = sizeof(Packed) == 1 && c0 + args.channels >= args.C;
    const int room = all ? static_cast<int>(args.pitch) - c0 : min(args.channels, static_cast<int>(args.pitch) - c0);
    const Number *from = args.w + k * args.strides[0] + c0 * args.strides[1];
    pdl_wait();
    if (args.dense) {
        const int all = count * taps, whole = args.vectors ? all / IN_VECTOR : 0;
#pragma unroll 4
        for (int i = thread; i < whole; i += threads)
            reinterpret_cast<Word<16> *>(part)[i] = reinterpret_cast<const Word<16> *>(from)[i];
#pragma unroll 4
        for (int i = whole * IN_VECTOR + thread; i < all; i += threads) part[i] = from[i];
        __syncthreads();
    }
    const long long plane = cfg::PLANES == 1 ? 0 : static_cast<long long>(gridDim.x / args.parts) * taps * args.pitch;
    Packed *to = args.packed + (static_cast<long long>(k) * taps + threadIdx.y) * args.pitch + c0;
    for (int tap = threadIdx.y; tap < taps; tap += blockDim.y, to += blockDim.y * args.pitch) {
        const int seen = args.flip ? taps - 1 - tap : tap;
        if (args.dense) {
            for (int c = threadIdx.x; c < room; c += blockDim.x) {
                const Number number = c < count ? part[c * taps + seen] : Number{};
                store<cfg::PLANES>(to[c], plane, number);
            }
        } else {
            const int row = seen / args.S;
            const Number *at = from + row * args.strides[2] + (seen - row * args.S) * args.strides[3];
            for (int c = threadIdx.x; c < room; c += blockDim.x) {
                const Number number = c < count ? at[c * args.strides[1]] : Number{};
                store<cfg::PLANES>(to[c], plane, number);
            }
        }
    }
}
