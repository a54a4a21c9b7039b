"""The native call, `attention`, and the small types that describe its problem."""

import operator
from typing import Any, NamedTuple, Optional, Tuple, Union

from . import _core
from ._flags import as_bool
from ._launch import launch_of
from ._outputs import empty_like_library

_LAYOUT = {"row": 0, "nz": 1}
_LIST_ADDRESS = {"logical": 0, "physical": 1}
_LIST_RULE = {"skip": 0, "stop": 1}
_VISIBLE_ALL, _VISIBLE_CAUSAL, _VISIBLE_WINDOW, _VISIBLE_COMPRESSED = range(4)
_LSE_BASE = {"e": 0, "2": 1}
_LSE_EMPTY = {"+inf": 0, "-inf": 1, "0": 2}
_P_ROUNDING = {"none": 0, "16bit": 1, "int8": 2, "hif8": 3}
_ARITHMETIC = {"auto": 0, "int16": 1, "f32": 2, "bf16": 3, "bf16x2": 5}
_BACKEND = {"auto": 0, "cpu": 1, "ref": 2, "cuda": 3}


class Visible(NamedTuple):
    """Which positions of a segment a query token may see; made by `window` and `compressed`."""

    rule: int
    left: int = 0
    right: int = 0
    ratio: int = 0
    residual: Any = None


_ALL = Visible(_VISIBLE_ALL)
_CAUSAL = Visible(_VISIBLE_CAUSAL)


def window(left: int, right: int) -> Visible:
    """A sliding window: `left` keys before the token's own position, itself, and `right` keys after it; -1 for no
    limit. The last query token is level with the last key."""
    return Visible(_VISIBLE_WINDOW, left=left, right=right)


def compressed(ratio: int, residual: Any = None) -> Visible:
    """Rows that stand for `ratio` tokens each: a row is visible once all its tokens are. `residual`: int32 [n_seq],
    tokens not yet compressed; None: 0."""
    return Visible(_VISIBLE_COMPRESSED, ratio=ratio, residual=residual)


def _choose(name, value, table):
    try:
        return table[value]
    except (KeyError, TypeError):
        choices = ", ".join(repr(key) for key in table)
        raise ValueError(f"{name} = {value!r} must be one of {choices}") from None


def _integer(name, value, least):
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if number < least:
        raise ValueError(f"{name} = {number} must be at least {least}")
    return number


def _visible(causal, visible):
    causal = as_bool("causal", causal)
    if visible is None:
        return _CAUSAL if causal else _ALL
    if causal:
        raise ValueError("causal=True and visible= exclude each other")
    if isinstance(visible, Visible):
        _check_visible(visible)
        return visible
    return _choose("visible", visible, {"all": _ALL, "causal": _CAUSAL})


def _check_visible(visible):
    if visible.rule == _VISIBLE_WINDOW:
        _integer("visible.left", visible.left, -1)
        _integer("visible.right", visible.right, -1)
    elif visible.rule == _VISIBLE_COMPRESSED:
        _integer("visible.ratio", visible.ratio, 1)
    elif visible not in (_ALL, _CAUSAL):
        raise ValueError(f"visible = {visible} must be made by window() or compressed()")


def _check_rank(k):
    """A cache without a head dim is what engines with a single kv head keep: worth more than the library's sentence."""
    if len(getattr(k, "shape", ())) == 3:
        raise ValueError(
            "k.ndim = 3 must be 4 because page_table is given: [n_page][page_size][n_kv_head][d]; "
            "a cache without the head dim is k[:, :, None]"
        )


class Segment:
    """A second pool of keys and values, for `attention(..., second=Segment(...))`: one softmax runs over both.

    The arguments are those of `attention` that describe keys.
    """

    __slots__ = ("fields",)

    def __init__(
        self,
        k,
        *,
        v=None,
        k_rope=None,
        layout="row",
        k_begin=None,
        page_table=None,
        lengths=None,
        key_list=None,
        key_list_lengths=None,
        list_address="logical",
        list_rule="skip",
        causal=False,
        visible=None,
        mask=None,
        descale=None,
    ):
        rule, left, right, ratio, residual = _visible(causal, visible)
        if key_list is not None and list_address == "physical":
            if rule != _VISIBLE_ALL:
                raise ValueError(
                    "visible must be 'all' with list_address = 'physical': the list names rows of the whole cache, "
                    "not positions of a sequence"
                )
        elif page_table is not None and k_begin is None and layout == "row":
            _check_rank(k)
        self.fields = (
            k,
            k_rope,
            v,
            k_begin,
            page_table,
            lengths,
            key_list,
            key_list_lengths,
            mask,
            descale,
            residual,
            _choose("layout", layout, _LAYOUT),
            _choose("list_address", list_address, _LIST_ADDRESS),
            _choose("list_rule", list_rule, _LIST_RULE),
            rule,
            left,
            right,
            ratio,
        )


def attention(
    q: Any,
    k: Any,
    *,
    d_v: Optional[int] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    visible: Union[None, str, Visible] = None,
    page_table: Any = None,
    lengths: Any = None,
    q_begin: Any = None,
    q_lengths: Any = None,
    q_rope: Any = None,
    q_descale: Any = None,
    k_rope: Any = None,
    v: Any = None,
    layout: str = "row",
    k_begin: Any = None,
    key_list: Any = None,
    key_list_lengths: Any = None,
    list_address: str = "logical",
    list_rule: str = "skip",
    mask: Any = None,
    descale: Any = None,
    second: Optional[Segment] = None,
    qk_descale: Any = None,
    pv_descale: Any = None,
    sink: Any = None,
    out: Any = None,
    lse: Any = None,
    max: Any = None,
    out_dtype: Optional[str] = None,
    lse_base: str = "e",
    lse_empty: str = "+inf",
    lse_with_sink: bool = False,
    p_rounding: str = "none",
    p_tile: int = 0,
    arithmetic: str = "auto",
    backend: str = "auto",
    n_thread: int = 0,
    batch_invariant: bool = False,
    stream: Optional[int] = None,
    dtype: Optional[str] = None,
) -> Tuple[Any, Any]:
    """Attention of q over k and v; returns (out, lse).

    For each query token t and head h, over the visible key rows j of its sequence:

        s[j] = softmax_scale * <q[t, h], k[j]> (+ mask)    out[t, h] = sum_j softmax(s)[j] * v[j]
        lse[t, h] = log(sum_j exp(s[j]))                   v[j] = first d_v columns of row j, or an array of its own

    Arrays may be NumPy, torch, or anything with `__dlpack__`, all on the CPU or all on one NVIDIA GPU, with any strides
    except that the last must be 1. They are not copied. Values are f32, f16 or bf16 (torch.bfloat16,
    ml_dtypes.bfloat16, or uint16 with dtype="bf16"); q, k and v may be HiFloat8 (uint8, see `hif8_quantize`) or int8
    too. Everything that counts or points is int32.

    Queries
        q           [n_seq, n_q, n_head, d] ("batched") or [n_token, n_head, d] ("packed")
        q_rope      the last columns of every query, kept apart: shape of q with its own last dim
        q_begin     packed: [n_seq + 1], sequence i owns tokens q_begin[i] to q_begin[i + 1]; default: one token each
        q_lengths   [n_seq], tokens in use; the others give 0 and an empty lse
        q_descale   f32 [1], multiplies q
    Keys and values; the first shape that fits the arguments given
        k           paged, with page_table: [n_page, page_size, n_kv_head, d]; batched: [n_seq, max_len, n_kv_head, d];
                    packed, with k_begin: [n_row, n_kv_head, d]. n_head must be a multiple of n_kv_head
        k_rope      the last columns of every key, kept apart
        layout      "row", or "nz": k and k_rope are [n_page, d / c, page_size, c], see `nd_to_nz`; one kv head, no v
        v           leading dims of k, last dim d_v; default: the first d_v columns of k (then of k_rope)
        page_table  [n_seq, max_page]; entries past a sequence's last page are never read
        k_begin     packed: [n_seq + 1]
        lengths     [n_seq], keys per sequence; required with page_table
        key_list    [n_seq, n_q, n_entry] or [n_token, n_entry]: attend to these keys alone; key_list_lengths says how
                    many entries count; list_address "logical" (positions of the sequence) or "physical" (rows of the
                    whole cache); list_rule "skip" or "stop" at an entry that names no key
        causal      a token sees no key after its own position; the last token is level with the last key
        visible     instead of causal: "all", "causal", window(left, right) or compressed(ratio, residual)
        mask        added to the scaled scores: [n_seq, n_q, max_len] or [n_token, max_len], any strides
        descale     f32 [1], multiplies k and v
        second      a Segment: more keys under the same softmax
    Scores
        d_v            columns of a value; needed unless v is given
        softmax_scale  default 1 / sqrt(d_k), d_k counting the rope columns
        sink           f32 [n_head]: an extra logit with value 0; -inf: none. lse_with_sink=True counts it in lse
        qk_descale, pv_descale   f32 [n_head]
    Results
        out        f32, f16 or bf16, shape of q with d_v last; given: written there; else new, a torch tensor if q is
                   one, else NumPy
        lse        f32 (given: or f16, bf16), [n_seq, n_q, n_head] or [n_token, n_head]; as out
        max        given: the largest scaled score of each row is written there; f32, shape of lse
        out_dtype  "f32", "f16" or "bf16" for a new out; default: that of q, which must then be one of these
        lse_base   "e" or "2"
        lse_empty  lse of a token that sees no key (its out is 0): "+inf", "-inf" or "0"
        p_rounding, p_tile   numerics that some contracts prescribe: see mla_problem.h
        arithmetic "f32", "bf16" (probabilities rounded to bf16, where the CPU has units for such products), "bf16x2"
                   (probabilities as sums of two bf16 numbers), "int16" (fixed point with a checked bound, see
                   mla_problem.h), or "auto": f32 on the CPU, bf16x2 where all tensors are bf16 and it has AMX; the
                   fastest kernel on a GPU
    Running
        backend    "auto" (where the arrays are), "cpu", "cuda", or "ref" (the fp64 oracle: slow, on the CPU)
        n_thread   0: `mla.threads()` at most. The bits of a result never depend on it
        batch_invariant
                   on a GPU: a sequence's bits do not depend on the rest of the batch, as they never do on the CPU
        stream     GPU: address of a CUDA stream; default: torch's current one for torch tensors, else the default
                   stream. The call queues its work there and returns; CUDA graphs may capture it. Numbers inside index arrays
                   are not checked then: a bad one hides its keys

    Raises ValueError (shapes, strides, values, numbers inside index arrays), TypeError (no array, wrong dtype),
    NotImplementedError (legal, but not in this build), MemoryError; the message names the argument (`second.k` is the k
    of `second`). Outputs are then untouched.
    """
    if second is not None and not isinstance(second, Segment):
        raise TypeError(f"second must be a Segment, not {type(second).__name__}")
    first = Segment(
        k,
        v=v,
        k_rope=k_rope,
        layout=layout,
        k_begin=k_begin,
        page_table=page_table,
        lengths=lengths,
        key_list=key_list,
        key_list_lengths=key_list_lengths,
        list_address=list_address,
        list_rule=list_rule,
        causal=causal,
        visible=visible,
        mask=mask,
        descale=descale,
    )
    if dtype not in (None, "bf16"):
        raise ValueError(f"dtype = {dtype!r} must be None or 'bf16'")
    u16_is_bf16 = dtype is not None
    q_shape = _shape("q", q, u16_is_bf16)
    if d_v is None:
        if v is None:
            raise ValueError("d_v must be given when v is not: how many of the first columns of k are the value?")
        d_v = _shape("v", v, u16_is_bf16)[-1]
    d_v = _integer("d_v", d_v, 1)
    if softmax_scale is None:
        d_k = q_shape[-1] + (_shape("q_rope", q_rope, u16_is_bf16)[-1] if q_rope is not None else 0)
        softmax_scale = d_k**-0.5 if d_k > 0 else 1.0
    elif softmax_scale is True or softmax_scale is False:
        raise TypeError(f"softmax_scale must be a number, not {softmax_scale}")
    if out is None:
        if out_dtype is None and str(getattr(q, "dtype", "")).rpartition(".")[2] in ("uint8", "int8"):
            raise ValueError("out_dtype must be given when q has 8 bits")
        out = empty_like_library(q, (*q_shape[:-1], d_v), out_dtype, u16_is_bf16)
    elif out_dtype is not None:
        raise ValueError("out_dtype is for a new out; the one given has its own dtype")
    if lse is None:
        lse = empty_like_library(q, q_shape[:-1], "f32", u16_is_bf16)
    _core.attention(
        q,
        q_rope,
        q_begin,
        q_lengths,
        q_descale,
        qk_descale,
        pv_descale,
        sink,
        out,
        lse,
        max,
        (first.fields,) if second is None else (first.fields, second.fields),
        d_v,
        softmax_scale,
        _choose("lse_base", lse_base, _LSE_BASE),
        _choose("lse_empty", lse_empty, _LSE_EMPTY),
        as_bool("lse_with_sink", lse_with_sink),
        _choose("p_rounding", p_rounding, _P_ROUNDING),
        p_tile,
        _choose("arithmetic", arithmetic, _ARITHMETIC),
        _choose("backend", backend, _BACKEND),
        n_thread,
        as_bool("batch_invariant", batch_invariant),
        u16_is_bf16,
        *launch_of(q, stream),
    )
    return out, lse


def _shape(name, array, u16_is_bf16):
    shape = getattr(array, "shape", None)
    if shape is None:
        shape, _ = _core.describe(array, name, u16_is_bf16)
    if not shape:
        raise ValueError(f"{name} has no dimensions")
    return shape
