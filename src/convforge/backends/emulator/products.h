// Matrix products of a warpgroup (wgmma): both operands in shared memory, sums in the threads' own memory.
//
// A product starts when all 128 threads have issued it. It is computed when they wait for it, so that a kernel that
// reads its sums too early, or overwrites the operands, gets wrong results. In the backward order it is computed at
// once, so that a kernel that issues it before the operands have landed gets wrong results. Shuffled: either, at
// random. 16-bit factors are multiplied exactly and summed in double; the sum is truncated to float, as tensor cores
// do. Bytes of FP8 are summed as Hopper does: products and sum are cut off at 13 bits after the first bit of the largest
// (DeepSeek-AI, DeepSeek-V3 technical report, 2024, section 3.3.2). Sums of integers are exact, and wrap around.
#pragma once
#include "tma.h"

namespace emulator {

// A matrix in shared memory, as its descriptor defines it (PTX ISA, wgmma, matrix descriptor).
struct Matrix {
    unsigned char *start;
    bits_t leading, stride;
    unsigned swizzle;
    bool across;  // MN-major
};

// Descriptors have the lowest 18 bits of an address, which is enough for a block's dynamic shared memory.
inline Matrix matrix_of(Region *r, bits_t bits, bool across) {
    constexpr bits_t REACH = 1 << 18;
    constexpr unsigned SWIZZLES[] = {0, 128, 64, 32};
    const bits_t first = reinterpret_cast<bits_t>(r->state.dynamic);
    const bits_t at = first + (((bits & 0x3fff) << 4) - first & REACH - 1);
    return {reinterpret_cast<unsigned char *>(at), (bits >> 16 & 0x3fff) << 4, (bits >> 32 & 0x3fff) << 4,
            SWIZZLES[bits >> 62], across};
}

// Address of number k of row m.
inline const unsigned char *number_at(const Matrix &matrix, unsigned m, unsigned k, unsigned bytes) {
    bits_t offset;
    if (matrix.across) {
        const unsigned row = matrix.swizzle / bytes;
        offset = m / row * matrix.leading + m % row * bytes + k / 8 * matrix.stride + k % 8 * matrix.swizzle;
    } else {
        offset = m / 8 * matrix.stride + m % 8 * matrix.swizzle + k * bytes;
    }
    return swizzled(matrix.start + offset, matrix.swizzle);
}

enum Kind { HALF, BFLOAT16, TF32, E4M3, E5M2, UNSIGNED_BYTE, SIGNED_BYTE };

// Name of a factor's type in PTX, in the order of Kind; bytes of a factor.
constexpr const char *KINDS[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "u8", "s8"};
inline bool is_fp8(Kind kind) { return kind == E4M3 || kind == E5M2; }
inline bool is_integer(Kind kind) { return kind == UNSIGNED_BYTE || kind == SIGNED_BYTE; }
inline unsigned bytes_of(Kind kind) { return kind == TF32 ? 4 : kind == HALF || kind == BFLOAT16 ? 2 : 1; }

inline float float_of_bits(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline float half_float(unsigned short narrow) {
    const unsigned sign = (narrow & 0x8000u) << 16, exponent = narrow >> 10 & 31, fraction = narrow & 1023;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float size = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // multiples of 2^-24
    return sign ? -size : size;
}

inline double number_of(const unsigned char *at, Kind kind) {
    if (kind == UNSIGNED_BYTE) return *at;
    if (kind == SIGNED_BYTE) return static_cast<signed char>(*at);
    if (kind == E5M2) return half_float(static_cast<unsigned short>(*at << 8));
    if (kind == E4M3) {
        const unsigned size = *at & 127;
        if (size == 127) return __builtin_nan("");
        return half_float(static_cast<unsigned short>((*at & 128) << 8 | size << 7)) * 256.0;
    }
    unsigned short narrow;
    memcpy(&narrow, at, 2);
    if (kind == HALF) return half_float(narrow);
    unsigned bits = static_cast<unsigned>(narrow) << 16;
    if (kind == TF32) {
        memcpy(&bits, at, 4);
        bits &= ~0x1fffu;
    }
    return float_of_bits(bits);
}

inline float cut_off(double sum) {
    const float nearest = static_cast<float>(sum);
    if (!(__builtin_fabs(static_cast<double>(nearest)) > __builtin_fabs(sum)) || __builtin_isinf(sum)) return nearest;
    unsigned bits;
    memcpy(&bits, &nearest, 4);
    bits--;
    float cut;
    memcpy(&cut, &bits, 4);
    return cut;
}

// Sum of numbers that are each cut off at 13 bits after the first bit of the largest.
inline float sum_of_14_bits(const double *numbers, unsigned count) {
    int exponent = -10000;
    for (unsigned i = 0; i < count; i++) {
        if (!(__builtin_fabs(numbers[i]) <= 1.7e308)) {  // infinity or NaN
            double sum = 0;
            for (unsigned j = 0; j < count; j++) sum += numbers[j];
            return static_cast<float>(sum);
        }
        int own;
        if (numbers[i] != 0 && (static_cast<void>(__builtin_frexp(numbers[i], &own)), own > exponent)) exponent = own;
    }
    if (exponent == -10000) return 0;
    double sum = 0;
    for (unsigned i = 0; i < count; i++) {
        sum += __builtin_trunc(__builtin_ldexp(numbers[i], 14 - exponent));
    }
    int first;
    __builtin_frexp(sum, &first);
    return static_cast<float>(__builtin_ldexp(__builtin_trunc(__builtin_ldexp(sum, 14 - first)), first - 14 + exponent - 14));
}

// The shape and types of wgmma.mma_async.sync.aligned.m64nNkK.T.A.B.
struct Shape {
    unsigned columns, depth;
    Kind a, b;
};

inline bool kind_named(const char *name, Kind &kind) {
    for (unsigned i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (!strcmp(name, KINDS[i])) return kind = static_cast<Kind>(i), true;
    return false;
}

// False: it is another instruction.
inline bool shape_of(const char *instruction, Shape &shape) {
    char sum[8], first[8], second[8];
    const int found = sscanf(instruction, "wgmma.mma_async.sync.aligned.m64n%uk%u.%7[^.].%7[^.].%7s", &shape.columns,
                             &shape.depth, sum, first, second);
    if (found != 5 || !kind_named(first, shape.a) || !kind_named(second, shape.b)) return false;
    const bool integers = is_integer(shape.a), alike = shape.a == shape.b || (integers && is_integer(shape.b)) ||
                                                       (is_fp8(shape.a) && is_fp8(shape.b));
    if (!alike || strcmp(sum, integers ? "s32" : "f32") || shape.depth != 32 / bytes_of(shape.a)) return false;
    const unsigned step = integers && shape.columns > 32 ? 16 : 8;
    return shape.columns % step == 0 && shape.columns >= 8 && shape.columns <= 256;
}

inline void compute(Region *r, Site site, const Product &product) {
    constexpr unsigned ROWS = 64, MOST_COLUMNS = 256, MOST_DEPTH = 32;
    static __thread double of_a[ROWS][MOST_DEPTH], of_b[MOST_DEPTH][MOST_COLUMNS];
    unsigned across_a = 0, across_b = 0;
    Shape shape;
    if (!shape_of(product.instruction, shape)) refuse(site, "the emulator has no such instruction");
    const unsigned columns = shape.columns, depth = shape.depth;
    sscanf(product.majors, ", %u, %u", &across_a, &across_b);
    const unsigned bytes = bytes_of(shape.a);
    const Matrix a = matrix_of(r, product.a, across_a), b = matrix_of(r, product.b, across_b);
    if (!a.swizzle || !b.swizzle) refuse(site, "the emulator reads matrices with a swizzle alone");
    const auto read = [&](const Matrix &matrix, Kind kind, unsigned m, unsigned k) {
        const unsigned char *at = number_at(matrix, m, k, bytes);
        if (!in_shared(r, at, bytes)) refuse(site, "a matrix does not lie in shared memory");
        return number_of(at, kind);
    };
    for (unsigned m = 0; m < ROWS; m++)
        for (unsigned k = 0; k < depth; k++) of_a[m][k] = read(a, shape.a, m, k);
    for (unsigned k = 0; k < depth; k++)
        for (unsigned n = 0; n < columns; n++) of_b[k][n] = read(b, shape.b, n, k);
    for (unsigned m = 0; m < ROWS; m++) {
        double sums[MOST_COLUMNS];
        // Of warp w, lane 4 g + t: row 16 w + g + 8 (e / 2), column 8 j + 2 t + e % 2 is sum 4 j + e.
        const unsigned lane_row = m % 8 * 4, half = m / 8 % 2;
        void *const *threads = product.sums + m / 16 * WARP + lane_row;
        const auto place = [&](unsigned n) {
            return static_cast<unsigned char *>(threads[n % 8 / 2]) + 4 * (n / 8 * 4 + 2 * half + n % 2);
        };
        if (is_integer(shape.a)) {
            for (unsigned n = 0; n < columns; n++) {
                int before = 0;
                if (product.adds) memcpy(&before, place(n), 4);
                double sum = before;
                for (unsigned k = 0; k < depth; k++) sum += of_a[m][k] * of_b[k][n];
                const int whole = static_cast<int>(static_cast<unsigned>(static_cast<long long>(sum)));
                memcpy(place(n), &whole, 4);
            }
            continue;
        }
        for (unsigned n = 0; n < columns; n++) {
            float before = 0;
            if (product.adds) memcpy(&before, place(n), 4);
            sums[n] = before;
        }
        if (is_fp8(shape.a)) {
            for (unsigned n = 0; n < columns; n++) {
                double numbers[MOST_DEPTH + 1] = {sums[n]};
                for (unsigned k = 0; k < depth; k++) numbers[k + 1] = of_a[m][k] * of_b[k][n];
                const float sum = sum_of_14_bits(numbers, depth + 1);
                memcpy(place(n), &sum, 4);
            }
            continue;
        }
        for (unsigned k = 0; k < depth; k++)
            for (unsigned n = 0; n < columns; n++) sums[n] += of_a[m][k] * of_b[k][n];
        for (unsigned n = 0; n < columns; n++) {
            const float sum = cut_off(sums[n]);
            memcpy(place(n), &sum, 4);
        }
    }
}

inline Warpgroup &my_warpgroup(Region *r, Site site) {
    if (r->threads % WARPGROUP) refuse(site, "a block of whole warpgroups, of 128 threads, multiplies matrices");
    return r->warpgroups[r->current / WARPGROUP];
}

inline void multiply(Site site, const char *instruction, const char *majors, void *sums, unsigned count, bits_t a,
                     bits_t b, bool adds) {
    Region *r = region();
    Fiber &fiber = current(r);
    Warpgroup &group = my_warpgroup(r, site);
    if (fiber.product == group.next) {
        if (group.next - group.first == MOST_PRODUCTS)
            refuse(site, "more products under way than the emulator has room for");
        Product &made = group.products[group.next++ % MOST_PRODUCTS];
        made.instruction = instruction, made.majors = majors, made.a = a, made.b = b, made.adds = adds;
        made.count = count, made.group = fiber.product_group, made.threads = 0, made.done = false;
    }
    Product &product = group.products[fiber.product++ % MOST_PRODUCTS];
    if (product.a != a || product.b != b || product.adds != adds || product.group != fiber.product_group ||
        product.instruction != instruction || product.count != count)
        refuse(site, "the threads of a warpgroup ask for different products");
    Shape shape;
    if (!product.threads && (!shape_of(instruction, shape) || shape.columns / 2 != count))
        refuse(site, "the instruction has another number of sums, or is none that the emulator knows");
    product.sums[r->current % WARPGROUP] = sums;
    const bool at_once = r->job->order == BACKWARD || (r->job->order == SHUFFLED && random_below(r, 2));
    if (++product.threads < WARPGROUP || !at_once) return;
    // Products issued before it add to the same sums.
    for (unsigned i = group.first; i < group.next; i++) {
        Product &earlier = group.products[i % MOST_PRODUCTS];
        if (earlier.threads < WARPGROUP) break;
        if (!earlier.done) compute(r, site, earlier);
        earlier.done = true;
    }
}

inline void commit_products() { current(region()).product_group++; }

inline void await_products(Site site, unsigned pending) {
    Region *r = region();
    Warpgroup &group = my_warpgroup(r, site);
    const unsigned first = r->current / WARPGROUP * WARPGROUP;
    start_waiting(r, AWAITS_PRODUCTS, site, 0);
    for (unsigned t = first; t < first + WARPGROUP; t++) {
        const Fiber &other = r->fibers[t];
        if (other.status == AWAITS_PRODUCTS && other.product == group.next) continue;
        leave(r);
        return;
    }
    const unsigned groups = current(r).product_group;
    while (group.first < group.next && group.products[group.first % MOST_PRODUCTS].group + pending < groups) {
        Product &product = group.products[group.first++ % MOST_PRODUCTS];
        if (!product.done) compute(r, site, product);
    }
    for (unsigned t = first; t < first + WARPGROUP; t++) wake(r, t);
    r->warps[r->current / WARP].runnable &= ~(1u << r->current % WARP);  // it runs already
}

// Refuses a block that ends before it has waited for its products.
inline bool no_product_is_under_way(Region *r) {
    for (unsigned i = 0; i * WARPGROUP < r->threads; i++) {
        const Warpgroup &group = r->warpgroups[i];
        if (group.first == group.next) continue;
        describe(r, "%u products are asked for, and nobody waits for them", group.next - group.first);
        r->error->kind = 2;
        return false;
    }
    return true;
}

}  // namespace emulator
