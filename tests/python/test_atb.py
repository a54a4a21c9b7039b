"""torch.ops.atb.npu_multi_head_latent_attention against fp64, its three overloads, and torch.compile."""

import ctypes
import math
import pathlib

import mla
import mla.atb
import pytest
import torch

OP = torch.ops.atb.npu_multi_head_latent_attention
BLOCK, NOPE, ROPE = 128, 512, 64


def nz(rows, c):
    """[blocks][128][d] to [blocks][d / c][128][c]"""
    blocks, size, d = rows.shape
    return rows.reshape(blocks, size, d // c, c).transpose(1, 2).contiguous()


class Call:
    def __init__(self, lengths, heads=32, tokens=None, dtype=torch.bfloat16, cache="krope_ctkv", scale=1 / 24):
        self.lengths, self.heads, self.dtype, self.cache, self.scale = lengths, heads, dtype, cache, scale
        self.tokens = tokens or [1] * len(lengths)
        t, need = sum(self.tokens), [-(-n // BLOCK) for n in lengths]
        n_block = sum(need) + 2
        int8 = cache == "int8_nzcache"
        draw = (lambda *shape: torch.randint(-5, 6, shape).to(torch.int8)) if int8 else self.draw
        self.q_nope, self.q_rope = draw(t, heads, NOPE), self.draw(t, heads, ROPE)
        self.k, self.rope = draw(n_block, BLOCK, NOPE), self.draw(n_block, BLOCK, ROPE)
        ids = torch.randperm(n_block).int()
        self.table = torch.full((len(lengths), max(max(need), 1)), 2**30, dtype=torch.int32)
        at = 0
        for b, n in enumerate(need):
            self.table[b, :n] = ids[at : at + n]
            at += n
        self.descales = [torch.rand(heads) / 25 - 0.02 for _ in range(2)] if int8 else [None, None]

    def draw(self, *shape):
        return (torch.rand(shape) * 2 - 1).to(self.dtype)

    def arguments(self):
        if self.cache == "krope_ctkv":
            k, rope = self.k[:, :, None], self.rope[:, :, None]
        else:
            k, rope = nz(self.k, 32 if self.cache == "int8_nzcache" else 16), nz(self.rope, 16)
        return (self.q_nope, self.q_rope, k, rope, self.table, list(self.lengths), self.heads, self.scale, 1)

    def options(self, **more):
        more["cache_mode"] = self.cache
        if self.descales[0] is not None:
            more.update(qk_descale=self.descales[0], pv_descale=self.descales[1])
        return more

    def reference(self, causal=False, mask=None):
        """out and lse in fp64; P is not rounded."""
        out = torch.zeros(sum(self.tokens), self.heads, NOPE, dtype=torch.float64)
        lse = torch.full((sum(self.tokens), self.heads, 1), -math.inf, dtype=torch.float64)
        qk, pv = (1.0 if d is None else d.double()[:, None] for d in self.descales)
        t = 0
        for b, (n, n_q) in enumerate(zip(self.lengths, self.tokens)):
            pages = self.table[b, : -(-n // BLOCK)].long()
            k, rope = (x[pages].reshape(-1, x.shape[-1])[:n].double() for x in (self.k, self.rope))
            for j in range(n_q):
                seen = max(n - n_q + j + 1, 0) if causal else n
                if seen:
                    s = self.q_nope[t].double() @ k[:seen].T * qk + self.q_rope[t].double() @ rope[:seen].T
                    s = s * self.scale + (mask[t, :seen].double() if mask is not None else 0)
                    lse[t, :, 0] = torch.logsumexp(s, 1)
                    out[t] = torch.softmax(s, 1) @ k[:seen] * pv
                t += 1
        return out, lse


def assert_close(got, wanted, dtype, int8=False):
    bits = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 20}[dtype]
    error = (got.double() - wanted).norm(dim=-1)
    # int8: each probability is off by up to half of 1/127 of its tile's largest
    slack = 2.0**-6 if int8 else 0.0
    assert (error <= (2.0**-bits + slack) * wanted.norm(dim=-1) + 1e-7).all(), error.max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache", ["krope_ctkv", "nzcache", "int8_nzcache"])
@pytest.mark.parametrize("heads", [8, 128])
def test_decode(cache, dtype, heads):
    call = Call([129, 1, 300, 0], heads, dtype=dtype, cache=cache)
    out = OP(*call.arguments(), **call.options())
    assert out.dtype == dtype and out.shape == (4, heads, NOPE)
    assert_close(out, call.reference()[0], dtype, cache == "int8_nzcache")
    assert torch.equal(out, mla.atb.npu_multi_head_latent_attention(*call.arguments(), **call.options()))


def test_krope_is_the_default_cache():
    call = Call([200], 16)
    assert torch.equal(OP(*call.arguments()), OP(*call.arguments(), **call.options()))


@pytest.mark.parametrize("cache", ["krope_ctkv", "nzcache"])
def test_speculative_tokens_with_and_without_a_mask(cache):
    call = Call([140, 257], 32, [2, 3], cache=cache)
    options = call.options(calc_type="calc_type_spec", qseqlen=call.tokens)
    assert_close(OP(*call.arguments(), **options), call.reference()[0], call.dtype)
    mask = torch.zeros(5, 257, dtype=call.dtype)
    mask[0, 139] = mask[2, 255] = mask[2, 256] = mask[3, 256] = -10000
    got = OP(*call.arguments(), mask=mask, mask_type="mask_type_spec", **options)
    assert_close(got, call.reference(mask=mask)[0], call.dtype)


def test_all_heads_are_causal_by_themselves():
    call = Call([140, 257], 128, [2, 3])
    options = call.options(calc_type="calc_type_spec", qseqlen=call.tokens)
    assert_close(OP(*call.arguments(), **options), call.reference(causal=True)[0], call.dtype)


@pytest.mark.parametrize("cache", ["krope_ctkv", "int8_nzcache"])
def test_ring(cache):
    call = Call([129, 0, 300], 16, cache=cache, dtype=torch.float16)
    options = call.options(calc_type="calc_type_ring")
    out, lse = OP(*call.arguments(), return_lse=True, **options)
    wanted, wanted_lse = call.reference()
    lse_dtype = torch.float32 if cache == "int8_nzcache" else call.dtype
    assert lse.dtype == lse_dtype and lse.shape == (3, 16, 1)
    assert_close(out, wanted, call.dtype, cache == "int8_nzcache")
    assert (lse[1] == -math.inf).all() and (out[1] == 0).all()
    error = (lse.double() - wanted_lse)[[0, 2]].abs()
    assert (error <= (2.0**-10 if lse_dtype == torch.float16 else 2.0**-18) * wanted_lse[[0, 2]].abs() + 1e-6).all()
    again, _ = mla.atb.npu_multi_head_latent_attention(*call.arguments(), return_lse=True, **options)
    assert torch.equal(again, out)
    assert torch.equal(OP(*call.arguments(), **options), out)


def test_into_an_output():
    call = Call([129, 5], 8)
    output = torch.full((2, 8, NOPE), math.nan, dtype=call.dtype)
    got = OP.out(*call.arguments(), output=output, **call.options())
    assert got.data_ptr() == output.data_ptr()
    assert torch.equal(output, OP(*call.arguments(), **call.options()))
    other = torch.full_like(output, math.nan)
    assert mla.atb.npu_multi_head_latent_attention(*call.arguments(), output=other) is not None
    assert torch.equal(other, output)


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(cache_mode="kvcache"), ValueError, "'krope_ctkv', 'int8_nzcache', 'nzcache'"),
        (dict(mask_type="causal"), ValueError, "'mask_type_spec'"),
        (dict(calc_type="prefill"), ValueError, "'calc_type_ring'"),
        (dict(calc_type="calc_type_spec"), RuntimeError, "ATB error"),
        (dict(mask_type="mask_type_spec"), RuntimeError, r"ATB error 1\)"),
    ],
)
def test_refusals(change, error, words):
    call = Call([129, 5], 8)
    with pytest.raises(error, match=words):
        OP(*call.arguments(), **{**call.options(), **change})


def test_refusals_of_scalars():
    call = Call([129, 5], 8)
    arguments = list(call.arguments())
    for place, value in ((6, 7), (7, 2.0), (8, 2)):
        wrong = arguments[:place] + [value] + arguments[place + 1 :]
        with pytest.raises(RuntimeError, match="ATB error"):
            OP(*wrong)
    with pytest.raises(RuntimeError, match=r"blockTables is int64 \(9\) and must be int32 \(ATB error 13\)"):
        OP(*arguments[:4], arguments[4].long(), *arguments[5:])
    with pytest.raises(TypeError, match="^block_tables has dtype int16, must be int32$"):
        OP(*arguments[:4], arguments[4].short(), *arguments[5:])
    with pytest.raises(TypeError, match="^q_nope has dtype float64, must be float16, bfloat16 or int8$"):
        OP(arguments[0].double(), *arguments[1:])
    with pytest.raises(TypeError, match="^return_lse must be a bool, not 'no'$"):
        mla.atb.npu_multi_head_latent_attention(*arguments, return_lse="no", calc_type="calc_type_ring")
    with pytest.raises(ValueError, match="return_lse"):
        OP(*arguments, return_lse=True)
    with pytest.raises(ValueError, match="return_lse"):
        OP(*arguments, return_lse=False, calc_type="calc_type_ring")


@pytest.mark.parametrize("dynamic", [False, True])
def test_traced_without_a_graph_break(dynamic):
    torch._dynamo.reset()

    def layer(q_nope, q_rope, *rest):
        plain = OP(q_nope * 2, q_rope, *rest)
        output = torch.empty_like(plain)
        OP.out(q_nope, q_rope, *rest, output=output)
        out, lse = OP(q_nope, q_rope, *rest, calc_type="calc_type_ring", return_lse=True)
        return plain + 1, output, out, lse

    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for lengths in ([129, 7], [5, 300, 1]):
        call = Call(lengths, 8)
        for got, wanted in zip(compiled(*call.arguments()), layer(*call.arguments())):
            assert torch.equal(got, wanted)


def test_opcheck():
    call = Call([129, 5], 8)
    torch.library.opcheck(OP.default, call.arguments(), call.options())
    torch.library.opcheck(
        OP.lse, call.arguments(), {"return_lse": True, "calc_type": "calc_type_ring", **call.options()}
    )


# ---- the C door ------------------------------------------------------------------------------------------------------

FLOAT, FLOAT16, INT8, INT32, BF16 = 0, 1, 2, 3, 27
ACL_DTYPE = {torch.float32: FLOAT, torch.float16: FLOAT16, torch.int8: INT8, torch.int32: INT32, torch.bfloat16: BF16}
COMPAT = pathlib.Path(mla.__file__).parent.parent.parent / "libmla_compat.so"


def through_the_c_door(call, calc_type, output, lse):
    """AtbMLAGetWorkspaceSize and AtbMLA of libmla_compat, as a C++ client calls them."""
    door = ctypes.CDLL(COMPAT)
    door.aclCreateTensor.restype = ctypes.c_void_p

    def tensor(t, form=2):
        if t is None:
            return ctypes.c_void_p(None)
        dims = (ctypes.c_int64 * t.dim())(*t.shape)
        made = door.aclCreateTensor(
            dims, ctypes.c_uint64(t.dim()), ACL_DTYPE[t.dtype], None, ctypes.c_int64(0), form, None, ctypes.c_uint64(0),
            ctypes.c_void_p(t.data_ptr()),
        )  # fmt: skip
        return ctypes.c_void_p(made)

    stream, context, op, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    assert door.aclrtCreateStream(ctypes.byref(stream)) == 0
    assert door._ZN3atb13CreateContextEPPNS_7ContextE(ctypes.byref(context)) == 0
    # SetExecuteStream is the first virtual function after the two entries of the destructor.
    table = ctypes.cast(ctypes.cast(context, ctypes.POINTER(ctypes.c_void_p))[0], ctypes.POINTER(ctypes.c_void_p))
    set_stream = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(table[2])
    assert set_stream(context, stream) == 0
    q_nope, q_rope, k, rope, table_, lengths, heads, scale, kv_heads = call.arguments()
    lengths = torch.tensor(lengths, dtype=torch.int32)
    mode = {"krope_ctkv": 1, "int8_nzcache": 2, "nzcache": 3}[call.cache]
    form = 2 if mode == 1 else 29
    given = [tensor(q_nope), tensor(q_rope), tensor(k, form), tensor(rope, form), tensor(table_), tensor(lengths)]
    given += [tensor(None), tensor(None), *map(tensor, call.descales)]
    assert 0 == door.AtbMLAGetWorkspaceSize(
        *given, heads, ctypes.c_float(scale), kv_heads, 0, calc_type, ctypes.c_uint8(mode), tensor(output), tensor(lse),
        ctypes.byref(size), ctypes.byref(op), context,
    )  # fmt: skip
    workspace = ctypes.create_string_buffer(max(size.value, 1))
    assert door.AtbMLA(workspace, size, op, context) == 0
    assert door.aclrtSynchronizeStream(stream) == 0


@pytest.mark.skipif(not COMPAT.exists(), reason="libmla_compat.so is not beside the tree of packages")
@pytest.mark.parametrize("cache", ["krope_ctkv", "nzcache", "int8_nzcache"])
def test_the_bits_of_the_c_door(cache):
    call = Call([129, 0, 300], 32, cache=cache)
    output = torch.full((3, 32, NOPE), math.nan, dtype=call.dtype)
    through_the_c_door(call, 0, output, None)
    assert torch.equal(output, OP(*call.arguments(), **call.options()))
    lse = torch.full((3, 32, 1), math.nan, dtype=torch.float32 if cache == "int8_nzcache" else call.dtype)
    ring, ring_lse = OP(*call.arguments(), return_lse=True, **call.options(calc_type="calc_type_ring"))
    through_the_c_door(call, 2, output.fill_(math.nan), lse)
    assert torch.equal(output, ring) and torch.equal(lse, ring_lse)
