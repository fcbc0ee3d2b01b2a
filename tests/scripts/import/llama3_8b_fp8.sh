#!/bin/bash
# Llama-3-8B in FP8 with Megatron-LM on the GPUs of one host, in the form of its examples.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
export NCCL_DEBUG=WARN
export OUTPUT=${1:-"runs/llama3_8b_fp8"}
DATA=${2:-"corpus/slimpajama_text_document"}
VALIDATION=${3:-}

GPUS=8
NODES=1
WORLD=$((GPUS * NODES))
DTYPE="fp8"
SEQUENCE=8192

mkdir -p "$(dirname "$OUTPUT")"

LAUNCH=(
    --nproc_per_node $GPUS
    --nnodes $NODES
    --node_rank ${NODE_RANK:-0}
    --master_addr localhost   # one host
    --master_port 29500
)
MODEL=(
    --use-mcore-models
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length $SEQUENCE
    --max-position-embeddings $SEQUENCE
    --position-embedding-type rope --rotary-base 500000 --rotary-percent 1.0
    --attention-dropout 0.0 --hidden-dropout 0.0
    --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights
    --init-method-std 0.0134
    --attention-backend fused
)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size $((WORLD * 16))
    --train-samples 1280000
    --lr-decay-samples 1280000
    --lr-warmup-samples 64000
    --decoupled-lr 0.0005
    --lr 0.00015 --min-lr 0.00001 --lr-decay-style cosine
    --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95
    --bf16
    --grad-reduce-in-bf16
    --cross-entropy-loss-fusion
    --manual-gc
    --exit-duration-in-mins 235
)

PRECISION=()
if [[ "$DTYPE" == "fp8" ]]; then
    PRECISION+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-amax-compute-algo max"
        "--fp8-param-gather"
    )
elif [ "$DTYPE" = nothing ]; then
    PRECISION+=(--fp16)
fi

PARALLEL=(--tensor-model-parallel-size 1 --context-parallel-size 1 --sequence-parallel
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
TRAINING+=("${PARALLEL[@]}")

INPUT="--data-path $DATA --split 99,1,0"
if [ -z "$VALIDATION" ]; then
    INPUT="$INPUT --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B"
else
    INPUT="--train-data-path $DATA --valid-data-path $VALIDATION"
fi

if [ ! -f pretrain_gpt.py ]; then
    echo "run this from Megatron-LM"
    exit 1
fi

torchrun ${LAUNCH[@]} pretrain_gpt.py \
    ${MODEL[@]} ${TRAINING[@]} ${PRECISION[@]} $INPUT \
    --vocab-size 128256 --log-interval 1 --eval-interval 100 --eval-iters 2 --save-interval 1000 \
    --save "$OUTPUT" --load "$OUTPUT" --tensorboard-dir "$OUTPUT/tensorboard" 2>&1 | tee log.txt
