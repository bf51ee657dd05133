// Turns a kernel's mistakes into errors with a block and a thread, without ending the process.
//
// A CUDA thread that fails is abandoned: its stack is released and the scheduler goes on. Faults of the processor
// (forbidden addresses, division by zero) reach it through a signal handler, which is installed during a launch.
#pragma once
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#include "region.h"

namespace emulator {

__attribute__((format(printf, 2, 3))) inline void describe(Region *r, const char *format, ...) {
    if (r->error->kind) return;  // only the first error counts
    r->error->kind = 1;
    r->error->block = r->state.block;
    r->error->thread = r->state.thread;
    va_list values;
    va_start(values, format);
    vsnprintf(r->error->text, sizeof r->error->text, format, values);
    va_end(values);
}

// Abandons the running CUDA thread.
[[noreturn]] inline void abandon(Region *r) {
    Context gone;
    switch_stack(&gone, &r->scheduler);
    __builtin_unreachable();
}

[[noreturn]] inline void refuse(Site site, const char *fault) {
    describe(region(), "%s: %s, %s:%d", site.what, fault, site.file, site.line);
    abandon(region());
}

// The layouts of the data that -fsanitize passes to its handlers.
struct SourceLocation {
    const char *file;
    unsigned line, column;
};
struct TypeDescriptor {
    unsigned short kind, info;  // info of an integer: bit 0 signed, then the logarithm of its bits
    char name[1];
};
struct OutOfBounds {
    SourceLocation at;
    const TypeDescriptor *array, *index;
};
struct Mismatch {  // of alignment and of size
    SourceLocation at;
    const TypeDescriptor *type;
    unsigned char log_alignment, kind;
};

inline void out_of_bounds(const void *where, bits_t index) {
    const OutOfBounds *what = static_cast<const OutOfBounds *>(where);
    const unsigned bits = 1u << (what->index->info >> 1);
    long long value = static_cast<long long>(index);
    if ((what->index->info & 1) && bits < 64) value = static_cast<long long>(index << (64 - bits)) >> (64 - bits);
    describe(region(), "index %lld is outside of %s, %s:%u", value, what->array->name, what->at.file, what->at.line);
    abandon(region());
}

inline void mismatch(const void *where, bits_t pointer) {
    const Mismatch *what = static_cast<const Mismatch *>(where);
    const unsigned alignment = 1u << what->log_alignment;
    if (pointer % alignment)
        describe(region(), "address 0x%llx is not a multiple of %u, as that of %s must be, %s:%u", pointer, alignment,
                 what->type->name, what->at.file, what->at.line);
    else
        describe(region(), "%s is used outside of the array that the pointer points into, %s:%u", what->type->name,
                 what->at.file, what->at.line);
    abandon(region());
}

inline void fail(Site site) {
    describe(region(), "%s, %s:%d", site.what, site.file, site.line);
    abandon(region());
}

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction before[4];
static int launches;

// True if the running thread's stack pointer is beyond the end of its stack.
inline bool overflown(Region *r, bits_t stack_pointer) {
    const int number = current(r).stack;
    return number >= 0 && stack_pointer - reinterpret_cast<bits_t>(stack(r, number)) >= STACK_BYTES;
}

inline void describe_fault(Region *r, int signal, bits_t address, bits_t stack_pointer) {
    const bits_t inside = address - reinterpret_cast<bits_t>(r);
    if (signal == SIGFPE)
        describe(r, "an integer is divided by zero");
    else if (signal == SIGILL)
        describe(r, "an instruction that this processor does not have, or __builtin_trap");
    else if (!overflown(r, stack_pointer) && inside < STACKS_START && inside >= HEAD_BYTES)
        describe(r, "dynamic shared memory has %llu bytes; byte %lld of it is touched", r->job->dynamic_bytes,
                 static_cast<long long>(address - reinterpret_cast<bits_t>(r->state.dynamic)));
    else if (inside < REGION_BYTES)
        describe(r, "local memory of more than %llu bytes: arrays of one thread, or calls that nest without end",
                 STACK_BYTES);
    else
        describe(r, "address 0x%llx is touched, where there is no memory that may be", address);
}

// The stack pointer of the code that a signal interrupted.
inline bits_t interrupted_stack(void *context) {
#if defined(__x86_64__)
    return static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    return static_cast<ucontext_t *>(context)->uc_mcontext.sp;
#else
    return 0;
#endif
}

inline void on_signal(int signal, siginfo_t *info, void *context) {
    const bits_t stack_pointer = interrupted_stack(context);
    Region *r = region_of(stack_pointer);
    if (r && r->error) {
        if (signal == SIGSEGV && info->si_code == SI_KERNEL)  // the processor does not report the address
            describe(r, "an address is touched that cannot be, such as one made of poison");
        describe_fault(r, signal, reinterpret_cast<bits_t>(info->si_addr), stack_pointer);
        abandon(r);
    }
    for (int i = 0; i < 4; i++)
        if (SIGNALS[i] == signal) sigaction(signal, &before[i], nullptr);  // not ours: left to the earlier one
}

// Installs the signal handlers while anything runs, and restores the earlier ones after.
inline void watch() {
    pthread_mutex_lock(&regions_lock);
    if (launches++ == 0) {
        struct sigaction ours;
        memset(&ours, 0, sizeof ours);
        ours.sa_sigaction = on_signal;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler is left by a switch of stacks
        for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &ours, &before[i]);
    }
    pthread_mutex_unlock(&regions_lock);
}

inline void unwatch() {
    pthread_mutex_lock(&regions_lock);
    if (--launches == 0)
        for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &before[i], nullptr);
    pthread_mutex_unlock(&regions_lock);
}

}  // namespace emulator
