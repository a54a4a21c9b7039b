/*
 * atb_door.cpp - ATB's C++ interface: contexts, operations, and the functions that take aclTensors. C++ because the
 * interface demands it; what it does is said in mla/atb_mla.h.
 *
 * Nothing is thrown across the interface: what cannot be allocated becomes ERROR_OUT_OF_HOST_MEMORY.
 */
#include "atb/atb_acl.h"

#include <new>

#include "acl_atb_tensor.h"
#include "mla/atb_mla.h"

extern "C" {
#include "acl_status.h"
#include "acl_stream.h"
}

namespace {

using atb::Context;
using atb::Operation;
using atb::Status;

Status refuse(Status code, const char *sentence)
{
    return compat_fail(code, "%s", sentence);
}

/* A code of the C door; its sentence becomes the one that aclGetRecentErrMsg() returns. */
Status forward(int32_t code)
{
    if (code != MLA_ATB_NO_ERROR) {
        compat_atb_keep_sentence();
    }
    return code;
}

template <typename Body> Status guarded(Body body)
{
    try {
        return body();
    } catch (...) {
        return refuse(atb::ERROR_OUT_OF_HOST_MEMORY, "the call does not fit into memory");
    }
}

/* ---- context ----------------------------------------------------------------------------------------------------- */

thread_local atb::ExecuteType executeType = atb::EXECUTE_NORMAL;

class StreamContext final : public Context {
  public:
    Status SetExecuteStream(aclrtStream stream) override
    {
        return SetExecuteStreams({stream});
    }

    aclrtStream GetExecuteStream() const override
    {
        return streams_.empty() ? nullptr : streams_[0];
    }

    Status SetAsyncTilingCopyStatus(bool enable) override
    {
        asyncTilingCopy_ = enable;
        return atb::NO_ERROR;
    }

    bool GetAsyncTilingCopyStatus() const override
    {
        return asyncTilingCopy_;
    }

    Status SetExecuteStreams(const std::vector<aclrtStream> &streams) override
    {
        if (streams.empty()) {
            return refuse(atb::ERROR_INVALID_PARAM, "streams is empty");
        }
        return guarded([&] {
            streams_ = streams;
            return atb::NO_ERROR;
        });
    }

    std::vector<aclrtStream> GetExecuteStreams() override
    {
        return streams_;
    }

    Status SetExecuteType(atb::ExecuteType type) override
    {
        if (type < atb::EXECUTE_NORMAL || type > atb::EXECUTE_LAUNCH) {
            return compat_fail(atb::ERROR_INVALID_PARAM, "type = %d must be 0, 1 or 2", static_cast<int>(type));
        }
        executeType = type;
        return atb::NO_ERROR;
    }

    atb::ExecuteType GetExecuteType() override
    {
        return executeType;
    }

    Status SetLaunchMode(atb::LaunchMode mode) override
    {
        if (mode != atb::KERNEL_LAUNCH_MODE && mode != atb::GRAPH_LAUNCH_MODE) {
            return compat_fail(atb::ERROR_INVALID_PARAM, "mode = %d must be 0 or 1", static_cast<int>(mode));
        }
        launchMode_ = mode;
        return atb::NO_ERROR;
    }

    atb::LaunchMode GetLaunchMode() override
    {
        return launchMode_;
    }

  private:
    std::vector<aclrtStream> streams_;
    bool asyncTilingCopy_ = false;
    atb::LaunchMode launchMode_ = atb::KERNEL_LAUNCH_MODE;
};

/* ---- operation --------------------------------------------------------------------------------------------------- */

mla_atb_tensor viewOf(const atb::TensorDesc &desc)
{
    int32_t rank = desc.shape.dimNum <= atb::MAX_DIM ? static_cast<int32_t>(desc.shape.dimNum) : -1;
    mla_atb_tensor view = mla_atb_tensor_make(nullptr, desc.dtype, desc.format, rank, desc.shape.dims);
    view.device = compat_atb_device();
    return view;
}

/* A VariantPack as the C door takes it. */
struct Pack {
    mla_atb_tensor tensor[MLA_ATB_MAX_IN + MLA_ATB_MAX_OUT];
    mla_atb_pack pack = {};

    void add(const mla_atb_tensor &view, bool output)
    {
        mla_atb_tensor &kept = tensor[pack.n_in + pack.n_out];
        kept = view;
        (output ? pack.out[pack.n_out++] : pack.in[pack.n_in++]) = &kept;
    }

    /* ERROR_INVALID_IN_TENSOR_NUM is the C door's to find out, but for what it has no room for. */
    Status fill(const mla_atb_op *op, const atb::VariantPack &from)
    {
        if (from.inTensors.size() > MLA_ATB_MAX_IN || from.outTensors.size() > MLA_ATB_MAX_OUT) {
            return compat_fail(atb::ERROR_INVALID_IN_TENSOR_NUM,
                               "%zu input and %zu output tensors are more than any operation takes",
                               from.inTensors.size(), from.outTensors.size());
        }
        for (const atb::Tensor &t : from.inTensors) {
            mla_atb_tensor view = viewOf(t.desc);
            view.data = mla_atb_op_in_is_host(op, pack.n_in) ? t.hostData : t.deviceData;
            add(view, false);
        }
        for (const atb::Tensor &t : from.outTensors) {
            mla_atb_tensor view = viewOf(t.desc);
            view.data = t.deviceData;
            add(view, true);
        }
        return atb::NO_ERROR;
    }
};

class LatentAttention final : public Operation {
  public:
    /* Takes over op. */
    explicit LatentAttention(mla_atb_op *op) noexcept : op_(op)
    {
    }
    LatentAttention(const LatentAttention &) = delete;
    LatentAttention &operator=(const LatentAttention &) = delete;

    ~LatentAttention() override
    {
        mla_atb_op_destroy(op_);
    }

    mla_atb_op *op() const
    {
        return op_;
    }

    std::string GetName() const override
    {
        return "MultiLatentAttentionOperation";
    }

    uint32_t GetInputNum() const override
    {
        return static_cast<uint32_t>(mla_atb_op_n_in(op_));
    }

    uint32_t GetOutputNum() const override
    {
        return static_cast<uint32_t>(mla_atb_op_n_out(op_));
    }

    Status InferShape(const atb::SVector<atb::TensorDesc> &inTensorDescs,
                      atb::SVector<atb::TensorDesc> &outTensorDescs) const override
    {
        return guarded([&]() -> Status {
            Pack pack;
            if (inTensorDescs.size() > MLA_ATB_MAX_IN) {
                return refuse(atb::ERROR_INVALID_IN_TENSOR_NUM, "more input tensors than any operation takes");
            }
            for (const atb::TensorDesc &desc : inTensorDescs) {
                pack.add(viewOf(desc), false);
            }
            mla_atb_tensor out[MLA_ATB_MAX_OUT] = {};
            Status code = forward(mla_atb_op_infer_shape(op_, &pack.pack, out));
            if (code != atb::NO_ERROR) {
                return code;
            }
            outTensorDescs.resize(GetOutputNum());
            for (size_t i = 0; i < outTensorDescs.size(); i++) {
                atb::TensorDesc &desc = outTensorDescs[i];
                desc.dtype = static_cast<aclDataType>(out[i].dtype);
                desc.format = static_cast<aclFormat>(out[i].format);
                desc.shape.dimNum = static_cast<uint64_t>(out[i].ndim);
                for (int32_t d = 0; d < out[i].ndim; d++) {
                    desc.shape.dims[d] = out[i].dim[d];
                }
            }
            return atb::NO_ERROR;
        });
    }

    Status Setup(const atb::VariantPack &variantPack, uint64_t &workspaceSize, Context *context) override
    {
        forget();
        if (context == nullptr) {
            return refuse(atb::ERROR_INVALID_PARAM, "context is null");
        }
        Pack pack;
        Status code = pack.fill(op_, variantPack);
        return code != atb::NO_ERROR ? code : setUp(pack.pack, false, workspaceSize, context);
    }

    Status Execute(const atb::VariantPack &variantPack, uint8_t *workspace, uint64_t workspaceSize,
                   Context *context) override
    {
        if (context == nullptr) {
            return refuse(atb::ERROR_INVALID_PARAM, "context is null");
        }
        Pack pack;
        Status code = pack.fill(op_, variantPack);
        return code != atb::NO_ERROR ? code : execute(&pack.pack, workspace, workspaceSize, context);
    }

    /* A setup has begun: should it fail, however early, then nothing can be executed. */
    void forget()
    {
        context_ = nullptr;
    }

    Status setUp(const mla_atb_pack &pack, bool needAddresses, uint64_t &workspaceSize, Context *context)
    {
        context_ = context;
        return forward(mla_atb_op_setup(op_, &pack, needAddresses, &workspaceSize));
    }

    /* context must not be null; pack may be. */
    Status execute(const mla_atb_pack *pack, void *workspace, uint64_t workspaceSize, Context *context)
    {
        if (context_ == nullptr) {
            return refuse(atb::ERROR_INVALID_PARAM, "the operation has not been set up");
        }
        aclrtStream stream = context->GetExecuteStream();
        if (stream == nullptr) {
            return refuse(atb::ERROR_INVALID_PARAM, "the context has no execute stream");
        }
        if (context != context_) {
            return refuse(atb::ERROR_INVALID_PARAM, "context is not the one that the operation was set up with");
        }
        if (context->GetExecuteType() == atb::EXECUTE_PRELAUNCH) {
            return atb::NO_ERROR;
        }
        Launch launch = {op_, pack, workspace, workspaceSize, atb::NO_ERROR};
        if (compat_stream_launch(stream, run, &launch) != ACL_SUCCESS) {
            return atb::ERROR_INVALID_PARAM; /* no stream; the sentence says so */
        }
        return launch.code;
    }

  private:
    struct Launch {
        mla_atb_op *op;
        const mla_atb_pack *pack;
        void *workspace;
        uint64_t workspaceSize;
        Status code;
    };

    /* What the run itself meets is the stream's error too, as on a device; other refusals are the caller's alone. */
    static int32_t run(void *data, const compat_place *place)
    {
        Launch *launch = static_cast<Launch *>(data);
        launch->code = forward(mla_atb_op_execute(launch->op, launch->pack, launch->workspace, launch->workspaceSize,
                                                  place->stream));
        return launch->code == atb::ERROR_RT_FAIL ? ACL_ERROR_RT_AICORE_EXCEPTION : ACL_SUCCESS;
    }

    mla_atb_op *op_;
    Context *context_ = nullptr; /* of the last setup */
};

Status createFrom(const mla_atb_param &param, Operation **operation)
{
    mla_atb_op *op = nullptr;
    Status code = forward(mla_atb_op_create(&param, &op));
    if (code != atb::NO_ERROR) {
        return code;
    }
    *operation = new (std::nothrow) LatentAttention(op);
    if (*operation == nullptr) {
        mla_atb_op_destroy(op);
        return refuse(atb::ERROR_OUT_OF_HOST_MEMORY, "the operation does not fit into memory");
    }
    return atb::NO_ERROR;
}

/* ---- the functions that take aclTensors -------------------------------------------------------------------------- */

/* GetWorkspaceSize of both calls, in ATB's order: create, gather, then what the operation itself checks. */
template <typename Args>
Status getWorkspaceSize(const Args &args, int32_t (*gather)(const Args *, mla_atb_pack *), uint64_t *workspaceSize,
                        Operation **op, Context *context)
{
    if (op != nullptr && *op == nullptr) {
        Status code = createFrom(args.param, op);
        if (code != atb::NO_ERROR) {
            return code;
        }
    }
    LatentAttention *attention = op != nullptr ? dynamic_cast<LatentAttention *>(*op) : nullptr;
    if (attention != nullptr) {
        attention->forget();
    }
    mla_atb_pack pack;
    Status code = forward(gather(&args, &pack));
    if (code != atb::NO_ERROR) {
        return code;
    }
    if (op == nullptr) {
        return refuse(atb::ERROR_INVALID_OPERATION_ADDR, "op is null");
    }
    if (attention == nullptr) {
        return refuse(atb::ERROR_INVALID_OPERATION_ADDR, "*op is not an operation of this function");
    }
    if (context == nullptr || workspaceSize == nullptr) {
        return refuse(atb::ERROR_INVALID_PARAM, context == nullptr ? "context is null" : "workspaceSize is null");
    }
    code = forward(mla_atb_op_check_reuse(attention->op(), &args.param));
    return code != atb::NO_ERROR ? code : attention->setUp(pack, true, *workspaceSize, context);
}

Status execute(void *workspace, uint64_t workspaceSize, Operation *op, Context *context)
{
    LatentAttention *attention = dynamic_cast<LatentAttention *>(op);
    if (attention == nullptr) {
        return refuse(atb::ERROR_INVALID_OPERATION_ADDR,
                      op == nullptr ? "op is null" : "op is not an operation of this function");
    }
    if (context == nullptr) {
        return refuse(atb::ERROR_INVALID_PARAM, "context is null");
    }
    return attention->execute(nullptr, workspace, workspaceSize, context);
}

mla_atb_param scalars(int32_t headNum, float qkScale, int32_t kvHeadNum, int maskType, int calcType, uint8_t cacheMode)
{
    mla_atb_param param;
    mla_atb_param_init(&param);
    param.head_num = headNum;
    param.qk_scale = qkScale;
    param.kv_head_num = kvHeadNum;
    param.mask_type = maskType;
    param.calc_type = calcType;
    param.cache_mode = cacheMode;
    return param;
}

} // namespace

/* ---- what is exported -------------------------------------------------------------------------------------------- */

namespace atb {

Status CreateContext(Context **context)
{
    if (context == nullptr) {
        return refuse(ERROR_INVALID_PARAM, "context is null");
    }
    *context = new (std::nothrow) StreamContext;
    return *context != nullptr ? static_cast<Status>(NO_ERROR)
                               : refuse(ERROR_OUT_OF_HOST_MEMORY, "the context does not fit into memory");
}

Status CreateContext(Context **context, const std::function<void *(size_t)> &alloc,
                     const std::function<void(void *)> &dealloc)
{
    if (context != nullptr) {
        *context = nullptr;
    }
    if (static_cast<bool>(alloc) != static_cast<bool>(dealloc)) {
        return refuse(ERROR_INVALID_PARAM, "alloc and dealloc must be given together");
    }
    return CreateContext(context);
}

Status CreateContext(Context **context, uint32_t hostTilingBlockNum, uint32_t deviceTilingBlockNum)
{
    if (context != nullptr) {
        *context = nullptr;
    }
    if (hostTilingBlockNum < 128 || hostTilingBlockNum > 1024) {
        return compat_fail(ERROR_INVALID_PARAM, "hostTilingBlockNum = %u must be between 128 and 1024",
                           hostTilingBlockNum);
    }
    if (deviceTilingBlockNum < 32 || deviceTilingBlockNum > 1024) {
        return compat_fail(ERROR_INVALID_PARAM, "deviceTilingBlockNum = %u must be between 32 and 1024",
                           deviceTilingBlockNum);
    }
    return CreateContext(context);
}

Status DestroyContext(Context *context)
{
    delete context;
    return NO_ERROR;
}

Status DestroyOperation(Operation *operation)
{
    delete operation;
    return NO_ERROR;
}

template <> Status CreateOperation(const infer::MultiLatentAttentionParam &opParam, Operation **operation)
{
    if (operation == nullptr) {
        return refuse(ERROR_INVALID_PARAM, "operation is null");
    }
    *operation = nullptr;
    for (uint8_t byte : opParam.rsv) {
        if (byte != 0) {
            return refuse(ERROR_INVALID_PARAM, "rsv must be 0 throughout");
        }
    }
    mla_atb_param param = scalars(opParam.headNum, opParam.qkScale, opParam.kvHeadNum, opParam.maskType,
                                  opParam.calcType, opParam.cacheMode);
    param.window_size = opParam.windowSize;
    param.mask_use_status_type = opParam.maskUseStatusType;
    return createFrom(param, operation);
}

} // namespace atb

atb::Status AtbMLAGetWorkspaceSize(const aclTensor *qNope, const aclTensor *qRope, const aclTensor *ctKV,
                                   const aclTensor *kRope, const aclTensor *blockTables, const aclTensor *contextLens,
                                   const aclTensor *mask, const aclTensor *qSeqLen, const aclTensor *qkDescale,
                                   const aclTensor *pvDescale, int32_t headNum, float qkScale, int32_t kvHeadNum,
                                   int maskType, int calcType, uint8_t cacheMode, aclTensor *attenOut, aclTensor *lse,
                                   uint64_t *workspaceSize, atb::Operation **op, atb::Context *context)
{
    mla_atb_tensor view[12];
    mla_atb_decode_args args = {};
    args.struct_size = sizeof args;
    args.q_nope = compat_atb_view(qNope, &view[0]);
    args.q_rope = compat_atb_view(qRope, &view[1]);
    args.ct_kv = compat_atb_view(ctKV, &view[2]);
    args.k_rope = compat_atb_view(kRope, &view[3]);
    args.block_tables = compat_atb_view(blockTables, &view[4]);
    args.context_lens = compat_atb_view(contextLens, &view[5]);
    args.mask = compat_atb_view(mask, &view[6]);
    args.q_seq_len = compat_atb_view(qSeqLen, &view[7]);
    args.qk_descale = compat_atb_view(qkDescale, &view[8]);
    args.pv_descale = compat_atb_view(pvDescale, &view[9]);
    args.atten_out = compat_atb_view(attenOut, &view[10]);
    args.lse = compat_atb_view(lse, &view[11]);
    args.param = scalars(headNum, qkScale, kvHeadNum, maskType, calcType, cacheMode);
    return getWorkspaceSize(args, mla_atb_decode_gather, workspaceSize, op, context);
}

atb::Status AtbMLA(void *workspace, uint64_t workspaceSize, atb::Operation *op, atb::Context *context)
{
    return execute(workspace, workspaceSize, op, context);
}

atb::Status AtbMLAPreFillGetWorkspaceSize(const aclTensor *q, const aclTensor *qRope, const aclTensor *k,
                                          const aclTensor *kRope, const aclTensor *v, const aclTensor *qSeqLen,
                                          const aclTensor *kvSeqLen, const aclTensor *mask, int32_t headNum,
                                          float qkScale, int32_t kvHeadNum, int maskType, uint8_t cacheMode,
                                          aclTensor *attenOut, uint64_t *workspaceSize, atb::Operation **op,
                                          atb::Context *context)
{
    mla_atb_tensor view[9];
    mla_atb_prefill_args args = {};
    args.struct_size = sizeof args;
    args.q = compat_atb_view(q, &view[0]);
    args.q_rope = compat_atb_view(qRope, &view[1]);
    args.k = compat_atb_view(k, &view[2]);
    args.k_rope = compat_atb_view(kRope, &view[3]);
    args.v = compat_atb_view(v, &view[4]);
    args.q_seq_len = compat_atb_view(qSeqLen, &view[5]);
    args.kv_seq_len = compat_atb_view(kvSeqLen, &view[6]);
    args.mask = compat_atb_view(mask, &view[7]);
    args.atten_out = compat_atb_view(attenOut, &view[8]);
    args.param = scalars(headNum, qkScale, kvHeadNum, maskType, MLA_ATB_CALC_PREFILL, cacheMode);
    return getWorkspaceSize(args, mla_atb_prefill_gather, workspaceSize, op, context);
}

atb::Status AtbMLAPreFill(void *workspace, uint64_t workspaceSize, atb::Operation *op, atb::Context *context)
{
    return execute(workspace, workspaceSize, op, context);
}
