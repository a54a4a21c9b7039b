/*
 * test_atb_door.cpp - ATB's C++ interface: numbers, contexts, the life of an operation, and what the functions that
 * take aclTensors have no parameters for. What is computed is tested in C; here q = 0, so that answers are known: the
 * mean of the visible values, and the logarithm of their number.
 */
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "atb/atb_acl.h"

namespace {

using Param = atb::infer::MultiLatentAttentionParam;

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static_assert(sizeof(Param) == 64, "");
static_assert(atb::NO_ERROR == 0 && atb::ERROR_INVALID_PARAM == 1 && atb::ERROR_RT_FAIL == 4, "");
static_assert(atb::ERROR_INVALID_IN_TENSOR_NUM == 5 && atb::ERROR_INVALID_TENSOR_DIM == 8, "");
static_assert(atb::ERROR_INVALID_TENSOR_SIZE == 9 && atb::ERROR_INVALID_TENSOR_INI_MATCH == 13, "");
static_assert(atb::ERROR_INVALID_TENSOR_DIM_NUM == 16 && atb::ERROR_INVALID_OPERATION_ADDR == 24, "");
static_assert(atb::ERROR_OUT_OF_HOST_MEMORY == 27 && atb::ERROR_COPY_HOST_MEMORY_FAIL == 29, "");
static_assert(Param::MASK_TYPE_SWA_NORM == 4 && Param::CALC_TYPE_PREFILL == 4 && Param::NZCACHE == 3, "");
static_assert(Param::CALC_TYPE_SPEC_AND_RING == 3 && Param::BATCH_MASK == 1, "");
static_assert(atb::EXECUTE_LAUNCH == 2 && atb::GRAPH_LAUNCH_MODE == 1 && atb::MAX_DIM == 8, "");
static_assert(sizeof(Param::CacheMode) == 1 && sizeof(atb::Status) == 4, "");

/* float16 of a small number that is a multiple of 2^-10 */
uint16_t half(double number)
{
    int exponent = 0;
    double fraction = std::frexp(number, &exponent);
    return number == 0 ? 0 : static_cast<uint16_t>(((exponent + 14) << 10) + static_cast<int>(fraction * 2048) - 1024);
}

bool near(uint16_t got, double want)
{
    double value = got == 0 ? 0 : std::ldexp(1024 + (got & 0x3ff), (got >> 10 & 0x1f) - 25);
    return std::fabs(value - want) <= want / 1024;
}

/* ---- one decode call --------------------------------------------------------------------------------------------- */

/* T tokens of 8 heads over a cache of 4 blocks, whose row r holds r / 128 in all columns; sequence b has blocks b and
 * b + 1. */
struct Decode {
    static const int64_t H = 8;
    int64_t t, b;
    std::vector<uint16_t> q, rope, kv, kRope, out, lse;
    std::vector<int32_t> table, lens, qLens, use;
    aclTensor *tensor[8];

    Decode(std::vector<int32_t> contextLens, std::vector<int32_t> queryLens)
        : b(static_cast<int64_t>(contextLens.size())), lens(contextLens), qLens(queryLens)
    {
        t = 0;
        for (int32_t n : qLens) {
            t += n;
        }
        q.assign(t * H * 512, 0);
        rope.assign(t * H * 64, 0);
        kv.resize(4 * 128 * 512);
        kRope.assign(4 * 128 * 64, 0);
        out.assign(t * H * 512, 0xffff);
        lse.assign(t * H, 0xffff);
        use.assign(b, 1);
        for (size_t i = 0; i < kv.size(); i++) {
            kv[i] = half(static_cast<double>(i / 512) / 128);
        }
        for (int32_t i = 0; i < b; i++) {
            table.push_back(i % 3);
            table.push_back(i % 3 + 1);
        }
        tensor[0] = make(q.data(), {t, H, 512});
        tensor[1] = make(rope.data(), {t, H, 64});
        tensor[2] = make(kv.data(), {4, 128, 1, 512});
        tensor[3] = make(kRope.data(), {4, 128, 1, 64});
        tensor[4] = make(table.data(), {b, 2}, ACL_INT32);
        tensor[5] = make(lens.data(), {b}, ACL_INT32);
        tensor[6] = make(out.data(), {t, H, 512});
        tensor[7] = make(lse.data(), {t, H, 1});
    }

    Decode(const Decode &) = delete;
    Decode &operator=(const Decode &) = delete;

    ~Decode()
    {
        for (aclTensor *each : tensor) {
            aclDestroyTensor(each);
        }
    }

    static aclTensor *make(void *data, std::vector<int64_t> dims, aclDataType type = ACL_FLOAT16)
    {
        return aclCreateTensor(dims.data(), dims.size(), type, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, data);
    }

    atb::Status getWorkspaceSize(uint64_t *size, atb::Operation **op, atb::Context *context, float scale = 1,
                                 int maskType = 0, int calcType = 2)
    {
        return AtbMLAGetWorkspaceSize(tensor[0], tensor[1], tensor[2], tensor[3], tensor[4], tensor[5], tensor[0],
                                      nullptr, nullptr, nullptr, H, scale, 1, maskType, calcType, 1, tensor[6],
                                      tensor[7], size, op, context);
    }

    /* The mean of the first n values of the sequence. */
    double mean(int64_t sequence, int64_t n) const
    {
        return static_cast<double>(sequence % 3) + static_cast<double>(n - 1) / 256;
    }

    void expect(int64_t token, int64_t sequence, int64_t n) const
    {
        for (int64_t i = token * H * 512; i < (token + 1) * H * 512; i++) {
            assert_true(near(out[i], mean(sequence, n)));
        }
        for (int64_t i = token * H; i < (token + 1) * H; i++) {
            assert_true(near(lse[i], std::log(static_cast<double>(n))));
        }
    }
};

struct Session {
    aclrtStream stream = nullptr;
    atb::Context *context = nullptr;
    Session()
    {
        assert_int_equal(aclrtCreateStream(&stream), 0);
        assert_int_equal(atb::CreateContext(&context), 0);
        assert_int_equal(context->SetExecuteStream(stream), 0);
    }
    ~Session()
    {
        aclrtDestroyStream(stream);
        atb::DestroyContext(context);
    }
};

bool sentenceHas(const char *words)
{
    return std::strstr(aclGetRecentErrMsg(), words) != nullptr;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

void testContexts(void **)
{
    atb::Context *context = nullptr;
    auto alloc = [](size_t n) { return ::operator new(n); };
    auto dealloc = [](void *p) { ::operator delete(p); };
    assert_int_equal(atb::CreateContext(nullptr), 1);
    assert_int_equal(atb::CreateContext(&context, alloc, nullptr), 1);
    assert_null(context);
    assert_int_equal(atb::CreateContext(&context, nullptr, dealloc), 1);
    assert_int_equal(atb::CreateContext(nullptr, alloc, dealloc), 1);
    assert_int_equal(atb::CreateContext(&context, alloc, dealloc), 0);
    assert_int_equal(atb::DestroyContext(context), 0);
    const uint32_t numbers[][3] = {{127, 32, 1},   {128, 31, 1}, {1025, 32, 1},
                                   {128, 1025, 1}, {128, 32, 0}, {1024, 1024, 0}};
    for (auto &n : numbers) {
        assert_int_equal(atb::CreateContext(&context, n[0], n[1]), n[2]);
        assert_true((context == nullptr) == (n[2] == 1));
        assert_int_equal(atb::DestroyContext(context), 0);
    }
    assert_int_equal(atb::CreateContext(nullptr, 128, 32), 1);
    assert_int_equal(atb::DestroyOperation(nullptr), 0);

    assert_int_equal(atb::CreateContext(&context), 0);
    assert_null(context->GetExecuteStream());
    int a, b;
    assert_int_equal(context->SetExecuteStreams({}), 1);
    assert_int_equal(context->SetExecuteStreams({&a, &b}), 0);
    assert_ptr_equal(context->GetExecuteStream(), &a);
    assert_int_equal(context->GetExecuteStreams().size(), 2);
    assert_int_equal(context->SetExecuteStream(&b), 0);
    assert_ptr_equal(context->GetExecuteStream(), &b);
    assert_false(context->GetAsyncTilingCopyStatus());
    assert_int_equal(context->SetAsyncTilingCopyStatus(true), 0);
    assert_true(context->GetAsyncTilingCopyStatus());
    assert_int_equal(context->SetLaunchMode(atb::GRAPH_LAUNCH_MODE), 0);
    assert_int_equal(context->GetLaunchMode(), atb::GRAPH_LAUNCH_MODE);
    assert_int_equal(context->SetExecuteType(atb::EXECUTE_PRELAUNCH), 0);
    std::thread([&] {
        assert_int_equal(context->GetExecuteType(), atb::EXECUTE_NORMAL); /* of each thread its own */
    }).join();
    assert_int_equal(context->GetExecuteType(), atb::EXECUTE_PRELAUNCH);
    assert_int_equal(context->SetExecuteType(atb::EXECUTE_NORMAL), 0);
    atb::DestroyContext(context);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

void testLife(void **)
{
    Session session;
    atb::Context *context = session.context, *another = nullptr;
    atb::Operation *op = nullptr;
    uint64_t size = 7;
    std::vector<char> workspace;
    {
        Decode call({5, 200}, {1, 1});
        assert_int_equal(call.getWorkspaceSize(&size, &op, context), 0);
        assert_non_null(op);
        assert_int_equal(size % 512, 0);
        call.lens.assign(2, -1); /* by value */
        workspace.resize(size);
        for (int repeat = 0; repeat < 2; repeat++) {
            call.out.assign(call.out.size(), 0xffff);
            assert_int_equal(AtbMLA(workspace.data(), size, op, context), 0);
            assert_int_equal(aclrtSynchronizeStream(session.stream), 0);
            call.expect(0, 0, 5);
            call.expect(1, 1, 200);
        }
        /* what Execute refuses */
        assert_int_equal(AtbMLA(workspace.data(), size, nullptr, context), 24);
        assert_int_equal(AtbMLAPreFill(workspace.data(), size, nullptr, context), 24);
        assert_int_equal(AtbMLA(workspace.data(), size, op, nullptr), 1);
        assert_int_equal(AtbMLA(workspace.data(), size - 1, op, context), 1);
        assert_int_equal(AtbMLA(nullptr, size, op, context), 1);
        assert_int_equal(atb::CreateContext(&another), 0);
        assert_int_equal(AtbMLA(workspace.data(), size, op, another), 1);
        assert_true(sentenceHas("no execute stream"));
        another->SetExecuteStream(session.stream);
        assert_int_equal(AtbMLA(workspace.data(), size, op, another), 1);
        assert_true(sentenceHas("is not the one"));
        int no_stream;
        context->SetExecuteStream(&no_stream);
        assert_int_equal(AtbMLA(workspace.data(), size, op, context), 1);
        context->SetExecuteStream(session.stream);
        context->SetExecuteType(atb::EXECUTE_PRELAUNCH);
        call.out.assign(call.out.size(), 0xffff);
        assert_int_equal(AtbMLA(workspace.data(), size, op, context), 0);
        assert_int_equal(call.out[0], 0xffff);
        context->SetExecuteType(atb::EXECUTE_LAUNCH);
        assert_int_equal(AtbMLA(workspace.data(), size, op, context), 0);
        call.expect(1, 1, 200);
        context->SetExecuteType(atb::EXECUTE_NORMAL);
    }
    {
        Decode call({3, 0, 77}, {1, 1, 1}); /* the op again, with a scale that it does not take */
        atb::Operation *before = op;
        assert_int_equal(call.getWorkspaceSize(&size, &op, context, 0.5f), 0);
        assert_ptr_equal(op, before);
        workspace.resize(size);
        assert_int_equal(AtbMLA(workspace.data(), size, op, context), 0);
        call.expect(0, 0, 3);
        call.expect(2, 2, 77);
        assert_int_equal(call.getWorkspaceSize(&size, &op, context, 1, 0, 0), 5);
        assert_true(sentenceHas("6 input and 1 output tensors are given"));
        assert_int_equal(AtbMLA(workspace.data(), size, op, context), 1);
        assert_int_equal(call.getWorkspaceSize(&size, nullptr, context), 24);
        for (int refusal = 0; refusal < 3; refusal++) { /* each forgets what was set up before */
            assert_int_equal(call.getWorkspaceSize(&size, &op, context), 0);
            assert_int_equal(AtbMLA(workspace.data(), size, op, context), 0);
            if (refusal < 2) {
                assert_int_equal(call.getWorkspaceSize(refusal == 0 ? nullptr : &size, &op,
                                                       refusal == 0 ? context : nullptr),
                                 1);
            } else {
                assert_int_equal(op->Setup(atb::VariantPack(), size, nullptr), 1);
            }
            assert_int_equal(AtbMLA(workspace.data(), UINT64_MAX, op, context), 1);
            assert_true(sentenceHas("has not been set up"));
        }
        atb::Operation *none = nullptr;
        assert_int_equal(call.getWorkspaceSize(&size, &none, context, 2.0f), 1);
        assert_null(none);
        assert_true(sentenceHas("qkScale = 2"));
        assert_int_equal(call.getWorkspaceSize(&size, &none, nullptr), 1);
        assert_non_null(none); /* created before anything else was looked at */
        assert_int_equal(AtbMLA(workspace.data(), size, none, context), 1);
        atb::DestroyOperation(none);
    }
    atb::DestroyOperation(op);
    atb::DestroyContext(another);
}

/* The call says so, and so does the stream. */
void testBadBlockId(void **)
{
    Session session;
    Decode call({5, 200}, {1, 1});
    atb::Operation *op = nullptr;
    uint64_t size = 0;
    call.table[3] = 4;
    assert_int_equal(call.getWorkspaceSize(&size, &op, session.context), 0);
    std::vector<char> workspace(size);
    assert_int_equal(AtbMLA(workspace.data(), size, op, session.context), 4);
    assert_true(sentenceHas("blockTables[1][1] = 4"));
    assert_int_equal(aclrtSynchronizeStream(session.stream), ACL_ERROR_RT_AICORE_EXCEPTION);
    assert_true(sentenceHas("blockTables[1][1] = 4"));
    call.table[3] = 2;
    assert_int_equal(AtbMLA(workspace.data(), size, op, session.context), 0);
    assert_int_equal(aclrtSynchronizeStream(session.stream), 0);
    call.expect(1, 1, 200);
    atb::DestroyOperation(op);
}

/* Tensors that are not contiguous, begin behind their address, are destroyed, or have too many dims. */
void testTensors(void **)
{
    Session session;
    Decode call({5}, {1});
    uint64_t size = 0;
    const int64_t dims[] = {1, 8, 512, 1, 1, 1, 1, 1, 1}, strides[] = {8192, 1024, 1};
    struct {
        aclTensor *tensor;
        atb::Status code;
    } rows[] = {
        {aclCreateTensor(dims, 3, ACL_FLOAT16, strides, 0, ACL_FORMAT_ND, nullptr, 0, call.q.data()), 8},
        {aclCreateTensor(dims, 3, ACL_FLOAT16, nullptr, 8, ACL_FORMAT_ND, nullptr, 0, call.q.data()), 8},
        {aclCreateTensor(dims, 9, ACL_FLOAT16, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, call.q.data()), 8},
        {aclCreateTensor(dims, 4, ACL_FLOAT16, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, call.q.data()), 16},
        {aclCreateTensor(dims, 3, ACL_FLOAT16, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr), 14},
        {aclCreateTensor(dims, 3, ACL_INT4, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, call.q.data()), 9},
    };
    for (auto &row : rows) {
        atb::Operation *op = nullptr;
        std::swap(row.tensor, call.tensor[0]);
        assert_int_equal(call.getWorkspaceSize(&size, &op, session.context), row.code);
        std::swap(row.tensor, call.tensor[0]);
        atb::DestroyOperation(op);
        aclDestroyTensor(row.tensor);
    }
    atb::Operation *op = nullptr;
    std::swap(rows[0].tensor, call.tensor[0]); /* a handle of something that is no more */
    assert_int_equal(call.getWorkspaceSize(&size, &op, session.context), 8);
    std::swap(rows[0].tensor, call.tensor[0]);
    atb::DestroyOperation(op);
}

/* ---- operations with a VariantPack ------------------------------------------------------------------------------- */

atb::Tensor packed(void *data, std::vector<int64_t> dims, aclDataType type = ACL_FLOAT16, bool host = false)
{
    atb::Tensor t;
    t.desc.dtype = type;
    t.desc.format = ACL_FORMAT_ND;
    t.desc.shape.dimNum = dims.size();
    std::copy(dims.begin(), dims.end(), t.desc.shape.dims);
    (host ? t.hostData : t.deviceData) = data;
    return t;
}

/* CALC_TYPE_SPEC_AND_RING with H = 8: path A, no mask, so every token sees all keys, with either status. */
void testVariantPack(void **)
{
    Session session;
    Decode call({5, 200}, {2, 1});
    Param param;
    param.headNum = 8;
    param.kvHeadNum = 1;
    param.cacheMode = Param::KROPE_CTKV;
    param.calcType = Param::CALC_TYPE_SPEC_AND_RING;
    param.maskUseStatusType = Param::BATCH_MASK;
    atb::Operation *op = nullptr;
    assert_int_equal(atb::CreateOperation(param, &op), 0);
    assert_int_equal(op->GetInputNum(), 8);
    assert_int_equal(op->GetOutputNum(), 2);
    assert_true(op->GetName() == "MultiLatentAttentionOperation");
    int32_t garbage[2] = {-7, -7};
    atb::VariantPack pack;
    pack.inTensors = {packed(call.q.data(), {3, 8, 512}),
                      packed(call.rope.data(), {3, 8, 64}),
                      packed(call.kv.data(), {4, 128, 1, 512}),
                      packed(call.kRope.data(), {4, 128, 1, 64}),
                      packed(call.table.data(), {2, 2}, ACL_INT32),
                      packed(call.lens.data(), {2}, ACL_INT32, true),
                      packed(call.qLens.data(), {2}, ACL_INT32, true),
                      packed(call.use.data(), {2}, ACL_INT32, true)};
    pack.inTensors[5].deviceData = garbage; /* of lengths the host's counts */
    pack.outTensors.push_back(packed(nullptr, {3, 8, 512}));
    pack.outTensors.push_back(packed(call.lse.data(), {3, 8, 1}));

    atb::SVector<atb::TensorDesc> in, out;
    for (auto &t : pack.inTensors) {
        in.push_back(t.desc);
    }
    assert_int_equal(op->InferShape(in, out), 0);
    assert_int_equal(out.size(), 2);
    assert_int_equal(out[0].shape.dims[2], 512);
    assert_int_equal(out[1].shape.dims[2], 1);
    assert_int_equal(out[1].dtype, ACL_FLOAT16);

    uint64_t size = 0;
    assert_int_equal(op->Setup(pack, size, nullptr), 1);
    assert_int_equal(op->Setup(pack, size, session.context), 0); /* the output has no address yet */
    std::vector<uint8_t> workspace(size);
    assert_int_equal(op->Execute(pack, workspace.data(), size, session.context), 14);
    pack.outTensors[0].deviceData = call.out.data();
    assert_int_equal(op->Execute(pack, workspace.data(), size, session.context), 0);
    call.expect(0, 0, 5);
    call.expect(1, 0, 5);
    call.expect(2, 1, 200);
    pack.inTensors[5].hostData = nullptr;
    assert_int_equal(op->Setup(pack, size, session.context), 1);
    pack.inTensors.resize(7);
    assert_int_equal(op->Setup(pack, size, session.context), 5);
    pack.inTensors.resize(40);
    assert_int_equal(op->Setup(pack, size, session.context), 5);
    assert_int_equal(op->Execute(pack, workspace.data(), size, session.context), 5);
    atb::DestroyOperation(op);
}

void testParameters(void **)
{
    Param good;
    good.headNum = 16;
    good.kvHeadNum = 1;
    good.cacheMode = Param::NZCACHE;
    struct {
        atb::Status code;
        void (*change)(Param &);
    } rows[] = {
        {0, [](Param &) {}},
        {1, [](Param &p) { p.rsv[31] = 1; }},
        {1, [](Param &p) { p.cacheMode = Param::KVCACHE; }},
        {1, [](Param &p) { p.headNum = 20; }},
        {1, [](Param &p) { p.maskUseStatusType = Param::BATCH_MASK; }},
        {1,
         [](Param &p) {
             p.calcType = Param::CALC_TYPE_SPEC_AND_RING;
             p.maskUseStatusType = Param::MASK_USE_STATUS_MAX;
         }},
        {0,
         [](Param &p) {
             p.calcType = Param::CALC_TYPE_SPEC_AND_RING;
             p.maskUseStatusType = Param::BATCH_MASK;
         }},
        {1,
         [](Param &p) {
             p.maskType = Param::MASK_TYPE_SWA_NORM;
             p.calcType = Param::CALC_TYPE_SPEC;
         }},
        {1, [](Param &p) { p.calcType = Param::CALC_TYPE_PREFILL; }},
    };
    for (auto &row : rows) {
        Param param = good;
        atb::Operation *op = nullptr;
        row.change(param);
        assert_int_equal(atb::CreateOperation(param, &op), row.code);
        assert_true((op == nullptr) == (row.code != 0));
        atb::DestroyOperation(op);
    }
    assert_int_equal(atb::CreateOperation(good, nullptr), 1);
}

/* Prefill with the built-in causal mask and with a window, which only this way reaches. Values: the row's number. */
void testPrefillOperations(void **)
{
    Session session;
    const int64_t h = 2, n = 3, kv = 5;
    std::vector<uint16_t> q(n * h * 128, 0), rope(n * h * 64, 0), k(kv * h * 128, 0), kRope(kv * h * 64, 0),
        v(kv * h * 128), out(n * h * 128), mask(kv * kv, 0);
    for (size_t i = 0; i < v.size(); i++) {
        v[i] = half(static_cast<double>(i / (h * 128)));
    }
    for (size_t i = 0; i < mask.size(); i++) {
        bool hidden = i % kv > i / kv || i % kv + 2 <= i / kv; /* two keys each */
        mask[i] = hidden ? 0xf0e2 : 0;                         /* -10000 */
    }
    for (int window = 0; window <= 2; window += 2) {
        std::vector<int32_t> qLens(1, static_cast<int32_t>(n)), kvLens(1, static_cast<int32_t>(window == 0 ? kv : n));
        Param param;
        param.headNum = param.kvHeadNum = h;
        param.cacheMode = Param::KROPE_CTKV;
        param.calcType = Param::CALC_TYPE_PREFILL;
        param.maskType = window == 0 ? Param::MASK_TYPE_CAUSAL_MASK : Param::MASK_TYPE_SWA_NORM;
        param.windowSize = static_cast<uint32_t>(window);
        atb::Operation *op = nullptr;
        assert_int_equal(atb::CreateOperation(param, &op), 0);
        atb::VariantPack pack;
        pack.inTensors = {packed(q.data(), {n, h * 128}),
                          packed(rope.data(), {n, h * 64}),
                          packed(k.data(), {1, kv, h * 128}),
                          packed(kRope.data(), {1, kv, h * 64}),
                          packed(v.data(), {1, kv, h * 128}),
                          packed(qLens.data(), {1}, ACL_INT32, true),
                          packed(kvLens.data(), {1}, ACL_INT32, true)};
        if (window != 0) {
            pack.inTensors.push_back(packed(mask.data(), {kv, kv}));
        }
        pack.outTensors = {packed(out.data(), {n, h * 128})};
        assert_int_equal(op->GetInputNum(), pack.inTensors.size());
        uint64_t size = 0;
        assert_int_equal(op->Setup(pack, size, session.context), 0);
        std::vector<uint8_t> workspace(size);
        assert_int_equal(op->Execute(pack, workspace.data(), size, session.context), 0);
        const double causal[] = {1, 1.5, 2}, sliding[] = {0, 0.5, 1.5};
        for (int64_t i = 0; i < n * h * 128; i++) {
            const int64_t token = i / (h * 128);
            double want = window == 0 ? causal[token] : sliding[token];
            if (!near(out[i], want)) {
                fail_msg("window %d: out[%lld] = 0x%x instead of %g", window, static_cast<long long>(i), out[i], want);
            }
        }
        atb::DestroyOperation(op);
    }
}

/* The order in which clients take things down: buffers last, tensors never. */
void testTearDown(void **)
{
    assert_int_equal(aclInit(nullptr), 0);
    aclrtStream stream = nullptr;
    atb::Context *context = nullptr;
    atb::Operation *op = nullptr;
    void *device = nullptr, *host = nullptr;
    assert_int_equal(aclrtCreateStream(&stream), 0);
    assert_int_equal(atb::CreateContext(&context), 0);
    assert_int_equal(context->SetExecuteStream(stream), 0);
    assert_int_equal(aclrtMalloc(&device, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_int_equal(aclrtMallocHost(&host, 64), 0);
    Decode call({5}, {1});
    uint64_t size = 0;
    assert_int_equal(call.getWorkspaceSize(&size, &op, context), 0);
    assert_int_equal(atb::DestroyOperation(op), 0);
    assert_int_equal(aclrtDestroyStream(stream), 0);
    assert_int_equal(atb::DestroyContext(context), 0);
    assert_int_equal(aclFinalize(), 0);
    assert_int_equal(aclrtFreeHost(host), 0);
    assert_int_equal(aclrtFree(device), 0);
}

} // namespace

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(testContexts),          cmocka_unit_test(testLife),        cmocka_unit_test(testBadBlockId),
        cmocka_unit_test(testTensors),           cmocka_unit_test(testVariantPack), cmocka_unit_test(testParameters),
        cmocka_unit_test(testPrefillOperations), cmocka_unit_test(testTearDown),
    };
    return cmocka_run_group_tests_name("ATB: the C++ interface", tests, nullptr, nullptr);
}
