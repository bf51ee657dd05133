// The zero point of x where a kernel multiplies stored pixels and finds zeros outside the image (TMA):
//
//     sum of (x - zero) w = sum of x w - zero * (sum of w over the taps inside the image)
//
// The second sum is the same for all outputs whose windows are cut off at the same taps: a class of rows and a class of
// columns. tap_sums.cu prepares it for every class and filter. All numbers are integers and may wrap around.
//
// tap_sums_of(zero, conv, p, q);     where zero point times the sums of taps of output (p, q) begin in zero.tap_sums
// tap_sums_inside(zero);             the same for outputs whose windows are inside the image
#pragma once
#include "conv.cuh"

struct ZeroPoint {
    const int *tap_sums;  // [class of rows][class of columns][filter]
    int pitch;            // from class to class, even
    int across;           // classes of columns
    int one_class;        // all outputs are of one class
    // Outputs before `first` and after `last` along an axis each have a class of their own; all others share one.
    int first_h, last_h, first_w, last_w;
};

// A member that is there only if it is USED.
struct Unused {};
template <bool USED, class T> struct Optional { using type = T; };
template <class T> struct Optional<false, T> { using type = Unused; };

__device__ inline int tap_sums_inside(const ZeroPoint &zero) {
    return (zero.first_h * zero.across + zero.first_w) * zero.pitch;
}

__device__ inline int tap_sums_of(const ZeroPoint &zero, const Conv &conv, int p, int q) {
    p = min(p, conv.P - 1), q = min(q, conv.Q - 1);  // tiles reach beyond the image
    const int row = min(p, zero.first_h) + max(p - zero.last_h, 0);
    const int column = min(q, zero.first_w) + max(q - zero.last_w, 0);
    return (row * zero.across + column) * zero.pitch;
}
