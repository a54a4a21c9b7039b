/*
 * emulator.cpp - fibers: one per thread of a thread block, switched at barriers.
 */
#include "emulator.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cuda_runtime_shim.h"

thread_local uint3_shim threadIdx, blockIdx;
alignas(128) thread_local char memory[256 * 1024]; /* the dynamic shared memory of generic.cu */

extern "C" void fiber_switch(void **from, void *to);
__asm__(R"(
    .text
    .type fiber_switch, @function
fiber_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size fiber_switch, .-fiber_switch
    .section .note.GNU-stack,"",@progbits
    .previous
)");

enum waiting { RUNS, AT_WARP, AT_BLOCK, ENDED };

struct fiber {
    void *stack_pointer;
    char *stack;
    waiting state;
};

static const int STACK_BYTES = 128 * 1024;

static struct {
    std::vector<fiber> fibers;
    void *scheduler;
    int current;
    int vote, any; /* of the barrier that fills, of the one passed last */
    uint32_t words[64][32];
    void (*body)(void *);
    void *argument;
} e;

static void wait_as(waiting state)
{
    fiber &f = e.fibers[e.current];
    f.state = state;
    fiber_switch(&f.stack_pointer, e.scheduler);
}

void emulator_block_barrier(int vote, int *any)
{
    e.vote |= vote != 0;
    wait_as(AT_BLOCK);
    if (any) {
        *any = e.any;
    }
}

void emulator_warp_barrier()
{
    wait_as(AT_WARP);
}

uint32_t *emulator_warp_words()
{
    return e.words[e.current / 32];
}

int emulator_lane()
{
    return e.current % 32;
}

static void fiber_main()
{
    e.body(e.argument);
    wait_as(ENDED);
    abort(); /* never resumed */
}

static void prepare(fiber &f)
{
    if (!f.stack) {
        f.stack = (char *)aligned_alloc(64, STACK_BYTES);
    }
    void **top = (void **)(f.stack + STACK_BYTES - 64);
    *--top = nullptr; /* keeps the stack as the ABI has it at a function's entry */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) {
        *--top = nullptr;
    }
    f.stack_pointer = top;
    f.state = RUNS;
}

static void run(int i)
{
    e.current = i;
    threadIdx = {(unsigned)i, 0, 0};
    fiber_switch(&e.scheduler, e.fibers[i].stack_pointer);
}

/* All lanes of a warp, until each waits for the block or has ended. */
static void run_warp(int first, int end)
{
    for (;;) {
        int count[4] = {0, 0, 0, 0};
        for (int i = first; i < end; i++) {
            if (e.fibers[i].state == RUNS) {
                run(i);
            }
            count[e.fibers[i].state]++;
        }
        if (count[AT_WARP] == 0) {
            return;
        }
        if (count[AT_WARP] != end - first) {
            fprintf(stderr, "emulator: lanes of a warp wait for different things: the kernel would hang\n");
            abort();
        }
        for (int i = first; i < end; i++) {
            e.fibers[i].state = RUNS;
        }
    }
}

static void run_block(int n_thread)
{
    for (int i = 0; i < n_thread; i++) {
        prepare(e.fibers[i]);
    }
    for (;;) {
        int ended = 0;
        e.vote = 0;
        for (int first = 0; first < n_thread; first += 32) {
            run_warp(first, first + 32 < n_thread ? first + 32 : n_thread);
        }
        for (int i = 0; i < n_thread; i++) {
            ended += e.fibers[i].state == ENDED;
        }
        if (ended == n_thread) {
            return;
        }
        if (ended > 0) {
            fprintf(stderr, "emulator: some threads ended, others wait at a barrier\n");
            abort();
        }
        e.any = e.vote;
        for (int i = 0; i < n_thread; i++) {
            e.fibers[i].state = RUNS;
        }
    }
}

void emulator_launch(void (*body)(void *), void *argument, long n_block, int n_thread, size_t shared_bytes)
{
    if (e.fibers.size() < (size_t)n_thread) {
        e.fibers.resize((size_t)n_thread);
    }
    e.body = body;
    e.argument = argument;
    for (long block = 0; block < n_block; block++) {
        blockIdx = {(unsigned)block, 0, 0};
        memset(memory, 0xff, shared_bytes); /* NaN: whoever reads before writing shows */
        run_block(n_thread);
    }
}
