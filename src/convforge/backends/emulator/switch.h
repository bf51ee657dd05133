// Switches between stacks. In assembly for x86-64, where it takes a few instructions; with ucontext elsewhere, which
// makes a system call for every switch.
#pragma once

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)

struct Context {
    void *stack;
};

// Saves the callee-saved registers, stores the stack pointer in *from, loads the other one, and resumes there. An
// indirect jump, because the processor would predict a return wrongly.
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

// Prepares `context` so that it calls `entry` on a stack whose end is `top`, a multiple of 16.
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
