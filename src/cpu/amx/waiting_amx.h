/*
 * waiting_amx.h - accumulators that are stored while the next ones' first products run: else the unit waits for both.
 */
#ifndef MLA_CPU_WAITING_AMX_H
#define MLA_CPU_WAITING_AMX_H

#include <immintrin.h>
#include <stddef.h>

/* Where the accumulators 0 .. 3 go that are still in tiles; NULL: nothing is. */
typedef struct waiting {
    float *to[4];
} waiting;

/* Tile numbers are part of the instruction, so this is no function. `bytes` from row to row. */
#define LEAVE(w, number, bytes)                             \
    do {                                                    \
        if ((w)->to[number]) {                              \
            _tile_stored(number, (w)->to[number], (bytes)); \
        }                                                   \
        (w)->to[number] = NULL;                             \
    } while (0)

static void leave_all(waiting *w, int bytes)
{
    LEAVE(w, 0, bytes);
    LEAVE(w, 1, bytes);
    LEAVE(w, 2, bytes);
    LEAVE(w, 3, bytes);
}

#endif
