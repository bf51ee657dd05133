// The blocks of a cluster. Each has an OS thread of its own, because static shared memory belongs to the OS thread. One
// block runs at a time: when all its CUDA threads wait, the next block runs. A block can wake threads of another one: it
// asks for boxes for it, arrives at a barrier of it, or is the last one to meet the others.
#pragma once
#include "faults.h"

namespace emulator {

constexpr unsigned MOST_OF_CLUSTER = 16;

struct Cluster {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t turn_changed = PTHREAD_COND_INITIALIZER;
    unsigned size, joined, turn;
    unsigned still;    // turns in a row in which no thread could go on
    unsigned ended;    // blocks of the cluster that runs
    bits_t clusters;   // that have ended
    bool failed;
    unsigned failed_first;
    Region *blocks[MOST_OF_CLUSTER];
};

// Which block of a cluster begins.
inline unsigned first_of_cluster(const Job &job, Region *r) {
    return job.order == FORWARD ? 0 : job.order == BACKWARD ? job.cluster - 1 : random_below(r, job.cluster);
}

// The blocks of a cluster; a block that was launched without one is one by itself.
inline unsigned size_of_cluster(const Region *r) { return r->cluster ? r->cluster->size : 1; }
inline Region *one_of_cluster(Region *r, unsigned rank) { return r->cluster ? r->cluster->blocks[rank] : r; }

// Another block, of whose shared memory a thread speaks.
inline Region *block_of_cluster(Region *r, Site site, unsigned rank) {
    if (rank >= size_of_cluster(r)) refuse(site, "the cluster has no such block");
    Region *other = one_of_cluster(r, rank);
    if (other != r && other->ended) refuse(site, "the other block has ended");
    return other;
}

// Where another block has what this one has at `at`.
template <class T>
inline T *there(Region *r, Region *other, Site site, T *at) {
    const unsigned char *place = reinterpret_cast<const unsigned char *>(at);
    if (!in_shared(r, at, 1)) refuse(site, "the address is not one of shared memory");
    const bool is_static = place >= r->shared && place < r->shared + r->job->shared_bytes;
    const unsigned char *from = is_static ? r->shared : r->state.dynamic;
    unsigned char *to = is_static ? other->shared : other->state.dynamic;
    return reinterpret_cast<T *>(to + (place - from));
}

// All threads of all blocks meet.
inline void meet_cluster(Site site) {
    Region *r = region();
    start_waiting(r, AT_CLUSTER, site, 0);
    r->at_cluster++;
    const unsigned size = size_of_cluster(r);
    for (unsigned i = 0; i < size; i++) {
        const Region *other = one_of_cluster(r, i);
        if (other->at_cluster == other->threads) continue;
        leave(r);
        return;
    }
    for (unsigned i = 0; i < size; i++) {
        Region *other = one_of_cluster(r, i);
        other->at_cluster = 0;
        for (unsigned t = 0; t < other->threads; t++) wake(other, t);
    }
    r->warps[r->current / WARP].runnable &= ~(1u << r->current % WARP);  // it runs already
}

// Give the turn to the next block that has not ended, and wait for the next one of one's own; false: a block has failed.
inline bool hand_over(Cluster &cluster, Region *r) {
    pthread_mutex_lock(&cluster.lock);
    do cluster.turn = (cluster.turn + 1) % cluster.size;
    while (cluster.blocks[cluster.turn]->ended);
    pthread_cond_broadcast(&cluster.turn_changed);
    while (cluster.turn != r->state.rank && !cluster.failed) pthread_cond_wait(&cluster.turn_changed, &cluster.lock);
    pthread_mutex_unlock(&cluster.lock);
    return !cluster.failed;
}

// No thread of a block can go on: let the others, until one of its own can. False: none ever will, or a block has failed.
inline bool others_go_on(Region *r) {
    if (!r->cluster) return false;
    Cluster &cluster = *r->cluster;
    while (true) {
        cluster.still = r->ran ? 1 : cluster.still + 1;
        r->ran = false;
        if (cluster.still >= cluster.size - cluster.ended || !hand_over(cluster, r)) return false;
        for (unsigned w = 0; w * WARP < r->threads; w++)
            if (r->warps[w].runnable) return true;
    }
}

// A block of this rank has not ended well, or, by no_block, cannot be.
inline void fail_cluster(Cluster &cluster, unsigned rank) {
    if (!cluster.failed) cluster.failed_first = rank;
    cluster.failed = true;
    pthread_cond_broadcast(&cluster.turn_changed);
}

inline void no_block(Cluster &cluster, unsigned rank) {
    pthread_mutex_lock(&cluster.lock);
    fail_cluster(cluster, rank);
    pthread_mutex_unlock(&cluster.lock);
}

// Wait until all blocks are there, and it is this one's turn to begin. False: one has failed.
inline bool join(Cluster &cluster, Region *r) {
    pthread_mutex_lock(&cluster.lock);
    cluster.blocks[r->state.rank] = r;
    if (cluster.joined++ == 0) cluster.turn = first_of_cluster(*r->job, r);
    pthread_cond_broadcast(&cluster.turn_changed);
    while (!cluster.failed && (cluster.joined < cluster.size || cluster.turn != r->state.rank))
        pthread_cond_wait(&cluster.turn_changed, &cluster.lock);
    pthread_mutex_unlock(&cluster.lock);
    return !cluster.failed;
}

// A block has ended, well or not. The last one of a cluster lets the next begin, if there is one; others wait for that.
// False: a block has failed.
inline bool end_block(Cluster &cluster, Region *r, bool well, bool is_last) {
    pthread_mutex_lock(&cluster.lock);
    if (!well) fail_cluster(cluster, r->state.rank);
    r->ended = true;
    cluster.still = 0;
    const bits_t before = cluster.clusters;
    if (++cluster.ended == cluster.size) {
        for (unsigned i = 0; i < cluster.size; i++) {
            cluster.blocks[i]->ended = false;
            cluster.blocks[i]->byte_barrier_count = 0;
        }
        cluster.ended = 0;
        cluster.turn = first_of_cluster(*r->job, r);
        cluster.clusters++;
    } else {
        while (cluster.blocks[cluster.turn]->ended) cluster.turn = (cluster.turn + 1) % cluster.size;
    }
    pthread_cond_broadcast(&cluster.turn_changed);
    while (!cluster.failed && (cluster.clusters == before || (!is_last && cluster.turn != r->state.rank)))
        pthread_cond_wait(&cluster.turn_changed, &cluster.lock);
    pthread_mutex_unlock(&cluster.lock);
    return !cluster.failed;
}

}  // namespace emulator
