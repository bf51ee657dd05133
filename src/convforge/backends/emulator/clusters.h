// The blocks of a cluster. Each has its own OS thread, because static shared memory belongs to the OS thread. One block
// runs at a time: when all its CUDA threads wait, the next block runs. A block can wake threads of another one: by a
// copy of boxes, by an arrival at its barrier, or as the last one at cluster_sync.
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

// The rank of the block that begins a cluster.
inline unsigned first_of_cluster(const Job &job, Region *r) {
    return job.order == FORWARD ? 0 : job.order == BACKWARD ? job.cluster - 1 : random_below(r, job.cluster);
}

// The number of blocks of the cluster; 1 without a cluster.
inline unsigned size_of_cluster(const Region *r) { return r->cluster ? r->cluster->size : 1; }
inline Region *one_of_cluster(Region *r, unsigned rank) { return r->cluster ? r->cluster->blocks[rank] : r; }

// Another block, whose shared memory a thread accesses.
inline Region *block_of_cluster(Region *r, Site site, unsigned rank) {
    if (rank >= size_of_cluster(r)) refuse(site, "the cluster has no such block");
    Region *other = one_of_cluster(r, rank);
    if (other != r && other->ended) refuse(site, "the other block has ended");
    return other;
}

// The address in another block of what this block has at `at`.
template <class T>
inline T *there(Region *r, Region *other, Site site, T *at) {
    const unsigned char *place = reinterpret_cast<const unsigned char *>(at);
    if (!in_shared(r, at, 1)) refuse(site, "the address is not one of shared memory");
    const bool is_static = place >= r->shared && place < r->shared + r->job->shared_bytes;
    const unsigned char *from = is_static ? r->shared : r->state.dynamic;
    unsigned char *to = is_static ? other->shared : other->state.dynamic;
    return reinterpret_cast<T *>(to + (place - from));
}

// Barrier of all threads of all blocks.
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

// Passes the turn to the next block that has not ended, and waits for its own next turn. False: a block has failed.
inline bool hand_over(Cluster &cluster, Region *r) {
    pthread_mutex_lock(&cluster.lock);
    do cluster.turn = (cluster.turn + 1) % cluster.size;
    while (cluster.blocks[cluster.turn]->ended);
    pthread_cond_broadcast(&cluster.turn_changed);
    while (cluster.turn != r->state.rank && !cluster.failed) pthread_cond_wait(&cluster.turn_changed, &cluster.lock);
    pthread_mutex_unlock(&cluster.lock);
    return !cluster.failed;
}

// No thread of the block can run: lets the other blocks run until one can. False: none ever will, or a block has
// failed.
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

// Records that the block of this rank has failed, or, from no_block, could not start.
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

// Waits until all blocks are ready and it is this block's turn. False: a block has failed.
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

// Ends a block, successfully or not. The last one of a cluster starts the next cluster, if there is one; the others
// wait for that. False: a block has failed.
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
