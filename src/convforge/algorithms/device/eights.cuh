// An order of columns in which the sums that a lane has of four products are eight neighbours: then it stores 16 bytes of
// 16-bit results as one. A lane 4 * g + t has columns 2 t and 2 t + 1 of each product of 8 columns. So line 8 j + 2 t + e of
// 32 gets column 8 t + 2 j + e.
//
// column_at<EIGHTS>(line);     the column that stands at a line of B's tile; without EIGHTS, the same
// lane_column<EIGHTS>(j, t);   the first of the two columns that a lane has of product j
#pragma once

constexpr int EIGHT = 8;  // 16-bit results of 16 bytes

// From a line below a power of 2 to that line plus a multiple of the power, columns change as from line 0.
template <bool EIGHTS>
__device__ constexpr int column_at(int line) {
    return EIGHTS ? line / 32 * 32 + line / 2 % 4 * 8 + line / 8 % 4 * 2 + line % 2 : line;
}

template <bool EIGHTS>
__device__ constexpr int lane_column(int j, int t) {
    return EIGHTS ? j / 4 * 32 + 8 * t + j % 4 * 2 : 8 * j + 2 * t;
}
