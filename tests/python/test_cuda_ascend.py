"""The Ascend operators on CUDA tensors: against the references of their CPU tests, on torch's streams, in torch's
graphs. Skipped, each by name, without a GPU."""

import math

import mla.atb
import pytest
import test_atb
import test_cann_ops_transformer as cann
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU")

ATB, CANN = torch.ops.atb.npu_multi_head_latent_attention, torch.ops.cann_ops_transformer


def on_gpu(values):
    if isinstance(values, dict):
        return {name: on_gpu(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(on_gpu(value) for value in values)
    return values.cuda() if isinstance(values, torch.Tensor) else values


# ---- AtbMLA ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache", ["krope_ctkv", "nzcache", "int8_nzcache"])
@pytest.mark.parametrize("heads", [8, 128])
def test_atb_decode(cache, dtype, heads):
    call = test_atb.Call([129, 1, 300, 0], heads, dtype=dtype, cache=cache)
    out = ATB(*on_gpu(call.arguments()), **on_gpu(call.options()))
    assert out.is_cuda and out.dtype == dtype
    test_atb.assert_close(out.cpu(), call.reference()[0], dtype, cache == "int8_nzcache")


@pytest.mark.parametrize("mask_type", ["mask_type_undefined", "mask_type_spec"])
def test_atb_speculative_tokens(mask_type):
    call = test_atb.Call([140, 257], 32, [2, 3])
    options, mask = call.options(calc_type="calc_type_spec", qseqlen=call.tokens), None
    if mask_type == "mask_type_spec":
        mask = torch.zeros(5, 257, dtype=call.dtype)
        mask[0, 139] = mask[2, 255] = mask[2, 256] = mask[3, 256] = -10000
        options.update(mask=mask, mask_type=mask_type)
    out = ATB(*on_gpu(call.arguments()), **on_gpu(options))
    test_atb.assert_close(out.cpu(), call.reference(mask=mask)[0], call.dtype)


def test_atb_template():
    """The sliding template, whose last two blocks are laid out on the GPU: the numbers of the CPU."""
    call = test_atb.Call([129, 300, 4], 16, [4, 4, 4])
    template = torch.where(torch.arange(133)[:, None] < torch.arange(128)[None] + 2, -9984.0, 0.0).to(call.dtype)
    options = call.options(calc_type="calc_type_spec", qseqlen=call.tokens, mask=template, mask_type="mask_type_free")
    expected = ATB(*call.arguments(), **options)
    out = ATB(*on_gpu(call.arguments()), **on_gpu(options))
    torch.testing.assert_close(out.cpu().float(), expected.float(), rtol=2.0**-7, atol=1e-3)


@pytest.mark.parametrize("cache", ["krope_ctkv", "int8_nzcache"])
def test_atb_ring(cache):
    call = test_atb.Call([129, 0, 300], 16, cache=cache, dtype=torch.float16)
    options = call.options(calc_type="calc_type_ring")
    out, lse = ATB(*on_gpu(call.arguments()), return_lse=True, **on_gpu(options))
    wanted, wanted_lse = call.reference()
    test_atb.assert_close(out.cpu(), wanted, call.dtype, cache == "int8_nzcache")
    assert (lse[1] == -math.inf).all() and (out[1] == 0).all()
    error = (lse.cpu().double() - wanted_lse)[[0, 2]].abs()
    assert (error <= (2.0**-10 if lse.dtype == torch.float16 else 2.0**-18) * wanted_lse[[0, 2]].abs() + 1e-6).all()
    output = torch.full_like(out, math.nan)
    ATB.out(*on_gpu(call.arguments()), output=output, **on_gpu(options))
    assert torch.equal(output, out)


def test_atb_refusals():
    call = test_atb.Call([129, 5], 8)
    arguments = list(on_gpu(call.arguments()))
    with pytest.raises(RuntimeError, match="ATB error 13"):
        ATB(*arguments[:4], arguments[4].long(), *arguments[5:])
    with pytest.raises((RuntimeError, ValueError), match="is on device"):
        ATB(*arguments[:4], arguments[4].cpu(), *arguments[5:])


# ---- QuantSparseFlashMla ---------------------------------------------------------------------------------------------


def gpu_answer(call):
    q, options = on_gpu(call.arguments())
    metadata = call.metadata(options)
    assert metadata.is_cuda
    return CANN.quant_sparse_flash_mla(q, 1, metadata=metadata, return_softmax_lse=True, **options)


@pytest.mark.parametrize("layout", cann.LAYOUTS, ids="/".join)
@pytest.mark.parametrize("mode", cann.MODES)
def test_cann(mode, layout):
    call = cann.make(mode, layout)
    out, lse = gpu_answer(call)
    assert out.is_cuda and lse.is_cuda
    call.check((out.cpu(), lse.cpu()))


def test_cann_metadata_is_that_of_the_cpu():
    call = cann.make("CSA")
    options = call.arguments()[1]
    assert torch.equal(call.metadata(on_gpu(options)).cpu(), call.metadata(options))


def test_cann_lengths_from_the_tables():
    """Without lengths of the compressed keys they follow from those of the others, on the GPU."""
    call = cann.make("CSA")
    q, options = call.arguments()
    del options["seqused_cmp_kv"]
    metadata = torch.zeros(1024, dtype=torch.int32)
    expected = CANN.quant_sparse_flash_mla(q, 1, metadata=metadata, return_softmax_lse=True, **options)
    answer = CANN.quant_sparse_flash_mla(
        q.cuda(), 1, metadata=metadata.cuda(), return_softmax_lse=True, **on_gpu(options)
    )
    torch.testing.assert_close(answer[0].cpu().float(), expected[0].float(), rtol=2.0**-6, atol=2.0**-6)
    torch.testing.assert_close(answer[1].cpu(), expected[1], rtol=1e-4, atol=1e-4)


# ---- streams and graphs ----------------------------------------------------------------------------------------------


def test_the_current_stream():
    call = test_atb.Call([2000], 32)
    arguments = list(on_gpu(call.arguments()))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(arguments[0])
        torch.cuda._sleep(50_000_000)
        late.copy_(arguments[0])
        out = ATB(late, *arguments[1:])
    stream.synchronize()
    test_atb.assert_close(out.cpu(), call.reference()[0], call.dtype)


def test_graphs():
    """A captured call needs nothing of the host again, not even the lengths that came from there."""
    atb, compressed = test_atb.Call([2000, 3], 16, cache="nzcache"), cann.make("CSA")
    arguments, (q, options) = on_gpu(atb.arguments()), on_gpu(compressed.arguments())
    metadata = compressed.metadata(options)
    CANN.quant_sparse_flash_mla(q, 1, metadata=metadata, **options)  # loads the kernels
    ATB(*arguments, **atb.options())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ATB(*arguments, **atb.options())
        sparse, lse = CANN.quant_sparse_flash_mla(q, 1, metadata=metadata, return_softmax_lse=True, **options)
    for _ in range(2):
        for tensor in (out, sparse, lse):
            tensor.fill_(math.nan)
        churn = [list(range(1000)) for _ in range(1000)]  # memory that was let go is used again
        graph.replay()
        torch.cuda.synchronize()
        test_atb.assert_close(out.cpu(), atb.reference()[0], atb.dtype)
        compressed.check((sparse.cpu(), lse.cpu()))
        del churn


def test_traced():
    torch._dynamo.reset()
    call = test_atb.Call([129, 7], 8)
    compiled = torch.compile(lambda q, *rest: ATB(q * 2, *rest) + 1, fullgraph=True, backend="aot_eager")
    arguments = on_gpu(call.arguments())
    assert torch.equal(compiled(*arguments), ATB(arguments[0] * 2, *arguments[1:]) + 1)
    assert mla.atb.npu_multi_head_latent_attention(*arguments).is_cuda
