/*
 * atb_client.cpp - a program as people write them for ATB's AtbMLA and AtbMLAPreFill, with nothing of libmla in it but
 * that it knows the answer: with q = 0 all visible keys weigh the same, so the output is the mean of the visible values
 * and lse is the logarithm of their number.
 */
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "acl/acl.h"
#include "atb/atb_acl.h"
#include "atb/utils/config.h"
#include "atb/utils/log.h"
#include "atb/utils/singleton.h"

namespace {

int failures = 0;

void expect(bool holds, const char *what)
{
    if (!holds) {
        std::printf("not as expected: %s (%s)\n", what, aclGetRecentErrMsg());
        failures++;
    }
}

std::vector<void *> deviceBuffers, hostBuffers;

aclTensor *deviceTensor(const std::vector<int64_t> &dims, aclDataType type, aclFormat format, void **data)
{
    size_t bytes = aclDataTypeSize(type);
    for (int64_t dim : dims) {
        bytes *= static_cast<size_t>(dim);
    }
    expect(aclrtMalloc(data, bytes, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS, "aclrtMalloc");
    deviceBuffers.push_back(*data);
    return aclCreateTensor(dims.data(), dims.size(), type, nullptr, 0, format, nullptr, 0, *data);
}

aclTensor *hostTensor(const std::vector<int32_t> &numbers)
{
    void *data = nullptr;
    expect(aclrtMallocHost(&data, numbers.size() * sizeof(int32_t)) == ACL_SUCCESS, "aclrtMallocHost");
    hostBuffers.push_back(data);
    std::memcpy(data, numbers.data(), numbers.size() * sizeof(int32_t));
    int64_t dim = static_cast<int64_t>(numbers.size());
    return aclCreateTensor(&dim, 1, ACL_INT32, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, data);
}

/* float16 of a number that is one of 0, 1, 2, ... 2047 */
uint16_t half(int number)
{
    int exponent = 0;
    while (number >> (exponent + 1) != 0) {
        exponent++;
    }
    return number == 0 ? 0 : static_cast<uint16_t>((exponent + 15) << 10 | ((number << (10 - exponent)) & 0x3ff));
}

double number(uint16_t half)
{
    double fraction = 1024 + (half & 0x3ff);
    return half == 0 ? 0 : (half & 0x8000 ? -1 : 1) * std::ldexp(fraction, (half >> 10 & 0x1f) - 25);
}

/* Ring decode: B 3, one token each, contexts 5, 130 and 0 of blocks 3, {1, 0}, -. */
void decode(atb::Context *context, aclrtStream stream)
{
    const int64_t b = 3, h = 8, blocks = 4, maxBlocks = 2;
    void *kv, *table, *out, *lse, *unused;
    aclTensor *qNope = deviceTensor({b, h, 512}, ACL_FLOAT16, ACL_FORMAT_ND, &unused);
    aclTensor *qRope = deviceTensor({b, h, 64}, ACL_FLOAT16, ACL_FORMAT_ND, &unused);
    aclTensor *ctKV = deviceTensor({blocks, 128, 1, 512}, ACL_FLOAT16, ACL_FORMAT_ND, &kv);
    aclTensor *kRope = deviceTensor({blocks, 128, 1, 64}, ACL_FLOAT16, ACL_FORMAT_ND, &unused);
    aclTensor *blockTables = deviceTensor({b, maxBlocks}, ACL_INT32, ACL_FORMAT_ND, &table);
    aclTensor *attenOut = deviceTensor({b, h, 512}, ACL_FLOAT16, ACL_FORMAT_ND, &out);
    aclTensor *lseTensor = deviceTensor({b, h, 1}, ACL_FLOAT16, ACL_FORMAT_ND, &lse);
    aclTensor *contextLens = hostTensor({5, 130, 0});
    const int32_t pages[] = {3, -1, 1, 0, -1, -1};
    expect(aclrtMemcpy(table, sizeof pages, pages, sizeof pages, ACL_MEMCPY_HOST_TO_DEVICE) == ACL_SUCCESS, "copy");
    std::vector<uint16_t> rows(blocks * 128 * 512);
    for (size_t i = 0; i < rows.size(); i++) {
        rows[i] = half(static_cast<int>(i / 512)); /* the number of the row */
    }
    expect(aclrtMemcpy(kv, rows.size() * 2, rows.data(), rows.size() * 2, ACL_MEMCPY_HOST_TO_DEVICE) == 0, "copy");

    op::Shape shape = ctKV->GetViewShape();
    expect(shape.GetDimNum() == 4 && shape.GetDim(0) == blocks && shape.GetDim(3) == 512, "GetViewShape");

    atb::Operation *op = nullptr;
    uint64_t workspaceSize = 1;
    atb::Status status =
        AtbMLAGetWorkspaceSize(qNope, qRope, ctKV, kRope, blockTables, contextLens, nullptr, nullptr, nullptr, nullptr,
                               h, 1.0f / 24, 1, 0, 2, 1, attenOut, lseTensor, &workspaceSize, &op, context);
    expect(status == atb::NO_ERROR && op != nullptr, "AtbMLAGetWorkspaceSize");
    expect(workspaceSize % 512 == 0, "a multiple of 512");
    std::memset(hostBuffers.back(), 0x7f, 3 * sizeof(int32_t)); /* lengths were taken by value */
    void *workspace = nullptr;
    if (workspaceSize > 0) {
        expect(aclrtMalloc(&workspace, workspaceSize, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS, "workspace");
        deviceBuffers.push_back(workspace);
    }
    for (int repeat = 0; repeat < 2; repeat++) {
        expect(AtbMLA(workspace, workspaceSize, op, context) == atb::NO_ERROR, "AtbMLA");
        expect(aclrtSynchronizeStream(stream) == ACL_SUCCESS, "aclrtSynchronizeStream");
    }
    std::vector<uint16_t> result(b * h * 512), logs(b * h);
    expect(aclrtMemcpy(result.data(), result.size() * 2, out, result.size() * 2, ACL_MEMCPY_DEVICE_TO_HOST) == 0,
           "copy");
    expect(aclrtMemcpy(logs.data(), logs.size() * 2, lse, logs.size() * 2, ACL_MEMCPY_DEVICE_TO_HOST) == 0, "copy");
    /* rows 384 .. 388; rows 128 .. 255, 0 and 1 */
    const double mean[] = {386, (128 * 191.5 + 1) / 130, 0}, logOf[] = {std::log(5.0), std::log(130.0), 0};
    for (int64_t i = 0; i < b; i++) {
        for (int64_t k = i * h * 512; k < (i + 1) * h * 512; k++) {
            expect(std::fabs(number(result[k]) - mean[i]) <= mean[i] / 2048, "attenOut");
        }
        for (int64_t k = i * h; k < (i + 1) * h; k++) {
            expect(i == 2 ? logs[k] == 0xfc00 : std::fabs(number(logs[k]) - logOf[i]) <= logOf[i] / 2048, "lse");
        }
    }
    expect(AtbMLAGetWorkspaceSize(qNope, qRope, nullptr, kRope, blockTables, contextLens, nullptr, nullptr, nullptr,
                                  nullptr, h, 1.0f / 24, 1, 0, 2, 1, attenOut, lseTensor, &workspaceSize, &op,
                                  context) == atb::ERROR_INVALID_TENSOR_DIM,
           "a missing cache is refused");
    expect(std::strstr(aclGetRecentErrMsg(), "ctKV") != nullptr, "in a sentence that names it");
    expect(AtbMLA(workspace, workspaceSize, op, context) == atb::ERROR_INVALID_PARAM, "and nothing can be run then");
    expect(atb::DestroyOperation(op) == atb::NO_ERROR, "DestroyOperation");
}

/* Two sequences of 3 and 2 tokens, causal by the template; room for 6 tokens each. */
void prefill(atb::Context *context, aclrtStream stream)
{
    const int64_t t = 8, h = 2, b = 2, s = 6;
    void *values, *template_, *out, *unused;
    aclTensor *q = deviceTensor({t, h * 128}, ACL_FLOAT16, ACL_FORMAT_ND, &unused);
    aclTensor *qRope = deviceTensor({t, h * 64}, ACL_FLOAT16, ACL_FORMAT_ND, &unused);
    aclTensor *k = deviceTensor({b, s, h * 128}, ACL_FLOAT16, ACL_FORMAT_ND, &unused);
    aclTensor *kRope = deviceTensor({b, s, h * 64}, ACL_FLOAT16, ACL_FORMAT_ND, &unused);
    aclTensor *v = deviceTensor({b, s, h * 128}, ACL_FLOAT16, ACL_FORMAT_ND, &values);
    aclTensor *mask = deviceTensor({512, 512}, ACL_FLOAT16, ACL_FORMAT_ND, &template_);
    aclTensor *attenOut = deviceTensor({t, h * 128}, ACL_FLOAT16, ACL_FORMAT_ND, &out);
    aclTensor *qSeqLen = hostTensor({3, 2}), *kvSeqLen = hostTensor({3, 2});
    std::vector<uint16_t> rows(b * s * h * 128), hidden(512 * 512);
    for (size_t i = 0; i < rows.size(); i++) {
        rows[i] = half(static_cast<int>(i / (h * 128) * 2 + i / 128 % 2)); /* twice the row, plus the head */
    }
    for (size_t i = 0; i < hidden.size(); i++) {
        hidden[i] = i % 512 > i / 512 ? 0xf0e2 : 0; /* -10000 */
    }
    expect(aclrtMemcpy(values, rows.size() * 2, rows.data(), rows.size() * 2, ACL_MEMCPY_HOST_TO_DEVICE) == 0, "copy");
    expect(aclrtMemcpy(template_, hidden.size() * 2, hidden.data(), hidden.size() * 2, ACL_MEMCPY_HOST_TO_DEVICE) == 0,
           "copy");
    atb::Operation *op = nullptr;
    uint64_t workspaceSize = 0;
    expect(AtbMLAPreFillGetWorkspaceSize(q, qRope, k, kRope, v, qSeqLen, kvSeqLen, mask, h, 1.0f, h, 2, 1, attenOut,
                                         &workspaceSize, &op, context) == atb::NO_ERROR,
           "AtbMLAPreFillGetWorkspaceSize");
    void *workspace = nullptr;
    expect(aclrtMalloc(&workspace, workspaceSize + 1, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS, "workspace");
    deviceBuffers.push_back(workspace);
    expect(AtbMLAPreFill(workspace, workspaceSize, op, context) == atb::NO_ERROR, "AtbMLAPreFill");
    expect(aclrtSynchronizeStream(stream) == ACL_SUCCESS, "aclrtSynchronizeStream");
    std::vector<uint16_t> result(t * h * 128);
    expect(aclrtMemcpy(result.data(), result.size() * 2, out, result.size() * 2, ACL_MEMCPY_DEVICE_TO_HOST) == 0,
           "copy");
    const double mean[] = {0, 1, 2, 12, 13, 0, 0, 0}; /* rows 0..2 and 6..7; the last three tokens are nobody's */
    for (size_t i = 0; i < result.size(); i++) {
        size_t token = i / (h * 128), head = i / 128 % 2;
        expect(number(result[i]) == (token < 5 ? mean[token] + static_cast<double>(head) : 0), "attenOut of prefill");
    }
    expect(atb::DestroyOperation(op) == atb::NO_ERROR, "DestroyOperation");
}

} // namespace

int main()
{
    if (!atb::GetSingleton<atb::Config>().Is910B()) {
        return 1;
    }
    ATB_LOG(ERROR) << "not printed" << 1;
    expect(aclInit(nullptr) == ACL_ERROR_NONE, "aclInit");
    expect(aclrtSetDevice(0) == ACL_ERROR_NONE, "aclrtSetDevice");
    aclrtStream stream = nullptr;
    expect(aclrtCreateStream(&stream) == ACL_ERROR_NONE, "aclrtCreateStream");
    atb::Context *context = nullptr;
    expect(atb::CreateContext(&context) == atb::NO_ERROR, "CreateContext");
    expect(context->SetExecuteStream(stream) == atb::NO_ERROR, "SetExecuteStream");
    decode(context, stream);
    prefill(context, stream);
    expect(aclrtDestroyStream(stream) == ACL_SUCCESS, "aclrtDestroyStream");
    expect(atb::DestroyContext(context) == atb::NO_ERROR, "DestroyContext");
    expect(aclFinalize() == ACL_SUCCESS, "aclFinalize");
    for (void *buffer : hostBuffers) { /* after aclFinalize, and the tensors never, as clients do */
        expect(aclrtFreeHost(buffer) == ACL_SUCCESS, "aclrtFreeHost");
    }
    for (void *buffer : deviceBuffers) {
        expect(aclrtFree(buffer) == ACL_SUCCESS, "aclrtFree");
    }
    std::printf("%d expectations failed\n", failures);
    return failures != 0;
}
