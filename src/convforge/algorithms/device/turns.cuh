// What a block's threads share out among themselves, whose number is known when it is compiled.
//
// in_turns<COUNT, THREADS>(thread, body);    body(at, thread) for all numbers at + thread below COUNT, where `at` is a
//                                            multiple of THREADS: without a test in all turns but the last, so that loads
//                                            of several turns are under way together
#pragma once

template <int COUNT, int THREADS, class Body>
__device__ inline void in_turns(int thread, Body body) {
    constexpr int TURNS = COUNT / THREADS;
#pragma unroll(TURNS <= 16 ? TURNS : 4)
    for (int turn = 0; turn < TURNS; turn++) body(turn * THREADS, thread);
    if (COUNT % THREADS > 0 && thread < COUNT % THREADS) body(TURNS * THREADS, thread);
}
