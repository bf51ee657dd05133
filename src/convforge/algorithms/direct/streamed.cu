// direct_streamed: each warp walks down a strip of the picture, and rows that it will need are under way before it comes.
//
// Since direct_tiled: pixels come by asynchronous copies, into a ring of rows in shared memory that a warp has for
//           itself, AHEAD steps before they are used. So the memory always has work, however long a thread multiplies,
//           and loads take no registers. Blocks are few and live long: all of them run at once, and each brings the
//           filter once, for all of its rows.
// Strip     of a warp: 32 * OUT_Q outputs wide, `band` rows high. It goes down in steps of OUT_P rows.
// Threads   lane i of a warp takes outputs q0 + i * OUT_Q and on, OUT_P rows of them, OUT_K channels; see tile.cuh.
// Ring      SLOTS rows of the picture: the window of a step and what the next AHEAD steps add to it, in pieces of 16
//           bytes, PIECES a row and plane of CHUNK channels. A row begins LEAD elements before the first window, so
//           that its pieces are aligned in the picture as they are in the ring.
// Borders   a piece that reaches beyond the picture is brought element by element; the sums know nothing of it.
// Grid      strips side by side along x, WARPS of them a block; bands along y and planes (picture, group, tile of
//           channels) along z go on in steps of the grid.
// Needs     WARPS rings of shared memory; STRIDE_H no larger than the filter.
// Limit     memory: pixels are read once, but for the rows that two bands and the columns that two strips share.
#include "device.cuh"
#include "tile.cuh"

constexpr int VEC = 16 / sizeof(x_t), PLANES = C_GROUP / CHUNK;
constexpr int STEP = OUT_Q * STRIDE_W * CHUNK;  // elements from a lane's window to the next lane's
constexpr int PIECES = (LEAD + 31 * STEP + RUN + VEC - 1) / VEC;
constexpr int NEW_ROWS = OUT_P * STRIDE_H, SLOTS = ROWS + AHEAD * NEW_ROWS;
constexpr int COPIES = (PLANES * PIECES + 31) / 32;  // of a lane for a row

// Unrolled as far as the code stays small.
constexpr int PRODUCTS = OUT_K * OUT_P * OUT_Q * R * S * CHUNK;
constexpr int UNROLL_ROWS = PRODUCTS <= 1536 ? ROWS : 1, UNROLL_C = PRODUCTS * PLANES <= 1536 ? PLANES : 1;

static_assert(STRIDE_H <= DILATION_H * (R - 1) + 1, "no row is brought in vain");
static_assert(LEAD % LOAD == SHIFT, "windows lie in the ring as they do in the picture");

struct Ring {
    x_t rows[SLOTS][PLANES][PIECES * VEC];
};

struct Streamed {
    Conv conv;
    Filter filter;
    int band;                    // output rows of a strip: a multiple of OUT_P
    int aligned_x, aligned_out;  // whether rows allow pieces of 16 bytes, and stores of STORE elements
};

// What a lane brings of every row: pieces of it, and where they lie.
struct Share {
    int first;  // element of the picture's row that the ring's row begins with
    index_t from[COPIES];
    unsigned inside;  // bit i: piece i lies inside the picture

    __device__ Share(const Streamed &args, int lane, int q0) : inside(0) {
        const Conv &conv = args.conv;
        first = (q0 * STRIDE_W - conv.left) * CHUNK - LEAD;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int piece = i * 32 + lane, e = first + piece % PIECES * VEC;
            from[i] = piece / PIECES * CHUNK * static_cast<index_t>(conv.x_strides.c) + e;
            if (args.aligned_x && e >= 0 && e + VEC <= conv.W * CHUNK) inside |= 1u << i;
        }
    }

    // Bring row `h` of the picture, counted from its edge, into a row of the ring.
    __device__ void bring(const Conv &conv, const x_t *picture, int lane, int h, x_t (&row)[PLANES][PIECES * VEC]) const {
        h = ::inside(h, conv.H);
        const x_t *line = picture + max(h, 0) * static_cast<index_t>(conv.x_strides.h);
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int piece = i * 32 + lane, plane = piece / PIECES, e = piece % PIECES * VEC;
            if (COPIES * 32 > PLANES * PIECES && piece >= PLANES * PIECES) continue;
            if (h >= 0 && inside >> i & 1)
                copy_async16(&row[plane][e], line + from[i]);
            else
                bring_tested(conv, line, h, plane, e, row);
        }
    }

    // A piece that reaches beyond the picture, or is not aligned.
    __device__ void bring_tested(const Conv &conv, const x_t *line, int h, int plane, int e,
                                 x_t (&row)[PLANES][PIECES * VEC]) const {
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            const int at = first + e + v + CHUNK * 65536;  // nothing left of -65536 is a window's
            const int w = ::inside(at / CHUNK - 65536, conv.W), c = plane * CHUNK + at % CHUNK;
            row[plane][e + v] = h < 0 || w < 0 ? stored<x_t>::of(conv.outside)
                                               : line[c * static_cast<index_t>(conv.x_strides.c) +
                                                      w * static_cast<index_t>(conv.x_strides.w)];
        }
    }
};

// The rows that step `t` needs and the steps before it did not: all of its window for the first.
__device__ inline void bring_rows(const Conv &conv, const Share &share, const x_t *picture, Ring &ring, int lane, int h0,
                                  int t) {
    const int begin = t == 0 ? 0 : ROWS + (t - 1) * NEW_ROWS, end = ROWS + t * NEW_ROWS;
    for (int i = begin; i < end; i++) share.bring(conv, picture, lane, h0 + i, ring.rows[i % SLOTS]);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    direct_streamed(const __grid_constant__ Streamed args) {
    const Conv &conv = args.conv;
    DYNAMIC_SHARED(Ring, rings);
    __shared__ __align__(16) acc_t staged[STAGED];
    const int lane = threadIdx.x;
    if constexpr (STAGED_WEIGHTS) {
        stage(args.filter, staged, threadIdx.y * 32 + lane, 32 * WARPS);
        __syncthreads();
    }
    const int q0 = (blockIdx.x * WARPS + threadIdx.y) * 32 * OUT_Q;
    if (q0 >= conv.Q) return;
    Ring &ring = rings[threadIdx.y];
    const Share share(args, lane, q0);
    const bool columns_inside = q0 + 32 * OUT_Q <= conv.Q;
    const long long planes = static_cast<long long>(conv.N) * (GROUPS * TILES_K);
    for (long long plane = blockIdx.z; plane < planes; plane += gridDim.z) {
        const int n = plane / (GROUPS * TILES_K), part = plane % (GROUPS * TILES_K), g = part / TILES_K;
        Tile tile = {n, g * K_GROUP + part % TILES_K * OUT_K, g * C_GROUP, 0, q0 + lane * OUT_Q};
        const x_t *picture = conv.x + place(conv.x_strides, n, tile.c, 0, 0);
        for (int p0 = blockIdx.y * args.band; p0 < conv.P; p0 += gridDim.y * args.band) {
            const int h0 = p0 * STRIDE_H - conv.top;
            const int steps = (min(args.band, conv.P - p0) + OUT_P - 1) / OUT_P;
            for (int t = 0; t < AHEAD; t++) {
                if (t < steps) bring_rows(conv, share, picture, ring, lane, h0, t);
                copy_async_commit();
            }
            for (int t = 0; t < steps; t++) {
                if (t + AHEAD < steps) bring_rows(conv, share, picture, ring, lane, h0, t + AHEAD);
                copy_async_commit();
                copy_async_wait<AHEAD>();
                __syncwarp();  // what the other lanes brought
                Sums sums = {};
                int slot = t * NEW_ROWS % SLOTS;
#pragma unroll(UNROLL_ROWS)
                for (int i = 0; i < ROWS; i++) {
#pragma unroll(UNROLL_C)
                    for (int c = 0; c < PLANES; c++) {
                        acc_t row[RUN];
                        load_run(conv, row, &ring.rows[slot][c][LEAD + lane * STEP]);
                        add_row(conv, staged, sums, row, tile.k, c * CHUNK, i);
                    }
                    if (++slot == SLOTS) slot = 0;
                }
                __syncwarp();  // all lanes have read; the slots of rows that are done may be filled again
                tile.p = p0 + t * OUT_P;
                if (args.aligned_out && columns_inside && tile.p + OUT_P <= conv.P)
                    store_vectors(conv, sums, tile);
                else
                    store_tested(conv, sums, tile);
            }
        }
    }
}
