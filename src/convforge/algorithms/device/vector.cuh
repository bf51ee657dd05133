// Several neighbouring elements as one load or store of up to 16 bytes. The address is a multiple of its size.
#pragma once
#include "types.cuh"

// The words that memory is asked for: one instruction each.
template <int BYTES> struct Word;
template <> struct Word<1> { unsigned char bits; };
template <> struct Word<2> { unsigned short bits; };
template <> struct Word<4> { unsigned bits; };
template <> struct alignas(8) Word<8> { unsigned bits[2]; };
template <> struct alignas(16) Word<16> { unsigned bits[4]; };

template <class T, int COUNT>
union Vector {
    Word<COUNT * sizeof(T)> word;
    T at[COUNT];
};

template <int COUNT, class T>
__device__ inline Vector<T, COUNT> load_vector(const T *from) {
    Vector<T, COUNT> values;
    values.word = *reinterpret_cast<const Word<COUNT * sizeof(T)> *>(from);
    return values;
}

template <int COUNT, class T>
__device__ inline void store_vector(T *to, const Vector<T, COUNT> &values) {
    *reinterpret_cast<Word<COUNT * sizeof(T)> *>(to) = values.word;
}
