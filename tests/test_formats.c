/*
 * test_formats.c - the public helpers of mla_formats.h: arrays and tensors in HiFloat8, FRACTAL_NZ.
 *
 * That single codes are right is for test_hif8.c; here they are what arrays and tensors are compared with.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/scalar/convert.h"
#include "mla/mla.h"
#include "ref/number.h"

#define DIMS(...)                                                              \
    (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) \
    {                                                                          \
        __VA_ARGS__                                                            \
    }

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

#define assert_sentence(status, expected, text)                      \
    do {                                                             \
        assert_int_equal((status), (expected));                      \
        if (!strstr(mla_last_error(), (text))) {                     \
            fail_msg("\"%s\" lacks \"%s\"", mla_last_error(), text); \
        }                                                            \
    } while (0)

/* ---- HiFloat8: arrays -------------------------------------------------------------------------------------------- */

static uint32_t random_bits(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed ^ *seed >> 15;
}

/* Every length around the vectors', on every level of this machine; nothing behind the arrays is touched. */
static void test_arrays(void **state)
{
    (void)state;
    enum { MOST = 83 };
    mla_isa_info isa[8];
    size_t n_isa = mla_isa_list(isa, 8);
    uint32_t seed = 7;
    for (size_t level = 0; level < n_isa; level++) {
        if (!isa[level].usable) {
            continue;
        }
        assert_int_equal(mla_set_isa(isa[level].name), MLA_STATUS_OK);
        for (int64_t n = 0; n <= MOST; n++) {
            for (int mode = 0; mode < 2; mode++) {
                float x[MOST], y[MOST + 1];
                uint8_t code[MOST + 1];
                for (int64_t i = 0; i < n; i++) {
                    /* half of them any bits, half of them within the format's range */
                    x[i] =
                        mla_f32_from_bits(i % 2 ? random_bits(&seed)
                                                : (random_bits(&seed) & 0x87ffffffu) + (uint32_t)(i % 16) * 0x8000000u);
                }
                code[n] = 0xa5;
                y[n] = 123;
                assert_int_equal(mla_hif8_encode_array(x, n, (mla_hif8_mode)mode, code), MLA_STATUS_OK);
                for (int64_t i = 0; i < n; i++) {
                    assert_int_equal(code[i], mla_hif8_encode(x[i], (mla_hif8_mode)mode));
                    code[i] = i % 3 ? code[i] : (uint8_t)random_bits(&seed);
                }
                assert_int_equal(code[n], 0xa5);
                assert_int_equal(mla_hif8_decode_array(code, n, (mla_hif8_mode)mode, y), MLA_STATUS_OK);
                for (int64_t i = 0; i < n; i++) {
                    float expected = mla_hif8_decode(code[i]);
                    if (mode == MLA_HIF8_SATURATE && !isfinite(expected)) {
                        expected = isnan(expected) ? 0 : expected > 0 ? 32768.0f : -32768.0f;
                    }
                    assert_true(same_bits(y[i], expected));
                }
                assert_true(y[n] == 123);
            }
        }
    }
    mla_set_isa(NULL);
}

static void test_array_refusals(void **state)
{
    (void)state;
    float x[8] = {0};
    uint8_t code[8] = {0};
    assert_int_equal(mla_hif8_encode_array(NULL, 0, MLA_HIF8_ROUND, NULL), MLA_STATUS_OK);
    assert_sentence(mla_hif8_encode_array(NULL, 1, MLA_HIF8_ROUND, code), MLA_STATUS_NULL_POINTER, "x is NULL");
    assert_sentence(mla_hif8_decode_array(NULL, 1, MLA_HIF8_ROUND, x), MLA_STATUS_NULL_POINTER, "code is NULL");
    assert_sentence(mla_hif8_encode_array(x, -1, MLA_HIF8_ROUND, code), MLA_STATUS_BAD_VALUE, "n = -1");
    assert_sentence(mla_hif8_encode_array(x, INT64_MAX / 2, MLA_HIF8_ROUND, code), MLA_STATUS_BAD_VALUE, "n = ");
    assert_sentence(mla_hif8_encode_array(x, 8, (mla_hif8_mode)2, code), MLA_STATUS_BAD_VALUE, "mode = 2");
    assert_sentence(mla_hif8_encode_array(x, 8, MLA_HIF8_ROUND, (uint8_t *)x + 31), MLA_STATUS_BAD_VALUE, "overlaps");
    assert_sentence(mla_hif8_decode_array((uint8_t *)x, 8, MLA_HIF8_ROUND, x), MLA_STATUS_BAD_VALUE, "overlaps");
    /* single codes have no status: a mode that does not exist is the plain one */
    assert_int_equal(mla_hif8_encode(1e9f, (mla_hif8_mode)9), 0x6f);
    assert_int_equal(mla_hif8_encode(1e9f, MLA_HIF8_SATURATE), 0x6e);
}

/* ---- HiFloat8: tensors ------------------------------------------------------------------------------------------- */

static float found_descale(const float *x, int64_t n)
{
    float descale = -1;
    mla_tensor t = mla_tensor_make((void *)(uintptr_t)x, MLA_DTYPE_F32, 1, &n);
    assert_int_equal(mla_hif8_find_descale(&t, &descale), MLA_STATUS_OK);
    return descale;
}

static void test_find_descale(void **state)
{
    (void)state;
    static const struct {
        float largest, descale;
    } known[] = {{0, 1},
                 {1, 0.125f},
                 {15, 1},
                 {15.499999f, 1},
                 {15.5f, 2},
                 {-7.75f, 1},
                 {7.7499995f, 0.5f},
                 {FLT_MAX, 0x1p125f},
                 {0x1p-149f, 0x1p-126f},
                 {0x1p-122f, 0x1p-125f},
                 {0x1p-123f, 0x1p-126f}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const float x[] = {0, known[i].largest, -known[i].largest / 3, INFINITY, NAN, -INFINITY};
        float descale = found_descale(x, 6);
        if (descale != known[i].descale) {
            fail_msg("largest %a: descale %a, expected %a", (double)known[i].largest, (double)descale,
                     (double)known[i].descale);
        }
        assert_true(descale == 0x1p-126f || known[i].largest == 0 ||
                    (fabsf(known[i].largest) / descale < 15.5f && fabsf(known[i].largest) / descale >= 7.75f));
    }
    float unused = 0;
    assert_true(found_descale(&unused, 0) == 1);
    /* 16-bit and strided: every second column of a transposed view, behind more than one buffer's length */
    enum { WIDTH = 700 };
    static uint16_t half[2 * WIDTH][3];
    half[1][1] = mla_f16_from_f32(60000);
    half[2 * WIDTH - 2][2] = mla_f16_from_f32(-100);
    mla_tensor t = {.data = half, .dtype = MLA_DTYPE_F16, .ndim = 2, .dim = {3, WIDTH}, .stride = {1, 6}};
    assert_int_equal(mla_hif8_find_descale(&t, &unused), MLA_STATUS_OK);
    assert_true(unused == 8);
}

/* x as f32, f16 or bf16; what is stored comes back as it is. */
static float stored(void *data, mla_dtype dtype, int64_t at, float x)
{
    if (dtype == MLA_DTYPE_F32) {
        return ((float *)data)[at] = x;
    }
    bool f16 = dtype == MLA_DTYPE_F16;
    uint16_t bits = f16 ? mla_f16_from_f32(x) : mla_bf16_from_f32(x);
    ((uint16_t *)data)[at] = bits;
    return f16 ? mla_f32_from_f16(bits) : mla_f32_from_bf16(bits);
}

static void test_quantize_and_back(void **state)
{
    (void)state;
    enum { ROWS = 3, COLUMNS = 300 };
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};
    static const float descales[] = {1, 0.25f, 0.003f, 7.1f, 0x1p-130f, 3e38f};
    static float x_memory[2 * ROWS * COLUMNS], y_memory[2 * ROWS * COLUMNS], value[ROWS * COLUMNS];
    static uint8_t code_memory[3 * ROWS * COLUMNS];
    uint32_t seed = 3;
    for (size_t d = 0; d < 3; d++) {
        for (size_t s = 0; s < sizeof descales / sizeof *descales; s++) {
            float descale = descales[s];
            int mode = (int)(s % 2);
            /* x: columns outside, rows inside; code: every third byte, rows backwards in memory */
            mla_tensor x = {.data = x_memory,
                            .dtype = dtypes[d],
                            .ndim = 2,
                            .dim = {ROWS, COLUMNS},
                            .stride = {1, ROWS}};
            mla_tensor code = {.data = code_memory,
                               .dtype = s % 2 ? MLA_DTYPE_U8 : MLA_DTYPE_HIF8,
                               .ndim = 2,
                               .dim = {ROWS, COLUMNS},
                               .stride = {3 * COLUMNS, 3}};
            mla_tensor y = {.data = y_memory,
                            .dtype = dtypes[d],
                            .ndim = 2,
                            .dim = {ROWS, COLUMNS},
                            .stride = {COLUMNS, 1}};
            memset(code_memory, 0xa5, sizeof code_memory);
            for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
                float wild = mla_f32_from_bits(random_bits(&seed));
                float tame = (float)(int32_t)random_bits(&seed) * 0x1p-29f * (descale < 1e30f ? descale : 1);
                value[i] = stored(x_memory, dtypes[d], i % COLUMNS * ROWS + i / COLUMNS, i % 4 ? tame : wild);
            }
            assert_int_equal(mla_hif8_quantize(&x, descale, (mla_hif8_mode)mode, &code), MLA_STATUS_OK);
            assert_int_equal(mla_hif8_dequantize(&code, descale, (mla_hif8_mode)mode, &y), MLA_STATUS_OK);
            for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
                uint8_t expected = mla_hif8_encode(value[i] / descale, (mla_hif8_mode)mode);
                assert_int_equal(code_memory[3 * i], expected);
                assert_int_equal(code_memory[3 * i + 1], 0xa5);
                /* rounded once: from the exact product, which a double holds */
                double exact = (double)mla_hif8_decode(expected) * (double)descale;
                float got = dtypes[d] == MLA_DTYPE_F32   ? y_memory[i]
                            : dtypes[d] == MLA_DTYPE_F16 ? mla_f32_from_f16(((uint16_t *)y_memory)[i])
                                                         : mla_f32_from_bf16(((uint16_t *)y_memory)[i]);
                if (isnan(exact)) {
                    assert_true(isnan(got));
                    continue;
                }
                uint32_t bits = mla_ref_encode(dtypes[d], exact);
                assert_true(dtypes[d] == MLA_DTYPE_F32 ? bits == mla_bits_from_f32(got)
                                                       : bits == ((uint16_t *)y_memory)[i]);
            }
        }
    }
}

static void test_quantize_refusals(void **state)
{
    (void)state;
    float memory[6] = {0}, descale;
    uint8_t code_memory[6] = {0};
    mla_tensor x = mla_tensor_make(memory, MLA_DTYPE_F32, DIMS(2, 3));
    mla_tensor code = mla_tensor_make(code_memory, MLA_DTYPE_HIF8, DIMS(2, 3));
    assert_int_equal(mla_hif8_quantize(&x, 1, MLA_HIF8_ROUND, &code), MLA_STATUS_OK);
    assert_sentence(mla_hif8_find_descale(NULL, &descale), MLA_STATUS_NULL_POINTER, "x is NULL");
    assert_sentence(mla_hif8_find_descale(&x, NULL), MLA_STATUS_NULL_POINTER, "descale is NULL");
    assert_sentence(mla_hif8_find_descale(&code, &descale), MLA_STATUS_BAD_DTYPE, "x.dtype = hif8");
    assert_sentence(mla_hif8_quantize(&x, 1, MLA_HIF8_ROUND, NULL), MLA_STATUS_NULL_POINTER, "code is NULL");
    static const float bad[] = {0, -1, INFINITY, NAN};
    for (size_t i = 0; i < 4; i++) {
        assert_sentence(mla_hif8_quantize(&x, bad[i], MLA_HIF8_ROUND, &code), MLA_STATUS_BAD_VALUE, "descale = ");
        assert_sentence(mla_hif8_dequantize(&code, bad[i], MLA_HIF8_ROUND, &x), MLA_STATUS_BAD_VALUE, "descale = ");
    }
    assert_sentence(mla_hif8_quantize(&x, 1, (mla_hif8_mode)-1, &code), MLA_STATUS_BAD_VALUE, "mode = -1");
    assert_sentence(mla_hif8_quantize(&x, 1, MLA_HIF8_ROUND, &x), MLA_STATUS_BAD_DTYPE, "code.dtype = f32");
    code.dim[1] = 2;
    assert_sentence(mla_hif8_quantize(&x, 1, MLA_HIF8_ROUND, &code), MLA_STATUS_BAD_SHAPE,
                    "code.dim[1] = 2 differs from x.dim[1] = 3");
    assert_sentence(mla_hif8_dequantize(&code, 1, MLA_HIF8_ROUND, &x), MLA_STATUS_BAD_SHAPE,
                    "x.dim[1] = 3 differs from code.dim[1] = 2");
    code = mla_tensor_make(memory, MLA_DTYPE_U8, DIMS(2, 3));
    assert_sentence(mla_hif8_quantize(&x, 1, MLA_HIF8_ROUND, &code), MLA_STATUS_BAD_VALUE, "code.data");
    code = mla_tensor_make(code_memory, MLA_DTYPE_U8, DIMS(2, 3));
    code.stride[0] = 0;
    assert_sentence(mla_hif8_quantize(&x, 1, MLA_HIF8_ROUND, &code), MLA_STATUS_BAD_STRIDE, "code.stride[0] = 0");
    assert_int_equal(mla_hif8_dequantize(&code, 1, MLA_HIF8_ROUND, &x), MLA_STATUS_OK); /* as an input it may */
    x.device.type = MLA_DEVICE_CUDA;
    assert_sentence(mla_hif8_find_descale(&x, &descale), MLA_STATUS_BAD_DEVICE, "host memory");
}

/* ---- FRACTAL_NZ -------------------------------------------------------------------------------------------------- */

/* Fills both sides with what tells elements apart, moves, and compares with the definition, element by element. */
static void check_nz(mla_dtype dtype, int64_t n_page, int64_t page_size, int64_t n_head, int64_t d, int64_t c,
                     bool gaps)
{
    int64_t size = (int64_t)mla_dtype_size(dtype), columns = n_head * d, count = n_page * page_size * columns;
    int64_t row_gap = gaps ? 3 : 0;
    mla_tensor nd = {.dtype = dtype, .ndim = 4, .dim = {n_page, page_size, n_head, d}};
    nd.stride[3] = 1;
    nd.stride[2] = d + row_gap;
    nd.stride[1] = n_head * nd.stride[2];
    nd.stride[0] = page_size * nd.stride[1] + row_gap;
    mla_tensor nz = mla_tensor_make(NULL, dtype, DIMS(n_page, columns / c, page_size, c));
    nz.stride[2] += row_gap;
    nz.stride[1] = page_size * nz.stride[2] + row_gap;
    nz.stride[0] = nz.dim[1] * nz.stride[1] + row_gap;
    int64_t nd_bytes = (n_page * nd.stride[0] + 1) * size, nz_bytes = (n_page * nz.stride[0] + 1) * size;
    unsigned char *nd_memory = calloc(1, (size_t)nd_bytes), *nz_memory = calloc(1, (size_t)nz_bytes);
    unsigned char *back = calloc(1, (size_t)nd_bytes);
    for (int64_t i = 0; i < nd_bytes; i++) {
        nd_memory[i] = (unsigned char)(i * 37 + i / 251);
    }
    nd.data = nd_memory;
    nz.data = nz_memory;
    if (n_head == 1) { /* the form without heads */
        nd = (mla_tensor){.data = nd.data,
                          .dtype = dtype,
                          .ndim = 3,
                          .dim = {n_page, page_size, d},
                          .stride = {nd.stride[0], nd.stride[1], 1}};
    }
    assert_int_equal(mla_nd_to_nz(&nd, &nz), MLA_STATUS_OK);
    mla_tensor copy = nd;
    copy.data = back;
    assert_int_equal(mla_nz_to_nd(&nz, &copy), MLA_STATUS_OK);
    for (int64_t i = 0; i < count; i++) {
        int64_t column = i % columns, row = i / columns % page_size, page = i / columns / page_size;
        int64_t head_stride = n_head == 1 ? 0 : nd.stride[2];
        int64_t nd_at = page * nd.stride[0] + row * nd.stride[1] + column / d * head_stride + column % d;
        int64_t nz_at = page * nz.stride[0] + column / c * nz.stride[1] + row * nz.stride[2] + column % c;
        assert_memory_equal(nd_memory + nd_at * size, nz_memory + nz_at * size, (size_t)size);
        assert_memory_equal(nd_memory + nd_at * size, back + nd_at * size, (size_t)size);
    }
    free(nd_memory);
    free(nz_memory);
    free(back);
}

static void test_nz(void **state)
{
    (void)state;
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16, MLA_DTYPE_I32,
                                       MLA_DTYPE_I64, MLA_DTYPE_I8,  MLA_DTYPE_U8,   MLA_DTYPE_HIF8};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        check_nz(dtypes[i], 2, 128, 1, 512, i < 5 ? 16 : 32, false); /* the caches of ATB */
        check_nz(dtypes[i], 3, 128, 1, 64, 16, false);
        check_nz(dtypes[i], 2, 5, 1, 12, 4, true);
        check_nz(dtypes[i], 2, 5, 3, 12, 4, true);  /* heads of whole pieces */
        check_nz(dtypes[i], 2, 3, 4, 6, 8, true);   /* pieces that lie across heads */
        check_nz(dtypes[i], 1, 1, 2, 5, 10, false); /* one piece */
        check_nz(dtypes[i], 2, 7, 1, 9, 1, true);
    }
}

/* The offsets as ATB's documents write them, for the three cases that its kernels know. */
static void test_nz_offsets(void **state)
{
    (void)state;
    enum { PAGES = 2 };
    static int8_t latent[PAGES][128][512], latent_nz[PAGES][16][128][32];
    static uint16_t rope[PAGES][128][64], rope_nz[PAGES][4][128][16];
    for (int64_t i = 0; i < PAGES * 128 * 512; i++) {
        (&latent[0][0][0])[i] = (int8_t)(i * 31 + i / 509);
    }
    for (int64_t i = 0; i < PAGES * 128 * 64; i++) {
        (&rope[0][0][0])[i] = (uint16_t)i;
    }
    mla_tensor nd = mla_tensor_make(latent, MLA_DTYPE_I8, DIMS(PAGES, 128, 1, 512));
    mla_tensor nz = mla_tensor_make(latent_nz, MLA_DTYPE_I8, DIMS(PAGES, 16, 128, 32));
    assert_int_equal(mla_nd_to_nz(&nd, &nz), MLA_STATUS_OK);
    nd = mla_tensor_make(rope, MLA_DTYPE_F16, DIMS(PAGES, 128, 1, 64));
    nz = mla_tensor_make(rope_nz, MLA_DTYPE_F16, DIMS(PAGES, 4, 128, 16));
    assert_int_equal(mla_nd_to_nz(&nd, &nz), MLA_STATUS_OK);
    for (int64_t page = 0; page < PAGES; page++) {
        for (int64_t r = 0; r < 128; r++) {
            for (int64_t d = 0; d < 512; d++) {
                assert_int_equal((&latent_nz[0][0][0][0])[((page * 16 + d / 32) * 128 + r) * 32 + d % 32],
                                 latent[page][r][d]);
            }
            for (int64_t d = 0; d < 64; d++) {
                assert_int_equal((&rope_nz[0][0][0][0])[((page * 4 + d / 16) * 128 + r) * 16 + d % 16],
                                 rope[page][r][d]);
            }
        }
    }
}

static void test_nz_refusals(void **state)
{
    (void)state;
    uint16_t memory[2 * 3 * 8] = {0}, nz_memory[2 * 3 * 8] = {0};
    const mla_tensor good = mla_tensor_make(memory, MLA_DTYPE_F16, DIMS(2, 3, 8));
    const mla_tensor good_nz = mla_tensor_make(nz_memory, MLA_DTYPE_F16, DIMS(2, 2, 3, 4));
    mla_tensor nd = good, nz = good_nz;
    assert_int_equal(mla_nd_to_nz(&nd, &nz), MLA_STATUS_OK);
    assert_sentence(mla_nd_to_nz(NULL, &nz), MLA_STATUS_NULL_POINTER, "nd is NULL");
    assert_sentence(mla_nz_to_nd(NULL, &nd), MLA_STATUS_NULL_POINTER, "nz is NULL");
    nd = mla_tensor_make(memory, MLA_DTYPE_F16, DIMS(6, 8));
    assert_sentence(mla_nd_to_nz(&nd, &nz), MLA_STATUS_BAD_SHAPE, "nd.ndim = 2 must be 3 or 4");
    nd = good;
    nz = mla_tensor_make(nz_memory, MLA_DTYPE_F16, DIMS(2, 2, 12));
    assert_sentence(mla_nd_to_nz(&nd, &nz), MLA_STATUS_BAD_SHAPE, "nz.ndim = 3 must be 4");
    nz = mla_tensor_make(nz_memory, MLA_DTYPE_F16, DIMS(2, 3, 2, 4));
    assert_sentence(mla_nd_to_nz(&nd, &nz), MLA_STATUS_BAD_SHAPE, "nz.dim[2] = 2 differs from nd.dim[1] = 3");
    nz = mla_tensor_make(nz_memory, MLA_DTYPE_F16, DIMS(2, 1, 3, 7));
    assert_sentence(mla_nd_to_nz(&nd, &nz), MLA_STATUS_BAD_SHAPE, "nz.dim[1] * dim[3] = 7 differs");
    nz = good_nz;
    nz.dtype = MLA_DTYPE_BF16;
    assert_sentence(mla_nz_to_nd(&nz, &nd), MLA_STATUS_BAD_DTYPE, "nz.dtype = bf16 differs from nd.dtype = f16");
    nz = good_nz;
    nz.stride[3] = 2;
    nz.dim[0] = 1;
    nd.dim[0] = 1;
    assert_sentence(mla_nz_to_nd(&nz, &nd), MLA_STATUS_BAD_STRIDE, "nz.stride[3] = 2");
    nd = good;
    nz = good_nz;
    nz.stride[0] = 0;
    assert_sentence(mla_nd_to_nz(&nd, &nz), MLA_STATUS_BAD_STRIDE, "nz.stride[0] = 0");
    assert_int_equal(mla_nz_to_nd(&nz, &nd), MLA_STATUS_OK);
    nz = good_nz;
    nz.data = memory;
    assert_sentence(mla_nd_to_nz(&nd, &nz), MLA_STATUS_BAD_VALUE, "nz.data");
    nz = good_nz;
    nz.device.type = MLA_DEVICE_CUDA;
    assert_sentence(mla_nd_to_nz(&nd, &nz), MLA_STATUS_BAD_DEVICE, "nz is on device 1:0");
    /* nothing to move */
    nd = mla_tensor_make(NULL, MLA_DTYPE_F16, DIMS(0, 3, 8));
    nz = mla_tensor_make(NULL, MLA_DTYPE_F16, DIMS(0, 2, 3, 4));
    assert_int_equal(mla_nd_to_nz(&nd, &nz), MLA_STATUS_OK);
    nd = mla_tensor_make(NULL, MLA_DTYPE_F16, DIMS(2, 3, 0));
    nz = mla_tensor_make(NULL, MLA_DTYPE_F16, DIMS(2, 5, 3, 0));
    assert_int_equal(mla_nd_to_nz(&nd, &nz), MLA_STATUS_OK);
    assert_int_equal(mla_nz_to_nd(&nz, &nd), MLA_STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_array_refusals),
        cmocka_unit_test(test_find_descale),
        cmocka_unit_test(test_quantize_and_back),
        cmocka_unit_test(test_quantize_refusals),
        cmocka_unit_test(test_nz),
        cmocka_unit_test(test_nz_offsets),
        cmocka_unit_test(test_nz_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
