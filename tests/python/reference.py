"""What the answers must be: attention written down in fp64 torch, the data of the published tests, and their rule of
comparison. Nothing here shares code with the library."""

import dataclasses
import math

import torch

GARBAGE = 2147480000  # what the published tests put into table entries that nobody may read
INF = float("inf")


# ---- the reference ---------------------------------------------------------------------------------------------------


def attend(q, k, v, scale, visible, sink=None):
    """One sequence. q [s_q, h_q, d], k [s_k, h_kv, d], v [s_k, h_kv, dv], visible bool [s_q, s_k], sink [h_q] or None.
    Returns out [s_q, h_q, dv] and lse [s_q, h_q] in fp64; a row that sees nothing gives 0 and +inf."""
    (s_q, h_q, _), (h_kv, dv) = q.shape, v.shape[1:]
    out = torch.zeros(s_q, h_q, dv, dtype=torch.float64)
    lse = torch.full((s_q, h_q), INF, dtype=torch.float64)
    if visible.numel() == 0:
        return out, lse
    patterns, pattern_of = visible.unique(dim=0, return_inverse=True)
    for number, seen in enumerate(
        patterns
    ):  # rows that see the same keys are computed together, with no other key in sight
        if not seen.any():
            continue
        rows = pattern_of == number
        for g in range(h_kv):
            heads = slice(g * h_q // h_kv, (g + 1) * h_q // h_kv)
            score = scale * (q[rows, heads].double() @ k[seen, g].double().T)
            lse[rows, heads] = score.logsumexp(-1)
            out[rows, heads] = score.softmax(-1) @ v[seen, g].double()
    if sink is not None:
        factor = 1 / (1 + torch.exp(sink.double() - lse))
        out *= torch.where(lse == INF, 0.0, factor)[..., None]
    return out, lse


def causal_mask(s_q, s_k, causal):
    """[s_q, s_k], aligned at the bottom right: one token alone sees every key."""
    if not causal:
        return torch.ones(s_q, s_k, dtype=torch.bool)
    return torch.arange(s_k)[None] <= torch.arange(s_q)[:, None] + s_k - s_q


def decode(q, k_cache, block_table, cache_seqlens, head_dim_v, scale=None, causal=False, sink=None):
    """flash_mla_with_kvcache in fp64: out [b, s_q, h_q, dv], lse [b, h_q, s_q]."""
    b, s_q, h_q, d = q.shape
    page = k_cache.shape[1]
    scale = d**-0.5 if scale is None else scale
    out = torch.empty(b, s_q, h_q, head_dim_v, dtype=torch.float64)
    lse = torch.empty(b, h_q, s_q, dtype=torch.float64)
    for i in range(b):
        s_k = max(int(cache_seqlens[i]), 0)
        pages = block_table[i, : math.ceil(s_k / page)].long()
        rows = k_cache[pages].reshape(-1, *k_cache.shape[2:])[:s_k]
        out[i], one_lse = attend(q[i], rows, rows[..., :head_dim_v], scale, causal_mask(s_q, s_k, causal), sink)
        lse[i] = one_lse.T
    return out, lse


def varlen(q, k, v, cu_q, cu_k, scale=None, causal=False):
    """flash_attn_varlen_func in fp64: out [T, h_q, dv], lse [T, h_q]."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = torch.zeros(*q.shape[:2], v.shape[-1], dtype=torch.float64)
    lse = torch.full(q.shape[:2], INF, dtype=torch.float64)
    for i in range(len(cu_q) - 1):
        rows, keys = slice(int(cu_q[i]), int(cu_q[i + 1])), slice(int(cu_k[i]), int(cu_k[i + 1]))
        s_q, s_k = rows.stop - rows.start, keys.stop - keys.start
        out[rows], lse[rows] = attend(q[rows], k[keys], v[keys], scale, causal_mask(s_q, s_k, causal))
    return out, lse


# ---- the data of the published tests ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Decode:
    """Arguments of one decode call."""

    q: torch.Tensor
    k_cache: torch.Tensor
    block_table: torch.Tensor
    cache_seqlens: torch.Tensor
    head_dim_v: int

    def reference(self, **options):
        return decode(self.q, self.k_cache, self.block_table, self.cache_seqlens, self.head_dim_v, **options)

    def arguments(self):
        return self.q, self.k_cache, self.block_table, self.cache_seqlens, self.head_dim_v


def tenth_normal(*shape, dtype=torch.bfloat16):
    return (torch.randn(*shape) / 10).clamp(-1, 1).to(dtype)


def make_decode(lengths, s_q=1, h_q=16, h_kv=1, d=576, dv=512, page=64, dtype=torch.bfloat16, spare_pages=3):
    """Pages in random order, a table padded to a multiple of 256 tokens with GARBAGE, and NaN in every cache row that
    no request owns."""
    need = [math.ceil(max(n, 0) / page) for n in lengths]
    width = max(max(need, default=0), 1)
    width = math.ceil(width * page / 256) * 256 // page if page <= 256 else width
    n_page = sum(need) + spare_pages
    order = torch.randperm(n_page).int()
    k_cache = torch.full((n_page, page, h_kv, d), float("nan"), dtype=dtype)
    table = torch.full((len(lengths), width), GARBAGE, dtype=torch.int32)
    used = 0
    for i, (n, pages) in enumerate(zip(lengths, need)):
        table[i, :pages] = order[used : used + pages]
        rows = tenth_normal(pages * page, h_kv, d, dtype=dtype)
        rows[max(n, 0) :] = float("nan")
        k_cache[table[i, :pages].long()] = rows.view(pages, page, h_kv, d)
        used += pages
    return Decode(
        tenth_normal(len(lengths), s_q, h_q, d, dtype=dtype),
        k_cache,
        table,
        torch.tensor(lengths, dtype=torch.int32),
        dv,
    )


def counting_cache(n_page, page, h_kv=1, d=576, dtype=torch.bfloat16):
    """A cache whose row t of the whole pool holds t in every column: with q = 0 the output is the mean of the visible
    row numbers, and the lse the logarithm of how many there are."""
    number = torch.arange(n_page * page, dtype=torch.float32).view(n_page, page, 1, 1)
    return number.expand(n_page, page, h_kv, d).to(dtype).contiguous()


# ---- the rule of comparison ------------------------------------------------------------------------------------------


def assert_close(what, answer, reference, absolute, relative, cosine=1e-7):
    """The published rule: same shape and dtype; the same places of +inf, -inf and NaN; every other element within
    `absolute` or within `relative` of the reference; and the cosine distance of the whole within `cosine`."""
    assert answer.shape == reference.shape, f"{what}: shape {tuple(answer.shape)}, not {tuple(reference.shape)}"
    assert answer.dtype == reference.dtype, f"{what}: dtype {answer.dtype}, not {reference.dtype}"
    answer, reference = answer.double().clone(), reference.double().clone()
    for name, find in (("+inf", lambda x: x == INF), ("-inf", lambda x: x == -INF), ("NaN", torch.isnan)):
        mine, theirs = find(answer), find(reference)
        assert torch.equal(mine, theirs), (
            f"{what}: {int(mine.sum())} elements are {name}, of {int(theirs.sum())} expected"
        )
        answer[mine], reference[theirs] = 0, 0
    difference = (answer - reference).abs()
    wrong = ~((difference < absolute) | (difference / (reference.abs() + 1e-6) < relative))
    if wrong.any():
        place = tuple(int(x) for x in wrong.nonzero()[0])
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} elements are off, the first at {place}: "
            f"{float(answer[place])} instead of {float(reference[place])}"
        )
    norm = float((reference**2).sum())
    distance = (
        0.0 if norm < 1e-12 else 1 - 2 * float((answer * reference).sum()) / float((answer**2 + reference**2).sum())
    )
    assert distance <= cosine, f"{what}: cosine distance {distance}, at most {cosine} allowed"


def assert_decode_close(answer, reference, dtype):
    """The limits for dense decode; the reference is first rounded to the dtype of the answer."""
    (out, lse), (reference_out, reference_lse) = answer, reference
    assert_close("out", out, reference_out.to(dtype), absolute=8e-4, relative=2.01 / 128, cosine=5e-6)
    assert_close("lse", lse, reference_lse.float(), absolute=1e-6, relative=8.01 / 65536)
