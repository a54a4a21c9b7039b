/*
 * nz.c - FRACTAL_NZ there and back.
 */
#include <inttypes.h>
#include <string.h>

#include "mla/mla_formats.h"
#include "tensor.h"

#define ND_LAYOUT "[n_page][page_size][d] or [n_page][page_size][n_kv_head][d]"
#define NZ_LAYOUT "[n_page][n_piece][page_size][c] for " ND_LAYOUT

static mla_status check_pair(const mla_tensor *nd, const mla_tensor *nz, bool to_nz)
{
    mla_field nd_field = {nd, "nd", -1}, nz_field = {nz, "nz", -1};
    MLA_TRY(mla_field_check_operand(&nd_field, MLA_DTYPES_ANY));
    MLA_TRY(mla_field_check_operand(&nz_field, MLA_DTYPES_ANY));
    if (nd->ndim != 3 && nd->ndim != 4) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.ndim = %" PRId32 " must be 3 or 4: " ND_LAYOUT,
                        mla_field_label(&nd_field).text, nd->ndim);
    }
    const mla_extent extent[4] = {mla_dim_extent(nd_field, 0), mla_any_extent(), mla_dim_extent(nd_field, 1),
                                  mla_any_extent()};
    MLA_TRY(mla_field_check_dims(&nz_field, NZ_LAYOUT, 4, extent));
    int64_t columns = 0,
            nz_columns = 0; /* no product overflows, mla_field_check() has seen to it, unless one is empty */
    bool fits = !__builtin_mul_overflow(nd->dim[2], nd->ndim == 4 ? nd->dim[3] : 1, &columns) &&
                !__builtin_mul_overflow(nz->dim[1], nz->dim[3], &nz_columns);
    if (!fits || columns != nz_columns) {
        return mla_fail(MLA_STATUS_BAD_SHAPE,
                        "%s.dim[1] * dim[3] = %" PRId64 " differs from the columns of a row of %s, %" PRId64,
                        mla_field_label(&nz_field).text, nz_columns, mla_field_label(&nd_field).text, columns);
    }
    if (nd->dtype != nz->dtype) {
        return mla_fail(MLA_STATUS_BAD_DTYPE, "%s.dtype = %s differs from %s.dtype = %s",
                        mla_field_label(&nz_field).text, mla_dtype_name(nz->dtype), mla_field_label(&nd_field).text,
                        mla_dtype_name(nd->dtype));
    }
    MLA_TRY(mla_field_check_inner(&nd_field));
    MLA_TRY(mla_field_check_inner(&nz_field));
    const mla_field *out = to_nz ? &nz_field : &nd_field;
    MLA_TRY(mla_field_check_output(out));
    return mla_field_check_apart(out, to_nz ? &nd_field : &nz_field);
}

/* One row of one page; nd and nz are its first bytes. Copies every longest run that neither a piece nor a head ends. */
static void move_row(const mla_tensor *nd, const mla_tensor *nz, char *nd_row, char *nz_row, bool to_nz)
{
    const int64_t size = (int64_t)mla_dtype_size(nd->dtype), piece = nz->dim[3], d = nd->dim[nd->ndim - 1];
    const int64_t head_stride = nd->ndim == 4 ? nd->stride[2] : 0;
    int64_t in_head = 0, in_piece = 0, n;
    for (int64_t left = nz->dim[1] * piece; left > 0; left -= n) {
        n = piece - in_piece < d - in_head ? piece - in_piece : d - in_head;
        char *nd_at = nd_row + in_head * size, *nz_at = nz_row + in_piece * size;
        memcpy(to_nz ? nz_at : nd_at, to_nz ? nd_at : nz_at, (size_t)(n * size));
        in_head += n;
        in_piece += n;
        if (in_head == d) {
            in_head = 0;
            nd_row += head_stride * size;
        }
        if (in_piece == piece) {
            in_piece = 0;
            nz_row += nz->stride[1] * size;
        }
    }
}

static void move(const mla_tensor *nd, const mla_tensor *nz, bool to_nz)
{
    const int64_t size = (int64_t)mla_dtype_size(nd->dtype);
    if (mla_tensor_empty(nd)) {
        return;
    }
    for (int64_t page = 0; page < nd->dim[0]; page++) {
        for (int64_t row = 0; row < nd->dim[1]; row++) {
            int64_t nd_at = page * nd->stride[0] + row * nd->stride[1];
            int64_t nz_at = page * nz->stride[0] + row * nz->stride[2];
            move_row(nd, nz, (char *)nd->data + nd_at * size, (char *)nz->data + nz_at * size, to_nz);
        }
    }
}

mla_status mla_nd_to_nz(const mla_tensor *nd, const mla_tensor *nz)
{
    MLA_TRY(check_pair(nd, nz, true));
    move(nd, nz, true);
    return MLA_STATUS_OK;
}

mla_status mla_nz_to_nd(const mla_tensor *nz, const mla_tensor *nd)
{
    MLA_TRY(check_pair(nd, nz, false));
    move(nd, nz, false);
    return MLA_STATUS_OK;
}
