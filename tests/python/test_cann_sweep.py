"""300 random problems of QuantSparseFlashMla against the operator's procedure in fp64, with upstream's gates and ours.

Upstream's gate for a call: 99.5 % of attention within 1e-4 + 2^-7 |reference|, nothing grossly off. Ours over the whole
sweep: 99.9 % within it, 99 % of the bits equal, every lse within 1e-4 + 1e-5 |reference|; and every token's heads whose
keys outweigh the sink are within 4 % of the same attention with probabilities that are not rounded. (Beside a large sink
probabilities are small, and HiFloat8 has few bits for them.) A probability that rounds to its other neighbour because a
score differs in its last bit moves a row a little, so no gate asks for all elements.
"""

import pytest
import torch
from test_cann_ops_transformer import D, LAYOUTS, MODES, VALUES, Call, attend, hif8

N_PROBLEM, PER_TEST = 300, 20
LENGTHS = (0, 1, 2, 5, 63, 100, 127, 128, 129, 200, 255, 256, 257, 300, 400)
HEADS = (1, 2, 3, 4, 8, 16, 16, 65, 127, 128)
BLOCKS = (1, 3, 16, 128, 1024)
WINDOWS = ((127, 0), (127, 0), (0, 0), (-1, 0), (-1, -1), (0, 5), (40, 3))
RATIOS = (1, 2, 3, 4, 4, 16, 128)


def pick(values):
    return values[torch.randint(len(values), ()).item()]


def some_list(tokens, k, n):
    """Mostly distinct positions; now and then repeats, entries past the end, nothing at all."""
    entry = torch.full((tokens, k), -1, dtype=torch.int32)
    for i in range(tokens):
        kind = torch.randint(8, ()).item()
        chosen = torch.randperm(n)[:k].int() if n else torch.empty(0, dtype=torch.int32)
        if kind == 0:
            continue
        if kind == 1 and n:
            chosen = torch.randint(n, (k,), dtype=torch.int32)
        if kind == 2 and len(chosen):
            chosen = torch.where(torch.rand(len(chosen)) < 0.1, n + 3, chosen).int()
        entry[i, : len(chosen)] = chosen
    return entry


def draw():
    mode, layout, heads, n_seq = pick(MODES), pick(LAYOUTS), pick(HEADS), pick((1, 1, 2, 3))
    heads = min(heads, 16) if n_seq > 1 else heads
    tokens = [pick((1, 1, 2, 4)) for _ in range(n_seq)]
    lengths = [pick(LENGTHS) for _ in range(n_seq)]
    spread = pick((5.0, 2.0, 1.0))
    descale = tuple(float(x) for x in torch.rand(3) * 2 + 0.1)
    # scores of a few units, as scaled attention has them
    scale = pick((0.5, 1.0, 2.0)) / (D**0.5 * (spread * 0.58) ** 2 * descale[0] * max(descale[1:])) * 8
    options = dict(layout=layout, block=(pick(BLOCKS), pick(BLOCKS)), descale=descale, scale=scale)
    window = pick(WINDOWS)
    ori_mask = pick((4, 4, 3, 0))
    options.update(ori_mask=ori_mask)
    if ori_mask == 4:
        options.update(left=window[0], right=window[1])
    if mode not in ("SWA", "ORI_SPARSE"):
        ratio = pick(RATIOS)
        cmp_lengths = [n // ratio for n in lengths] if pick((0, 1)) else [pick(LENGTHS) for _ in lengths]
        options.update(cmp=[hif8((n, D), spread) for n in cmp_lengths], ratio=ratio, cmp_mask=pick((0, 3, 3)))
        if ratio > 1 and pick((0, 1)):
            options.update(residual=[torch.randint(ratio, ()).item() for _ in lengths])
    if mode in ("CSA", "ORI_CMP_SPARSE"):
        k = pick((1, 40, 130, 260))
        options.update(cmp_list=[some_list(t, k, n) for t, n in zip(tokens, cmp_lengths)])
        if options["cmp_mask"] == 0 or pick((0, 1)):
            options.update(cmp_count=[torch.randint(k + 1, (t,), dtype=torch.int32) for t in tokens])
    if mode in ("ORI_SPARSE", "ORI_CMP_SPARSE"):
        k = pick((1, 64, 129))
        options.update(ori_list=[some_list(t, k, n) for t, n in zip(tokens, lengths)])
        if ori_mask == 0 or pick((0, 1)):
            options.update(ori_count=[torch.randint(k + 1, (t,), dtype=torch.int32) for t in tokens])
    if pick((0, 0, 1)):
        options.update(q_used=[torch.randint(t + 1, ()).item() for t in tokens])
    sinks = (torch.rand(heads) * 2 - 1) * pick((0.5, 0.5, 8.0, 40.0))
    q = [hif8((n, heads, D), spread) for n in tokens]
    ori = [hif8((n, D), spread) for n in lengths]
    return Call(q, ori, sinks=sinks, **options)


def exact(call, b, i):
    """Token i of sequence b with probabilities as they are, and which heads' keys outweigh the sink."""
    ori, cmp = call.visible(b, i)
    q = VALUES[call.q[b][i].long()]
    k = VALUES[call.ori[b][ori].long()] * call.descale[1]
    if call.cmp:
        k = torch.cat([k, VALUES[call.cmp[b][cmp].long()] * call.descale[2]])
    s = torch.cat([q @ k.T * (call.scale * call.descale[0]), call.sinks.double()[:, None]], dim=1)
    p = torch.softmax(s, 1)
    return p[:, :-1] @ k, p[:, :-1].max(dim=1).values > p[:, -1]


@pytest.mark.parametrize("first", range(0, N_PROBLEM, PER_TEST))
def test_sweep(first):
    torch.manual_seed(7000 + first)
    n_close = n_same = n_element = 0
    for number in range(first, first + PER_TEST):
        call = draw()
        out, lse = attend(call)
        wanted, wanted_lse = call.expected()
        close = element = 0
        for b, q in enumerate(call.q):
            if call.layout[0] == "BSND":
                got, my_lse = out[b, : len(q)], lse[b, 0, : len(q)]
            else:
                at = sum(map(len, call.q[:b]))
                got, my_lse = out[at : at + len(q)], lse[0, at : at + len(q)]
            error = (got.double() - wanted[b]).abs()
            close += (error <= 1e-4 + 2**-7 * wanted[b].abs()).sum().item()
            n_same += (got == wanted[b].to(torch.bfloat16)).sum().item()
            element += error.numel()
            gap = (my_lse.double() - wanted_lse[b]).abs()
            assert (gap <= 1e-4 + 1e-5 * wanted_lse[b].abs()).all(), f"problem {number}: lse is off by {gap.max()}"
            assert (error <= 10 * torch.maximum(got.double().abs(), wanted[b].abs()) + 1e-4).all()
            for i in range(call.used(b)):
                if any(map(len, call.visible(b, i))):
                    truth, heads = exact(call, b, i)
                    distance = (got[i].double() - truth)[heads].norm()
                    assert distance <= 0.04 * truth[heads].norm(), f"problem {number}, token {i}"
                else:
                    assert (got[i] == 0).all() and (my_lse[i] == 0).all(), f"problem {number}"
        assert close >= 0.995 * element, f"problem {number}: {element - close} of {element} elements are off"
        n_close += close
        n_element += element
    assert n_close >= 0.999 * n_element
    assert n_same >= 0.99 * n_element
