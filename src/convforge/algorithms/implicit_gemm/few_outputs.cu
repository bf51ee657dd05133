// implicit_gemm_few_outputs: layers with few filters, of 16-bit types, on tensor cores since Ampere; stride 1.
//
// Since implicit_gemm_mma: with few filters a product has few columns, and every pixel is loaded and
//           multiplied R x S times. Here a pixel is loaded once and multiplied by all taps of all filters: R x S x K
//           columns. An output is the sum of R x S results of neighbouring pixels.
// Strip     a block has BLOCK_M neighbouring columns of an image and goes along them row by row, down or up. The halo
//           columns beyond the strip's `useful` outputs belong to it, too.
// Band      the output rows of a block. With dilation, a band has every DILATION_H-th row, so that neighbours in a band
//           need the same rows. Blocks alternate between down and up: two that need the same rows read them at about
//           the same time, and the second read hits L2.
// Threads   warps of WARP_M pixels. A warp loads its own pixels, BLOCK_K channels at a time, STAGES - 1 steps ahead,
//           and needs no other warp to multiply them.
// Pixels    16-byte pieces by cp.async: 8 channels of a pixel (CHANNELS_LAST), or 8 pixels of a channel; then a strip
//           begins at a multiple of 8 columns. Number by number without WHOLE_PIECES, and where the border is not
//           zeros.
// Filters   packed by tap_columns.cu. A lane keeps its fragments in registers if they fit; otherwise the block keeps
//           them in shared memory.
// Rows      warps write the results of a row of pixels to shared memory, double buffered: one barrier a row.
// Sums      a thread has the same output columns in all rows. It adds the taps of one filter row, and keeps these sums
//           in registers for the R - 1 outputs that are incomplete.
// Limit     memory: the read of x.
#include "border.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "mma_tiles.cuh"

constexpr int STEPS = TapMatrix::STEPS, PRODUCTS = TapMatrix::PRODUCTS, FACTORS = TapMatrix::FACTORS;
static_assert(sizeof(x_t) == 2 && sizeof(w_t) == 2 && sizeof(math_t) == 2, "products are of 16-bit numbers");
static_assert(cfg::GROUPS == 1 && cfg::STRIDE_H == 1 && cfg::STRIDE_W == 1, "every pixel is multiplied by every tap");
static_assert(WARPS_N == 1, "a warp has all columns of its pixels");
static_assert(ROWS == 1 || ROWS == 2 || ROWS == 4, "a warp has 16, 32 or 64 pixels");

constexpr int CHUNKS = (cfg::C + cfg::BLOCK_K - 1) / cfg::BLOCK_K, CHUNK_STEPS = cfg::BLOCK_K / MMA_HALVES;
constexpr bool FACTORS_HELD = STEPS * PRODUCTS <= 32;  // in registers: at most 64 a lane
constexpr int PITCH = cfg::BLOCK_M + 4;                // padded: lanes of a warp write to different banks

// Outputs of a thread in a row: PASSES columns, THREADS apart. If there are twice as many threads as columns, a thread
// has every second filter.
constexpr int PASSES = ROWS == 4 ? 2 : 1, FILTER_STEP = ROWS == 1 ? 2 : 1;
constexpr int PER_THREAD = (cfg::K + FILTER_STEP - 1) / FILTER_STEP * PASSES;
// Blocks go both down and up if a thread has registers for the sums of all filter rows. It adds them in a fixed order,
// so results do not depend on the direction.
constexpr bool BOTH_WAYS = cfg::R * (cfg::R - 1) / 2 * PER_THREAD <= 24;
constexpr int WAITING = cfg::R > 1 ? cfg::R - 1 : 1;  // incomplete outputs of a column

struct FewOutputs {
    Conv conv;
    const TapFactors *filters;
    int useful, rows;  // output columns of a strip, and output rows of a band
};

// BLOCK_K channels of a warp's pixels of a row. A line is a pixel or a channel.
using PixelTile =
    LineTile<cfg::CHANNELS_LAST ? cfg::WARP_M : cfg::BLOCK_K, cfg::CHANNELS_LAST ? cfg::BLOCK_K : cfg::WARP_M>;
using Products = float[TapMatrix::COLUMNS][PITCH];  // of a row of pixels, by column and pixel
using Sums = float[ROWS][PRODUCTS][4];

struct Shared {
    PixelTile stages[WARPS_M][cfg::STAGES];
    TapFactors factors[FACTORS_HELD ? 32 : FACTORS];
    Products products[2];
};

// The outputs of a block: `count` rows p, p + step, ...
struct Band {
    int n, p, step, count, q;

    __device__ bool up() const { return step < 0; }
    // The first row of pixels in its direction, counted from the image's edge.
    __device__ int first_row(const Conv &conv) const {
        return p - conv.top + (up() ? (cfg::R - 1) * cfg::DILATION_H : 0);
    }
    __device__ int rows() const { return count + cfg::R - 1; }
};

__device__ inline Band band_of(const FewOutputs &args, unsigned i) {
    const Conv &conv = args.conv;
    const unsigned strips = (conv.Q + args.useful - 1) / args.useful;
    const unsigned longest = (conv.P + cfg::DILATION_H - 1) / cfg::DILATION_H,
                   bands = (longest + args.rows - 1) / args.rows;
    const int strip = i % strips, band = i / strips % bands, other = i / strips / bands;
    const int phase = other % cfg::DILATION_H;  // it has rows phase, phase + DILATION_H, ...
    const int first = band * args.rows, of_phase = (conv.P - phase + cfg::DILATION_H - 1) / cfg::DILATION_H;
    const int count = min(args.rows, of_phase - first);
    const bool up = BOTH_WAYS && band % 2 == 1;
    return {other / cfg::DILATION_H, phase + (up ? first + count - 1 : first) * cfg::DILATION_H,
            up ? -cfg::DILATION_H : cfg::DILATION_H, count, strip * args.useful};
}

// Loads the pixels of a warp, step by step: for each row of pixels its chunks of channels.
struct PixelCopies {
    static constexpr int PIECES = PixelTile::PIECES, TOGETHER = 32 / PIECES;  // lines that a warp loads at once
    static constexpr int LINES = cfg::CHANNELS_LAST ? cfg::WARP_M : cfg::BLOCK_K, COUNT = LINES / TOGETHER;
    static_assert(32 % PIECES == 0 && LINES % TOGETHER == 0, "a lane has the same piece of each of its lines");
    const Conv &conv;
    const int n, step, line, piece, first;  // `first`: column of the warp's first pixel
    int end;                                // first column that no output of the strip needs, or that is outside
    int columns[cfg::CHANNELS_LAST && cfg::BORDER != ZEROS ? COUNT : 1];  // columns of the image, for a lane's lines
    int h, row, left;  // the next row, counted from the edge and in the image; rows left
    int chunk, stage;

    __device__ PixelCopies(const Conv &conv, const Band &band, int first, int end)
        : conv(conv), n(band.n), step(band.step), line(threadIdx.x % 32 / PIECES), piece(threadIdx.x % PIECES),
          first(first), end(end), h(band.first_row(conv)), row(inside(h, conv.H)), left(band.rows()), chunk(0), stage(0) {
        if constexpr (cfg::CHANNELS_LAST && cfg::BORDER != ZEROS)
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const int w = first + line + i * TOGETHER;
                columns[i] = w < end ? inside(w, conv.W) : -1;
            }
        if (cfg::BORDER == ZEROS) this->end = max(0, min(end, conv.W));
    }

    // Copies a piece number by number: channels from c on, or columns from w on.
    __device__ void by_number(math_t *to, int w, int c) const {
        Vector<math_t, PIECE> numbers;
#pragma unroll
        for (int j = 0; j < PIECE; j++) {
            const int own_c = cfg::CHANNELS_LAST ? c + j : c, own_w = cfg::CHANNELS_LAST ? w : inside(w + j, conv.W);
            numbers.at[j] = math_t{};
            if (own_c >= cfg::C) continue;
            if (row >= 0 && own_w >= 0) numbers.at[j] = conv.x[offset_of(conv.x_strides, n, own_c, row, own_w)];
            else if (cfg::BORDER == CONSTANT) numbers.at[j] = stored<math_t>::of(conv.outside);
        }
        store_vector(to, numbers);
    }

    // Issues the copies of a step's pixels.
    __device__ __forceinline__ void ask(PixelTile &tile) const {
        const x_t *const line_of_x = conv.x + offset_of(conv.x_strides, n, 0, max(row, 0), 0);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int own = line + i * TOGETHER;
            math_t *const to = tile.piece(own, piece);
            if constexpr (cfg::CHANNELS_LAST) {
                const int c = chunk * cfg::BLOCK_K + piece * PIECE;
                int w = first + own;
                if constexpr (cfg::BORDER == ZEROS) w = static_cast<unsigned>(w) < static_cast<unsigned>(end) ? w : -1;
                else w = columns[i];
                const bool there = row >= 0 && w >= 0 && c < cfg::C;
                const x_t *from = line_of_x + (w * static_cast<index_t>(conv.x_strides.w) + c);
                if (cfg::WHOLE_PIECES && (cfg::BORDER != CONSTANT || there)) copy_async16(to, from, there);
                else by_number(to, w, c);
            } else {
                const int c = chunk * cfg::BLOCK_K + own, w = first + piece * PIECE;
                const bool seen = 0 <= w && w < min(end, conv.W), there = row >= 0 && seen && c < cfg::C;
                const x_t *from = line_of_x + (c * static_cast<index_t>(conv.x_strides.c) + w);
                if (cfg::WHOLE_PIECES && (cfg::BORDER == ZEROS || there)) copy_async16(to, from, there);
                else by_number(to, w, c);
            }
        }
    }

    // Issues the copies of the next step, if there is one. After the last step the groups are empty, so that the wait
    // can count them.
    __device__ __forceinline__ void next(PixelTile (&stages)[cfg::STAGES]) {
        if (left > 0) ask(stages[stage]);
        copy_async_commit();
        stage = stage + 1 == cfg::STAGES ? 0 : stage + 1;
        if (++chunk < CHUNKS) return;
        chunk = 0, left--, h += step;
        row = inside(h, conv.H);
    }
};

// Adds the products of a chunk of channels. factors(step, j) returns a lane's fragment of 16 channels and product j.
template <class Get>
__device__ __forceinline__ void multiply_chunk(Sums &sums, const PixelTile &tile, int chunk, const Get &factors) {
#pragma unroll
    for (int k = 0; k < CHUNK_STEPS; k++) {
        const int step = chunk * CHUNK_STEPS + k;
        if (STEPS % CHUNK_STEPS && step >= STEPS) break;
        unsigned a[ROWS][4];
#pragma unroll
        for (int i = 0; i < ROWS; i++) load_rows<cfg::CHANNELS_LAST>(a[i], tile, i * MMA_ROWS, k * MMA_HALVES);
#pragma unroll
        for (int j = 0; j < PRODUCTS; j++) {
            const TapFactors b = factors(step, j);
#pragma unroll
            for (int i = 0; i < ROWS; i++) mma_halves<Narrow>(sums[i][j], a[i], b.words);
        }
    }
}

// Writes a warp's results of a row; `first` is its first pixel in the strip.
__device__ __forceinline__ void put_products(Products &products, int first, const Sums &sums) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < PRODUCTS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int column = j * MMA_COLUMNS + 2 * t + e;
            if (TapMatrix::COLUMNS % MMA_COLUMNS && column >= TapMatrix::COLUMNS) continue;
#pragma unroll
            for (int i = 0; i < 2 * ROWS; i++) products[column][first + 8 * i + g] = sums[i / 2][j][i % 2 * 2 + e];
        }
}

// A thread's outputs, row after row.
struct Outputs {
    const Conv &conv;
    const Band &band;
    const int useful, shift;  // `shift`: from an output's column in the strip to its first pixel
    // For the output that began i + 1 rows ago: BOTH_WAYS, its i + 1 sums of filter rows, in order of arrival; else
    // their total.
    float kept[PER_THREAD][WAITING][BOTH_WAYS ? WAITING : 1];

    __device__ Outputs(const Conv &conv, const Band &band, int useful, int shift)
        : conv(conv), band(band), useful(useful), shift(shift), kept{} {}

    __device__ int column(int j) const {
        return ROWS == 1 ? threadIdx.x % cfg::BLOCK_M : threadIdx.x + j % PASSES * THREADS;
    }
    __device__ int filter(int j) const { return ROWS == 1 ? threadIdx.x / cfg::BLOCK_M + 2 * j : j / PASSES; }

    // Returns the output that the last of `taps`, the sums of the filter rows, completes, and keeps the others.
    template <int COUNT>
    __device__ __forceinline__ float complete(float (&own)[WAITING][COUNT], const float (&taps)[cfg::R]) const {
        if constexpr (cfg::R == 1) return taps[0];
        float sum = own[WAITING - 1][0];  // from the first row of the filter to the last
#pragma unroll
        for (int i = 1; i < COUNT; i++) sum += own[WAITING - 1][i];
        sum += taps[cfg::R - 1];
        float from_last = taps[cfg::R - 1];
#pragma unroll
        for (int i = COUNT - 1; i >= 0; i--) from_last += own[WAITING - 1][i];
#pragma unroll
        for (int i = WAITING - 1; i > 0; i--) {
#pragma unroll
            for (int j = 0; j < COUNT; j++) own[i][j] = own[i - 1][j];
            if constexpr (BOTH_WAYS) own[i][i] = taps[i];
            else own[i][0] += taps[i];
        }
        own[0][0] = taps[0];
        return band.up() ? from_last : sum;
    }

    // Adds a row's products and stores the outputs that are now complete: those of row `done` of the band, or none.
    __device__ __forceinline__ void add(const Products &products, int done) {
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            const int k = filter(j), q = band.q + column(j);
            if (k >= cfg::K || column(j) >= useful || q >= conv.Q) continue;
            const float *const from = &products[k][column(j) + shift];
            float taps[cfg::R];
#pragma unroll
            for (int r = 0; r < cfg::R; r++) {
                taps[r] = from[TapMatrix::column(r, 0, 0) * PITCH];
#pragma unroll
                for (int s = 1; s < cfg::S; s++)
                    taps[r] += from[TapMatrix::column(r, s, 0) * PITCH + s * cfg::DILATION_W];
            }
            const float sum = complete(kept[j], taps);
            if (done >= 0) store_output(conv, band.n, k, band.p + done * band.step, q, sum);
        }
    }
};

// Processes all rows of a band.
template <class Get>
__device__ __forceinline__ void walk(Shared &shared, PixelCopies &copies, Outputs &outputs, const Get &factors) {
    const int warp = threadIdx.x / 32, rows = outputs.band.rows();
    PixelTile(&stages)[cfg::STAGES] = shared.stages[warp];
    int stage = 0;
#pragma unroll 1
    for (int i = 0; i < rows; i++) {
        Sums sums = {};
        constexpr int CHUNKS_AT_ONCE = FACTORS_HELD ? CHUNKS : 1;
#pragma unroll CHUNKS_AT_ONCE
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            copy_async_wait<cfg::STAGES - 2>();  // this lane's pixels of the step have landed,
            __syncwarp();                   // so have the other lanes', and all have loaded the step before
            copies.next(stages);
            multiply_chunk(sums, stages[stage], chunk, factors);
            stage = stage + 1 == cfg::STAGES ? 0 : stage + 1;
        }
        put_products(shared.products[i % 2], warp * cfg::WARP_M, sums);
        __syncthreads();  // the row is complete; all have added the row before, which the next one overwrites
        outputs.add(shared.products[i % 2], i - (cfg::R - 1));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS)
    implicit_gemm_few_outputs(const __grid_constant__ FewOutputs args) {
    DYNAMIC_SHARED(Shared, shared);
    const Conv &conv = args.conv;
    const Band band = band_of(args, blockIdx.x);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Pieces of pixels begin at multiples of 8 columns.
    const int seen = band.q - conv.left, first = cfg::CHANNELS_LAST || !cfg::WHOLE_PIECES ? seen : seen & ~(PIECE - 1);
    const int end = seen + args.useful + (cfg::S - 1) * cfg::DILATION_W;
    pdl_wait();
    if (band.count <= 0) return;
    const TapFactors *const factors = args.filters + (band.up() ? FACTORS : 0);
    PixelCopies copies(conv, band, first + warp * cfg::WARP_M, end);
    Outputs outputs(conv, band, args.useful, seen - first);
    if constexpr (FACTORS_HELD) {
        for (int i = 0; i < cfg::STAGES - 1; i++) copies.next(shared->stages[warp]);
        TapFactors held[STEPS][PRODUCTS];
#pragma unroll
        for (int i = 0; i < STEPS * PRODUCTS; i++) held[i / PRODUCTS][i % PRODUCTS] = factors[i * 32 + lane];
        walk(*shared, copies, outputs, [&](int step, int j) { return held[step][j]; });
    } else {
        for (int i = threadIdx.x; i < FACTORS / 2; i += THREADS) copy_async16(shared->factors + 2 * i, factors + 2 * i);
        copy_async_commit();
        for (int i = 0; i < cfg::STAGES - 1; i++) copies.next(shared->stages[warp]);
        copy_async_wait<cfg::STAGES - 1>();
        __syncthreads();  // the factors have landed
        const TapFactors *const own = shared->factors + lane;
        walk(*shared, copies, outputs, [&](int step, int j) { return own[(step * PRODUCTS + j) * 32]; });
    }
}
