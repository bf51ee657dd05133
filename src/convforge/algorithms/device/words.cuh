// How bytes along K are ordered in words of four, the factors of dp4a.
//
// A word has four neighbouring channels of a tap; the channels of a group are padded to whole words. With one or two
// channels a group, and SEVERAL_TAPS, a word has those of four or two neighbouring taps of a row. Bytes that belong to no
// channel or no tap have weight 0.
//
// KWords::DEPTH                     words of a filter, in the order r, s, c
// KWords at(i); at.r, at.s, at.c    first tap and channel of word i
// at.tap(b), at.channel(b)          column of the tap, and channel, of byte b; `b` is known when it is compiled
// KWords::exists(s, c)              true if there are this tap and this channel
#pragma once

struct KWords {
    static constexpr int CHANNELS = cfg::SEVERAL_TAPS && cfg::C_GROUP < 3 ? cfg::C_GROUP : 4, TAPS = 4 / CHANNELS;  // of a word
    static constexpr int WORDS = (cfg::C_GROUP + CHANNELS - 1) / CHANNELS;                     // of a tap, or of TAPS
    static constexpr int ACROSS = (cfg::S + TAPS - 1) / TAPS, DEPTH = cfg::R * ACROSS * WORDS;

    int r, s, c;

    __device__ explicit KWords(int i)
        : r(i / (ACROSS * WORDS)), s(i / WORDS % ACROSS * TAPS), c(i % WORDS * CHANNELS) {}

    __device__ int tap(int b) const { return s + b / CHANNELS; }
    __device__ int channel(int b) const { return c + b % CHANNELS; }
    __device__ static bool exists(int s, int c) {
        return (cfg::S % TAPS == 0 || s < cfg::S) && (cfg::C_GROUP % CHANNELS == 0 || c < cfg::C_GROUP);
    }
};
