// factor: factorises a filter as a sum of products of a column and a row, as many as its numerical rank.
//
// The same algorithm as factors.py, which uses NumPy: in double, on a filter scaled near 1 by a power of two. A product
// counts unless it and all smaller ones together are rounding noise. Factors are rounded once.
// Block     one filter (k, c), THREADS threads. Blocks are independent.
// Crosses   elimination with complete pivoting: subtracts the product of the column and the row through the largest
//           element, until the rest is noise. The number of products is then sufficient. It is also necessary if the
//           smallest pivot shows that no singular value is noise (see `certain`). Then this is all: it is the case for
//           blurs, boxes and derivatives.
// Rotations otherwise: one-sided Jacobi (M. R. Hestenes, J. SIAM 6(1), 1958). LINES rows, or columns if they are fewer,
//           are rotated in pairs until all pairs are orthogonal. Their lengths are then the singular values. A warp
//           rotates a pair; the pairs of a round have no line in common.
// Shared    the filter's elements, in double; in global memory if they are too many.
// NaN       a filter with NaN or Inf has no factors: they are all NaN, and so are its outputs.
// Limit     latency: barriers and shuffles of one block, about as many for a large filter as for a small one.
#include "memory.cuh"
#include "types.cuh"

constexpr int LINES = cfg::R < cfg::S ? cfg::R : cfg::S, LENGTH = cfg::R < cfg::S ? cfg::S : cfg::R,
              WARPS = cfg::THREADS / 32;
constexpr double EPSILON = sizeof(acc_t) == 8 ? 0x1p-52 : 0x1p-23, NOISE = cfg::ROUNDINGS * EPSILON;
// Tolerance of orthogonality of a pair, and the maximum number of sweeps: those of LAPACK's dgesvj.
constexpr double SQUARED_TOLERANCE = LENGTH * 0x1p-104;
constexpr int MOST_SWEEPS = 30;

static_assert(cfg::THREADS % 32 == 0 && cfg::THREADS >= LINES, "whole warps, and a thread for each singular value");

struct Factoring {
    const w_t *w;
    acc_t *rows, *columns;  // (K, C_GROUP, LINES, S) and (K, C_GROUP, LINES, R); only the first `ranks` are written
    int *ranks;             // (K, C_GROUP): at least 1, so that NaN pixels give NaN under a zero filter
    double *errors;         // (K, C_GROUP): error of the factors, relative to the filter's Frobenius norm
    double *scratch;        // elements of all filters, if shared memory is too small
    long long strides[4];   // of w, in elements, in the order k, c, r, s
    int C_GROUP, flip;
};

// The filter of this block, scaled near 1 by a power of two: no square or product of two elements over- or underflows.
struct Filter {
    const Factoring &args;
    const w_t *w;
    int exponent;
    bool whole;  // all are whole numbers below 2^31
};

// Result of a pass over all elements: the sum of their squares, the largest magnitude, and its first element.
struct Survey {
    double squares, most;
    int at;
};

constexpr Survey NOTHING = {0, 0, cfg::R *cfg::S};

struct Shared {
    Survey partial[2][WARPS];
    double column[cfg::R], row[cfg::S];
    double squares[(LINES + 3) / 4 * 4];  // of lines; padded, because a compiler may load several at once
    int order[LINES];  // lines sorted by length, the longest first
};

// 2 to the power of `exponent`, which is between -1000 and 1000.
__device__ inline double power(int exponent) { return __longlong_as_double((1023LL + exponent) << 52); }

__device__ inline double tap(const Filter &filter, int r, int s) {
    if (filter.args.flip) r = cfg::R - 1 - r, s = cfg::S - 1 - s;
    return as<double>(filter.w[r * filter.args.strides[2] + s * filter.args.strides[3]]) * power(-filter.exponent);
}

// Offset of element (r, s); lines are contiguous.
__device__ inline int at(int r, int s) { return cfg::R <= cfg::S ? r * cfg::S + s : s * cfg::R + r; }

// Addresses of the factors of product `i`. Columns are near 1; the power of two is in the rows.
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

// Combines the surveys of all threads. It is also a barrier: earlier writes are visible after it.
__device__ inline Survey block_survey(Shared &shared, int &turn, Survey mine) {
    Survey *partial = shared.partial[turn ^= 1];  // the other may still be read
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    mine = warp_survey(mine);
    if (lane == 0) partial[warp] = mine;
    __syncthreads();  // each warp's survey is written
    return warp_survey(lane < WARPS ? partial[lane] : NOTHING);
}

// The greatest common divisor, by Euclid; 0 is ignored.
__device__ inline unsigned common_divisor(unsigned a, unsigned b) {
    while (b != 0) {
        const unsigned rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// Loads all elements to `matrix`.
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

// The unit of the column with which a filter of rank 1 has whole-number factors, else `unit`: then the row through the
// pivot, divided by the common divisor of its elements, divides every row (Gauss's lemma).
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

// Computes product `i` from the column and the row through the `largest` element, subtracts it, and surveys the rest.
//
// These factors carry the rounding of one division an element, and none if the filter is whole numbers of rank 1.
// Otherwise the column's smallest element becomes 1 if it is not far from its largest.
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
    __syncthreads();  // column and row are written, and their elements are no longer needed
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

// The squared error of the first `rank` products, as rounded.
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

// Makes two lines orthogonal, by the smaller of the two possible angles; false if they are orthogonal already.
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

// Rotates pairs of lines until all are orthogonal. In a sweep every line meets every other one, in a round one of them:
// one line keeps its place, and the others move round a table (round-robin).
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
            rotated |= __syncthreads_or(mine);  // also a barrier: the next round's pairs belong to other warps
        }
        if (!rotated) return;
    }
}

// Sorts the lines by length, which are the singular values, and returns the rank.
__device__ inline int singular_rank(const double *matrix, Shared &shared, double noise) {
    const int t = threadIdx.x, lane = t % 32;
    for (int line = t / 32; line < LINES; line += WARPS) {
        double squares = 0;
        for (int j = lane; j < LENGTH; j += 32) squares += matrix[line * LENGTH + j] * matrix[line * LENGTH + j];
        squares = warp_sum(squares);
        if (lane == 0) shared.squares[line] = squares;
    }
    __syncthreads();  // all lengths are written
    double tail = 0;  // of all lines that are no longer than this thread's
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

// Stores the first `rank` singular vectors as factors: a line, and the coefficient of each line of the filter. Columns
// have length one.
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
    __syncthreads();  // all factors are written
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
        // The rank is no larger, because no sum of so many products is nearer than that of the singular vectors (C.
        // Eckart and G. Young, Psychometrika 1, 1936). It is as large if the last singular value is no noise:
        // elimination gave two triangles whose diagonals, 1 and the pivots, no other element exceeds, so each is at
        // least 2^(1 - n) times its smallest pivot away from a singular one (Higham, section 8.3).
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
