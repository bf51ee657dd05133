// direct_mma: filters of bytes as matrix products on tensor cores.
//
// Since direct_boxes: on bytes it is limited by instructions, each of which multiplies four bytes. A tensor
//           core multiplies 16 x 32 bytes by 32 x 8 in one instruction. So a whole row of a filter is one product for
//           128 outputs, whatever its length, although most of the factors are zeros.
// Matrix    of pixels: each row is a window of WINDOW bytes of an image row, all that OUTS bytes of outputs need. The
//           next window begins OUTS bytes later. Of taps, a Toeplitz matrix: column o holds row r of the filter where
//           output o uses it, and zeros elsewhere. A channel never meets the taps of another group.
// Sums      row i of the image is row r of the window of output row i - r. So its products are added to R rows of sums.
//           The sums of output row i - R + 1 are then complete. Each product writes its sums one row further, so
//           nothing is moved.
// Columns   output 4 t + 2 h + j of a window is column 2 t + j of product h, so a thread has four neighbouring outputs.
// Tile      of a warp: SPAN bytes of outputs along a row, args.rows rows. Warps are independent.
// Threads   lane 4 g + t computes outputs 4 t to 4 t + 3 of windows g, g + 8, ... of the span.
// Grid      the warps of a block compute neighbouring spans, then those of the next strip of rows. Planes of an image
//           (whole images if channels are contiguous, CHUNK) have their own blocks.
// Stages    groups of STAGE_ROWS rows of a warp's pixels in shared memory, loaded or in flight, by asynchronous copies
//           for which L2 fetches whole lines: a span begins and ends within one line.
// Inner     most groups of a strip are inner ones, which test nothing, because few other warps hide the cost of a
//           branch.
// Border    the copies write zeros outside the image. Other border values are written over them (FILLED).
// Needs     sm_80; pixels and taps of bytes; no stride, no dilation, no zero point; as many outputs as channels, which
//           in NHWC divide 16 or 12; rows of a multiple of 16 bytes; a filter of at most 8 KiB.
// Limit     memory: each pixel is read once from DRAM, and the overlap of neighbouring warps' windows from L2.
#include "border.cuh"
#include "conv.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"
#include "mma.cuh"

constexpr int THREADS = 32 * cfg::WARPS, SPAN = MMA_ROWS * cfg::OUTS * cfg::SETS, STEPS = cfg::WINDOW / MMA_BYTES;
// A row in shared memory begins BEFORE bytes before the span, a multiple of 16. Its first window begins SHIFT bytes
// before the span, a multiple of 4. The first pixel that an output needs is LEAD bytes after that.
constexpr int BEFORE = (cfg::SHIFT + 15) / 16 * 16, SEEN = SPAN - cfg::OUTS + cfg::WINDOW - cfg::SHIFT;
constexpr int COPIES = (BEFORE + SEEN + 15) / 16, PITCH = 16 * COPIES;
constexpr int NEEDED = SPAN + cfg::CHUNK * (cfg::S - 1);  // bytes that outputs of a span need
constexpr int AHEAD = (cfg::STAGES - 1) * cfg::STAGE_ROWS;  // rows from multiplied to loaded
constexpr int HALVES = 2, LANE_COPIES = (cfg::STAGE_ROWS * COPIES + 31) / 32;

// True if sums are stored as saturated bytes, four at a time, without an epilogue.
constexpr bool SATURATES = sizeof(out_t) == 1 && !HAS_EPILOGUE;

static_assert(cfg::STRIDE_H == 1 && cfg::STRIDE_W == 1 && cfg::DILATION_H == 1 && cfg::DILATION_W == 1,
              "windows are dense");
static_assert(cfg::K == cfg::C && sizeof(x_t) == 1 && sizeof(w_t) == 1,
              "bytes of outputs stand where bytes of pixels do");
static_assert(cfg::OUTS % cfg::CHUNK == 0 && cfg::OUTS % 4 == 0 && cfg::OUTS <= 16,
              "windows begin alike against the channels");
static_assert(cfg::LEAD + cfg::OUTS + cfg::CHUNK * (cfg::S - 1) <= cfg::WINDOW && cfg::WINDOW % MMA_BYTES == 0,
              "windows hold what outputs see");
static_assert(cfg::SHIFT % 4 == 0 && SPAN % 16 == 0, "words and copies must be aligned");

struct Mma {
    Conv conv;
    Filter filter;
    int rows;               // output rows of a warp
    int units;              // spans of all strips of a plane
    Divisor spans, blocks;  // of a row; of a plane
    int aligned_out;        // true if rows of the output allow vectors of four elements
};

// The work of a warp: its plane of pixels, its first output, and its rows of pixels.
struct Strip {
    const x_t *plane;
    int n, k;  // of the plane; k is 0 if channels are contiguous
    int p, at;  // `at` in bytes along the row
    int rows;
};

__device__ inline Strip strip_of(const Mma &args, int warp) {
    const int plane = quotient(blockIdx.x, args.blocks),
              unit = (blockIdx.x - plane * args.blocks.by) * cfg::WARPS + warp;
    const int down = quotient(unit, args.spans), n = plane / (cfg::C / cfg::CHUNK), k = plane % (cfg::C / cfg::CHUNK),
              p = down * args.rows;
    const int rows = unit < args.units ? min(args.rows, args.conv.P - p) + cfg::R - 1 : 0;
    return {args.conv.x + offset_of(args.conv.x_strides, n, k, 0, 0), n, k, p, (unit - down * args.spans.by) * SPAN, rows};
}

// The taps of a plane in shared memory, in the order of a row of pixels: for an output of channel k, row r of the
// filter is line k R + r, from byte ZEROS_BEFORE on. Zeros are around it, and between taps at the channels of other
// groups.
constexpr int ZEROS_BEFORE = (cfg::LEAD + 19) / 4 * 4, LINE = ZEROS_BEFORE + cfg::WINDOW + 4;
constexpr int TAPS = cfg::CHUNK * cfg::C_GROUP * cfg::R * cfg::S, LINES = cfg::CHUNK * cfg::R * LINE / 4;

// Address of tap i in the given filter, and its byte in the lines.
struct Tap {
    const w_t *from;
    int to;
};

__device__ inline Tap tap_of(const Filter &filter, const Strip &strip, int i) {
    const int s = i % cfg::S, r = i / cfg::S % cfg::R, c = i / (cfg::S * cfg::R) % cfg::C_GROUP,
              k = i / (cfg::S * cfg::R * cfg::C_GROUP);
    return {in_register(filter.taps + offset_of(filter.strides, strip.k + k, c, r, s)),
            in_register((k * cfg::R + r) * LINE + ZEROS_BEFORE + s * cfg::CHUNK + k / cfg::K_GROUP * cfg::C_GROUP + c)};
}

// Loads four bytes at any alignment: `turn` bits after `words`.
__device__ inline unsigned four_bytes(const unsigned *words, int turn) {
    return static_cast<unsigned>((words[0] | static_cast<unsigned long long>(words[1]) << 32) >> turn);
}

// The copies of a lane for STAGE_ROWS rows: the lanes share their COPIES copies of 16 bytes.
struct Source {
    const x_t *from[LANE_COPIES];  // in row 0
    int row[LANE_COPIES];          // of the strip's first group
    int kind[LANE_COPIES];         // 0: nothing to copy; 1: zeros; 2: pixels of the image
    index_t step;             // from one row to the next
    int height;
};

__device__ inline Source source_of(const Conv &conv, const Strip &strip, int lane) {
    Source source;
    source.step = in_register(static_cast<index_t>(conv.x_strides.h)), source.height = in_register(conv.H);
#pragma unroll
    for (int c = 0; c < LANE_COPIES; c++) {
        const int copy = 32 * c + lane, at = strip.at - BEFORE + 16 * (copy % COPIES);
        const bool there = at >= 0 && at < conv.W * cfg::CHUNK && copy < cfg::STAGE_ROWS * COPIES;
        source.row[c] = in_register(strip.p - conv.top + copy / COPIES);
        source.kind[c] = in_register(copy >= cfg::STAGE_ROWS * COPIES ? 0 : there ? 2 : 1);
        source.from[c] = in_register(strip.plane + (there ? at : 0));
    }
    return source;
}

// Issues the copies of the group of rows that begins `down` rows below the strip's first.
__device__ inline void load(const Source &source, unsigned char *target, int down) {
#pragma unroll
    for (int c = 0; c < LANE_COPIES; c++) {
        const int h = inside(source.row[c] + down, source.height);
        if (source.kind[c] != 0)
            copy_async16_l2_128b(target + 16 * 32 * c, source.from[c] + max(h, 0) * source.step, source.kind[c] == 2 && h >= 0);
    }
}

// The same for rows inside the image, from the addresses of the first row.
__device__ inline void load_inner(const Source &source, unsigned char *target, const x_t *const (&from)[LANE_COPIES]) {
#pragma unroll
    for (int c = 0; c < LANE_COPIES; c++)
        if (source.kind[c] != 0) copy_async16_l2_128b(target + 16 * 32 * c, from[c], source.kind[c] == 2);
}

// Bytes outside the image along a row that outputs of the strip need: the first `left` bytes and those from `behind`
// on, of `seen`. If they are few and the row holds the values of the border, each lane copies one.
struct Fill {
    int needed;  // 0: none; 1: a byte a lane; 2: all in a loop
    int seen, left, behind;
    int from, to;  // of the lane, from the beginning of a row
};

// Position in a row of shared memory of the border value for byte e, or -1 if the row does not hold it.
__device__ inline int held_of(const Conv &conv, const Strip &strip, int e) {
    const int w = inside(strip.at / cfg::CHUNK - conv.left + e / cfg::CHUNK, conv.W);
    const int held = w * cfg::CHUNK + e % cfg::CHUNK - strip.at + BEFORE;
    return w >= 0 && held >= 0 && held < PITCH ? held : -1;
}

__device__ inline Fill fill_of(const Conv &conv, const Strip &strip, int lane) {
    const int first = strip.at - conv.left * cfg::CHUNK,
              seen = min(NEEDED, (conv.Q + cfg::S - 1) * cfg::CHUNK - strip.at);
    const int left = min(max(-first, 0), seen), behind = min(max(conv.W * cfg::CHUNK - first, left), seen);
    const int count = left + seen - behind, e = lane < left ? lane : behind + lane - left;
    const int from = lane < count ? held_of(conv, strip, e) : BEFORE;
    const bool simple = count <= 32 && __all_sync(0xffffffffu, from >= 0);
    return {in_register(count <= 0 ? 0 : simple ? 1 : 2),
            seen,
            left,
            behind,
            in_register(from),
            in_register(lane < count ? BEFORE - conv.left * cfg::CHUNK + e : -1)};
}

// Writes the border values over a group of rows, `down` rows below the strip's first.
__device__ inline void fill_outside(const Conv &conv, const Strip &strip, const Fill &fill, unsigned char *slot,
                                    int down, int lane) {
    if (cfg::BORDER != CONSTANT && fill.needed == 1) {
        if (fill.to >= 0)
#pragma unroll
            for (int row = 0; row < cfg::STAGE_ROWS; row++) slot[row * PITCH + fill.to] = slot[row * PITCH + fill.from];
        return;
    }
#pragma unroll 1
    for (int i = 0; i < cfg::STAGE_ROWS; i++) {
        const int h = inside(strip.p - conv.top + down + i, conv.H);
        const int gap = h < 0 ? 0 : fill.behind - fill.left, left = h < 0 ? fill.seen : fill.left;
        unsigned char *const line = slot + i * PITCH;
#pragma unroll 1
        for (int j = lane; j < fill.seen - gap; j += 32) {
            const int e = j < left ? j : j + gap,
                      w = inside(strip.at / cfg::CHUNK - conv.left + e / cfg::CHUNK, conv.W);
            x_t value = stored<x_t>::of(conv.outside);
            const index_t row = h * static_cast<index_t>(conv.x_strides.h);
            if (h >= 0 && w >= 0) value = strip.plane[row + w * cfg::CHUNK + e % cfg::CHUNK];
            line[BEFORE - conv.left * cfg::CHUNK + e] = static_cast<unsigned char>(value);
        }
    }
}

// Stores four outputs, from byte `at` of row p on, as a vector at `to`.
__device__ inline void store_four(const Conv &conv, const Strip &strip, int p, int at, const int (&sums)[4],
                                  out_t *to) {
    Vector<out_t, 4> values;
    if constexpr (SATURATES) {
        values = saturated<out_t>(sums);
    } else {
#pragma unroll
        for (int e = 0; e < 4; e++)
            values.at[e] = output_value(conv, strip.n, strip.k + (at + e) % cfg::CHUNK, p, (at + e) / cfg::CHUNK, sums[e]);
    }
    store_vector(to, values);
}

// Stores those of the four outputs that exist.
__device__ inline void store_some(const Mma &args, const Strip &strip, int p, int at, const int (&sums)[4], out_t *to) {
    const Conv &conv = args.conv;
    at = in_register(at);  // few strips need this, so it is not computed before the loop
    if (args.aligned_out && at + 4 <= conv.Q * cfg::CHUNK) {
        store_four(conv, strip, p, at, sums, to);
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (at + e < conv.Q * cfg::CHUNK)
            store_output(conv, strip.n, strip.k + (at + e) % cfg::CHUNK, p, (at + e) / cfg::CHUNK, sums[e]);
}

// The loop of a warp down its strip, one group of rows at a time.
struct Walk {
    const Mma &args;
    Strip strip;
    Source source;
    Fill fill;
    int lane;
    int at;                          // position along a row of the thread's outputs
    char *to;                        // address of its outputs in the row that is completed next
    long long step;                  // bytes from one row of outputs to the next
    unsigned char *ring, *target;    // the warp's rows; target of the lane's copies in the first
    const unsigned char *window;     // of the lane, in the first row
    const x_t *ahead[LANE_COPIES];        // sources of the lane's copies, AHEAD rows below row i,
    long long further;               // and their step from group to group
    int i, now;                      // the next row of pixels, and its position in the ring
    unsigned taps[cfg::R][STEPS][HALVES][2];  // fragments of the matrices of taps
    int sums[cfg::SETS][HALVES][cfg::R][4];

    __device__ inline void begin(unsigned char *warps_ring, unsigned char *lanes_target, const unsigned *lines) {
        const Conv &conv = args.conv;
        const int g = lane / 4, t = lane % 4, across = strip.at + g * cfg::OUTS + 4 * t;
        at = in_register(4 * t < cfg::OUTS ? across : conv.Q * cfg::CHUNK);  // of 12 outputs one lane of four has none
        step = in_register(static_cast<long long>(conv.out_strides.h * sizeof(out_t)));
        out_t *const first = conv.out + offset_of(conv.out_strides, strip.n, strip.k, strip.p, 0) + across;
        to = reinterpret_cast<char *>(in_register(first)) - (cfg::R - 1) * step;
        ring = warps_ring, target = lanes_target;
        window = shared_in_register(ring + BEFORE - cfg::SHIFT + g * cfg::OUTS + 4 * t);
        further = in_register(static_cast<long long>(cfg::STAGE_ROWS) * source.step);
#pragma unroll
        for (int c = 0; c < LANE_COPIES; c++) ahead[c] = in_register(source.from[c] + (source.row[c] + AHEAD) * source.step);
        i = now = 0;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const int o = g / 2 * 4 + 2 * h + g % 2,
                      from = ZEROS_BEFORE - cfg::LEAD - o / cfg::CHUNK * cfg::CHUNK + 4 * t;
            const unsigned *const line = lines + (o % cfg::CHUNK * cfg::R * LINE + from) / 4;
#pragma unroll
            for (int v = 0; v < cfg::R * STEPS * 2; v++) {
                const int r = v / (2 * STEPS), m = v / 2 % STEPS, half = v % 2;
                taps[r][m][h][half] = four_bytes(line + (r * LINE + m * MMA_BYTES + 16 * half) / 4, from % 4 * 8);
            }
        }
#pragma unroll
        for (int v = 0; v < cfg::SETS * HALVES * cfg::R * 4; v++)
            sums[v / (8 * cfg::R)][v / (4 * cfg::R) % HALVES][v / 4 % cfg::R][v % 4] = 0;
    }

    // End of the inner groups from here on: each of their rows completes a row of outputs in whole vectors, and neither
    // their rows nor the rows that they load are outside the image. Most groups are inner ones. The tests of the others
    // cost more than their products.
    __device__ inline int inner_end() const {
        const Conv &conv = args.conv;
        const int width = conv.Q * cfg::CHUNK, below = conv.H - (strip.p - conv.top) - cfg::STAGE_ROWS + 1;
        const bool vectors = args.aligned_out && (width % 4 == 0 || strip.at + SPAN <= width);
        const bool loads = i + AHEAD < strip.rows;
        if (!vectors || i < cfg::R - 1 || strip.p - conv.top + i < 0) return i;
        const int end = min(strip.rows - cfg::STAGE_ROWS + 1, below);
        return loads && below < strip.rows ? min(end, below - AHEAD) : end;
    }

    template <bool INNER>
    __device__ inline void gang() {
        const Conv &conv = args.conv;
        const int above = strip.p - conv.top + i;
        copy_async_wait<cfg::STAGES - 2>();
        __syncwarp();  // the rows are visible to all lanes, and all lanes have read the earlier ones
        if (i + AHEAD < strip.rows) {
            unsigned char *const slot = target + (now == 0 ? AHEAD * PITCH : now - cfg::STAGE_ROWS * PITCH);
            if constexpr (INNER) load_inner(source, slot, ahead);
            else load(source, slot, i + AHEAD);
        }
        copy_async_commit();
        if constexpr (cfg::FILLED) {
            if (fill.needed || (!INNER && cfg::BORDER == CONSTANT && (above < 0 || above + cfg::STAGE_ROWS > conv.H))) {
                fill_outside(conv, strip, fill, ring + now, i, lane);
                __syncwarp();
            }
        }
        // All rows are loaded before the first is multiplied, so that their latencies overlap.
        unsigned pixels[cfg::STAGE_ROWS][cfg::SETS][STEPS][4];
#pragma unroll
        for (int v = 0; v < cfg::STAGE_ROWS * cfg::SETS * STEPS * 4; v++) {
            const int row = v / (4 * STEPS * cfg::SETS), set = v / (4 * STEPS) % cfg::SETS, m = v / 4 % STEPS,
                      j = v % 4;
            const int word = row * PITCH + (set * MMA_ROWS + j % 2 * 8) * cfg::OUTS + m * MMA_BYTES + j / 2 * 16;
            pixels[row][set][m][j] = *reinterpret_cast<const unsigned *>(window + now + word);
        }
#pragma unroll
        for (int row = 0; row < cfg::STAGE_ROWS; row++) {
#pragma unroll
            for (int set = 0; set < cfg::SETS; set++)
#pragma unroll
                for (int v = 0; v < STEPS * cfg::R * HALVES; v++) {
                    const int m = v / (cfg::R * HALVES), r = cfg::R - 1 - v / HALVES % cfg::R, h = v % HALVES;
                    int before[4];  // sums of the same output row so far
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        before[e] = m > 0 ? sums[set][h][r][e] : r > 0 ? sums[set][h][max(r - 1, 0)][e] : 0;
                    mma_bytes<x_t, w_t>(sums[set][h][r], pixels[row][set][m], taps[r][m][h], before);
                }
            const int p = i + row - (cfg::R - 1);
            if (INNER || (p >= 0 && i + row < strip.rows)) store_row<INNER>(strip.p + p);
            to += step;
        }
        i += cfg::STAGE_ROWS, now = now + cfg::STAGE_ROWS * PITCH == cfg::STAGES * cfg::STAGE_ROWS * PITCH ? 0 : now + cfg::STAGE_ROWS * PITCH;
#pragma unroll
        for (int c = 0; c < LANE_COPIES; c++) ahead[c] += further;
    }

    template <bool INNER>
    __device__ inline void store_row(int p) {
#pragma unroll
        for (int v = 0; v < 2 * cfg::SETS; v++) {
            const int set = v / 2, j = v % 2, window_at = (set * MMA_ROWS + 8 * j) * cfg::OUTS;
            const auto &low = sums[set][0][cfg::R - 1], &high = sums[set][1][cfg::R - 1];
            const int four[4] = {low[2 * j], low[2 * j + 1], high[2 * j], high[2 * j + 1]};
            out_t *const vector = reinterpret_cast<out_t *>(to) + window_at;
            if constexpr (!INNER) store_some(args, strip, p, at + window_at, four, vector);
            else if (at + window_at < args.conv.Q * cfg::CHUNK)
                store_four(args.conv, strip, p, at + window_at, four, vector);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) direct_mma(const __grid_constant__ Mma args) {
    __shared__ __align__(16) unsigned char rings[cfg::WARPS][cfg::STAGES][cfg::STAGE_ROWS * PITCH];
    __shared__ unsigned lines[LINES];
    const int thread = in_register(static_cast<int>(threadIdx.x)), lane = thread % 32;
    const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);  // uniform in a warp, for the compiler
    const Strip strip = strip_of(args, warp);
    const Source source = source_of(args.conv, strip, lane);
    const Tap own = tap_of(args.filter, strip, min(thread, TAPS - 1));
    unsigned char *const ring = shared_in_register(rings[warp][0]), *const target = shared_in_register(ring + 16 * lane);
    for (int i = thread; i < LINES; i += THREADS) lines[i] = 0;
    __syncthreads();
    pdl_wait();
    const w_t first = *own.from;  // loaded before the pixels
#pragma unroll 1
    for (int i = 0; i < AHEAD; i += cfg::STAGE_ROWS) {
        if (i < strip.rows) load(source, target + i * PITCH, i);
        copy_async_commit();
    }
    if (thread < TAPS) reinterpret_cast<w_t *>(lines)[own.to] = first;
    for (int i = thread + THREADS; i < TAPS; i += THREADS) {
        const Tap tap = tap_of(args.filter, strip, i);
        reinterpret_cast<w_t *>(lines)[tap.to] = *tap.from;
    }
    __syncthreads();

    Walk walk = {args, strip, source, fill_of(args.conv, strip, lane), lane};
    walk.begin(ring, target, lines);
#pragma unroll 1
    while (walk.i < strip.rows) {
        const int end = walk.inner_end();
        if (walk.i < end) {
#pragma unroll 1
            do walk.gang<true>();
            while (walk.i < end);
        } else {
            walk.gang<false>();
        }
    }
}
