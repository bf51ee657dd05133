// The columns of im2col's matrix: column i is what output pixel i of the batch sees, pixels counted along q, p, n.
#pragma once
#include "conv.cuh"

// The output pixel of a column.
struct Column {
    int n, p, q;
};

__device__ inline Column column_of(const Conv &conv, index_t i) {
    if constexpr (sizeof(index_t) == 4) {  // unsigned 32-bit divisions are the cheapest
        const unsigned row = static_cast<unsigned>(i) / conv.Q, n = row / conv.P;
        return {static_cast<int>(n), static_cast<int>(row - n * conv.P), static_cast<int>(i - row * conv.Q)};
    }
    const long long row = i / conv.Q, n = row / conv.P;
    return {static_cast<int>(n), static_cast<int>(row - n * conv.P), static_cast<int>(i - row * conv.Q)};
}

// The column after one.
__device__ inline Column after(const Conv &conv, Column column) {
    if (++column.q < conv.Q) return column;
    column.q = 0;
    if (++column.p < conv.P) return column;
    return {column.n + 1, 0, 0};
}
