// The layout of an array for the TMA, and the elements that one copy moves.
#pragma once
#include "state.h"

namespace emulator {

constexpr int MOST_AXES = 5;

// The bytes of struct TensorMap of tma.cuh, as this backend's runtime writes them. Sizes are in units of `unit` bytes,
// x fastest. Missing axes have one element.
struct TensorMap {
    unsigned char *address;
    bits_t strides[MOST_AXES - 1];  // in bytes, of all axes but x
    unsigned sizes[MOST_AXES];
    unsigned short box[MOST_AXES];  // units along each axis of a copy; in im2col mode channels, then pixels
    unsigned char steps[MOST_AXES], axes, unit;
    unsigned char swizzle;          // bytes of a row within which 16-byte pieces are permuted, or 0
    unsigned char im2col, rounds;   // rounds: to TF32
    short lower[3], upper[3];       // corners of the window, of im2col mode
};
static_assert(sizeof(TensorMap) <= 128, "a map has 128 bytes");

// Arguments of a copy: its start, and in im2col mode the tap.
struct Corner {
    int at[MOST_AXES], right, down;
};

// Units of a box along an axis, in shared memory.
inline unsigned extent(const TensorMap &map, unsigned axis) {
    if (map.im2col) return axis < 2 ? map.box[axis] : 1;
    return (map.box[axis] + map.steps[axis] - 1u) / map.steps[axis];
}

inline unsigned box_bytes(const TensorMap &map) {
    unsigned units = 1;
    for (unsigned axis = 0; axis < MOST_AXES; axis++) units *= extent(map, axis);
    return units * map.unit;
}

// Visits a row of units from `at` on: visit(offset in the box, address), with a null address outside the array.
template <class Visit>
inline void each_of_row(const TensorMap &map, unsigned offset, const long long (&at)[MOST_AXES], Visit visit) {
    bool there = true;
    unsigned char *row = map.address;
    for (unsigned axis = 1; axis < map.axes; axis++) {
        there = there && at[axis] >= 0 && at[axis] < map.sizes[axis];
        row += at[axis] * static_cast<long long>(map.strides[axis - 1]);
    }
    const unsigned step = map.im2col ? 1 : map.steps[0];
    for (unsigned i = 0; i < extent(map, 0); i++) {
        const long long x = at[0] + static_cast<long long>(i) * step;
        const bool inside = there && x >= 0 && x < map.sizes[0];
        visit(offset + i * map.unit, inside ? row + x * map.unit : nullptr);
    }
}

// Visits all units that one copy moves.
template <class Visit>
inline void each_of_box(const TensorMap &map, const Corner &from, Visit visit) {
    const unsigned row = extent(map, 0) * map.unit;
    if (map.im2col) {  // positions in order along W, then H, then the images (PTX ISA, im2col mode)
        long long w = from.at[1], h = from.at[2], n = from.at[3];
        for (unsigned i = 0; i < map.box[1]; i++) {
            each_of_row(map, i * row, {from.at[0], w + from.right, h + from.down, n}, visit);
            w += map.steps[1];
            if (w < static_cast<long long>(map.sizes[1]) + map.upper[0]) continue;
            w = map.lower[0];
            h += map.steps[2];
            if (h < static_cast<long long>(map.sizes[2]) + map.upper[1]) continue;
            h = map.lower[1];
            n++;
        }
        return;
    }
    unsigned offset = 0, index[MOST_AXES] = {};
    for (unsigned axis = 0; axis < MOST_AXES; offset += row) {
        long long at[MOST_AXES] = {from.at[0]};
        for (unsigned i = 1; i < MOST_AXES; i++) at[i] = from.at[i] + static_cast<long long>(index[i]) * map.steps[i];
        each_of_row(map, offset, at, visit);
        for (axis = 1; axis < MOST_AXES && ++index[axis] == extent(map, axis); axis++) index[axis] = 0;
    }
}

}  // namespace emulator
