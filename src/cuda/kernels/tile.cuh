/*
 * tile.cuh - the work of a thread block on one block of 64 keys: queries, column chunks on their way into shared
 * memory, products.
 */
#ifndef MLA_CUDA_TILE_CUH
#define MLA_CUDA_TILE_CUH

#include "row_result.cuh"
#include "visible.cuh"

/* Thread blocks are cut as [row group][column group]: a thread has N rows, N keys of a score tile and N columns of a
 * chunk. */
template <int R> struct mla_tile {
    static constexpr int N = R == 64 ? 4 : R == 16 ? 2 : 1;
    static constexpr int TX = MLA_CUDA_KEYS / N;
    static constexpr int TY = R / N;
    static_assert(TX * TY == MLA_CUDA_THREADS, "a thread block covers the tile");
};

#define MLA_WARPS (MLA_CUDA_THREADS / 32)
#define MLA_CHUNKS (MLA_CUDA_COLUMNS / MLA_CUDA_CHUNK)

/* A probability of a key that the row does not see: times anything it must stay away from the sum, NaN included. Seen
 * ones are never negative. */
#define MLA_HIDDEN __uint_as_float(0x80000000u)

template <int R> struct alignas(16) mla_shared {
    float tile[MLA_CUDA_KEYS * MLA_CUDA_STRIDE];                              /* [key][column] of the chunk at hand */
    float score[R * MLA_CUDA_STRIDE];                                         /* [row][key], then probabilities */
    int64_t k_at[MLA_CUDA_KEYS], rope_at[MLA_CUDA_KEYS], v_at[MLA_CUDA_KEYS]; /* element offsets; k_at -1: nobody's */
    int64_t position[MLA_CUDA_KEYS];         /* in the sequence; of a list, where the mask has its column */
    int64_t begin[R], end[R];                /* positions that the row sees in the segment at hand */
    float m[R], l[R], factor[R];             /* running maximum and sum, rescaling of this block; base 2 */
    float power[R], scale[R], nope_scale[R]; /* of scores: in q, of finished ones, of the nope part alone */
    int64_t list_end;
};

/* What a thread block is to do: row block, kv head, part of the keys, and the first column of o that it makes. */
struct mla_work {
    int64_t block, kv_head, column;
    int split;
};

__device__ __forceinline__ mla_work mla_find_work(const mla_cuda_problem &p)
{
    mla_work work;
    int64_t index = blockIdx.x;
    work.block = index % p.n_block;
    index /= p.n_block;
    work.kv_head = index % p.n_kv_head;
    index /= p.n_kv_head;
    work.split = (int)(index % p.n_split);
    work.column = index / p.n_split * MLA_CUDA_COLUMNS;
    return work;
}

/* Column chunks of queries and keys, and of the values that a thread block makes. */
struct mla_steps {
    int n_nope, n_rope, n_score, n_value;
};

__device__ __forceinline__ mla_steps mla_count_steps(const mla_cuda_problem &p, int64_t column)
{
    mla_steps steps;
    const int64_t columns = p.d_v - column < MLA_CUDA_COLUMNS ? p.d_v - column : MLA_CUDA_COLUMNS;
    steps.n_nope = (int)((p.d_nope + MLA_CUDA_CHUNK - 1) / MLA_CUDA_CHUNK);
    steps.n_rope = (int)((p.d_rope + MLA_CUDA_CHUNK - 1) / MLA_CUDA_CHUNK);
    steps.n_score = steps.n_nope + steps.n_rope;
    steps.n_value = (int)((columns + MLA_CUDA_CHUNK - 1) / MLA_CUDA_CHUNK);
    return steps;
}

/* What a column chunk is made of. */
enum mla_part { MLA_PART_NOPE, MLA_PART_ROPE, MLA_PART_VALUE };

/* Element offset of column c of a stored row, from the row's first one. */
__device__ __forceinline__ int64_t column_offset(const mla_cuda_rows &t, int64_t c)
{
    return t.piece == INT32_MAX ? c : c / t.piece * t.piece_stride + c % t.piece;
}

/* Where one key's columns lie; k_at -1: nobody sees it. */
struct mla_key_place {
    int64_t k_at, rope_at, v_at;
};

__device__ __forceinline__ mla_key_place mla_place_of(const mla_cuda_segment &g, int64_t page, int64_t slot,
                                                      int64_t kv_head)
{
    return {mla_row_offset(g.k, page, slot, kv_head), mla_row_offset(g.k_rope, page, slot, kv_head),
            mla_row_offset(g.v, page, slot, kv_head)};
}

/* Into the three arrays of shared memory that keep places. */
__device__ __forceinline__ void mla_keep_place(int64_t *k_at, int64_t *rope_at, int64_t *v_at, int at,
                                               const mla_key_place &place)
{
    k_at[at] = place.k_at;
    rope_at[at] = place.rope_at;
    v_at[at] = place.v_at;
}

/* The stored row that column c of a part is in, which column of it, and how many there are from it on. */
__device__ __forceinline__ const mla_cuda_rows &find_columns(const mla_cuda_problem &p, const mla_cuda_segment &g,
                                                             const mla_key_place &key, mla_part part, int64_t c,
                                                             int64_t &at, int64_t &column, int64_t &n)
{
    const bool value = part == MLA_PART_VALUE;
    if (value && g.v.data) {
        at = key.v_at;
        column = c;
        n = p.d_v - c;
        return g.v;
    }
    const bool rope = part == MLA_PART_ROPE || (value && c >= p.d_nope);
    const int64_t last = value ? p.d_v : p.d_nope + p.d_rope;
    column = value && rope ? c - p.d_nope : c;
    n = rope ? (value ? last - c : p.d_rope - c) : (p.d_nope < last ? p.d_nope : last) - c;
    at = rope ? key.rope_at : key.k_at;
    return rope ? g.k_rope : g.k;
}

/* Sixteen columns of a key: on their way at once where they are one aligned run, else left to put_columns(). */
__device__ __forceinline__ void fetch_columns(mla_raw16 &raw, const mla_cuda_problem &p, const mla_cuda_segment &g,
                                              const mla_key_place &key, mla_part part, int64_t c)
{
    int64_t at, column, n;
    const mla_cuda_rows &t = find_columns(p, g, key, part, c, at, column, n);
    raw.dtype = MLA_DTYPE_NONE;
    if (t.vector && n >= 16 && column % 16 == 0) {
        mla_fetch16(raw, t.data, t.dtype, at + column_offset(t, column));
    }
}

__device__ __forceinline__ void store16(float *to, const float *x)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        ((float4 *)to)[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
}

/* Scales of a row, the segment's descale included: a power of two goes into q, where it is exact and keeps q.k far from
 * overflow, the rest waits for the finished score. */
template <int R>
__device__ __noinline__ void set_scales(mla_shared<R> &sh, const mla_cuda_problem &p, const mla_cuda_segment &g,
                                        int row, int64_t head)
{
    double scale = (double)p.softmax_scale;
    scale *= p.q_descale ? (double)p.q_descale[0] : 1.0;
    scale *= g.descale ? (double)g.descale[0] : 1.0;
    float qk = p.qk_descale ? p.qk_descale[head] : 1.0f;
    bool apart = p.q_rope.data != NULL; /* then qk_descale is of the nope part alone */
    scale *= apart ? 1.0 : (double)qk;
    sh.nope_scale[row] = apart ? qk : 1.0f;
    if (scale == 0 || isnan(scale) || isinf(scale)) {
        sh.power[row] = scale == 0 ? 0.0f : 1.0f; /* 0: all scores are 0, however large q.k may be */
        sh.scale[row] = scale == 0 ? 1.0f : (float)scale;
        return;
    }
    int exponent = ilogb(scale);
    double power = ldexp(1.0, exponent < -126 ? -126 : exponent > 127 ? 127 : exponent);
    sh.power[row] = (float)power;
    sh.scale[row] = (float)(scale / power * MLA_LOG2_E);
}

/* Everything that a row block keeps of a row while it works on a segment. */
template <int R>
__device__ __forceinline__ void set_row(mla_shared<R> &sh, const mla_cuda_problem &p, const mla_cuda_segment &g,
                                        const mla_row_block &b, int64_t kv_head, int row)
{
    int64_t r = b.row_begin + row;
    sh.begin[row] = sh.end[row] = 0;
    sh.power[row] = 0;
    sh.scale[row] = sh.nope_scale[row] = 1;
    if (r < b.row_end) {
        mla_token_range(p, g, b.seq, r / p.group, b.n_used, sh.begin[row], sh.end[row]);
        set_scales(sh, p, g, row, kv_head * p.group + r % p.group);
    }
}

/* The mask of a row at a position, in base 2; clears `seen` where it hides the key. */
__device__ __forceinline__ float mask_at(const mla_cuda_problem &p, const mla_cuda_segment &g, const mla_row_block &b,
                                         int row, int64_t position, bool &seen)
{
    int64_t at = mla_row_offset(g.mask, b.seq, b.first + (b.row_begin + row) / p.group, position);
    float mask = mla_element(g.mask.data, g.mask.dtype, at), scaled = mask * (float)MLA_LOG2_E;
    seen = mask != -INFINITY;
    /* a finite mask stays finite: only -inf hides */
    return isinf(scaled) && !isinf(mask) ? copysignf(3.402823466e38f, mask) : scaled;
}

/* to [R][stride]: 64 columns from c on of the block's queries, times their powers of two. c counts in nope columns,
 * then, rope: in those of the rope part. Rows that see nothing become 0: they may hold anything. */
template <int R>
__device__ __noinline__ void load_queries(const mla_shared<R> &sh, const mla_cuda_problem &p, const mla_row_block &b,
                                          int64_t kv_head, int64_t c, bool rope, float *to, int stride)
{
    const mla_cuda_rows &q = rope ? p.q_rope : p.q;
    const int64_t n = (rope ? p.d_rope : p.d_nope) - c;
    for (int row = threadIdx.x / 32; row < R; row += MLA_WARPS) {
        const int64_t r = b.row_begin + row;
        const bool sees = r < b.row_end && sh.begin[row] < sh.end[row];
        const int64_t at =
            sees ? mla_row_offset(q, b.seq, b.first + r / p.group, kv_head * p.group + r % p.group) + c : 0;
#pragma unroll 1
        for (int i = threadIdx.x % 32; i < MLA_CUDA_CHUNK; i += 32) {
            to[row * stride + i] = sees && i < n ? mla_element(q.data, q.dtype, at + i) * sh.power[row] : 0.0f;
        }
    }
}

/* Where the key at an index of the block's segment lies; false when there is none. position: what the mask is indexed
 * by. */
template <int R>
__device__ __forceinline__ bool find_key(const mla_shared<R> &sh, const mla_cuda_problem &p, const mla_cuda_segment &g,
                                         const mla_row_block &b, int64_t index, int64_t &position, int64_t &page,
                                         int64_t &slot)
{
    position = index;
    if (g.list.data) {
        int64_t token = b.first + b.row_begin / p.group;
        int64_t entry = g.list.data[b.seq * g.list.stride[0] + token * g.list.stride[1] + index * g.list.stride[2]];
        if (index >= sh.list_end || entry < sh.begin[0] || entry >= sh.end[0]) {
            return false;
        }
        if (g.physical) {
            page = entry / g.page_size;
            slot = entry % g.page_size;
            return true;
        }
        position = entry;
    }
    return mla_locate(g, b.seq, position, page, slot) && (!g.mask.data || position < g.mask_width);
}

/* Place of the first negative entry, which ends a list under the rule STOP. Called by all threads. */
template <int R>
__device__ void find_list_end(mla_shared<R> &sh, const mla_cuda_segment &g, const mla_row_block &b, int64_t group,
                              int64_t n)
{
    if (threadIdx.x == 0) {
        sh.list_end = n;
    }
    __syncthreads();
    if (g.list.data && g.stop) {
        int64_t token = b.first + b.row_begin / group;
        const int32_t *list = g.list.data + b.seq * g.list.stride[0] + token * g.list.stride[1];
        for (int64_t i = threadIdx.x; i < n; i += MLA_CUDA_THREADS) {
            if (list[i * g.list.stride[2]] < 0) {
                atomicMin((unsigned long long *)&sh.list_end, (unsigned long long)i); /* the least, in any order */
                break;
            }
        }
    }
    __syncthreads();
}

/* o += P V for one chunk of columns. p [R][p_stride] */
template <int R, bool APART>
__device__ __forceinline__ void add_values(const mla_shared<R> &sh, const float *p, int p_stride, float *o, int ty,
                                           int tx)
{
    constexpr int N = mla_tile<R>::N;
#pragma unroll 1
    for (int key = 0; key < MLA_CUDA_KEYS; key += 4) {
        float4 w[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            w[i] = *(const float4 *)&p[(ty * N + i) * p_stride + key];
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float v[N];
            const float *from = &sh.tile[(key + k) * MLA_CUDA_STRIDE + tx * N];
            if (N == 4) {
                float4 x = *(const float4 *)from;
                v[0] = x.x, v[1 % N] = x.y, v[2 % N] = x.z, v[3 % N] = x.w;
            } else if (N == 2) {
                float2 x = *(const float2 *)from;
                v[0] = x.x, v[1 % N] = x.y;
            } else {
                v[0] = *from;
            }
#pragma unroll
            for (int i = 0; i < N; i++) {
                float x = k == 0 ? w[i].x : k == 1 ? w[i].y : k == 2 ? w[i].z : w[i].w;
                bool hidden = APART && (int32_t)__float_as_uint(x) == INT32_MIN;
#pragma unroll
                for (int j = 0; j < N; j++) {
                    float sum = fmaf(x, v[j], o[i * N + j]);
                    o[i * N + j] = hidden ? o[i * N + j] : sum;
                }
            }
        }
    }
}

/* s += Q K^T over one chunk of columns. */
template <int R>
__device__ __forceinline__ void add_scores(const mla_shared<R> &sh, const float *q, int q_stride, float *s, int ty,
                                           int tx)
{
    constexpr int N = mla_tile<R>::N, TX = mla_tile<R>::TX;
#pragma unroll 2
    for (int c = 0; c < MLA_CUDA_CHUNK; c += 4) {
        float4 a[N], k[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            a[i] = *(const float4 *)&q[(ty * N + i) * q_stride + c];
            k[i] = *(const float4 *)&sh.tile[(tx + i * TX) * MLA_CUDA_STRIDE + c];
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
#pragma unroll
            for (int j = 0; j < N; j++) {
                float x = s[i * N + j];
                x = fmaf(a[i].x, k[j].x, x);
                x = fmaf(a[i].y, k[j].y, x);
                x = fmaf(a[i].z, k[j].z, x);
                s[i * N + j] = fmaf(a[i].w, k[j].w, x);
            }
        }
    }
}

/* Sixteen columns of a key go where they belong in the tile, times a factor. */
__device__ __forceinline__ void put_columns(float *to, const mla_raw16 &raw, const mla_cuda_problem &p,
                                            const mla_cuda_segment &g, const mla_key_place &key, mla_part part,
                                            int64_t c, float factor)
{
    if (raw.dtype != MLA_DTYPE_NONE) {
        float x[16];
        mla_decode16(raw, x);
        if (factor != 1.0f) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                x[i] *= factor;
            }
        }
        store16(to, x);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 16; i++) { /* tails, odd strides, and keys that nobody sees */
        float x = 0;
        if (key.k_at >= 0) {
            int64_t at, column, n;
            const mla_cuda_rows &t = find_columns(p, g, key, part, c + i, at, column, n);
            x = n > 0 ? mla_element(t.data, t.dtype, at + column_offset(t, column)) * factor : 0.0f;
        }
        to[i] = x;
    }
}

/* The first column of a step, and what it is a column of. */
__device__ __forceinline__ mla_part part_of_step(int step, int n_nope, int n_rope, int64_t column, int64_t &c)
{
    const mla_part part = step < n_nope ? MLA_PART_NOPE : step < n_nope + n_rope ? MLA_PART_ROPE : MLA_PART_VALUE;
    const int first = part == MLA_PART_NOPE ? 0 : part == MLA_PART_ROPE ? n_nope : n_nope + n_rope;
    c = (int64_t)(step - first) * MLA_CUDA_CHUNK + (part == MLA_PART_VALUE ? column : 0);
    return part;
}

#endif
