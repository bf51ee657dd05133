// Leaving one stack for another. Written by hand for x86-64, where it takes a few instructions; ucontext elsewhere,
// which asks the kernel of the operating system at every switch.
#pragma once

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)

struct Context {
    void *stack;
};

// Pushes what a function must keep, stores the stack pointer in *from, takes the other, and goes on where that stopped.
// An indirect jump, because the processor would foresee a return to the wrong place.
extern "C" void emulator_switch(Context *from, const Context *to);
__asm__(R"(
    .text
    .p2align 4
    .hidden emulator_switch
    .globl emulator_switch
    .type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
    .size emulator_switch, .-emulator_switch
)");

inline void switch_stack(Context *from, const Context *to) { emulator_switch(from, to); }

// Make `context` begin with a call of `entry` on a stack whose end is `top`, a multiple of 16.
inline void prepare(Context *context, unsigned char *, unsigned char *top, void (*entry)()) {
    void **frame = reinterpret_cast<void **>(top) - 8;
    for (int i = 0; i < 8; i++) frame[i] = nullptr;
    frame[6] = reinterpret_cast<void *>(entry);  // after six registers; then the return address that entry never uses
    context->stack = frame;
}

#else
#include <ucontext.h>

struct Context {
    ucontext_t state;
};

inline void switch_stack(Context *from, const Context *to) { swapcontext(&from->state, &to->state); }

inline void prepare(Context *context, unsigned char *bottom, unsigned char *top, void (*entry)()) {
    getcontext(&context->state);
    context->state.uc_stack.ss_sp = bottom;
    context->state.uc_stack.ss_size = top - bottom;
    context->state.uc_link = nullptr;
    makecontext(&context->state, entry, 0);
}

#endif
