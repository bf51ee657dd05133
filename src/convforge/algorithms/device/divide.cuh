// Division of whole numbers below 2^30 by a number that the host knows: one product and a shift.
#pragma once

struct Divisor {
    int by;
    unsigned factor;  // 2^shift / by, rounded up
    int shift;        // 30 and the bits of `by`: then no remainder is large enough to reach the next quotient
};

__device__ inline int quotient(int number, const Divisor &divisor) {
    return static_cast<int>(static_cast<unsigned long long>(number) * divisor.factor >> divisor.shift);
}
