"""What is refused, with which exception, and that the message names the culprit."""

import flash_mla
import mla
import numpy as np
import pytest
import torch
from flash_mla import flash_mla_with_kvcache, get_mla_metadata
from reference import make_decode

NAN, INF = float("nan"), float("inf")


def set_entry(tensor, place, value):
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


# change of the arguments of a good call (b 2, s_q 2, h_q 4, h_kv 2, page 64, table of 4 pages) -> exception, words
DECODE = {
    "q of rank 3": (lambda a: {"q": a["q"][0]}, ValueError, r"^q\b"),
    "q in float32": (lambda a: {"q": a["q"].float(), "k_cache": a["k_cache"].float()}, TypeError, r"^q\b"),
    "q in float64": (lambda a: {"q": a["q"].double()}, TypeError, "^q has dtype float64, must be float16 or bfloat16$"),
    "q with a last stride of 2": (lambda a: {"q": a["q"].repeat_interleave(2, -1)[..., ::2]}, ValueError, r"^q\b"),
    "q is a list": (lambda a: {"q": a["q"].tolist()}, TypeError, r"^q\b"),
    "q without heads": (lambda a: {"q": a["q"][:, :, :0]}, ValueError, r"^q\b"),
    "heads not divisible": (lambda a: {"q": a["q"][:, :, :3]}, ValueError, "2 kv heads .*3 query heads"),
    "cache of rank 3": (lambda a: {"k_cache": a["k_cache"][:, :, 0]}, ValueError, r"^k_cache\b"),
    "cache of another dtype": (lambda a: {"k_cache": a["k_cache"].half()}, TypeError, r"^k_cache\b"),
    "cache of another width": (lambda a: {"k_cache": a["k_cache"][..., :512].contiguous()}, ValueError, r"^k_cache\b"),
    "cache with a last stride of 2": (
        lambda a: {"k_cache": a["k_cache"].repeat_interleave(2, -1)[..., ::2]},
        ValueError,
        r"^k_cache\b",
    ),
    "table in int64": (lambda a: {"block_table": a["block_table"].long()}, TypeError, r"^block_table\b.*i64"),
    "table of rank 1": (lambda a: {"block_table": a["block_table"][0]}, ValueError, r"^block_table\b"),
    "table of another batch": (lambda a: {"block_table": a["block_table"][:1]}, ValueError, r"^block_table\b"),
    "table with a last stride of 2": (
        lambda a: {"block_table": a["block_table"].repeat_interleave(2, -1)[:, ::2]},
        ValueError,
        r"^block_table\b",
    ),
    "table is None": (lambda a: {"block_table": None}, TypeError, r"^block_table\b"),
    "page id beyond the cache": (
        lambda a: {"block_table": set_entry(a["block_table"], (1, 0), 1000)},
        ValueError,
        r"block_table\[1\]\[0\] = 1000",
    ),
    "page id of -1": (
        lambda a: {"block_table": set_entry(a["block_table"], (0, 1), -1)},
        ValueError,
        r"block_table\[0\]\[1\] = -1",
    ),
    "lengths in int64": (lambda a: {"cache_seqlens": a["cache_seqlens"].long()}, TypeError, r"^cache_seqlens\b.*i64"),
    "lengths of shape (b, 1)": (
        lambda a: {"cache_seqlens": a["cache_seqlens"][:, None]},
        ValueError,
        r"^cache_seqlens\b",
    ),
    "lengths of another batch": (lambda a: {"cache_seqlens": a["cache_seqlens"][:1]}, ValueError, r"^cache_seqlens\b"),
    "lengths with a stride of 2": (
        lambda a: {"cache_seqlens": a["cache_seqlens"].repeat_interleave(2)[::2]},
        ValueError,
        r"^cache_seqlens\b",
    ),
    "length beyond the table": (
        lambda a: {"cache_seqlens": set_entry(a["cache_seqlens"], 1, 9000)},
        ValueError,
        r"cache_seqlens\[1\] = 9000",
    ),
    "lengths are None": (lambda a: {"cache_seqlens": None}, TypeError, r"^cache_seqlens\b"),
    "lengths on another device": (
        lambda a: {"cache_seqlens": a["cache_seqlens"].to("meta")},
        ValueError,
        r"^cache_seqlens\b",
    ),
    "head_dim_v of 0": (lambda a: {"head_dim_v": 0}, ValueError, "head_dim_v = 0"),
    "head_dim_v beyond d": (lambda a: {"head_dim_v": 577}, ValueError, "head_dim_v = 577"),
    "head_dim_v is negative": (lambda a: {"head_dim_v": -1}, ValueError, "head_dim_v = -1"),
    "head_dim_v is a float": (lambda a: {"head_dim_v": 512.0}, TypeError, "float|int"),
    "scale is a bool": (lambda a: {"softmax_scale": True}, TypeError, r"^softmax_scale\b.*after num_splits"),
    "scale is a tensor": (lambda a: {"softmax_scale": torch.tensor(1.0)}, TypeError, r"^softmax_scale\b"),
    "scale is a text": (lambda a: {"softmax_scale": "1"}, TypeError, "^softmax_scale must be a number, not a str"),
    "scale is a list": (lambda a: {"softmax_scale": [1]}, TypeError, "^softmax_scale must be a number, not a list"),
    "scale is beyond a double": (lambda a: {"softmax_scale": 10**400}, ValueError, "^softmax_scale does not fit"),
    "scale is NaN": (lambda a: {"softmax_scale": NAN}, ValueError, r"^softmax_scale\b"),
    "scale is infinite": (lambda a: {"softmax_scale": INF}, ValueError, r"^softmax_scale\b"),
    "scale overflows float32": (lambda a: {"softmax_scale": 1e39}, ValueError, r"^softmax_scale\b"),
    "causal is a tensor": (lambda a: {"causal": torch.tensor(True)}, TypeError, "causal .*after num_splits"),
    "is_fp8_kvcache is a tensor": (
        lambda a: {"is_fp8_kvcache": a["block_table"]},
        TypeError,
        r"^is_fp8_kvcache\b.*after num_splits",
    ),
    "metadata in int64": (
        lambda a: {"tile_scheduler_metadata": a["tile_scheduler_metadata"].long()},
        TypeError,
        r"^tile_scheduler_metadata\b",
    ),
    "metadata of 7 columns": (
        lambda a: {"tile_scheduler_metadata": a["tile_scheduler_metadata"][:, :7].contiguous()},
        ValueError,
        r"^tile_scheduler_metadata\b",
    ),
    "metadata of rank 1": (
        lambda a: {"tile_scheduler_metadata": a["tile_scheduler_metadata"][0]},
        ValueError,
        r"^tile_scheduler_metadata\b",
    ),
    "num_splits in int64": (lambda a: {"num_splits": a["num_splits"].long()}, TypeError, r"^num_splits\b"),
    "num_splits too short": (lambda a: {"num_splits": a["num_splits"][:-1]}, ValueError, r"^num_splits\b"),
    "num_splits is missing": (lambda a: {"num_splits": None}, TypeError, r"\bnum_splits must both be"),
    "metadata is missing": (lambda a: {"tile_scheduler_metadata": None}, TypeError, r"^tile_scheduler_metadata\b"),
    "metadata on another device": (
        lambda a: {"tile_scheduler_metadata": a["tile_scheduler_metadata"].to("meta")},
        ValueError,
        r"^tile_scheduler_metadata\b",
    ),
    "sink of another length": (lambda a: {"attn_sink": torch.zeros(3)}, ValueError, r"^attn_sink\b"),
    "sink in float64": (lambda a: {"attn_sink": torch.zeros(4).double()}, TypeError, "^attn_sink .*, must be float32$"),
    "table in int16": (
        lambda a: {"block_table": a["block_table"].short()},
        TypeError,
        "^block_table has dtype int16, must be int32$",
    ),
    "table in uint16": (  # there is no argument dtype that could say what its bits are
        lambda a: {"block_table": a["block_table"].to(torch.uint16)},
        TypeError,
        "^block_table has dtype uint16, must be int32$",
    ),
    "cache in uint16": (
        lambda a: {"k_cache": a["k_cache"].view(torch.uint16)},
        TypeError,
        "^k_cache has dtype uint16, must be float16 or bfloat16$",
    ),
    "sink in bfloat16": (lambda a: {"attn_sink": torch.zeros(4).bfloat16()}, TypeError, r"^attn_sink\b"),
    "indices": (lambda a: {"indices": a["block_table"]}, NotImplementedError, r"^indices\b"),
    "an fp8 cache": (lambda a: {"is_fp8_kvcache": True}, NotImplementedError, r"^is_fp8_kvcache\b"),
    "an fp8 dtype": (
        lambda a: {"k_cache": a["k_cache"].to(torch.float8_e4m3fn)},
        NotImplementedError,
        "^k_cache has dtype torch.float8_e4m3fn, must be that of q, float16 or bfloat16",
    ),
    "a byte cache": (lambda a: {"k_cache": a["k_cache"].view(torch.uint8)}, NotImplementedError, r"^k_cache\b"),
    "extra_k_cache": (lambda a: {"extra_k_cache": a["k_cache"]}, NotImplementedError, r"^extra_k_cache\b"),
    "extra_indices_in_kvcache": (
        lambda a: {"extra_indices_in_kvcache": a["block_table"]},
        NotImplementedError,
        r"^extra_indices_in_kvcache\b",
    ),
    "topk_length": (lambda a: {"topk_length": a["cache_seqlens"]}, NotImplementedError, r"^topk_length\b"),
    "extra_topk_length": (
        lambda a: {"extra_topk_length": a["cache_seqlens"]},
        NotImplementedError,
        r"^extra_topk_length\b",
    ),
    "an unknown argument": (lambda a: {"softmax_scael": 1.0}, TypeError, "softmax_scael"),
    "causal is a text": (lambda a: {"causal": "no"}, TypeError, "^causal must be a bool, not 'no'"),
    "causal is 2": (lambda a: {"causal": 2}, TypeError, "^causal must be a bool, not 2"),
    "causal is None": (lambda a: {"causal": None}, TypeError, "^causal must be a bool, not None"),
    "causal is a tensor": (lambda a: {"causal": torch.tensor(True)}, TypeError, "^causal must be a bool, not an array"),
    "is_fp8_kvcache is a text": (lambda a: {"is_fp8_kvcache": "no"}, TypeError, "^is_fp8_kvcache must be a bool"),
    "enable_batch_invariant is a text": (
        lambda a: {"enable_batch_invariant": "no"},
        TypeError,
        "^enable_batch_invariant must be a bool, not 'no'$",
    ),
}


def good_call():
    call = make_decode([70, 200], 2, 4, 2)
    metadata, num_splits = get_mla_metadata(call.cache_seqlens, 4, 2)
    return {
        "q": call.q,
        "k_cache": call.k_cache,
        "block_table": call.block_table,
        "cache_seqlens": call.cache_seqlens,
        "head_dim_v": 512,
        "tile_scheduler_metadata": metadata,
        "num_splits": num_splits,
    }


def test_the_good_call_is_good():
    flash_mla_with_kvcache(**good_call())


@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("case", DECODE)
def test_decode_refuses(case, with_sink):
    """The same with a sink, which takes another way into the library."""
    change, exception, words = DECODE[case]
    arguments = good_call()
    if with_sink:
        arguments["attn_sink"] = torch.zeros(arguments["q"].shape[2])
    arguments.update(change(arguments))
    with pytest.raises(exception, match=words) as caught:
        flash_mla_with_kvcache(**arguments)
    assert caught.type is exception
    # After a refusal the next call is none the worse.
    flash_mla_with_kvcache(**good_call())


@pytest.mark.parametrize("yes, no", [(np.bool_(True), np.bool_(False)), (1, 0)])
def test_what_else_is_a_bool(yes, no):
    """NumPy's, and the two numbers that DeepSeek's module takes for one."""
    arguments = good_call()
    for value, same in ((yes, True), (no, False)):
        mine = flash_mla_with_kvcache(**arguments, causal=value, enable_batch_invariant=value, is_fp8_kvcache=no)
        plain = flash_mla_with_kvcache(**arguments, causal=same)
        assert torch.equal(mine[0], plain[0])
        native = {**native_call(), "causal": value, "lse_with_sink": value, "batch_invariant": value}
        assert np.array_equal(mla.attention(**native)[0], mla.attention(**{**native_call(), "causal": same})[0])


def test_the_positional_trap_of_an_old_readme():
    """Its example passes is_causal, is_fp8_kvcache and indices right behind num_splits."""
    arguments = good_call()
    with pytest.raises(TypeError, match="softmax_scale, causal, is_fp8_kvcache, indices"):
        flash_mla_with_kvcache(*arguments.values(), True, False, arguments["block_table"])


@pytest.mark.parametrize(
    "arguments, named, exception, words",
    [
        (("x", 16), {}, TypeError, "num_heads_k"),
        (("x",), {"num_heads_k": 1}, TypeError, "num_heads_per_head_k"),
        (("x", 16, 1), {"num_q_tokens_per_head_k": 16}, TypeError, "two names"),
        (("x", -1, 1), {}, ValueError, "num_heads_per_head_k = -1"),
        (("x", 16, -1), {}, ValueError, "num_heads_k = -1"),
        (("x", 16, 1), {"topk": 64}, NotImplementedError, "topk"),
        (("x", 16, 1), {"is_fp8_kvcache": True}, NotImplementedError, "is_fp8_kvcache"),
        (("x", 1.5, 1), {}, TypeError, "integer|int"),
        (("x", 16, 1), {"heads": 2}, TypeError, "heads"),
        (([1, 2], 16, 1), {}, TypeError, "cache_seqlens"),
    ],
)
def test_metadata_refuses(arguments, named, exception, words):
    lengths = torch.tensor([3, 4], dtype=torch.int32)
    with pytest.raises(exception, match=words):
        get_mla_metadata(*(lengths if isinstance(x, str) else x for x in arguments), **named)


@pytest.mark.parametrize(
    "lengths, exception",
    [
        (torch.tensor([3, 4]), TypeError),
        (torch.tensor([[3], [4]], dtype=torch.int32), ValueError),
        (torch.tensor([3, 3, 4, 4], dtype=torch.int32)[::2], ValueError),
        (torch.tensor(3, dtype=torch.int32), ValueError),
    ],
)
def test_metadata_refuses_lengths(lengths, exception):
    with pytest.raises(exception, match="cache_seqlens"):
        get_mla_metadata(lengths, 16, 1)


def test_sparse_prefill_is_not_there_yet():
    with pytest.raises(NotImplementedError, match="indices"):
        flash_mla.flash_mla_sparse_fwd(torch.zeros(1, 64, 576), torch.zeros(8, 1, 576), torch.zeros(1, 1, 8).int(), 0.5)


def native_call():
    return {
        "q": np.zeros((2, 1, 4, 64), np.float32),
        "k": np.zeros((8, 16, 1, 64), np.float32),
        "d_v": 32,
        "page_table": np.zeros((2, 4), np.int32),
        "lengths": np.array([3, 60], np.int32),
    }


NATIVE = {
    "causal is a text": ({"causal": "no"}, TypeError, "^causal must be a bool, not 'no'$"),
    "lse_with_sink is a text": ({"lse_with_sink": "no"}, TypeError, "^lse_with_sink must be a bool, not 'no'$"),
    "batch_invariant is None": ({"batch_invariant": None}, TypeError, "^batch_invariant must be a bool, not None$"),
    "no d_v": ({"d_v": None}, ValueError, "d_v"),
    "d_v is a bool": ({"d_v": True}, TypeError, "^d_v must be an integer, not True$"),
    "d_v is negative": ({"d_v": -3}, ValueError, "d_v"),
    "d_v beyond d_k": ({"d_v": 65}, ValueError, "d_v"),
    "q is a list": ({"q": [[[0.0]]]}, TypeError, "q must be an array"),
    "k is None": ({"k": None}, TypeError, "k must be an array.*NoneType"),
    "lengths are a list": ({"lengths": [3, 60]}, TypeError, "lengths must be an array"),
    "lengths in int64": ({"lengths": np.array([3, 60])}, TypeError, "lengths"),
    "length beyond the table": ({"lengths": np.array([3, 65], np.int32)}, ValueError, r"lengths\[1\] = 65"),
    "q in float64": (
        {"q": np.zeros((2, 1, 4, 64))},
        TypeError,
        r"^q has dtype float64, must be float32, float16, bfloat16, uint8 \(HiFloat8\) or int8$",
    ),
    "q is complex": ({"q": np.zeros((2, 1, 4, 64), np.complex64)}, TypeError, "q has dtype complex64, must be float32"),
    "a mask of bools": (
        {"mask": np.zeros((2, 1, 64), bool)},
        TypeError,
        "^mask has dtype bool, must be float32, float16 or bfloat16$",
    ),
    "lengths in int16": ({"lengths": np.ones(2, np.int16)}, TypeError, "^lengths has dtype int16, must be int32$"),
    "a sink in float64": ({"sink": np.zeros(4)}, TypeError, "^sink has dtype float64, must be float32$"),
    "q of 7 dims": ({"q": np.zeros((1,) * 7, np.float32)}, ValueError, "q has 7 dimensions"),
    "q without dims": ({"q": np.zeros((), np.float32)}, ValueError, "q has no dimensions"),
    "q in uint16": ({"q": np.zeros((2, 1, 4, 64), np.uint16)}, TypeError, 'q has dtype uint16.*dtype="bf16"'),
    "lengths in uint16": ({"lengths": np.zeros(2, np.uint16)}, TypeError, "^lengths has dtype uint16, must be int32$"),
    "q of strings": ({"q": np.zeros((2, 1, 4, 64), "U1")}, ValueError, "q cannot be read"),
    "an unknown dtype": ({"dtype": "f16"}, ValueError, "dtype = 'f16'"),
    "an unknown out_dtype": ({"out_dtype": "f64"}, ValueError, "out_dtype = 'f64'"),
    "out_dtype next to out": (
        {"out_dtype": "f32", "out": np.zeros((2, 1, 4, 32), np.float32)},
        ValueError,
        "out_dtype",
    ),
    "out of another shape": ({"out": np.zeros((2, 1, 4, 31), np.float32)}, ValueError, "out"),
    "lse in int32": ({"lse": np.zeros((2, 1, 4), np.int32)}, TypeError, "^lse.dtype = i32 must be f32, f16 or bf16$"),
    "causal and visible": ({"causal": True, "visible": "all"}, ValueError, "exclude each other"),
    "an unknown visible": ({"visible": "diagonal"}, ValueError, "visible = 'diagonal' must be one of 'all', 'causal'"),
    "a window of -2": ({"visible": mla.window(-2, 0)}, ValueError, "^visible.left = -2 must be at least -1$"),
    "an unknown lse_base": ({"lse_base": 2}, ValueError, "lse_base = 2 must be one of 'e', '2'"),
    "an unknown lse_empty": ({"lse_empty": "nan"}, ValueError, "lse_empty"),
    "an unknown backend": ({"backend": "npu"}, ValueError, "backend = 'npu'"),
    "a backend elsewhere": ({"backend": "cuda"}, ValueError, r"^backend = \d \(cuda\) cannot compute on tensors in host memory"),
    "a negative n_thread": ({"n_thread": -1}, ValueError, "^n_thread = -1 must be between 0 and 2147483647$"),
    "an n_thread of 33 bits": ({"n_thread": 2**32}, ValueError, "^n_thread = 4294967296 must be between 0 and"),
    "an n_thread of 70 bits": ({"n_thread": 2**70}, ValueError, "^n_thread = 1180591620717411303424 does not fit"),
    "a float n_thread": ({"n_thread": 1.5}, TypeError, "^n_thread must be an integer, not 1.5$"),
    "a negative p_tile": ({"p_tile": -3, "p_rounding": "int8"}, ValueError, "^p_tile = -3 must be between 0 and"),
    "p_tile without p_rounding": ({"p_tile": 64}, ValueError, r"^p_tile = 64 must be 0 with p_rounding = 0 \(none\)$"),
    "p_rounding without p_tile": ({"p_rounding": "int8"}, ValueError, r"^p_tile = 0 .* p_rounding = 2 \(int8\)$"),
    "p_rounding of other keys": ({"p_rounding": "int8", "p_tile": 64}, TypeError, "^k.dtype = f32 must be i8$"),
    "a p_tile too wide": (
        {"p_rounding": "hif8", "p_tile": 513},
        ValueError,
        r"^p_tile = 513 must be between 1 and 512 with p_rounding = 3 \(hif8\)$",
    ),
    "scale is a bool": ({"softmax_scale": False}, TypeError, "^softmax_scale must be a number, not False$"),
    "scale is a string": ({"softmax_scale": "1"}, TypeError, "^softmax_scale must be a number, not '1'$"),
    "scale is NaN": ({"softmax_scale": NAN}, ValueError, "^softmax_scale = nan must be finite$"),
    "scale beyond float32": ({"softmax_scale": 1e39}, ValueError, r"^softmax_scale = 1e\+39 does not fit in float32$"),
    "scale of 400 digits": ({"softmax_scale": 10**400}, ValueError, "^softmax_scale does not fit in float32$"),
    "d_v is a float": ({"d_v": 32.0}, TypeError, "^d_v must be an integer, not 32.0$"),
    "d_v is a string": ({"d_v": "32"}, TypeError, "^d_v must be an integer, not '32'$"),
    "no lengths": ({"lengths": None}, ValueError, "^lengths is missing: a page table does not tell"),
    "no k_rope": ({"q_rope": np.zeros((2, 1, 4, 8), np.float32)}, ValueError, "^k_rope is missing: q_rope is given"),
    "k_rope alone": ({"k_rope": np.zeros((8, 16, 1, 8), np.float32)}, ValueError, "^k_rope must be absent"),
    "no k_begin": (
        {"k": np.zeros((99, 1, 64), np.float32), "page_table": None},
        ValueError,
        "^k_begin is missing: a k of 3 dims is packed$",
    ),
    "key_list_lengths alone": (
        {"key_list_lengths": np.array([3, 4], np.int32)},
        ValueError,
        "^key_list_lengths must be absent: there is no list$",
    ),
    "a cache without the head dim": (
        {"k": np.zeros((8, 16, 64), np.float32)},
        ValueError,
        r"^k.ndim = 3 must be 4 .*\[n_page\]\[page_size\]\[n_kv_head\]\[d\]; .* is k\[:, :, None\]$",
    ),
    "a cache of 2 dims": ({"k": np.zeros((8, 64), np.float32)}, ValueError, "^k.ndim = 2 must be 4 because page_table"),
    "a window to -2": ({"visible": mla.window(0, -2)}, ValueError, "^visible.right = -2 must be at least -1$"),
    "a window of 1.5": ({"visible": mla.window(1.5, 0)}, TypeError, "^visible.left must be an integer, not 1.5$"),
    "a ratio of 0": ({"visible": mla.compressed(0)}, ValueError, "^visible.ratio = 0 must be at least 1$"),
    "a residual in int64": (
        {"visible": mla.compressed(4, np.array([1, 2]))},
        TypeError,
        "^visible.residual.dtype = i64 must be i32$",
    ),
    "a rule of one's own": ({"visible": mla.Visible(9)}, ValueError, r"^visible = Visible\(rule=9.* must be made by"),
    "rows of the cache and causal": (
        {"key_list": np.zeros((2, 1, 3), np.int32), "list_address": "physical", "causal": True},
        ValueError,
        "^visible must be 'all' with list_address = 'physical'",
    ),
    "second is an array": ({"second": np.zeros((8, 16, 1, 64))}, TypeError, "^second must be a Segment, not ndarray$"),
    "second is a dict": ({"second": {}}, TypeError, "^second must be a Segment, not dict$"),
}

# The same of `second`: changes of the arguments of a good Segment, 3 keys of each sequence.
SECOND = {
    "k is None": ({"k": None}, TypeError, "^second.k must be an array.*NoneType"),
    "k of another width": (
        {"k": np.zeros((2, 3, 1, 63), np.float32)},
        ValueError,
        r"^second.k.dim\[3\] = 63 differs from q.dim\[3\] = 64",
    ),
    "k of other heads": (
        {"k": np.zeros((2, 3, 2, 64), np.float32)},
        ValueError,
        r"^second.k.dim\[2\] = 2 differs from k.dim\[2\] = 1",
    ),
    "k in float64": ({"k": np.zeros((2, 3, 1, 64))}, TypeError, "^second.k has dtype float64"),
    "a table alone": (
        {"k": np.zeros((8, 16, 1, 64), np.float32), "page_table": np.zeros((2, 1), np.int32)},
        ValueError,
        "^second.lengths is missing",
    ),
    "a page beyond the cache": (
        {"page_table": np.array([[0], [2]], np.int32), "lengths": np.array([1, 3], np.int32)},
        ValueError,
        r"^second.page_table\[1\]\[0\] = 2 is not one of the 2 pages of second.k$",
    ),
    "a length beyond the keys": ({"lengths": np.array([9, 0], np.int32)}, ValueError, r"^second.lengths\[0\] = 9 "),
    "lengths in int64": ({"lengths": np.array([1, 2])}, TypeError, "^second.lengths.dtype = i64"),
    "v of other keys": (
        {"v": np.zeros((2, 4, 1, 32), np.float32)},
        ValueError,
        r"^second.v.dim\[1\] = 4 differs from second.k.dim\[1\] = 3",
    ),
    "k_rope alone": ({"k_rope": np.zeros((2, 3, 1, 8), np.float32)}, ValueError, "^second.k_rope must be absent"),
    "k_begin of a batch": ({"k_begin": np.zeros(3, np.int32)}, ValueError, "^second.k_begin must be absent"),
    "a list of another batch": (
        {"key_list": np.zeros((3, 1, 2), np.int32)},
        ValueError,
        r"^second.key_list.dim\[0\] = 3 differs from q",
    ),
    "a list's lengths alone": (
        {"key_list_lengths": np.zeros(2, np.int32)},
        ValueError,
        "^second.key_list_lengths must be absent",
    ),
    "a mask too narrow": ({"mask": np.zeros((2, 1, 2), np.float32)}, ValueError, r"^second.mask.dim\[2\] = 2 "),
    "a descale in float16": ({"descale": np.ones(1, np.float16)}, TypeError, "^second.descale.dtype = f16"),
    "a residual of another batch": (
        {"visible": mla.compressed(4, np.zeros(3, np.int32))},
        ValueError,
        r"^second.visible.residual.dim\[0\] = 3 differs",
    ),
}


@pytest.mark.parametrize("case", NATIVE)
def test_native_refuses(case):
    change, exception, words = NATIVE[case]
    mla.attention(**native_call())
    with pytest.raises(exception, match=words) as caught:
        mla.attention(**{**native_call(), **change})
    assert caught.type is exception


@pytest.mark.parametrize("case", SECOND)
def test_native_refuses_of_a_second_segment(case):
    change, exception, words = SECOND[case]
    arguments = {"k": np.zeros((2, 3, 1, 64), np.float32)}
    mla.attention(**native_call(), second=mla.Segment(**arguments))
    with pytest.raises(exception, match=words) as caught:
        mla.attention(**native_call(), second=mla.Segment(**{**arguments, **change}))
    assert caught.type is exception


def test_a_refusal_leaves_outputs_alone():
    out, lse = np.full((2, 1, 4, 32), 7, np.float32), np.full((2, 1, 4), 7, np.float32)
    with pytest.raises(ValueError):
        mla.attention(**{**native_call(), "lengths": np.array([3, 65], np.int32)}, out=out, lse=lse)
    assert (out == 7).all() and (lse == 7).all()


def test_isa_refuses():
    with pytest.raises(ValueError, match="pentium"):
        mla.set_isa("pentium")
    with pytest.raises(TypeError):
        mla.set_isa(3)
