/*
 * mla_formats.h - formats of caches: the numbers of HiFloat8, and the layout FRACTAL_NZ.
 *
 * Everything here runs on the calling thread, on host memory, and allocates nothing. Thread safety and errors as in
 * mla.h; a call that fails has written nothing.
 */
#ifndef MLA_FORMATS_H
#define MLA_FORMATS_H

#include "mla_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- HiFloat8 ---------------------------------------------------------------------------------------------------- */

/*
 * HiFloat8 is Ascend's 8-bit float (aclDataType HIFLOAT8). It trades precision for range as numbers leave 1: a prefix
 * of the code says how many of its bits are exponent, so numbers near 1 keep 3 bits of fraction and far ones have none.
 *
 *     magnitude              fraction bits    steps within a power of two
 *     2^-3  .. 15            3                8
 *     2^-7  .. 224           2                4
 *     2^-15 .. 2^15          1                2 (2^15 itself is the largest)
 *     2^-22 .. 2^-16         0                1
 *
 * There are one zero, without a sign, two infinities (codes 6f and ef, hexadecimal) and one NaN (80). 1.0 is 08. Every
 * number of HiF8 is exact in f16, bf16 and f32; what is multiplied and added is what it decodes to.
 */
typedef enum mla_hif8_mode {
    MLA_HIF8_ROUND = 0,   /* encode: magnitudes of 40960 and more become infinity. decode: all codes as they are */
    MLA_HIF8_SATURATE = 1 /* encode: they become 2^15, as do infinities; NaN becomes 0. decode: the codes of infinity
                             become +-2^15 and the one of NaN 0 */
} mla_hif8_mode;

/* The number that a code stands for, exactly. */
MLA_API float mla_hif8_decode(uint8_t code);

/*
 * The code of the nearest number; of two equally near, the one farther from zero. Magnitudes in [2^-23, 2^-22) become
 * 2^-22, smaller ones 0. A mode that does not exist counts as MLA_HIF8_ROUND.
 */
MLA_API uint8_t mla_hif8_encode(float x, mla_hif8_mode mode);

/*
 * The same for n numbers, x [n] and code [n], with vector instructions where there are some. The arrays share no
 * memory; both may be NULL if n is 0. Errors: NULL_POINTER, BAD_VALUE.
 */
MLA_API mla_status mla_hif8_encode_array(const float *x, int64_t n, mla_hif8_mode mode, uint8_t *code);
MLA_API mla_status mla_hif8_decode_array(const uint8_t *code, int64_t n, mla_hif8_mode mode, float *x);

/*
 * A tensor in HiF8 has one factor, its descale: number = decode(code) * descale. That is the convention of the CANN
 * operators and of mla_problem.
 *
 * mla_hif8_find_descale() looks for one: the smallest power of two (2^-126 at least) under which every finite |x| /
 * descale is below 15.5: then the largest magnitudes, and those down to a sixtieth of them, keep 3 bits of fraction,
 * and only the encoding rounds. 1 if x holds no finite number but zeros.
 *     x         f32, f16 or bf16, any shape, any strides
 *     descale   out
 */
MLA_API mla_status mla_hif8_find_descale(const mla_tensor *x, float *descale);

/*
 * code = encode(x / descale), the quotient rounded to fp32; and x = decode(code) * descale, rounded once, to nearest
 * even, to the dtype of x.
 *     x         f32, f16 or bf16, any shape, any strides (positive ones as an output)
 *     descale   finite and positive
 *     code      hif8 or u8, dims of x, any strides (positive ones as an output), no memory of x
 * Errors: NULL_POINTER, BAD_SHAPE, BAD_DTYPE, BAD_STRIDE, BAD_VALUE, BAD_DEVICE.
 */
MLA_API mla_status mla_hif8_quantize(const mla_tensor *x, float descale, mla_hif8_mode mode, const mla_tensor *code);
MLA_API mla_status mla_hif8_dequantize(const mla_tensor *code, float descale, mla_hif8_mode mode, const mla_tensor *x);

/* ---- FRACTAL_NZ -------------------------------------------------------------------------------------------------- */

/*
 * The layout in which Ascend's matrix unit likes a cache. A page of rows (tokens) is cut into pieces of c columns, and
 * holds the first piece of all its rows, then the second piece of all its rows, and so on. There c is 32 bytes: 16
 * columns of f16 or bf16, 32 of an 8-bit type. Here it is any divisor of the row that nz's own dims name:
 *
 *     nd    [n_page][page_size][d] or [n_page][page_size][n_kv_head][d]      element (page, row, column)
 *     nz    [n_page][n_piece][page_size][c], n_piece * c columns             (page, column / c, row, column % c)
 *
 * where column counts through the heads: head * d + its own column. (FRACTAL_NZ as such also cuts rows into sixteens;
 * for a page of a multiple of 16 rows that is the same memory.) page_size and all other extents are free.
 *
 *     nd, nz    the same dtype, any one; innermost contiguous, outer strides free (positive ones as an output); they
 *               share no memory
 * Bytes are moved, never looked at. Errors: NULL_POINTER, BAD_SHAPE, BAD_DTYPE, BAD_STRIDE, BAD_VALUE, BAD_DEVICE.
 */
MLA_API mla_status mla_nd_to_nz(const mla_tensor *nd, const mla_tensor *nz);
MLA_API mla_status mla_nz_to_nd(const mla_tensor *nz, const mla_tensor *nd);

#ifdef __cplusplus
}
#endif

#endif
