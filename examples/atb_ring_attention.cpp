/*
 * atb_ring_attention.cpp - ring attention with ATB's AtbMLA: the keys of three requests lie on four devices, each
 * device attends to its own, and the four results are joined into the one over all keys.
 *
 *     c++ -std=c++17 examples/atb_ring_attention.cpp $(pkg-config --cflags --libs mla-compat mla) -o atb_ring_attention
 *     ./atb_ring_attention tests/data/deepseek_decode.safetensors
 *
 * The queries and the latent cache are those of a DeepSeek-V3 layer, recorded in the file (docs/capture-format.md). The
 * devices are four buffers here; what they exchange is what CALC_TYPE_RING returns for each token and head: the locally
 * normalised output, and lse, the logarithm of its weight. A device that has no key of a request says lse = -inf.
 *
 * Caches are FRACTAL_NZ, because in that cache mode libmla also writes lse in fp32: the contract's 16 bits are good for
 * two or three digits of a logarithm, and so of the weights. Everything of libmla's own here is mla_*.
 *
 * Joined and whole may differ by the roundings of outputs to bfloat16, each of at most 2^-8 of the number: those of the
 * four parts, in the proportion of their weights, of the join, and of the whole. The program returns 1 if they differ
 * by more.
 */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "atb/atb_acl.h"
#include "mla/mla.h"
#include "mla/mla_formats.h"

namespace {

const int64_t NOPE = 512, ROPE = 64, WIDTH = NOPE + ROPE, BLOCK = 128, DEVICES = 4;

void check(int status, const char *what)
{
    if (status != 0) {
        const char *said = aclGetRecentErrMsg(); /* empty after a call of mla_*, which has its own */
        said = said != nullptr && said[0] != '\0' ? said : mla_last_error();
        std::printf("%s gives %d: %s\n", what, status, said);
        std::exit(1);
    }
}

#define CHECK(call) check((call), #call)

float number(uint16_t bf16)
{
    uint32_t bits = static_cast<uint32_t>(bf16) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- the recording ----------------------------------------------------------------------------------------------- */

/* One that this repository made, so its header is taken at its word. */
class Capture {
  public:
    explicit Capture(const char *path)
    {
        std::ifstream file(path, std::ios::binary);
        std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        uint64_t headerBytes = 0;
        if (bytes.size() > sizeof headerBytes) {
            std::memcpy(&headerBytes, bytes.data(), sizeof headerBytes);
        }
        if (headerBytes == 0 || headerBytes > bytes.size() - sizeof headerBytes) {
            std::printf("%s %s\n", path, file.is_open() ? "is not a capture" : "cannot be opened");
            std::exit(1);
        }
        header_.assign(bytes.data() + 8, headerBytes);
        data_.assign(bytes.begin() + 8 + static_cast<int64_t>(headerBytes), bytes.end());
    }

    std::vector<int64_t> shape(const char *tensor) const
    {
        return list(tensor, "shape");
    }

    template <typename T> std::vector<T> values(const char *tensor) const
    {
        std::vector<int64_t> range = list(tensor, "data_offsets");
        std::vector<T> result(static_cast<size_t>(range[1] - range[0]) / sizeof(T));
        std::memcpy(result.data(), data_.data() + range[0], result.size() * sizeof(T));
        return result;
    }

    float scale() const
    {
        return std::strtof(header_.c_str() + header_.find(':', find("softmax_scale", 0)) + 2, nullptr);
    }

  private:
    size_t find(const std::string &key, size_t from) const
    {
        size_t at = header_.find("\"" + key + "\"", from);
        if (at == std::string::npos) {
            std::printf("the capture has no %s\n", key.c_str());
            std::exit(1);
        }
        return at;
    }

    std::vector<int64_t> list(const char *tensor, const char *key) const
    {
        std::vector<int64_t> numbers;
        size_t at = header_.find('[', find(key, find(tensor, 0)));
        for (const char *p = header_.c_str() + at; *p != ']';) {
            char *end;
            numbers.push_back(std::strtoll(p + 1, &end, 10));
            p = end;
        }
        return numbers;
    }

    std::string header_;
    std::vector<char> data_;
};

/* ---- a device ---------------------------------------------------------------------------------------------------- */

void *upload(const void *data, size_t bytes)
{
    void *memory = nullptr;
    CHECK(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    if (data != nullptr) {
        CHECK(aclrtMemcpy(memory, bytes, data, bytes, ACL_MEMCPY_HOST_TO_DEVICE));
    }
    return memory;
}

struct Tensor {
    void *memory;
    aclTensor *view;
    Tensor(void *at, std::vector<int64_t> dims, aclDataType type, aclFormat format = ACL_FORMAT_ND)
        : memory(at), view(aclCreateTensor(dims.data(), dims.size(), type, nullptr, 0, format, nullptr, 0, at))
    {
    }
};

/* Columns [from, from + n) of rows of WIDTH, as blocks in NZ. */
void *uploadColumns(const std::vector<uint16_t> &rows, int64_t blocks, int64_t from, int64_t n)
{
    std::vector<uint16_t> nz(static_cast<size_t>(blocks * BLOCK * n));
    const int64_t ndDims[] = {blocks, BLOCK, n}, nzDims[] = {blocks, n / 16, BLOCK, 16};
    mla_tensor nd = mla_tensor_make(const_cast<uint16_t *>(rows.data()) + from, MLA_DTYPE_BF16, 3, ndDims);
    nd.stride[0] = BLOCK * WIDTH;
    nd.stride[1] = WIDTH;
    mla_tensor piecewise = mla_tensor_make(nz.data(), MLA_DTYPE_BF16, 4, nzDims);
    CHECK(mla_nd_to_nz(&nd, &piecewise));
    return upload(nz.data(), nz.size() * sizeof(uint16_t));
}

struct Result {
    std::vector<uint16_t> out; /* [b][h][512] */
    std::vector<float> lse;    /* [b][h] */
};

/* One AtbMLA call: every request's keys [begin, end), clipped to those that it has. rows [b][all keys][WIDTH]. */
Result attend(const std::vector<uint16_t> &q, const std::vector<std::vector<uint16_t>> &rows, int64_t h, float scale,
              int64_t begin, int64_t end, atb::Context *context, aclrtStream stream)
{
    const int64_t b = static_cast<int64_t>(rows.size()), perRequest = (end - begin + BLOCK - 1) / BLOCK;
    std::vector<int32_t> lens, table;
    std::vector<uint16_t> cache(static_cast<size_t>(b * perRequest * BLOCK * WIDTH)), nope, rope;
    for (int64_t i = 0; i < b; i++) {
        int64_t have = static_cast<int64_t>(rows[i].size()) / WIDTH, last = std::min(have, end);
        lens.push_back(static_cast<int32_t>(std::max<int64_t>(last - begin, 0)));
        if (last > begin) {
            std::copy(rows[i].begin() + begin * WIDTH, rows[i].begin() + last * WIDTH,
                      cache.begin() + i * perRequest * BLOCK * WIDTH);
        }
        for (int64_t block = 0; block < perRequest; block++) {
            table.push_back(static_cast<int32_t>(i * perRequest + block));
        }
    }
    for (int64_t i = 0; i < b * h; i++) {
        nope.insert(nope.end(), q.begin() + i * WIDTH, q.begin() + i * WIDTH + NOPE);
        rope.insert(rope.end(), q.begin() + i * WIDTH + NOPE, q.begin() + (i + 1) * WIDTH);
    }
    Result result;
    result.out.resize(static_cast<size_t>(b * h * NOPE));
    result.lse.resize(static_cast<size_t>(b * h));

    const int64_t blocks = b * perRequest;
    const aclFormat nz = ACL_FORMAT_FRACTAL_NZ;
    Tensor qNope(upload(nope.data(), nope.size() * 2), {b, h, NOPE}, ACL_BF16);
    Tensor qRope(upload(rope.data(), rope.size() * 2), {b, h, ROPE}, ACL_BF16);
    Tensor ctKV(uploadColumns(cache, blocks, 0, NOPE), {blocks, NOPE / 16, BLOCK, 16}, ACL_BF16, nz);
    Tensor kRope(uploadColumns(cache, blocks, NOPE, ROPE), {blocks, ROPE / 16, BLOCK, 16}, ACL_BF16, nz);
    Tensor blockTables(upload(table.data(), table.size() * 4), {b, perRequest}, ACL_INT32);
    Tensor contextLens(lens.data(), {b}, ACL_INT32); /* host */
    Tensor attenOut(upload(nullptr, result.out.size() * 2), {b, h, NOPE}, ACL_BF16);
    Tensor lse(upload(nullptr, result.lse.size() * 4), {b, h, 1}, ACL_FLOAT);

    const int calcTypeRing = atb::infer::MultiLatentAttentionParam::CALC_TYPE_RING;
    const uint8_t nzCache = atb::infer::MultiLatentAttentionParam::NZCACHE;
    uint64_t workspaceSize = 0;
    atb::Operation *op = nullptr;
    CHECK(AtbMLAGetWorkspaceSize(qNope.view, qRope.view, ctKV.view, kRope.view, blockTables.view, contextLens.view,
                                 nullptr, nullptr, nullptr, nullptr, static_cast<int32_t>(h), scale, 1, 0, calcTypeRing,
                                 nzCache, attenOut.view, lse.view, &workspaceSize, &op, context));
    void *workspace = workspaceSize > 0 ? upload(nullptr, workspaceSize) : nullptr;
    CHECK(AtbMLA(workspace, workspaceSize, op, context));
    CHECK(aclrtSynchronizeStream(stream));
    CHECK(aclrtMemcpy(result.out.data(), result.out.size() * 2, attenOut.memory, result.out.size() * 2,
                      ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(aclrtMemcpy(result.lse.data(), result.lse.size() * 4, lse.memory, result.lse.size() * 4,
                      ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(atb::DestroyOperation(op));
    if (workspace != nullptr) {
        CHECK(aclrtFree(workspace));
    }
    for (Tensor *t : {&qNope, &qRope, &ctKV, &kRope, &blockTables, &attenOut, &lse}) {
        CHECK(aclrtFree(t->memory));
        CHECK(aclDestroyTensor(t->view));
    }
    CHECK(aclDestroyTensor(contextLens.view));
    return result;
}

} // namespace

int main(int argc, char **argv)
{
    const Capture capture(argc > 1 ? argv[1] : "tests/data/deepseek_decode.safetensors");
    const std::vector<uint16_t> q = capture.values<uint16_t>("q"), pool = capture.values<uint16_t>("k_cache");
    const std::vector<int32_t> table = capture.values<int32_t>("block_table");
    const std::vector<int32_t> lens = capture.values<int32_t>("cache_seqlens");
    const int64_t b = capture.shape("q")[0], h = capture.shape("q")[2];
    const int64_t page = capture.shape("k_cache")[1], maxPage = capture.shape("block_table")[1];

    /* the recording's pages, as the rows of each request */
    std::vector<std::vector<uint16_t>> rows(static_cast<size_t>(b));
    int64_t longest = 0;
    for (int64_t i = 0; i < b; i++) {
        for (int64_t p = 0; p < lens[i]; p++) {
            auto row = pool.begin() + (table[i * maxPage + p / page] * page + p % page) * WIDTH;
            rows[i].insert(rows[i].end(), row, row + WIDTH);
        }
        longest = std::max<int64_t>(longest, lens[i]);
    }

    CHECK(aclInit(nullptr));
    CHECK(aclrtSetDevice(0));
    aclrtStream stream = nullptr;
    atb::Context *context = nullptr;
    CHECK(aclrtCreateStream(&stream));
    CHECK(atb::CreateContext(&context));
    CHECK(context->SetExecuteStream(stream));

    const int64_t share = (longest + DEVICES - 1) / DEVICES;
    std::vector<Result> part;
    for (int64_t device = 0; device < DEVICES; device++) {
        part.push_back(attend(q, rows, h, capture.scale(), device * share, (device + 1) * share, context, stream));
    }
    Result whole = attend(q, rows, h, capture.scale(), 0, longest, context, stream), joined = whole;

    /* what a device does with the results of the others */
    const int64_t dims[] = {b, h, NOPE};
    mla_tensor outPart[DEVICES], lsePart[DEVICES];
    for (int64_t device = 0; device < DEVICES; device++) {
        outPart[device] = mla_tensor_make(part[device].out.data(), MLA_DTYPE_BF16, 3, dims);
        lsePart[device] = mla_tensor_make(part[device].lse.data(), MLA_DTYPE_F32, 2, dims);
    }
    mla_tensor out = mla_tensor_make(joined.out.data(), MLA_DTYPE_BF16, 3, dims);
    mla_tensor lse = mla_tensor_make(joined.lse.data(), MLA_DTYPE_F32, 2, dims);
    CHECK(mla_merge_states(outPart, lsePart, DEVICES, MLA_LSE_NATURAL, MLA_LSE_EMPTY_NEG_INF, &out, &lse));

    double mostOut = 0, mostLse = 0;
    int wrong = 0;
    for (int64_t i = 0; i < b * h * NOPE; i++) {
        double parts = 0, got = number(joined.out[i]), want = number(whole.out[i]);
        for (const Result &r : part) {
            double weight = std::exp(static_cast<double>(r.lse[i / NOPE]) - whole.lse[i / NOPE]);
            parts += weight > 0 ? weight * std::fabs(number(r.out[i])) : 0;
        }
        double limit = std::ldexp(parts + std::fabs(got) + std::fabs(want), -8) + 1e-6;
        wrong += !(std::fabs(got - want) <= limit);
        mostOut = std::fmax(mostOut, std::fabs(got - want));
    }
    for (int64_t i = 0; i < b * h; i++) {
        double difference = std::fabs(joined.lse[i] - whole.lse[i]);
        wrong += !(difference <= 1e-5 * std::fmax(1, std::fabs(whole.lse[i])));
        mostLse = std::fmax(mostLse, difference);
    }
    std::printf("%lld requests of up to %lld keys on %lld devices, %lld heads: joined and whole differ by at most %.2g "
                "in out and %.2g in lse; %d numbers differ by more than rounding explains\n",
                static_cast<long long>(b), static_cast<long long>(longest), static_cast<long long>(DEVICES),
                static_cast<long long>(h), mostOut, mostLse, wrong);
    CHECK(aclrtDestroyStream(stream));
    CHECK(atb::DestroyContext(context));
    CHECK(aclFinalize());
    return wrong != 0;
}
