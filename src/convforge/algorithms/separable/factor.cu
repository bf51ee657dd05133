// factor: a filter as a sum of products of a column and a row, as many as its singular values ask for.
//
// What factors.py does with NumPy, by the same rules: in double, of a filter brought near 1 by a power of two; a product
// counts unless what it and all smaller ones add is rounding noise; factors are rounded once.
// Block     one filter (k, c), THREADS threads. It waits for nobody, and nobody waits for it but the stream.
// Crosses   elimination with complete pivoting: a column and a row through the largest element, subtracted, and so on,
//           until the rest is noise. As many products are enough; and not one too many, if the smallest pivot says that
//           no singular value is noise (see `certain`). Then that is all: so it is for blurs, boxes, derivatives.
// Rotations else: one-sided Jacobi (M. R. Hestenes, J. SIAM 6(1), 1958). LINES rows, or columns where they are fewer,
//           are rotated in pairs until each pair is orthogonal; their lengths are then the singular values. A warp takes
//           a pair; the pairs of a round have no line in common.
// Shared    the filter's elements, in double; in global memory where they are too many.
// NaN       A filter that holds NaN or Inf has no factors: they are all NaN, and so are its outputs.
// Limit     latency: barriers and shuffles of one block, about as many for a large filter as for a small one.
#include "memory.cuh"
#include "types.cuh"

constexpr int LINES = cfg::R < cfg::S ? cfg::R : cfg::S, LENGTH = cfg::R < cfg::S ? cfg::S : cfg::R,
              WARPS = cfg::THREADS / 32;
constexpr double EPSILON = sizeof(acc_t) == 8 ? 0x1p-52 : 0x1p-23, NOISE = cfg::ROUNDINGS * EPSILON;
// When a pair counts as orthogonal, and after how many sweeps it must be: LAPACK's dgesvj has the same two.
constexpr double SQUARED_TOLERANCE = LENGTH * 0x1p-104;
constexpr int MOST_SWEEPS = 30;

static_assert(cfg::THREADS % 32 == 0 && cfg::THREADS >= LINES, "whole warps, and a thread for each singular value");

struct Factoring {
    const w_t *w;
    acc_t *rows, *columns;  // (K, C_GROUP, LINES, S) and (K, C_GROUP, LINES, R); only the first `ranks` are written
    int *ranks;             // (K, C_GROUP): at least 1, so that a NaN under a zero filter is kept
    double *errors;         // (K, C_GROUP): what the factors miss of a filter, relative to its norm (Frobenius)
    double *scratch;        // elements of all filters, where shared memory is too small
    long long strides[4];   // of w, in elements, in the order k, c, r, s
    int C_GROUP, flip;
};

// The filter of this block, brought near 1 by a power of two: no square or product of two elements over- or underflows.
struct Filter {
    const Factoring &args;
    const w_t *w;
    int exponent;
    bool whole;  // all are whole numbers below 2^31
};

// What a look at all elements finds: the sum of their squares, the largest magnitude, and the first element that has it.
struct Survey {
    double squares, most;
    int at;
};

constexpr Survey NOTHING = {0, 0, cfg::R *cfg::S};

struct Shared {
    Survey partial[2][WARPS];
    double column[cfg::R], row[cfg::S];
    double squares[(LINES + 3) / 4 * 4];  // of lines; a compiler may load several at once
    int order[LINES];  // lines by their lengths, the longest first
};

// 2 to the power of `exponent`, which is at most 1000 away from 0.
__device__ inline double power(int exponent) { return __longlong_as_double((1023LL + exponent) << 52); }

__device__ inline double tap(const Filter &filter, int r, int s) {
    if (filter.args.flip) r = cfg::R - 1 - r, s = cfg::S - 1 - s;
    return as<double>(filter.w[r * filter.args.strides[2] + s * filter.args.strides[3]]) * power(-filter.exponent);
}

// Where element (r, s) stands: lines lie one behind the other.
__device__ inline int at(int r, int s) { return cfg::R <= cfg::S ? r * cfg::S + s : s * cfg::R + r; }

// Where the factors of product `i` go. Columns are near 1; the power of two is in the rows.
__device__ inline acc_t *column(const Filter &filter, int i) {
    return filter.args.columns + (static_cast<size_t>(blockIdx.x) * LINES + i) * cfg::R;
}
__device__ inline acc_t *row(const Filter &filter, int i) {
    return filter.args.rows + (static_cast<size_t>(blockIdx.x) * LINES + i) * cfg::S;
}
__device__ inline void put_column(const Filter &filter, int i, int r, double value) {
    column(filter, i)[r] = static_cast<acc_t>(value);
}
__device__ inline void put_row(const Filter &filter, int i, int s, double value) {
    row(filter, i)[s] = static_cast<acc_t>(value * power(filter.exponent));
}

__device__ inline double warp_sum(double value) {
    for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffff, value, lanes);
    return value;
}

__device__ inline void add(Survey &all, const Survey &more) {
    all.squares += more.squares;
    if (more.most < all.most || (more.most == all.most && more.at > all.at)) return;
    all.most = more.most;
    all.at = more.at;
}

__device__ inline Survey warp_survey(Survey mine) {
    for (int lanes = 16; lanes > 0; lanes /= 2)
        add(mine, {__shfl_xor_sync(0xffffffff, mine.squares, lanes), __shfl_xor_sync(0xffffffff, mine.most, lanes),
                   __shfl_xor_sync(0xffffffff, mine.at, lanes)});
    return mine;
}

// The surveys of all threads, in one. What was written before it is there behind it.
__device__ inline Survey block_survey(Shared &shared, int &turn, Survey mine) {
    Survey *partial = shared.partial[turn ^= 1];  // the other may still be read
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    mine = warp_survey(mine);
    if (lane == 0) partial[warp] = mine;
    __syncthreads();  // each warp's survey is there
    return warp_survey(lane < WARPS ? partial[lane] : NOTHING);
}

// The greatest common divisor, by Euclid; 0 has no part in it.
__device__ inline unsigned common_divisor(unsigned a, unsigned b) {
    while (b != 0) {
        const unsigned rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// Bring all elements to `matrix`.
__device__ inline Survey load(const Filter &filter, double *matrix, Shared &shared, int &turn) {
    Survey found = NOTHING;
#pragma unroll 1
    for (int e = threadIdx.x; e < cfg::R * cfg::S; e += cfg::THREADS) {
        const double value = tap(filter, e / cfg::S, e % cfg::S);
        matrix[at(e / cfg::S, e % cfg::S)] = value;
        add(found, {value * value, fabs(value), e});
    }
    return block_survey(shared, turn, found);
}

// The unit of the column that leaves whole factors where the filter has rank 1, else `unit`: the row through the pivot,
// without what its elements have in common, then divides every row (Gauss's lemma).
__device__ inline double whole_unit(const Filter &filter, const double *matrix, int r0, int s0, double unit) {
    unsigned common = 0;
    for (int s = threadIdx.x % 32; s < cfg::S; s += 32)
        common = common_divisor(common, static_cast<unsigned>(fabs(matrix[at(r0, s)]) * power(filter.exponent)));
    for (int lanes = 16; lanes > 0; lanes /= 2)
        common = common_divisor(common, __shfl_xor_sync(0xffffffff, common, lanes));
    const double whole = matrix[at(r0, s0)] / common;
    bool rests = false;
    for (int r = threadIdx.x % 32; r < cfg::R; r += 32) rests |= fmod(matrix[at(r, s0)], whole) != 0;
    return __any_sync(0xffffffff, rests) ? unit : whole;
}

// Product `i`: the column and the row through the `largest` element. It is subtracted; what is left is surveyed.
//
// These factors carry the rounding of one division an element and, where the filter is whole numbers of rank 1, none.
// The column's smallest element else becomes 1 where that is not far from its largest.
__device__ inline Survey cross(const Filter &filter, double *matrix, Shared &shared, int &turn, int largest, int i) {
    const int r0 = largest / cfg::S, s0 = largest % cfg::S;
    const double pivot = matrix[at(r0, s0)];
    double smallest = fabs(pivot);
    for (int r = threadIdx.x % 32; r < cfg::R; r += 32) {
        const double size = fabs(matrix[at(r, s0)]);
        if (size > 0 && size < smallest) smallest = size;
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) smallest = fmin(smallest, __shfl_xor_sync(0xffffffff, smallest, lanes));
    double unit = fabs(pivot) <= 4096 * smallest ? smallest : pivot;
    if (filter.whole && i == 0) unit = whole_unit(filter, matrix, r0, s0, unit);
    for (int e = threadIdx.x; e < cfg::R + cfg::S; e += cfg::THREADS) {
        if (e < cfg::R) {
            shared.column[e] = matrix[at(e, s0)] / unit;
            put_column(filter, i, e, shared.column[e]);
        } else {
            shared.row[e - cfg::R] = matrix[at(r0, e - cfg::R)] * unit / pivot;
            put_row(filter, i, e - cfg::R, shared.row[e - cfg::R]);
        }
    }
    __syncthreads();  // column and row are there, and nobody needs the elements that they came from
    Survey rest = NOTHING;
#pragma unroll 1
    for (int e = threadIdx.x; e < cfg::R * cfg::S; e += cfg::THREADS) {
        const int r = e / cfg::S, s = e % cfg::S;
        const double value = matrix[at(r, s)] - shared.column[r] * shared.row[s];
        matrix[at(r, s)] = value;
        add(rest, {value * value, fabs(value), e});
    }
    return block_survey(shared, turn, rest);
}

// The square of what the first `rank` products, as rounded, miss of the filter.
__device__ inline double missed(const Filter &filter, Shared &shared, int &turn, int rank) {
    double squares = 0;
#pragma unroll 1
    for (int e = threadIdx.x; e < cfg::R * cfg::S; e += cfg::THREADS) {
        const int r = e / cfg::S, s = e % cfg::S;
        double back = 0;
        for (int i = 0; i < rank; i++)
            back += static_cast<double>(column(filter, i)[r]) * (row(filter, i)[s] * power(-filter.exponent));
        const double rest = back - tap(filter, r, s);
        squares += rest * rest;
    }
    return block_survey(shared, turn, {squares, 0, 0}).squares;
}

// Make two lines orthogonal, by the smaller of the angles that do; false if they are.
__device__ inline bool rotate(double *a, double *b) {
    const int lane = threadIdx.x % 32;
    double aa = 0, ab = 0, bb = 0;
    for (int j = lane; j < LENGTH; j += 32) {
        aa += a[j] * a[j];
        ab += a[j] * b[j];
        bb += b[j] * b[j];
    }
    aa = warp_sum(aa), ab = warp_sum(ab), bb = warp_sum(bb);
    if (ab * ab <= SQUARED_TOLERANCE * aa * bb) return false;
    const double cotangent = (bb - aa) / (2 * ab);  // of twice the angle
    const double tangent = copysign(1 / (fabs(cotangent) + sqrt(1 + cotangent * cotangent)), cotangent);
    const double cosine = rsqrt(1 + tangent * tangent), sine = cosine * tangent;
    for (int j = lane; j < LENGTH; j += 32) {
        const double from_a = a[j], from_b = b[j];
        a[j] = cosine * from_a - sine * from_b;
        b[j] = sine * from_a + cosine * from_b;
    }
    return true;
}

// Rotate pairs of lines until nothing is left to do. In a round every line meets another one, in a sweep all others: one
// stays in its place, the rest move on around a table.
__device__ inline void orthogonalise(double *matrix) {
    constexpr int SEATS = (LINES + 1) / 2 * 2, MOVING = SEATS - 1;
    for (int sweep = 0; sweep < MOST_SWEEPS; sweep++) {
        bool rotated = false;
        for (int round = 0; round < MOVING; round++) {
            bool mine = false;
            for (int pair = threadIdx.x / 32; pair < SEATS / 2; pair += WARPS) {
                const int a = (round + pair) % MOVING, b = pair == 0 ? MOVING : (round + MOVING - pair) % MOVING;
                if (b < LINES) mine |= rotate(matrix + a * LENGTH, matrix + b * LENGTH);
            }
            rotated |= __syncthreads_or(mine);  // and a barrier: the next round's pairs are of other warps
        }
        if (!rotated) return;
    }
}

// Sort the lines by their lengths, which are the singular values; the rank that these ask for.
__device__ inline int singular_rank(const double *matrix, Shared &shared, double noise) {
    const int t = threadIdx.x, lane = t % 32;
    for (int line = t / 32; line < LINES; line += WARPS) {
        double squares = 0;
        for (int j = lane; j < LENGTH; j += 32) squares += matrix[line * LENGTH + j] * matrix[line * LENGTH + j];
        squares = warp_sum(squares);
        if (lane == 0) shared.squares[line] = squares;
    }
    __syncthreads();  // all lengths are there
    double tail = 0;  // of all that are no longer than this thread's
    if (t < LINES) {
        int place = 0;
        for (int j = 0; j < LINES; j++) {
            const bool before = shared.squares[j] > shared.squares[t] || (shared.squares[j] == shared.squares[t] && j < t);
            place += before;
            tail += before ? 0 : shared.squares[j];
        }
        shared.order[place] = t;
    }
    return max(__syncthreads_count(tail > noise), 1);
}

// The first `rank` singular vectors as factors: a line; and what each line of the filter has of it. Columns are one long.
__device__ inline void put_vectors(const Filter &filter, const double *matrix, const Shared &shared, int rank) {
    const int t = threadIdx.x, lane = t % 32;
    for (int e = t; e < rank * LENGTH; e += cfg::THREADS) {
        const int i = e / LENGTH, j = e % LENGTH, line = shared.order[i];
        const double value = matrix[line * LENGTH + j];
        if (cfg::R <= cfg::S) put_row(filter, i, j, value);
        else put_column(filter, i, j, value * rsqrt(shared.squares[line]));
    }
    for (int e = t / 32; e < rank * LINES; e += WARPS) {
        const int i = e / LINES, other = e % LINES, line = shared.order[i];
        double product = 0;
        for (int j = lane; j < LENGTH; j += 32)
            product += matrix[line * LENGTH + j] * (cfg::R <= cfg::S ? tap(filter, other, j) : tap(filter, j, other));
        product = warp_sum(product);
        if (lane != 0) continue;
        if (cfg::R <= cfg::S) put_column(filter, i, other, product / shared.squares[line]);
        else put_row(filter, i, other, product * rsqrt(shared.squares[line]));
    }
    __syncthreads();  // all factors are there
}

extern "C" __global__ void __launch_bounds__(cfg::THREADS, 1) factor(const __grid_constant__ Factoring args) {
    __shared__ Shared shared;
    DYNAMIC_SHARED(double, room);
    double *const matrix = cfg::IN_SHARED ? room : args.scratch + static_cast<size_t>(blockIdx.x) * (cfg::R * cfg::S);
    const int k = blockIdx.x / args.C_GROUP, c = blockIdx.x % args.C_GROUP;
    Filter filter = {args, args.w + k * args.strides[0] + c * args.strides[1], 0, true};
    pdl_wait();
    int turn = 0, rank = 1;
    bool finite = true, whole = true;
    Survey found = NOTHING;
#pragma unroll 1
    for (int e = threadIdx.x; e < cfg::R * cfg::S; e += cfg::THREADS) {
        const double value = tap(filter, e / cfg::S, e % cfg::S);
        finite &= isfinite(value);
        whole &= fabs(value) < 0x1p31 && value == rint(value);
        add(found, {0, fabs(value), e});
    }
    finite = __syncthreads_and(finite);
    filter.whole = __syncthreads_and(whole);
    found = block_survey(shared, turn, found);
    double error = finite ? 0.0 : __longlong_as_double(0x7ff8000000000000);
    if (!finite || found.most == 0) {
        for (int e = threadIdx.x; e < cfg::R + cfg::S; e += cfg::THREADS)
            (e < cfg::R ? column(filter, 0)[e] : row(filter, 0)[e - cfg::R]) = error;
    } else {
        filter.exponent = min(max(ilogb(found.most), -1000), 1000);
        found = load(filter, matrix, shared, turn);
        const double squares = found.squares, noise = NOISE * NOISE * squares;
        double smallest = found.most;  // pivot
        int crosses = 0;
        do {
            smallest = fmin(smallest, found.most);
            found = cross(filter, matrix, shared, turn, found.at, crosses++);
        } while (crosses < LINES && found.squares > noise);
        // The rank is no larger, as no sum of so many products is nearer than that of the singular vectors (C. Eckart
        // and G. Young, Psychometrika 1, 1936). It is as large, if the last singular value is no noise: elimination
        // made two triangles whose diagonals, 1 and the pivots, no other element exceeds, so each is at least 2^(1 - n)
        // times its smallest pivot away from a singular one (Higham, section 8.3).
        rank = crosses;
        const bool certain = crosses == 1 || ldexp(smallest, 2 - 2 * crosses) > NOISE * sqrt(squares);
        double lost = missed(filter, shared, turn, rank);
        if (!certain || lost > noise) {
            load(filter, matrix, shared, turn);
            orthogonalise(matrix);
            rank = min(singular_rank(matrix, shared, noise), crosses);
            lost = missed(filter, shared, turn, rank);
            if (lost > noise) {
                put_vectors(filter, matrix, shared, rank);
                lost = missed(filter, shared, turn, rank);
            }
        }
        error = sqrt(lost / squares);
    }
    if (threadIdx.x > 0) return;
    args.ranks[blockIdx.x] = rank;
    args.errors[blockIdx.x] = error;
}
