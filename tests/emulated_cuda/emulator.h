/*
 * emulator.h - runs a kernel on the CPU, thread block by thread block.
 */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stddef.h>

/* Calls body(argument) once per thread of each of n_block blocks. Ends the process when threads of a warp wait for
 * different things: on a GPU that would hang. */
void emulator_launch(void (*body)(void *), void *argument, long n_block, int n_thread, size_t shared_bytes);

#endif
