"""torch.ops.cann_ops_transformer against a reference written from the operator's definition, row by row in fp64."""

import dataclasses
import math

import cann_ops_transformer
import mla
import pytest
import torch

OPS = torch.ops.cann_ops_transformer
D, TILE = 512, 128


# ---- HiFloat8, from its prefix codes ---------------------------------------------------------------------------------


def decode_code(code):
    sign, low = -1.0 if code & 0x80 else 1.0, code & 0x7F
    if code == 0x80:
        return math.nan
    if low == 0x6F:
        return sign * math.inf
    if low < 8:
        return sign * 2.0 ** (low - 23) if low else 0.0
    fields = ((4, 1, 0, 3), (3, 1, 1, 3), (2, 1, 2, 3), (2, 2, 3, 2), (2, 3, 4, 1))
    for prefix_bits, prefix, exponent_bits, fraction_bits in fields:
        if low >> (7 - prefix_bits) == prefix:
            break
    fraction = (low & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
    field = low >> fraction_bits & ((1 << exponent_bits) - 1)
    exponent = 0
    if exponent_bits:  # sign of the exponent, then its magnitude below an implicit leading 1
        magnitude = (1 << (exponent_bits - 1)) + (field & ((1 << (exponent_bits - 1)) - 1))
        exponent = -magnitude if field >> (exponent_bits - 1) else magnitude
    return sign * 2.0**exponent * (1 + fraction)


VALUES = torch.tensor([decode_code(code) for code in range(256)], dtype=torch.float64)


def round_hif8(x):
    """x >= 0 to the nearest HiFloat8 value, ties up."""
    exponent = torch.floor(torch.log2(x.clamp_min(2.0**-60)))
    size = exponent.abs()
    bits = torch.where(size <= 3, 3.0, torch.where(size <= 7, 2.0, torch.where(size <= 15, 1.0, 0.0)))
    quantum = torch.exp2(exponent - bits)
    rounded = torch.floor(x / quantum + 0.5) * quantum
    rounded = torch.where(x < 2.0**-22, torch.full_like(x, 2.0**-22), rounded)
    return torch.where(x < 2.0**-23, torch.zeros_like(x), rounded)


def hif8(shape, spread=5.0):
    """Codes of uniform numbers within +-spread, as upstream draws them."""
    numbers = (torch.rand(shape, dtype=torch.float64) * 2 - 1) * spread
    return (torch.where(numbers < 0, 0x80, 0) + codes_of(numbers.abs())).to(torch.uint8)


def codes_of(magnitude):
    positive = VALUES[:128].clone()
    positive[0x6F] = math.inf
    order = torch.argsort(positive)
    rounded = round_hif8(magnitude)
    return order[torch.searchsorted(positive[order], rounded)]


def test_the_reference_knows_hifloat8():
    for code in (0x00, 0x01, 0x07, 0x08, 0x10, 0x20, 0x30, 0x40, 0x60, 0x6E, 0x7E):
        assert VALUES[code] == {
            0x00: 0, 0x01: 2**-22, 0x07: 2**-16, 0x08: 1, 0x10: 2, 0x20: 4, 0x30: 0.25, 0x40: 16, 0x60: 256,
            0x6E: 32768, 0x7E: 2**-15,
        }[code]  # fmt: skip
    finite = [code for code in range(128) if math.isfinite(VALUES[code])]
    assert torch.equal(round_hif8(VALUES[finite]), VALUES[finite])
    assert torch.equal(codes_of(VALUES[finite]), torch.tensor(finite))
    decoded = torch.from_numpy(mla.hif8_decode(torch.arange(256, dtype=torch.uint8).numpy())).double()
    assert torch.equal(decoded.nan_to_num(nan=-1.5), VALUES.nan_to_num(nan=-1.5))


# ---- a call and what it must give ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Call:
    """A batch in the operator's terms, kept as one list per sequence; laid out by arguments()."""

    q: list  # per sequence codes [tokens][N1][D]
    ori: list  # codes [keys][D]
    cmp: list = None
    q_used: list = None
    ratio: int = 1
    residual: list = None
    ori_mask: int = 0
    cmp_mask: int = 0
    left: int = -1
    right: int = -1
    ori_list: list = None  # per sequence i32 [tokens][K]
    cmp_list: list = None
    ori_count: list = None  # per sequence i32 [tokens]
    cmp_count: list = None
    scale: float = 0.04419417
    descale: tuple = (0.5, 0.25, 0.75)  # q, ori, cmp
    sinks: torch.Tensor = None
    layout: tuple = ("TND", "PA_BBND")
    block: tuple = (16, 8)

    def __post_init__(self):
        if self.sinks is None:
            self.sinks = torch.rand(self.q[0].shape[1]) - 0.5

    def used(self, b):
        return self.q_used[b] if self.q_used else len(self.q[b])

    # -- reference --

    def visible(self, b, i):
        """Positions of the ori keys and of the cmp keys that token i of sequence b sees, in order."""
        n_q, n_ori = self.used(b), len(self.ori[b])
        thr = n_ori - n_q + i + 1
        lo, hi = 0, n_ori
        if self.ori_mask == 3:
            hi = min(max(thr, 0), n_ori)
        elif self.ori_mask == 4:
            lo = 0 if self.left == -1 else max(thr - self.left - 1, 0)
            hi = n_ori if self.right == -1 else min(max(thr + self.right, 0), n_ori)
        n_cmp = len(self.cmp[b]) if self.cmp else 0
        end = n_cmp
        if self.cmp_mask == 3:
            restored = n_cmp * self.ratio + (self.residual[b] if self.residual else 0)
            end = min(max((restored - n_q + i + 1) // self.ratio, 0), n_cmp)
        ori, cmp = list(range(lo, hi)), list(range(end))
        heavy = self.cmp and not self.cmp_list
        if self.ori_list and not heavy:
            bound = max(hi - lo, 0) if self.ori_mask else None
            ori = walk(self.ori_list[b][i], self.ori_count[b][i] if self.ori_count else None, bound, lo, hi)
        if self.cmp_list:
            cmp = walk(self.cmp_list[b][i], self.cmp_count[b][i] if self.cmp_count else None, end, 0, end)
        return ori, cmp

    def expected(self):
        """attention and lse in fp64, one [tokens][N1][...] per sequence."""
        outs, lses = [], []
        for b, q in enumerate(self.q):
            out = torch.zeros(q.shape, dtype=torch.float64)
            lse = torch.zeros(q.shape[:2], dtype=torch.float64)
            for i in range(self.used(b)):
                ori, cmp = self.visible(b, i)
                if ori or cmp:
                    out[i], lse[i] = self.row(b, VALUES[q[i].long()], ori, cmp)
            outs.append(out)
            lses.append(lse)
        return outs, lses

    def row(self, b, q, ori, cmp):
        m, l = self.sinks.double(), torch.ones(q.shape[0], dtype=torch.float64)
        o = torch.zeros(q.shape, dtype=torch.float64)
        parts = [(ori, self.ori, self.descale[1])] + ([(cmp, self.cmp, self.descale[2])] if self.cmp else [])
        for positions, pool, descale in parts:
            for at in range(0, len(positions), TILE):
                k = VALUES[pool[b][positions[at : at + TILE]].long()]
                s = q @ k.T * (self.scale * self.descale[0] * descale)
                m2 = torch.maximum(m, s.max(dim=1).values)
                p = torch.exp(s - m2[:, None])
                a = torch.exp(m - m2)
                l = l * a + p.sum(dim=1)
                o = o * a[:, None] + round_hif8(16 * p) @ k * descale
                m = m2
        return o / l[:, None] / 16, m + torch.log(l)

    # -- arguments --

    def arguments(self):
        layout_q, layout_kv = self.layout
        b, n1 = len(self.q), self.q[0].shape[1]
        options = dict(
            q_descale=torch.tensor([self.descale[0]]),
            ori_kv_descale=torch.tensor([self.descale[1]]),
            sinks=self.sinks,
            softmax_scale=self.scale,
            cmp_ratio=self.ratio,
            ori_mask_mode=self.ori_mask,
            cmp_mask_mode=self.cmp_mask,
            ori_win_left=self.left,
            ori_win_right=self.right,
            layout_q=layout_q,
            layout_kv=layout_kv,
        )
        if layout_q == "TND":
            q = torch.cat(self.q)
            options["cu_seqlens_q"] = starts(self.q)
        else:
            q = torch.full((b, max(map(len, self.q)), n1, D), 0x80, dtype=torch.uint8)  # NaN where nobody looks
            for i, tokens in enumerate(self.q):
                q[i, : len(tokens)] = tokens
        if self.q_used or (layout_q == "BSND" and len(set(map(len, self.q))) > 1):
            options["seqused_q"] = int32([self.used(i) for i in range(b)])
        options.update(self.pool("ori", self.ori, self.block[0], layout_kv))
        if self.cmp:
            options.update(self.pool("cmp", self.cmp, self.block[1], layout_kv))
            options["cmp_kv_descale"] = torch.tensor([self.descale[2]])
        if self.residual:
            options["cmp_residual_kv"] = int32(self.residual)
        for side in ("ori", "cmp"):
            for name, lists in (("sparse_indices", f"{side}_list"), ("topk_length", f"{side}_count")):
                if getattr(self, lists):
                    options[f"{side}_{name}"] = self.per_token(getattr(self, lists), q)
        return q, options

    def per_token(self, lists, q):
        if self.layout[0] == "TND":
            return torch.cat([entry.int() for entry in lists]).reshape(q.shape[0], 1, *lists[0].shape[1:])
        empty = -1 if lists[0].dim() == 2 else 0  # of a list, of a count
        full = torch.full((*q.shape[:2], *lists[0].shape[1:]), empty, dtype=torch.int32)
        for i, entry in enumerate(lists):
            full[i, : len(entry)] = entry
        return full.reshape(*q.shape[:2], 1, *lists[0].shape[1:])

    def pool(self, side, keys, block, layout):
        lengths = [len(k) for k in keys]
        if layout == "TND":
            nobody = torch.full((1, D), 0x80, dtype=torch.uint8)  # a row past the last sequence
            return {f"{side}_kv": torch.cat([*keys, nobody])[:, None], f"cu_seqlens_{side}_kv": starts(keys)}
        if layout == "BSND":
            kv = torch.full((len(keys), max(max(lengths), 1), 1, D), 0x80, dtype=torch.uint8)
            for i, k in enumerate(keys):
                kv[i, : len(k), 0] = k
            return {f"{side}_kv": kv, f"seqused_{side}_kv": int32(lengths)}
        need = [-(-n // block) for n in lengths]
        ids = torch.randperm(sum(need) + 1)
        kv = torch.full((sum(need) + 1, block, 1, D), 0x80, dtype=torch.uint8)
        table = torch.full((len(keys), max(max(need), 1)), -1, dtype=torch.int32)
        at = 0
        for i, k in enumerate(keys):
            for j in range(need[i]):
                page = ids[at]
                rows = k[j * block : (j + 1) * block]
                kv[page, : len(rows), 0] = rows
                table[i, j] = page
                at += 1
        return {f"{side}_kv": kv, f"{side}_block_table": table, f"seqused_{side}_kv": int32(lengths)}

    def metadata(self, options):
        same = (
            "cu_seqlens_q cu_seqlens_ori_kv cu_seqlens_cmp_kv seqused_q seqused_ori_kv seqused_cmp_kv cmp_residual_kv "
            "ori_topk_length cmp_topk_length cmp_ratio ori_mask_mode cmp_mask_mode ori_win_left ori_win_right layout_q "
            "layout_kv"
        ).split()
        return OPS.quant_sparse_flash_mla_metadata(
            self.q[0].shape[1], 1, D, 1,
            batch_size=len(self.q),
            max_seqlen_q=max(map(len, self.q)),
            max_seqlen_ori_kv=max(map(len, self.ori)),
            max_seqlen_cmp_kv=max(map(len, self.cmp)) if self.cmp else 0,
            ori_topk=self.ori_list[0].shape[1] if self.ori_list else 0,
            cmp_topk=self.cmp_list[0].shape[1] if self.cmp_list else 0,
            has_cmp_kv=self.cmp is not None,
            **{name: options[name] for name in same if name in options},
        )  # fmt: skip

    def check(self, answer):
        """Upstream's tolerance for 99.9 % of the elements, and every (row, head) as a whole."""
        out, lse = answer
        wanted, wanted_lse = self.expected()
        batched = self.layout[0] == "BSND"

        def cut(rows):
            if batched:
                return [rows[b, : len(q)] for b, q in enumerate(self.q)]
            return rows.split([len(q) for q in self.q])

        got, lses = cut(out), cut(lse[:, 0] if batched else lse[0])
        close, total = 0, 0
        for mine, theirs, my_lse, their_lse in zip(got, wanted, lses, wanted_lse):
            error = (mine.double() - theirs).abs()
            close += (error <= 1e-4 + 2**-7 * theirs.abs()).sum().item()
            total += error.numel()
            # One probability that rounds to its other neighbour moves a row by less than 2^-4 of its largest weight.
            norm = theirs.norm(dim=-1)
            assert (error.norm(dim=-1) <= 2**-5 * norm + 1e-6).all()
            assert ((my_lse.double() - their_lse).abs() <= 1e-4 + 1e-5 * their_lse.abs()).all()
        assert close >= 0.999 * total


def walk(entries, count, bound, lo, hi):
    n = len(entries) if count is None else min(len(entries), max(int(count), 0))
    n = n if bound is None else min(n, bound)
    seen = []
    for entry in entries[:n].tolist():
        if entry < 0:
            break
        if lo <= entry < hi:
            seen.append(entry)
    return seen


def starts(parts):
    return int32([sum(map(len, parts[:i])) for i in range(len(parts) + 1)])


def int32(numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def lists(tokens, k, n):
    """k places with distinct positions below n, -1 behind them."""
    entry = torch.full((tokens, k), -1, dtype=torch.int32)
    for i in range(tokens):
        chosen = torch.randperm(n)[:k]
        entry[i, : len(chosen)] = chosen
    return entry


def make(mode, layout=("TND", "PA_BBND"), heads=3, lengths=(150, 5, 300), tokens=(2, 1, 3), ratio=4):
    q = [hif8((n, heads, D)) for n in tokens]
    ori = [hif8((n, D)) for n in lengths]
    options = dict(layout=layout, ori_mask=4, left=127, right=0)
    if mode != "SWA" and mode != "ORI_SPARSE":
        cmp_lengths = [n // ratio for n in lengths]
        options.update(cmp=[hif8((n, D)) for n in cmp_lengths], ratio=ratio, cmp_mask=3)
        options.update(residual=[n % ratio for n in lengths])
    if mode in ("CSA", "ORI_CMP_SPARSE"):
        options.update(cmp_list=[lists(t, 40, n) for t, n in zip(tokens, cmp_lengths)])
    if mode in ("ORI_SPARSE", "ORI_CMP_SPARSE"):
        options.update(ori_mask=3, left=-1, right=-1, ori_list=[lists(t, 140, n) for t, n in zip(tokens, lengths)])
    return Call(q, ori, **options)


MODES = ["SWA", "CSA", "HCA", "ORI_SPARSE", "ORI_CMP_SPARSE"]
LAYOUTS = [("BSND", "BSND"), ("TND", "TND"), ("BSND", "PA_BBND"), ("TND", "PA_BBND")]


def attend(call):
    q, options = call.arguments()
    return OPS.quant_sparse_flash_mla(q, 1, metadata=call.metadata(options), return_softmax_lse=True, **options)


@pytest.mark.parametrize("layout", LAYOUTS, ids="/".join)
@pytest.mark.parametrize("mode", MODES)
def test_modes_and_layouts(mode, layout):
    call = make(mode, layout)
    call.check(attend(call))


@pytest.mark.parametrize("heads", [1, 16, 65, 127, 128])
def test_head_counts(heads):
    call = make("CSA", heads=heads, lengths=(140, 260), tokens=(1, 1))
    call.check(attend(call))


@pytest.mark.parametrize("window", [(0, 0), (-1, 0), (-1, -1), (0, 5), (200, 3)])
def test_windows(window):
    call = make("HCA", lengths=(150, 260), tokens=(3, 2))
    call.left, call.right = window
    call.check(attend(call))


@pytest.mark.parametrize("ratio", [1, 3, 128])
def test_compression_ratios(ratio):
    call = make("HCA", ratio=ratio)
    if ratio == 1:
        call.residual = None
    call.check(attend(call))


def test_degenerate_rows():
    call = make("CSA", lengths=(0, 9, 130), tokens=(2, 12, 2))
    call.q_used = [2, 12, 1]
    call.cmp_list[2][0, :] = -1
    call.check(attend(call))


def test_counts_and_repeated_entries():
    call = make("ORI_CMP_SPARSE", lengths=(150, 300), tokens=(2, 2))
    call.ori_mask, call.cmp_mask, call.residual = 0, 0, None
    call.ori_count = [int32([3, 0]), int32([140, 129])]
    call.cmp_count = [int32([40, 2]), int32([1, 39])]
    call.cmp_list[0][0, :30] = 7
    call.check(attend(call))


@pytest.mark.parametrize("sinks", [-60.0, 60.0, -math.inf])
def test_sinks(sinks):
    call = make("CSA", lengths=(140,), tokens=(1,))
    call.sinks = torch.full((3,), sinks)
    if sinks == -math.inf:  # no sink: nothing is seen before the first key
        out, lse = attend(call)
        call.sinks = torch.full((3,), -1e4)
        call.check((out, lse))
    else:
        call.check(attend(call))


def test_one_fused_pool():
    """ori and cmp blocks in one buffer, each a view with its own offset and the stride of both."""
    call = make("CSA", lengths=(150, 300), tokens=(1, 2))
    q, options = call.arguments()
    n = max(len(options["ori_kv"]), len(options["cmp_kv"]))
    pool = torch.full((n, sum(call.block), 1, D), 0x80, dtype=torch.uint8)
    for name, begin in (("ori_kv", 0), ("cmp_kv", call.block[0])):
        view = pool[: len(options[name]), begin : begin + options[name].shape[1]]
        view.copy_(options[name])
        options[name] = view
    answer = OPS.quant_sparse_flash_mla(q, 1, metadata=call.metadata(options), return_softmax_lse=True, **options)
    call.check(answer)


def test_metadata_is_a_hint():
    call = make("CSA")
    q, options = call.arguments()
    fresh = call.metadata(options)
    assert fresh.dtype == torch.int32 and fresh.shape == (1024,)
    wanted = OPS.quant_sparse_flash_mla(q, 1, metadata=fresh, return_softmax_lse=True, **options)
    for hint in (torch.zeros_like(fresh), torch.randint_like(fresh, -(2**31), 2**31 - 1), fresh.flip(0)):
        got = OPS.quant_sparse_flash_mla(q, 1, metadata=hint, return_softmax_lse=True, **options)
        assert torch.equal(got[0], wanted[0]) and torch.equal(got[1], wanted[1])


def test_the_functions_are_the_operators():
    call = make("SWA", lengths=(40,), tokens=(1,))
    q, options = call.arguments()
    options["metadata"] = call.metadata(options)
    wanted = OPS.quant_sparse_flash_mla(q, 1, **options)
    for got in (
        cann_ops_transformer.quant_sparse_flash_mla(q, 1, **options),
        cann_ops_transformer.quant_sparse_flash_mla(q, quant_mode=1, **options),
        OPS.quant_sparse_flash_mla(q, quant_mode=1, **options),
    ):
        assert torch.equal(got[0], wanted[0])
        assert torch.equal(got[1], torch.zeros(1))  # the placeholder


def test_none_means_the_default():
    call = make("SWA", lengths=(40,), tokens=(1,))
    q, options = call.arguments()
    options["metadata"] = call.metadata(options)
    plain = OPS.quant_sparse_flash_mla(q, 1, **{**options, "softmax_scale": 1.0, "cmp_ratio": 1})
    none = OPS.quant_sparse_flash_mla(q, 1, **{**options, "softmax_scale": None, "cmp_ratio": None})
    assert torch.equal(plain[0], none[0])


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(metadata=None), ValueError, "metadata"),
        (dict(sinks=None), ValueError, "sinks"),
        (dict(q_descale=torch.ones(2)), ValueError, "q_descale"),
        (dict(q_descale=torch.ones(1, dtype=torch.float16)), TypeError, "q_descale"),
        (dict(q_descale=torch.ones(1).double()), TypeError, "q_descale has dtype float64, must be float32$"),
        (dict(layout_kv="NZ"), ValueError, "layout_kv"),
        (dict(ori_win_left=-2), ValueError, "ori_win_left"),
        (dict(ori_mask_mode=1), ValueError, "ori_mask_mode"),
        (dict(topk_value_mode=2), ValueError, "topk_value_mode"),
        (dict(cmp_ratio=4), ValueError, "cmp_ratio"),
    ],
)
def test_refusals_name_the_argument(change, error, words):
    call = make("SWA", lengths=(40,), tokens=(1,))
    q, options = call.arguments()
    options["metadata"] = call.metadata(options)
    with pytest.raises(error, match=words):
        OPS.quant_sparse_flash_mla(q, 1, **{**options, **change})
    with pytest.raises(ValueError, match="quant_mode"):
        OPS.quant_sparse_flash_mla(q, 2, **options)
    with pytest.raises(TypeError, match="q"):
        OPS.quant_sparse_flash_mla(q.to(torch.float16), 1, **options)


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def layer(q, options):
    names = ("cu_seqlens_q", "seqused_ori_kv", "seqused_cmp_kv", "cmp_residual_kv", "cmp_ratio", "ori_mask_mode")
    names += ("cmp_mask_mode", "ori_win_left", "ori_win_right", "layout_q", "layout_kv")
    plan = OPS.quant_sparse_flash_mla_metadata(3, 1, D, 1, cmp_topk=40, **{name: options[name] for name in names})
    out, lse = OPS.quant_sparse_flash_mla(q, 1, metadata=plan, return_softmax_lse=True, **options)
    return out * 2, lse + 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_traced_without_a_graph_break(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for lengths, tokens in (((150, 300), (1, 2)), ((20, 30, 270), (2, 1, 1))):
        q, options = make("CSA", lengths=lengths, tokens=tokens).arguments()
        for got, wanted in zip(compiled(q, options), layer(q, options)):
            assert torch.equal(got, wanted)


def test_the_function_is_traced_too():
    torch._dynamo.reset()
    q, options = make("SWA", lengths=(40,), tokens=(1,)).arguments()

    def step(q):
        plan = torch.zeros(1024, dtype=torch.int32)
        return cann_ops_transformer.quant_sparse_flash_mla(q, 1, metadata=plan, **options)[0] + 1

    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(q), step(q))


def test_opcheck():
    q, options = make("CSA", lengths=(40, 20), tokens=(1, 1)).arguments()
    plan = torch.zeros(1024, dtype=torch.int32)
    for lse in (False, True):
        torch.library.opcheck(
            OPS.quant_sparse_flash_mla.default, (q, 1), {"metadata": plan, "return_softmax_lse": lse, **options}
        )
    torch.library.opcheck(
        OPS.quant_sparse_flash_mla_metadata.default,
        (64, 1, D, 1),
        {"seqused_q": int32([1, 1]), "seqused_ori_kv": int32([4, 5]), "batch_size": 2, "has_cmp_kv": False,
         "cu_seqlens_q": int32([0, 1, 2]), "layout_q": "TND", "layout_kv": "PA_BBND"},
    )  # fmt: skip
